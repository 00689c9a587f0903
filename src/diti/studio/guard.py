"""Requests that the page itself never makes are refused before gradio sees them.

No part of the page takes a file: pictures come as bytes in memory. So a request that names a file, by path or by
address, is nobody's honest click, and there is nothing to upload to. What gradio still stumbles over gets an
answer too, and a single line in the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HTTP_PORT = 80  # which addresses leave out
NOT_UNDERSTOOD = "This request was not understood."
MOST_BYTES = 12 * 2**20  # of a request: a picture as text, and some settings
API = "/gradio_api/"
CLOSED = tuple(
    API + name
    for name in (
        "upload", "proxy=", "stream", "call/", "run/", "api/", "mcp", "component_server", "deep_link", "runs",
        "process_recording", "monitoring", "dev/", "vibe",
    )
)  # fmt: skip
HEADERS = {
    b"content-security-policy": b"default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; "
    b"frame-ancestors 'self'; base-uri 'self'; form-action 'self'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
}


def hosts_of(name: str, port: int) -> frozenset[str]:
    """What browsers send as Host for a page of this machine: with its port, which they leave out where it is 80.

    Any other name may be that of a foreign page which had it point here (DNS rebinding), to read with its own
    rights what only pages of this machine may see.
    """
    names = {"localhost", "127.0.0.1", "[::1]", f"[{name}]" if ":" in name else name.lower()}
    return frozenset({f"{name}:{port}" for name in names} | (names if port == HTTP_PORT else set()))


class Guard:
    """ASGI middleware. hosts: what a Host header may say; None: anything."""

    def __init__(self, app: Any, hosts: frozenset[str] | None = None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if not refusal and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            body, refusal = await _read(receive)
            receive = _again(body, receive)
        if refusal:
            await _refuse(send, *refusal)
        else:
            await self._ask(scope, receive, send)

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on to the server behind; its faults end in an answer, and in one line instead of a traceback."""
        begun = unfinished = False

        async def give(message: Message) -> None:
            nonlocal begun, unfinished
            begun, unfinished = True, message.get("more_body", message["type"] == "http.response.start")
            await send(message)

        try:
            await self.app(scope, receive, _with_headers(give))
        except Exception as error:
            fault = f"{type(error).__name__} at {scope['method']} {scope['path'][:80]!a}"
            print(f"diti: a request was not understood ({fault})", file=sys.stderr)
            if not begun:
                await _refuse(send, 500, NOT_UNDERSTOOD)
            elif unfinished:
                with suppress(RuntimeError):  # shorter than promised: the server then drops the connection
                    await send({"type": "http.response.body", "body": b""})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """By the head of a request alone. Another name for this machine may be a foreign page's trick."""
        headers = dict(scope["headers"])
        host, origin = (headers.get(name, b"").decode("latin-1").lower() for name in (b"host", b"origin"))
        if self.hosts is not None and host not in self.hosts:
            return 421, "This studio is not known by that name; open it at the address that it printed."
        if origin and _place(origin) != host:
            return 403, "Other pages may not use this studio."
        return (404, "Not found") if scope["path"].startswith(CLOSED) else None


def _place(origin: str) -> str:
    """Host and port of the page that asks; empty for one that is not told, such as `null`."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


async def _read(receive: Receive) -> tuple[bytes, tuple[int, str] | None]:
    """The whole body, and why it is refused, if it is."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        part, more = message.get("body", b""), message.get("more_body", False)
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            return b"", (413, "This is too large.")
    body = b"".join(parts)
    return body, (400, NOT_UNDERSTOOD) if is_crafted(body) else None


def is_crafted(body: bytes) -> bool:
    """Whether JSON holds what no page sends: a file on this machine, an address to fetch, or broken text."""
    if not body.lstrip().startswith((b"{", b"[")):
        return False
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return True
    waiting = [given]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if "path" in item or item.get("_type") == "gradio.FileData":
                return True
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and not _can_be_sent(item):
            return True
    return False


def _can_be_sent(text: str) -> bool:
    """Half a character, as in "\\ud800", could not be sent back in an answer that quotes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, for the next in line; then whatever comes."""
    left = [body]

    async def give() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return give


def _with_headers(send: Send) -> Send:
    async def give(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *HEADERS.items()]
        await send(message)

    return give


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *HEADERS.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
