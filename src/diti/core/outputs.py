"""May these files be written? Checked before any work: without --overwrite diti replaces only its own files.

The file itself shows whether diti wrote it: pictures are signed, records name the versions they were made with,
tables have the columns of codes. So the same command may be run again, even after its files were moved.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from diti.core.errors import InputError
from diti.core.images import PICTURES, is_signed

LONGEST_NAME = 220  # bytes of a file's name: file systems allow 255, and a temporary name needs some of them
CODES = b"file,split,z0"  # how a table of codes begins; in a CSV each name may be quoted
MOVES = b"edit,reading,mean_sd"  # and one of what edits move
PAGE = b'<meta name="generator" content="diti">'
NETWORK = b"diti_version"  # a property of every ONNX file
MADE_BY_ANOTHER_VERB = "verb"  # in the run.json of a run folder, which is not a record of a measurement


def require_writable(
    outputs: Mapping[str, Sequence[Path]], inputs: Iterable[object] = (), *, overwrite: bool = False
) -> None:
    """InputError for the first file that must not, or cannot, be written.

    outputs: option → the files that it makes. inputs: what is read, as typed; names that are no path are ignored.
    """
    read = [path for given in inputs if given and (path := Path(str(given))).exists()]
    taken: dict[Path, str] = {}
    for option, files in outputs.items():
        for file in files:
            _check_place(option, file)
            for source in read:
                _check_apart(option, file, source)
            if os.path.lexists(file) and not overwrite and not is_own(file):
                raise InputError(
                    f"{option} {file} exists, and diti did not write it; choose another name, or add --overwrite"
                )
            if (real := _real(file)) in taken:
                raise InputError(f"{taken[real]} and {option} both write {file}; use two names")
            taken[real] = option


def require_apart(option: str, folder: Path, inputs: Sequence[str | Path]) -> None:
    """InputError for an output folder that holds one of the input files."""
    for source in inputs:
        if _real(folder) == _real(source).parent:
            raise InputError(f"{option} {folder} holds {source}, which is an input; choose another folder")


def _check_place(option: str, file: Path) -> None:
    """Check that a file could be made there."""
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
    """Check that the inputs stay unchanged, whatever names lead to them."""
    if source.is_dir() and _real(source) in _real(file).parents:
        raise InputError(f"{option} {file} lies in {source}, which is an input; choose a place outside it")
    if file.exists() and file.samefile(source):
        raise InputError(f"{option} {file} would replace {source}, which is an input; choose another name")


def _real(path: str | Path) -> Path:
    """The path without links; unlike Path.resolve it survives a link to itself."""
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
    begins = content[: 2 * len(MOVES)].replace(b'"', b"")
    return begins.startswith((mark, MOVES)) if ending == ".csv" else mark in content
