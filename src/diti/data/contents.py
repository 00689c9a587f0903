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


def entries_of(records: Records) -> dict[str, Any]:
    """What `dataset.json` says about its files: their records, and a hash over pixels and table."""
    both = records[IMAGES]["sha256"] + records[TABLE]["sha256"]
    return {"hash": hashlib.sha256(both.encode()).hexdigest(), "files": records}


def current_contents(folder: Path, written: Records) -> Records:
    """The records of both files as they are now; a file is read only if no known record of it fits."""
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:24]
    memory = cache_folder() / "contents" / f"{place}.json"
    try:
        remembered = read_json(memory)
    except InputError:  # nothing yet
        remembered = {}
    if not are_records(remembered):  # a damaged cache file is written again
        remembered = {}
    found = {name: _record(folder / name, written.get(name), remembered.get(name)) for name in (IMAGES, TABLE)}
    if found not in (written, remembered):
        with suppress(OSError):  # without a cache the files are read again the next time
            write_json(memory, found)
    return found


def _record(path: Path, *known: dict[str, Any] | None) -> dict[str, Any]:
    """The known record that fits the file's size and times; without one, the file is read."""
    status = path.stat()  # before reading: a change in between gives another time
    stamps = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}
    for record in known:
        if record is not None and stamps.items() <= record.items():
            return record
    return {**stamps, "sha256": sha256_file(path)}


def are_records(given: object) -> TypeGuard[Records]:
    """Whether something from a JSON file is records of files."""
    return isinstance(given, dict) and all(
        isinstance(record, dict) and isinstance(record.get("sha256"), str) for record in given.values()
    )
