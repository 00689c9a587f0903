"""What the two files of a dataset folder hold, and how an unchanged file is recognised without reading it.

A record of a file is its size, the times at which contents and status were last changed, and its sha256.
`dataset.json` has those of both files as they were written. The status time is set by the system: a copy does not
keep it, and an edit cannot avoid it. The files of a copied folder are read once, and the cache remembers them.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

from diti.core.errors import InputError
from diti.core.machine import cache_folder
from diti.core.runs import read_json, sha256_file, write_json

IMAGES, TABLE = "images.npy", "table.parquet"

Records = dict[str, dict[str, Any]]  # file name → {"size": bytes, "mtime_ns": ..., "ctime_ns": ..., "sha256": ...}


def read_contents(folder: Path) -> Records:
    """The records of both files, read in full."""
    return {name: _record(folder / name) for name in (IMAGES, TABLE)}


def hash_of(records: Records) -> str:
    """The hash of a dataset: over pixels and table."""
    return hashlib.sha256((records[IMAGES]["sha256"] + records[TABLE]["sha256"]).encode()).hexdigest()


def current_contents(folder: Path, written: Records) -> Records:
    """The records of both files as they are; only what is neither as written nor as remembered is read."""
    if all(_is_as(folder / name, written.get(name)) for name in (IMAGES, TABLE)):
        return written
    memory = (
        cache_folder() / "contents" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]}.json"
    )
    remembered = _remembered(memory)
    found = {
        name: _known(folder / name, written, remembered) or _record(folder / name) for name in (IMAGES, TABLE)
    }
    if found != remembered:
        with suppress(OSError):  # without a cache the files are read again the next time
            write_json(memory, found)
    return found


def _record(path: Path) -> dict[str, Any]:
    stamps = _stamps(path)  # before reading: a change in between gives another time
    return {**stamps, "sha256": sha256_file(path)}


def _stamps(path: Path) -> dict[str, int]:
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}


def _is_as(path: Path, record: dict[str, Any] | None) -> bool:
    return record is not None and _stamps(path).items() <= record.items()


def are_records(given: object) -> TypeGuard[Records]:
    """Whether something from a JSON file is records of files."""
    return isinstance(given, dict) and all(
        isinstance(record, dict) and isinstance(record.get("sha256"), str) for record in given.values()
    )


def _known(path: Path, *sources: Records) -> dict[str, Any] | None:
    """The first record of this file that fits its size and time."""
    return next((records[path.name] for records in sources if _is_as(path, records.get(path.name))), None)


def _remembered(memory: Path) -> Records:
    try:
        found = read_json(memory) if memory.is_file() else {}
    except InputError:
        found = {}
    return found if are_records(found) else {}  # a damaged cache file is written again
