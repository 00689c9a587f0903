"""`diti prepare`: decode a source once, with all cores, into a dataset folder; a killed run continues exactly.

While it runs, the folder holds `images.part` and `done.part` (see parts.py) and `plan.json` (what is being
prepared). `dataset.json` is written last: with it, the folder is complete.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from rich.markup import escape

from diti.core.errors import InputError
from diti.core.locks import LOCK, locked
from diti.core.machine import available_cores
from diti.core.progress import Advance, progress_bar
from diti.core.runs import atomic_path, read_json, write_json, write_text
from diti.data.attributes import SPLITS, attribute_names, is_binary
from diti.data.contents import IMAGES, TABLE, Records, hash_of, read_contents
from diti.data.decode import CROPS, Unreadable, check_crop, decode, picture_size
from diti.data.parts import DONE, PIXELS, allocate, copy_readable, mark, open_parts, unfinished
from diti.data.prepared import INFO, Dataset, is_dataset, open_dataset
from diti.data.source import ReadFiles, Source
from diti.data.split import with_split

PLAN, SKIPPED = "plan.json", "skipped.csv"
OUR_FILES = (INFO, PLAN, PIXELS, DONE, SKIPPED, LOCK, IMAGES, TABLE)
MIN_SIZE, MAX_SIZE = 8, 1024
CHUNK = 128  # images a worker decodes before it reports
WORTH_WORKERS = 256  # fewer images than this are decoded before a worker would have started
MOST_WORKERS = 256

Skipped = dict[int, str]  # row of the source → why it cannot be read

log = logging.getLogger(__name__)


def prepare(
    source: Source,
    out: Path,
    size: int | None = None,
    *,
    crop: str | None = None,
    overwrite: bool = False,
    workers: int = 0,
) -> Dataset:
    """Write the dataset folder of `source` to `out`, or continue a half-written one, and open it.

    size: side of the images, px; None: the one that all of them have.
    """
    crop = crop or source.crop
    check_crop(crop)
    size = find_size(source, crop) if size is None else size
    if not 0 <= workers <= MOST_WORKERS:
        raise InputError(f"--workers {workers} is out of range; use 1 to {MOST_WORKERS}, or 0 for one per core")
    plan = _plan(source, size, crop)
    with _writing_errors(out, "choose another --out"):
        _check_target(source, out, plan, overwrite=overwrite)
        if is_dataset(out) and not overwrite:
            return open_dataset(out)
        out.mkdir(parents=True, exist_ok=True)
        with locked(out):
            if overwrite:
                _clear(out)
            if not is_dataset(out):  # else another command has completed it meanwhile
                _write(source, out, plan, workers)
    return open_dataset(out)


def prepare_cached(source: Source, folder: Path, size: int) -> Dataset:
    """`prepare` into a folder of the cache, which is ours alone: a damaged one is made anew.

    Of several commands that want it one makes it, and the others wait.
    """
    plan = _plan(source, size, source.crop)
    with suppress(InputError):  # not there, or damaged
        return open_dataset(folder)
    with _writing_errors(folder, "set DITI_CACHE to another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, waits=True):
            with suppress(InputError):
                return open_dataset(folder)
            _write(source, folder, plan, workers=0)
    return open_dataset(folder)


def _write(source: Source, out: Path, plan: dict[str, Any], workers: int) -> None:
    """All of a dataset folder, from where an earlier run under the same plan stopped."""
    if _read_plan(out) != plan or (out / INFO).exists():
        _clear(out)
    allocate(out, plan)
    write_json(out / PLAN, plan)
    _finish(source, out, plan, _decode_all(source, out, plan, workers))


def find_size(source: Source, crop: str) -> int:
    """The side that all images of a source have, px, and keep under that crop; InputError where they differ."""
    _require_images(source)
    found: tuple[int, int] | None = None
    reasons: list[str] = []
    for picture in source.read(range(source.table.num_rows)):
        try:
            sides = picture_size(picture)
        except Unreadable as error:  # one that is left out
            reasons.append(str(error))
            continue
        if CROPS[crop](*sides) != (0, 0, sides[0], sides[0]) or found not in (None, sides):
            raise InputError(
                f"{source.location} has no size of its own (an image of {sides[0]}×{sides[1]} px, crop {crop}); "
                "say which side, px, its images get: size=64, or --size 64"
            )
        found = sides
    if found is None:
        raise _none_readable(source, 0, reasons[0])
    return found[0]


def _require_images(source: Source) -> None:
    if source.table.num_rows == 0:
        raise InputError(f"{source.location} holds no images")


def _none_readable(source: Source, row: int, reason: str) -> InputError:
    return InputError(
        f"{source.location}: none of the {source.table.num_rows:,} images can be read; "
        f"the first: {source.table['file'][row]} ({reason})"
    )


def _plan(source: Source, size: int, crop: str) -> dict[str, Any]:
    """What is prepared; a half-written folder is continued only under the same plan."""
    _require_images(source)
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise InputError(f"--size {size} is out of range; use {MIN_SIZE} to {MAX_SIZE} px")
    return {
        "name": source.name,
        "source": source.location.encode(errors="backslashreplace").decode(),  # a name on disk may be any bytes
        "count": source.table.num_rows,
        "size": size,
        "crop": crop,
        "source_hash": fingerprint(source),
    }


def fingerprint(source: Source) -> str:
    """Digest of the table and of size and time of the files behind it: changes when the source does."""
    digest = hashlib.sha256()
    for column in source.table.column_names:
        digest.update(column.encode())
        digest.update("\0".join(map(str, source.table[column].to_pylist())).encode())
    for file in _files_behind(source):
        try:
            status = file.stat()
        except OSError:  # a listed file that is missing is named later, when its turn comes
            continue
        digest.update(f"{status.st_size}/{status.st_mtime_ns}".encode())
    return digest.hexdigest()


def _files_behind(source: Source) -> Iterator[Path]:
    if isinstance(source.read, ReadFiles):
        yield from (source.read.root / file for file in source.read.files)
        return
    location = Path(source.location)
    if location.is_dir():
        yield from sorted(p for p in location.rglob("*") if p.is_file() and p.name != "lock.mdb")
    elif location.is_file():
        yield location


@contextmanager
def _writing_errors(out: Path, remedy: str) -> Iterator[None]:
    """Full disk, read-only target and the like as one line; what was written stays and can be continued."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = f"free space, or {remedy}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else remedy
        raise InputError(f"cannot write to {out}: {reason}; {remedy}") from error


def _check_target(source: Source, out: Path, plan: dict[str, Any], *, overwrite: bool) -> None:
    """Refuse to mix two datasets in one folder, or to write among files that are not ours."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder")
    if not out.is_dir():
        refuse_inside(source.location, out)
        return
    foreign = sorted(p.name for p in out.iterdir() if p.name not in OUR_FILES and not p.name.endswith(".part"))
    if foreign:
        raise InputError(f"--out {out} holds other files ({', '.join(foreign[:2])}); choose a new or empty folder")
    refuse_inside(source.location, out)
    if overwrite or not (out / PLAN).exists():
        return
    before = _read_plan(out)
    if before is None:
        raise InputError(f"{out / PLAN} is damaged; choose another folder, or start again with --overwrite")
    for key, value in plan.items():
        if before.get(key) != value:
            state = "holds" if is_dataset(out) else "holds the beginning of"
            raise InputError(
                f"--out {out} {state} another dataset ({key}: {before.get(key)!s:.60}, now {value!s:.60}); "
                "choose another folder, or start again with --overwrite"
            )


def refuse_inside(location: str, out: Path) -> None:
    """What is written over or among what is read would be lost, or read the next time."""
    place = Path(location).expanduser()
    if place.exists() and out.resolve().is_relative_to(place.resolve()):
        raise InputError(f"--out {out} lies inside {location}, which is read; choose another place")


def _read_plan(out: Path) -> dict[str, Any] | None:
    """What a folder was begun with; None where that is not there, or damaged."""
    try:
        found = read_json(out / PLAN)
    except InputError:
        return None
    return found if isinstance(found, dict) else None


def _clear(out: Path) -> None:
    """Remove what an earlier run wrote, the mark of completeness first."""
    for name in OUR_FILES:
        if name != LOCK:
            (out / name).unlink(missing_ok=True)


def _decode_all(source: Source, out: Path, plan: dict[str, Any], workers: int) -> Skipped:
    """Decode every row that is not done yet. Rows that fail are tried again by the next run."""
    todo = unfinished(out)
    chunks = [todo[i : i + CHUNK].tolist() for i in range(0, len(todo), CHUNK)]
    workers = min(workers or available_cores(), len(chunks))
    task = _Task(source, out, plan)
    skipped: Skipped = {}
    with progress_bar(
        f"preparing {escape(source.name)}", plan["count"], start=plan["count"] - len(todo)
    ) as advance:
        if workers <= 1 or len(todo) < WORTH_WORKERS:
            for chunk in chunks:
                skipped |= task.decode(chunk)
                advance(len(chunk))
        else:
            _decode_in_workers(task, chunks, workers, skipped, advance)
    return skipped


@dataclass(frozen=True)
class _Task:
    """What a worker needs: where to read and where to write."""

    source: Source
    out: Path
    plan: dict[str, Any]

    def decode(self, rows: list[int]) -> Skipped:
        """Decode some rows into the shared files and mark them done; returns those that cannot be read."""
        pixels, done = open_parts(self.out)
        skipped: Skipped = {}
        for row, picture in zip(rows, self.source.read(rows), strict=True):
            try:
                pixels[row] = decode(picture, self.plan["size"], self.plan["crop"])
                done[row] = mark(pixels[row])
            except Unreadable as error:
                skipped[row] = str(error)
        return skipped

    def work(self, chunks: list[list[int]], answers: multiprocessing.connection.Connection, parent: int) -> None:
        """Body of a worker process: stops by itself when its parent is gone."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        for chunk in chunks:
            if os.getppid() != parent:
                return
            answers.send((len(chunk), self.decode(chunk)))
        answers.close()
        os._exit(0)  # at once: the usual end waits for locks that other threads of the parent held at the fork


def _decode_in_workers(
    task: _Task, chunks: list[list[int]], workers: int, skipped: Skipped, advance: Advance
) -> None:
    """Deal the chunks out in turn, so that neighbours in the source are read at about the same time."""
    processes, pipes = [], []
    for worker in range(workers):
        receive, send = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.Process(
            target=task.work, args=(chunks[worker::workers], send, os.getpid()), daemon=True
        )
        process.start()
        send.close()
        processes.append(process)
        pipes.append(receive)
    try:
        while pipes:
            ready = multiprocessing.connection.wait(pipes)
            for pipe in [p for p in pipes if p in ready]:
                try:
                    count, failed = pipe.recv()
                except EOFError:
                    pipes.remove(pipe)
                    continue
                skipped |= failed
                advance(count)
    finally:
        for process in processes:
            process.terminate() if pipes else process.join()
    if any(process.exitcode for process in processes):
        raise InputError(
            "a decoding process died, perhaps for want of memory; the same command continues where it stopped, "
            "--workers 1 needs the least"
        )


def _finish(source: Source, out: Path, plan: dict[str, Any], skipped: Skipped) -> None:
    """Move the pixels in place, write table and description. Every step can be repeated after a kill."""
    kept = np.array([row for row in range(plan["count"]) if row not in skipped])
    _write_skipped(out, source.table, skipped)
    if len(kept) == 0:
        raise _none_readable(source, *next(iter(skipped.items())))
    table = with_split(source.table).take(pa.array(kept))
    with atomic_path(out / TABLE) as temporary:
        pyarrow.parquet.write_table(table, temporary)
    if skipped:
        copy_readable(out, kept)
    else:
        (out / PIXELS).replace(out / IMAGES)
    write_json(out / INFO, _description(plan, table, skipped, read_contents(out)))
    for name in (PIXELS, DONE):
        (out / name).unlink(missing_ok=True)


def _write_skipped(out: Path, table: pa.Table, skipped: Skipped) -> None:
    """`skipped.csv` names every image that could not be read; no file when there is none."""
    if not skipped:
        (out / SKIPPED).unlink(missing_ok=True)
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "reason"])
    writer.writerows((table["file"][row].as_py(), skipped[row]) for row in sorted(skipped))
    write_text(out / SKIPPED, text.getvalue())


def _description(plan: dict[str, Any], table: pa.Table, skipped: Skipped, files: Records) -> dict[str, Any]:
    """Contents of `dataset.json`."""
    names = attribute_names(table)
    splits = table["split"].to_pylist()
    return {
        **plan,
        "count": table.num_rows,
        "skipped": len(skipped),
        "splits": {split: splits.count(split) for split in SPLITS},
        "binary": [n for n in names if is_binary(table[n])],
        "continuous": [n for n in names if not is_binary(table[n])],
        "hash": hash_of(files),
        "files": files,
    }
