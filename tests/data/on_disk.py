"""A dataset folder as it lies on disk."""

import hashlib
import re
from pathlib import Path

from diti.core.runs import sha256_file


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files, but for the times at which they were written."""
    return {p.name: re.sub(rb'"[mc]time_ns": \d+', b"", p.read_bytes()) for p in folder.iterdir()}


def hash_on_disk(folder: Path) -> str:
    both = sha256_file(folder / "images.npy") + sha256_file(folder / "table.parquet")
    return hashlib.sha256(both.encode()).hexdigest()
