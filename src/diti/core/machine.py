"""What this machine offers and where diti keeps things on it."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

log = logging.getLogger(__name__)


def available_cores() -> int:
    """Cores that this process may use; all of the machine's where the system does not say (macOS, Windows)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_folder() -> Path:
    """Where things that can be made again are kept, such as prepared data: $DITI_CACHE, else ~/.cache/diti.

    If that folder is not writable: a temporary one that ends with this process, and a warning.
    """
    return _writable(os.environ.get("DITI_CACHE") or "~/.cache/diti")


@lru_cache  # called often; one warning is enough
def _writable(name: str) -> Path:
    try:
        folder = Path(name).expanduser()  # RuntimeError: no home folder is known, as in some containers
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError) as error:
        temporary = Path(tempfile.mkdtemp(prefix="diti-cache-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        log.warning(
            "the cache %s cannot be written (%s): this run uses %s and removes it at the end; "
            "set DITI_CACHE to a writable folder",
            name,
            getattr(error, "strerror", None) or error,
            temporary,
        )
        return temporary
