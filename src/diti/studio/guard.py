"""What is asked of the server beyond what the page itself asks is refused before gradio sees it.

No part of the page takes a file: pictures come as bytes in memory. So a request that names a file, by path or by
address, is nobody's honest click, and there is nothing to upload to.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

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


class Guard:
    """ASGI middleware. hosts: names under which the studio may be asked; None for any."""

    def __init__(self, app: Any, hosts: frozenset[str] | None = None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        body = b""
        if not refusal and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            body, refusal = await _read(receive)
        if refusal:
            await _refuse(send, *refusal)
        else:
            await self.app(scope, _again(body, receive) if body else receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """By the head of a request alone. Another name for this machine may be a foreign page's trick."""
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        if self.hosts is not None and host.rpartition(":")[0].strip("[]") not in self.hosts:
            return 421, "This studio is not known by that name."
        return (404, "Not found") if scope["path"].startswith(CLOSED) else None


async def _read(receive: Receive) -> tuple[bytes, tuple[int, str] | None]:
    """The whole body, and why not."""
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        part, more = message.get("body", b""), message.get("more_body", False)
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            return b"", (413, "This is too large.")
    body = b"".join(parts)
    return body, (400, "No file can be named here.") if names_a_file(body) else None


def names_a_file(body: bytes) -> bool:
    """Whether JSON holds what gradio would take for a file on this machine, or for an address to fetch."""
    if not body.lstrip().startswith((b"{", b"[")):
        return False
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return True  # the page sends no such thing
    waiting = [given]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            if "path" in item or item.get("_type") == "gradio.FileData":
                return True
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return False


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
