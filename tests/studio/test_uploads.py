"""What visitors send: no picture, too large a picture, and the guard before the server; without a browser."""

import asyncio
import base64
import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from diti.core.errors import InputError
from diti.studio.guard import MOST_BYTES, Guard, hosts_of, is_crafted
from diti.studio.uploads import MOST_BYTES as LARGEST_FILE
from diti.studio.uploads import read_upload


def sent(data, kind="image/png"):
    return {"data": f"data:{kind};base64,{base64.b64encode(data).decode()}"}


def png(width=40, height=30):
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 60)).save(buffer, "PNG")
    return buffer.getvalue()


def head_of_png(width, height):
    """A file that claims so many pixels and has none: nothing may try to make room for them."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    return start + struct.pack(">I", 4) + b"IDAT" + bytes(4)


def test_a_picture_becomes_a_square_of_the_models_size():
    pixels = read_upload(sent(png()), 16)
    assert pixels.shape == (16, 16, 3) and pixels.dtype == np.uint8
    assert pixels[8, 8].tolist() == [200, 30, 60]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (sent(png()[:60]), "cannot be read as a picture"),
        (sent(b"just some words", "image/png"), "cannot be read as a picture"),
        (sent(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "cannot be read as a picture"),
        (sent(head_of_png(10_000, 10_000)), "100 megapixels (10,000×10,000)"),
        (sent(head_of_png(60_000, 60_000)), "pixels"),
        ({"data": "data:image/png;base64," + "A" * (LARGEST_FILE * 2)}, "too large"),
        ({}, "too large"),  # the page sends no contents then
        ({"data": "data:image/png;base64,%%%"}, "cannot be read as a picture"),
        ({"data": "/etc/passwd"}, "cannot be read as a picture"),
        ({"data": "file:///etc/passwd"}, "cannot be read as a picture"),
        ({"data": ["/etc/passwd"]}, "not an upload"),
        (None, "not an upload"),
    ],
)
def test_whatever_is_no_picture_gets_a_friendly_line(given, words):
    with pytest.raises(InputError) as told:
        read_upload(given, 16)
    assert words in str(told.value)


@pytest.mark.parametrize(
    ("body", "crafted"),
    [
        (b'{"data": [1, "0:3"], "fn_index": 2}', False),
        (b'{"data": [{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}]}', True),
        (rb'{"data": [[{"p\u0061th": "http://10.0.0.1/"}]]}', True),
        (b'{"data": [{"meta": {"_type": "gradio.FileData"}}]}', True),
        (b"[" * 100_000, True),
        (rb'{"data": ["\ud800"]}', True),
        (rb'{"data": [{"\udfff": 1}]}', True),
        (b"username=me&password=secret", False),
    ],
)
def test_a_request_that_no_page_sends_is_told_from_others(body, crafted):
    assert is_crafted(body) is crafted


HOSTS = hosts_of("127.0.0.1", 7860)


def asked(path, body=b"", host=b"127.0.0.1:7860", method="POST", hosts=HOSTS, origin=b""):
    """Status, and the body that the server behind the guard has seen."""
    seen, answers = [], []

    async def app(scope, receive, send):
        seen.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        answers.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [(b"host", host)]}
    scope["headers"] += [(b"origin", origin)] * bool(origin)
    asyncio.run(Guard(app, hosts)(scope, receive, send))
    return answers[0]["status"], seen


def test_the_guard_lets_the_page_through_and_nothing_else():
    join = "/gradio_api/queue/join"
    assert asked(join, b'{"data": []}') == (200, [b'{"data": []}'])
    assert asked("/", method="GET")[0] == 200
    assert asked("/gradio_api/upload", b"a file") == (404, [])
    assert asked("/gradio_api/proxy=http://example.org", method="GET")[0] == 404
    assert asked(join, b'{"data": [{"path": "/etc/passwd"}]}') == (400, [])
    assert asked(join, b"x" * (MOST_BYTES + 1)) == (413, [])
    assert asked("/", host=b"evil.example:7860", method="GET") == (421, [])
    assert asked("/", host=b"evil.example:7860", method="GET", hosts=None)[0] == 200


@pytest.mark.parametrize(
    ("name", "port", "welcome", "strange"),
    [
        ("127.0.0.1", 7860, ["127.0.0.1:7860", "LOCALHOST:7860", "[::1]:7860"], ["127.0.0.1", "127.0.0.1:80", ""]),
        ("127.0.0.1", 80, ["127.0.0.1", "localhost", "[::1]", "127.0.0.1:80"], ["evil.example", "127.0.0.1:7860"]),
        ("::1", 80, ["[::1]", "[::1]:80"], ["::1", "[::1]:"]),
        ("127.0.0.9", 7860, ["127.0.0.9:7860"], ["127.0.0.8:7860", "evil.example:7860"]),
    ],
)
def test_the_studio_is_known_by_what_browsers_call_it(name, port, welcome, strange):
    """Without the port where that is 80."""
    hosts = hosts_of(name, port)
    answers = {word: asked("/", host=word.encode(), method="GET", hosts=hosts)[0] for word in welcome + strange}
    assert answers == {**dict.fromkeys(welcome, 200), **dict.fromkeys(strange, 421)}


def test_other_pages_may_not_ask():
    join, body = "/gradio_api/queue/join", b'{"data": []}'
    for origin in (b"http://evil.example", b"http://127.0.0.1:8888", b"null", b"http://[", b"http://127.0.0.1"):
        assert asked(join, body, origin=origin) == (403, [])
    assert asked(join, body, origin=b"http://127.0.0.1:7860")[0] == 200
    behind_a_proxy = {"host": b"studio.example", "hosts": None}
    assert asked(join, body, origin=b"https://Studio.example", **behind_a_proxy)[0] == 200
    assert asked(join, body, origin=b"https://evil.example", **behind_a_proxy) == (403, [])


@pytest.mark.parametrize("begun", [[], [{"type": "http.response.start", "status": 200, "headers": []}]])
def test_a_fault_behind_the_guard_is_one_line_and_an_answer(begun, capsys):
    answers = []

    async def app(scope, receive, send):
        for message in begun:
            await send(message)
        raise KeyError("secret")

    async def send(message):
        answers.append(message)

    scope = {"type": "http", "method": "GET", "path": "/x\n", "headers": []}
    asyncio.run(Guard(app)(scope, None, send))
    assert capsys.readouterr().err == "diti: a request was not understood (KeyError at GET '/x\\n')\n"
    assert answers[0]["status"] == (200 if begun else 500)
    assert [message["type"] for message in answers] == ["http.response.start", "http.response.body"]
