"""What no page would send, to a real server: an answer to each, one line in the terminal, and it lives on."""

import asyncio
import gc
import http.client
import io
import json
import socket
import threading

import pytest
import torch
from tiny import DIMS, tiny_model

pytest.importorskip("gradio", reason="gradio is not installed (pip install 'diti-torch[studio]')")

from diti.core.errors import InputError
from diti.studio.server import launched
from diti.studio.world import World, open_world

pytestmark = pytest.mark.filterwarnings("ignore")  # gradio's own, of its dependencies
JOIN, DATA = "/gradio_api/queue/join", "/gradio_api/queue/data"
RUBBISH = (None, 10**400, float("inf"), "x" * 3000, [None], {"row": 1.0, "cell": "9,9"})


class Studio:
    """A server, what its terminal shows, and a client without a browser."""

    def __init__(self, port, logged):
        self.port, self.logged, self.visits = port, logged, 0
        self.printed = None  # capsys

    def ask(self, method, path, body=None, headers=()):
        """Status and text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        try:
            connection.request(method, path, body, {"content-type": "application/json", **dict(headers)})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def join(self, *requests):
        """How requests of one visitor to the queue end: the status of a refusal, or whether each succeeded."""
        self.visits += 1
        visit = f"visit{self.visits}"
        for body in requests:
            status, _ = self.ask("POST", JOIN, json.dumps({"session_hash": visit, **body}))
            if status != 200:
                return status
        _, stream = self.ask("GET", f"{DATA}?session_hash={visit}")
        messages = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
        return [message["success"] for message in messages if message["msg"] == "process_completed"]

    def controls(self):
        """What can be asked for, by number, and how many values it takes; of those that do the same thing one."""
        found = json.loads(self.ask("GET", "/config")[1])["dependencies"]
        return {(item["api_name"].rstrip("_0123456789"), len(item["inputs"])): item["id"] for item in found}

    def lines(self):
        """What the terminal has shown since it was asked last."""
        shown = "".join([*self.printed.readouterr(), self.logged.getvalue()])
        self.logged.seek(0)
        self.logged.truncate()
        return shown.splitlines()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crafted")
    model = tiny_model()
    model.mean, model.std = torch.full((DIMS,), 0.1), torch.full((DIMS,), 2.0)
    model.save(folder / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(folder / "cache"))
        patch.setattr(World, "steps", (2,))
        yield open_world(str(folder / "model"), "toyfaces:60")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def server(world):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", logged := io.StringIO())  # where uvicorn logs from now on
        with launched(world, "127.0.0.1", port := free_port(), None):
            yield Studio(port, logged)


@pytest.fixture
def studio(server, capsys):
    """It lives on after whatever it was asked, and has shown no traceback."""
    server.printed = capsys
    yield server
    assert [line for line in server.lines() if not line.startswith("diti: ")] == []
    assert server.join({"fn_index": 0, "data": [None]}) == [True] and server.lines() == []


@pytest.mark.parametrize("number", [-1, 9999, 10**30, "x", None, 1.5, [], {}], ids=str)
def test_controls_that_are_not_there(studio, number):
    assert studio.join({"fn_index": number, "data": [None]}) in (400, 422, 500)
    assert len(studio.lines()) <= 1


def test_too_few_and_too_many_values(studio):
    few = [{"fn_index": number, "data": [None] * (count - 1)} for (_, count), number in studio.controls().items()]
    assert studio.join(*few) == [False] * len(few)
    assert studio.lines() == ["diti: a request was not understood (ValueError)"] * len(few)
    assert studio.join({"fn_index": 0, "data": [None] * 9}) == [True]


@pytest.mark.parametrize("value", RUBBISH, ids=lambda value: repr(value)[:20])
def test_rubbish_as_values_and_as_what_a_click_told(studio, value):
    """No report either: they would fill the disk."""
    sent = {"event_data": value, "trigger_id": -1, "event_id": "x", "batched": True}
    requests = [
        {"fn_index": number, "data": [value] * count, **sent} for (_, count), number in studio.controls().items()
    ]
    assert len(studio.join(*requests)) == len(requests)
    lines = studio.lines()
    assert len(lines) <= len(requests) and "report" not in "".join(lines)


@pytest.mark.parametrize(
    ("method", "path", "body", "statuses"),
    [
        ("POST", JOIN, b"", (422,)),
        ("POST", JOIN, b"{", (400,)),
        ("POST", JOIN, b"[1]", (422,)),
        ("POST", JOIN, b"null", (422,)),
        ("POST", JOIN, b"\xff\xfe", (400, 422)),
        ("POST", JOIN, b'{"data": []}', (400,)),
        ("POST", JOIN, b'{"data": {}, "fn_index": 0, "session_hash": "a"}', (422,)),
        ("POST", JOIN, b'{"data": [], "fn_index": 0, "session_hash": 5}', (422,)),
        ("POST", JOIN, rb'{"data": [], "fn_index": 0, "session_hash": "\ud800"}', (400,)),
        ("GET", f"{DATA}?session_hash=nobody", None, (200, 404)),
        ("GET", f"{DATA}?session_hash=%ff%00", None, (200, 404)),
        ("GET", DATA, None, (422,)),
        ("POST", "/gradio_api/cancel", b'{"session_hash": "a", "fn_index": 1, "event_id": "b"}', (200,)),
        ("POST", "/gradio_api/cancel", b'{"fn_index": []}', (422,)),
        ("POST", "/gradio_api/reset", b'{"event_id": "b"}', (200,)),
        ("POST", "/gradio_api/reset", b'{"event_id": {}}', (422,)),
        ("POST", "/login", b"username=a&password=b", (400, 404, 422, 500)),
        ("GET", "/gradio_api/file=/etc/passwd", None, (403,)),
        ("GET", "/gradio_api/file=%00", None, (403, 404, 500)),
        ("GET", "/gradio_api/file=http://10.0.0.1/", None, (403, 404)),
        ("GET", "/gradio_api/custom_component/x/client/component/..%2fx", None, (404, 500)),
        ("GET", "/static/..%2f..%2fetc%2fpasswd", None, (403, 404)),
        ("GET", "/assets/%00", None, (403, 404, 500)),
        ("GET", "/svelte/..", None, (403, 404)),
        ("GET", "/pwa_icon/x", None, (404, 422, 500)),
        ("GET", "/gradio_api/upload_progress?upload_id=x", None, (404,)),
        ("GET", "/gradio_api/info?serialize=x", None, (200, 422)),
        ("GET", "/nowhere", None, (404,)),
        ("PUT", "/", b"x", (405,)),
        ("BREW", "/", None, (405,)),
    ],
)  # fmt: skip
def test_other_addresses_and_broken_bodies(studio, method, path, body, statuses):
    assert studio.ask(method, path, body)[0] in statuses
    assert len(studio.lines()) <= 1


def test_a_foreign_page_may_not_ask(studio):
    body = json.dumps({"session_hash": "theirs", "fn_index": 0, "data": [None]})
    assert studio.ask("POST", JOIN, body, {"origin": "http://evil.example"})[0] == 403
    assert studio.ask("POST", JOIN, body, {"origin": f"http://127.0.0.1:{studio.port}"})[0] == 200
    assert studio.ask("GET", "/", headers={"host": "evil.example"})[0] == 421


# How it opens and closes


def unclosed_loops():
    gc.collect()
    found = (item for item in gc.get_objects() if isinstance(item, asyncio.AbstractEventLoop))
    return {id(loop) for loop in found if not loop.is_closed()}


def test_nothing_is_left_at_work_when_it_is_closed(world):
    """Not even for a visitor who is still connected."""
    loops, threads = unclosed_loops(), set(threading.enumerate())
    with launched(world, "127.0.0.1", port := free_port(), None):
        visitor = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        visitor.request("GET", "/gradio_api/heartbeat/somebody")
        visitor.getresponse().read(4)
    visitor.close()
    assert not {thread.name for thread in set(threading.enumerate()) - threads if "run" in thread.name}
    assert unclosed_loops() <= loops


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 80), ("::1", None)])
def test_places_that_browsers_write_otherwise(world, host, port, monkeypatch):
    """Port 80 is left out, and brackets are around an address of version 6; no proxy stands between."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    port = port or free_port()
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            pass
    except OSError as error:
        pytest.skip(f"{host} port {port} is not ours to open: {error}")
    with launched(world, host, port, None) as address:
        assert address == f"http://{'[::1]' if ':' in host else host}:{port}"
        asked = http.client.HTTPConnection(host, port, timeout=600)
        asked.request("GET", "/config")
        assert asked.getresponse().status == 200
        asked.close()


def test_a_port_that_is_taken_in_the_last_moment(world):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InputError, match="cannot be opened"),
        launched(world, "127.0.0.1", taken.getsockname()[1], None),
    ):
        pass
