"""One writer of a folder at a time."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from diti.core.errors import InputError

LOCK = ".lock"

log = logging.getLogger(__name__)


@contextmanager
def locked(out: Path, *, waits: bool = False) -> Iterator[None]:
    """One writer at a time. The lock belongs to the process: it ends with it, and workers do not inherit it.

    waits: wait for another writer to end, instead of being refused.
    """
    with _lock(out, waits):
        try:
            yield
        finally:
            (out / LOCK).unlink(missing_ok=True)


def _lock(out: Path, waits: bool) -> IO[str]:
    """The open file whose lock this process holds."""
    while True:
        handle = (out / LOCK).open("w")
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if not waits:
                handle.close()
                raise InputError(f"another diti command is writing to {out}; wait for it to end") from None
            log.warning("another diti command is writing to %s; this one waits for it", out)
            fcntl.lockf(handle, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), (out / LOCK).stat()):
                return handle
        handle.close()  # its holder removed it at the end: others will find a different file
