"""May these files be written? Asked before any work: nothing that diti did not write is lost without --overwrite.

Whether diti wrote a file, the file says itself: pictures are signed, records name the versions they were made
with, tables have the columns of codes. So the same command may be run again, wherever its files have gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from diti.core.errors import InputError
from diti.core.images import PICTURES, is_signed

LONGEST_NAME = 220  # bytes of a file's name: file systems have 255, of which a temporary name takes some
CODES = b"file,split,z0"  # how a table of codes begins
PAGE = b'<meta name="generator" content="diti">'
NETWORK = b"diti_version"  # a property of every ONNX file
MADE_BY_ANOTHER_VERB = "verb"  # in the run.json of a run folder, which is no record of a measurement


def require_writable(
    outputs: Mapping[str, Sequence[Path]], inputs: Iterable[object] = (), *, overwrite: bool = False
) -> None:
    """InputError for the first file that must not, or cannot, be written.

    outputs: option → the files that it makes. inputs: what is read, as typed; names that are no path do not count.
    """
    read = [path for given in inputs if given and (path := Path(str(given))).exists()]
    taken: dict[Path, str] = {}
    for option, files in outputs.items():
        for file in files:
            _check_place(option, file)
            for source in read:
                _check_apart(option, file, source)
            _check_old(option, file, overwrite)
            if (real := _real(file)) in taken:
                raise InputError(f"{taken[real]} and {option} both write {file}; choose another name for one")
            taken[real] = option


def require_apart(option: str, folder: Path, inputs: Sequence[str | Path]) -> None:
    """InputError for a folder of outputs that holds one of the files which are read."""
    for source in inputs:
        if _real(folder) == _real(source).parent:
            raise InputError(f"{option} {folder} holds {source}, which is read; choose another folder")


def _check_place(option: str, file: Path) -> None:
    """That a file could be made there."""
    if file.is_dir():
        raise InputError(f"{option} {file} is a folder; name a file")
    if file.exists() and not file.is_file():
        raise InputError(f"{option} {file} is a device or a pipe; name a file")
    if len(os.fsencode(file.name)) > LONGEST_NAME:
        raise InputError(
            f"{option} {file.name[:40]}... has a name of more than {LONGEST_NAME} bytes; choose another"
        )
    above = next(folder for folder in _real(file).parents if os.path.lexists(folder))
    if not above.is_dir():
        raise InputError(f"{option} {file} cannot be written: {above} is a file, not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{option} {file} cannot be written: {above} is read-only; choose another place")


def _check_apart(option: str, file: Path, source: Path) -> None:
    """That what is read stays as it is, by whatever name the two are called."""
    if source.is_dir() and _real(source) in _real(file).parents:
        raise InputError(f"{option} {file} lies in {source}, which is read; choose a place outside of it")
    if file.exists() and file.samefile(source):
        raise InputError(f"{option} {file} would replace {source}, which is read; choose another name")


def _check_old(option: str, file: Path, overwrite: bool) -> None:
    if os.path.lexists(file) and not overwrite and not is_own(file):
        raise InputError(
            f"{option} {file} exists, and diti did not write it; choose another name, or add --overwrite"
        )


def _real(path: str | Path) -> Path:
    """The path without links; unlike Path.resolve it bears a link to itself."""
    return Path(os.path.realpath(path))


def is_own(file: Path) -> bool:
    """Whether diti wrote the file, as far as it can tell."""
    ending = file.suffix.lower()
    try:
        if ending in (*PICTURES, ".gif"):
            return is_signed(file)
        if ending == ".json":
            record = json.loads(file.read_text(encoding="utf-8"))
            return "diti" in record["versions"] and MADE_BY_ANOTHER_VERB not in record
        if ending == ".parquet":
            import pyarrow.parquet

            return ",".join(pyarrow.parquet.read_schema(file.absolute()).names[:3]).encode().startswith(CODES)
        if ending == ".csv" and is_own(file.with_name("report.json")):  # of a page and its tables
            return True
        mark = {".csv": CODES, ".html": PAGE, ".onnx": NETWORK}[ending]
        content = file.read_bytes()
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return content.startswith(mark) if ending == ".csv" else mark in content
