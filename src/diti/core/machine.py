"""What this machine offers and where diti keeps things on it."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores() -> int:
    """Cores that this process may use; all of the machine's where the system does not tell (macOS, Windows)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cache_folder() -> Path:
    """Where is kept what can be made again, such as prepared data: $DITI_CACHE, else ~/.cache/diti."""
    return Path(os.environ.get("DITI_CACHE") or Path.home() / ".cache" / "diti")
