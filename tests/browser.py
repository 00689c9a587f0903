"""A real browser for tests of pages: what it shows, what it complains about, and what it asks for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "google-chrome", "chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@dataclass
class Visit:
    """An open page (playwright's) and what has happened on it so far."""

    page: Page
    errors: list[str] = field(default_factory=list)  # of the console, and exceptions of scripts
    failed: list[str] = field(default_factory=list)  # requests that got no answer
    outside: list[str] = field(default_factory=list)  # requests that leave this machine

    def assert_quiet(self) -> None:
        """No complaint, no failed request, nothing asked of the outside."""
        assert (self.errors, self.failed, self.outside) == ([], [], [])

    def _note_request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("file", "data", "blob", "about") and parts.hostname not in (
            "127.0.0.1",
            "localhost",
        ):
            self.outside.append(url)

    def _listen(self) -> None:
        page = self.page
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._note_request(request.url))
        page.on("requestfailed", lambda request: self.failed.append(f"{request.url}: {request.failure}"))
        page.on("websocket", lambda socket: self._note_request(socket.url))


@contextmanager
def launch() -> Iterator[Browser]:
    """Chromium without a window; the test is skipped where it or playwright is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(f"no Chromium is installed ({', '.join(_NAMES)}); to run it: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def open_page(
    browser: Browser, url: str, *, width: int = 1200, height: int = 800, dark: bool = False
) -> Iterator[Visit]:
    """Open an address in a fresh profile, wait until it is loaded, and close it at the end."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    try:
        visit = Visit(context.new_page())
        visit._listen()
        visit.page.goto(url, wait_until="load")
        yield visit
    finally:
        context.close()
