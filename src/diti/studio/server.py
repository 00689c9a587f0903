"""`diti serve`: open the studio on this machine, and leave nothing behind when it closes."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import shutil
import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from diti.config import Range, check_number
from diti.core.errors import InputError

WAITING = 64  # requests in the queue; who comes later is told to try again
SESSIONS = 200  # visitors whose state is kept


def serve(source: str, data: str | None, host: str, port: int, auth: str | None, show: bool) -> None:
    """Serve until Ctrl-C. Everything that can be is checked before the first second of work."""
    login = check_place(host, port, auth)
    require_extra()
    print("opening the studio ...", flush=True)
    from diti.studio.world import open_world

    world = open_world(source, data)
    with asked_to_end() as closing, launched(world, host, port, login) as address:
        print(f"the studio is open: {address}  (Ctrl-C closes it)", flush=True)
        if show:
            webbrowser.open(address)
        wait(closing)
    print("the studio is closed")


def check_place(host: str, port: int, auth: str | None) -> tuple[str, str] | None:
    """User and password; InputError for an address that cannot be served, or must not without a password."""
    check_number("port", port, Range(1, 65_535))
    if not host.strip():
        raise InputError("--host is empty; give an address such as 127.0.0.1")
    user, _, password = (auth or "").partition(":")
    if auth is not None and not (user and password):
        raise InputError("--auth is not of the form user:password; give both, with a colon between")
    if not is_loopback(host) and auth is None:
        raise InputError(
            f"--host {host} can be reached by others; add --auth user:password, or leave --host out for 127.0.0.1"
        )
    try:
        with socket.create_server((host, port), family=_family(host)):
            pass
    except (OSError, ValueError) as error:  # ValueError: what is no name of any host
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(
            f"--port {port} of --host {host[:80]} cannot be opened ({reason}); choose another --port or --host"
        ) from None
    return (user, password) if auth is not None else None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def require_extra() -> None:
    """InputError unless gradio is installed."""
    if importlib.util.find_spec("gradio") is None:
        raise InputError("the studio needs the extra: pip install 'diti-torch[studio]' (gradio is missing)")


@contextmanager
def launched(world: Any, host: str, port: int, login: tuple[str, str] | None) -> Iterator[str]:
    """The studio's address while it is served; its temporary folder is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="diti-studio-"))
    with _environment(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=str(folder)):
        from starlette.middleware import Middleware

        from diti.studio.guard import Guard
        from diti.studio.page import HEAD, build_page, style, theme

        local = frozenset({"localhost", "127.0.0.1", "::1", host}) if is_loopback(host) else None
        page = build_page(world)
        page.queue(max_size=WAITING, api_open=False)
        try:
            page.launch(
                server_name=host, server_port=port, auth=login, share=False, quiet=True, inbrowser=False,
                prevent_thread_lock=True, max_threads=WAITING, show_error=False, footer_links=[],
                run_history=False, allowed_paths=[], enable_monitoring=False, ssr_mode=False, pwa=False,
                mcp_server=False, max_file_size=0, state_session_capacity=SESSIONS, theme=theme(), css=style(),
                head=HEAD, app_kwargs={"middleware": [Middleware(Guard, hosts=local)]},
            )  # fmt: skip
            shown = f"[{host}]" if ":" in host else host
            yield f"http://{shown}:{port}"
        finally:
            page.close(verbose=False)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _environment(**wanted: str) -> Iterator[None]:
    """gradio reads some settings from the environment alone."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """Set when the system asks to end, which must not leave the temporary folder behind."""
    closing = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda number, frame: closing.set())
    try:
        yield closing
    finally:
        signal.signal(signal.SIGTERM, previous)


def wait(closing: threading.Event) -> None:
    """Until that, or Ctrl-C."""
    with suppress(KeyboardInterrupt):
        while not closing.wait(0.5):
            pass
