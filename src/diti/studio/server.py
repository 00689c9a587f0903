"""`diti serve`: open the studio on this machine, and leave nothing behind when it closes."""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import os
import shutil
import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from diti.core.errors import InputError

WAITING = 64  # requests in the queue; later ones are asked to try again
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
    check_host(host)
    user, _, password = (auth or "").partition(":")
    if auth is not None and not (user and password):
        raise InputError("--auth is not of the form user:password; give both, with a colon between")
    if not is_loopback(host) and auth is None:
        raise InputError(
            f"--host {host} can be reached by others; add --auth user:password, or leave --host out for 127.0.0.1"
        )
    check_free(host, port)
    return (user, password) if auth is not None else None


def check_free(host: str, port: int) -> None:
    """InputError for a port that is in use, or may not be opened."""
    try:
        with socket.create_server((host, port), family=_family(host)):
            pass
    except (OSError, ValueError) as error:  # ValueError: not a possible host name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(
            f"--port {port} of --host {host[:80]} cannot be opened ({reason}); choose another --port or --host"
        ) from None


def check_host(host: str) -> None:
    """InputError for what is more than a name or an address, such as one with a port."""
    if not host.strip():
        raise InputError("--host is empty; give an address such as 127.0.0.1")
    alone, _, port = host.rpartition(":")
    if ":" not in host or _is_address(host):
        return
    if port.isdecimal() and (":" not in alone or _is_address(alone.strip("[]"))):
        raise InputError(
            f"--host {host[:80]} holds a port; give it by itself: --host {alone.strip('[]')} --port {port}"
        )
    raise InputError(
        f"--host {host[:80]} is not an address; give a name or an IP address alone, such as 127.0.0.1"
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


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
    shown = f"[{host}]" if ":" in host else host
    # gradio asks its own server whether it is there; a proxy could not know.
    with _environment(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=str(folder), no_proxy="*", NO_PROXY="*"):
        from starlette.middleware import Middleware

        from diti.studio.guard import Guard, hosts_of
        from diti.studio.page import HEAD, build_page, style, theme

        local = hosts_of(host, port) if is_loopback(host) else None
        page = in_a_loop(lambda: build_page(world).queue(max_size=WAITING, api_open=False))
        launch = partial(
            page.launch,
            server_name=shown, server_port=port, auth=login, share=False, quiet=True, inbrowser=False,
            prevent_thread_lock=True, max_threads=WAITING, show_error=False, footer_links=[],
            run_history=False, allowed_paths=[], enable_monitoring=False, ssr_mode=False, pwa=False,
            mcp_server=False, max_file_size=0, state_session_capacity=SESSIONS, theme=theme(), css=style(),
            head=HEAD, app_kwargs={"middleware": [Middleware(Guard, hosts=local)]},
        )  # fmt: skip
        try:
            check_free(host, port)  # again: opening a model takes a while
            in_a_loop(launch)
            yield f"http://{shown}:{port}"
        finally:
            close(page)
            shutil.rmtree(folder, ignore_errors=True)


def in_a_loop(work: Callable[[], Any]) -> Any:
    """The same work; where no event loop is running gradio would make some and never close them."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:

        async def run() -> Any:
            return work()

        return asyncio.run(run())
    return work()


def close(page: Any) -> None:
    """Until the server has ended. gradio waits for visitors who are still connected, but not for long."""
    page.close(verbose=False)
    if (server := getattr(page, "server", None)) is not None and server.thread.is_alive():
        server.should_exit = server.force_exit = True
        server.thread.join()


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
