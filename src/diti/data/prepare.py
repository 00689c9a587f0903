"""`diti prepare`: decode a source once, with all cores, into a dataset folder; a killed run continues exactly.

While it runs, the folder holds `images.part` and `done.part` (see parts.py) and `plan.json` (what is being
prepared). `dataset.json` is written last and makes the folder complete.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from rich.markup import escape

from diti.core.errors import InputError
from diti.core.locks import LOCK, locked
from diti.core.machine import available_cores
from diti.core.part import Part
from diti.core.progress import Advance, progress_bar
from diti.core.runs import as_path, atomic_path, read_json, write_json, write_text
from diti.data.attributes import attribute_kinds
from diti.data.contents import IMAGES, TABLE, entries_of, read_contents
from diti.data.decode import CROPS, Unreadable, check_crop, decode, picture_size
from diti.data.joined import part_of
from diti.data.parts import DONE, PIXELS, allocate, copy_readable, mark, open_parts, unfinished
from diti.data.prepared import INFO, Dataset, is_dataset, open_dataset
from diti.data.source import Read, ReadFiles, ReadOptions, Source
from diti.data.split import in_pieces, split_counts, with_split

PLAN, SKIPPED = "plan.json", "skipped.csv"
OUR_FILES = (INFO, PLAN, PIXELS, DONE, SKIPPED, LOCK, IMAGES, TABLE)
MIN_SIZE, MAX_SIZE = 8, 1024
CHUNK = 128  # images a worker decodes before it reports
WORTH_WORKERS = 256  # fewer images are decoded faster than a worker starts
MOST_WORKERS = 256

Skipped = dict[int, str]  # row of the source → why it cannot be read

log = logging.getLogger(__name__)


def prepare(
    src: Source | str | Path,
    out: str | Path,
    size: int | None = None,
    *,
    kind: str | None = None,
    crop: str | None = None,
    attributes: str | Path | None = None,
    ignore: Sequence[str] = (),
    only_labelled: bool = False,
    part: str | None = None,
    workers: int = 0,
    overwrite: bool = False,
) -> Dataset:
    """Turn images into a dataset folder, as `diti prepare` does, or continue a half-written one, and open it.

    src: a file or folder of any kind that can be read, faces[:N], toyfaces[:N], or a source that was found
    already, for which kind, attributes, ignore and only_labelled come too late. size: side of the images, px;
    None: the one that all of them have. crop: centre, celeba, lfw or whole; by default what the kind of data asks
    for. attributes: table with a row per image. part: such as 3/16, of the images, into a folder in `out`, which
    is one dataset with all parts. workers: processes that decode; 0: one per core.

        data = diti.prepare("photos", "data/mine", size=64)
    """
    from diti.data.sources import find_source  # which opens what this module reads, and needs it

    out = as_path(out, "out")
    if isinstance(src, Source):
        source = src
    else:
        table = None if attributes is None else as_path(attributes, "attributes")
        options = ReadOptions(size, table, tuple(ignore), only_labelled)
        source = find_source(str(as_path(src, "src")), options, kind)
        for note in source.notes:
            log.warning("%s", note)
    crop = crop or source.crop
    check_crop(crop)
    if part is not None:
        source, out = part_of(source, out, Part.read(part))
    size = find_size(source, crop) if size is None else size
    if not 0 <= workers <= MOST_WORKERS:
        raise InputError(f"--workers {workers} is out of range; use 1 to {MOST_WORKERS}, or 0 for one per core")
    plan = _plan(source, size, crop)
    remedy = "choose another --out"
    with _writing_errors(out, remedy):
        _check_target(source, out, plan, overwrite=overwrite)
        if is_dataset(out) and not overwrite and not _leftovers(out):
            return open_dataset(out)
        out.mkdir(parents=True, exist_ok=True)
        with locked(out):
            if overwrite:
                _clear(out)
            if not is_dataset(out):  # else another command has completed it in the meantime
                _write(source, out, plan, workers, f"{remedy}, or a smaller --size")
            _tidy(out)
    return open_dataset(out)


def prepare_cached(source: Source, folder: Path, size: int) -> Dataset:
    """`prepare` into a folder of the cache, which only diti uses: a damaged one is made again.

    If several commands need it, one makes it and the others wait.
    """
    plan = _plan(source, size, source.crop)
    with suppress(InputError):  # not there, or damaged
        return open_dataset(folder)
    remedy = "set DITI_CACHE to another folder"
    with _writing_errors(folder, remedy):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, waits=True):
            with suppress(InputError):
                return open_dataset(folder)
            _write(source, folder, plan, 0, remedy)
            _tidy(folder)
    dataset = open_dataset(folder)
    if skipped := dataset.info["skipped"]:
        log.warning("%d images of %s cannot be read; %s names them", skipped, source.location, folder / SKIPPED)
    return dataset


def _write(source: Source, out: Path, plan: dict[str, Any], workers: int, remedy: str) -> None:
    """Write a whole dataset folder, from where an earlier run with the same plan stopped.

    remedy: what to do if the disk is too small.
    """
    if _read_plan(out) != plan or (out / INFO).exists():
        _clear(out)
    allocate(out, plan, remedy)
    write_json(out / PLAN, plan)
    _finish(source, out, plan, _decode_all(source, out, plan, workers))


def find_size(source: Source, crop: str) -> int:
    """The side, px, that all images of a source share after that crop; InputError where they differ."""
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
                "give the side of its images in px: size=64, or --size 64"
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
    """What is prepared; a half-written folder is continued only with the same plan."""
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
    """Digest of the table and of the size and time of its files: changes when the source does."""
    digest = hashlib.sha256()
    for column in source.table.column_names:
        digest.update(column.encode())
        for number, values in enumerate(in_pieces(source.table[column])):
            digest.update(("\0" * (number > 0) + "\0".join(map(str, values))).encode())
    digest.update("".join(f"\0{file}" for file, _ in source.left_out).encode(errors="backslashreplace"))
    for file in _files_behind(source):
        try:
            status = file.stat()
        except OSError:  # a listed file that is missing is reported later, when it is decoded
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
    held = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if foreign := [name for name in held if name not in OUR_FILES and not name.endswith(".part")]:
        raise InputError(f"--out {out} holds other files ({', '.join(foreign[:2])}); choose a new or empty folder")
    # Output written into the source would overwrite it, or be read as part of it the next time.
    place = Path(source.location).expanduser()
    if place.exists() and out.resolve().is_relative_to(place.resolve()):
        raise InputError(f"--out {out} lies inside {source.location}, which is an input; choose another place")
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


def _read_plan(out: Path) -> dict[str, Any] | None:
    """The plan that a folder was started with; None where it is missing or damaged."""
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


def _leftovers(out: Path) -> list[Path]:
    """What a killed process can leave in a complete folder: half-written files, and the lock."""
    return [path for path in out.iterdir() if path.name == LOCK or path.name.endswith(".part")]


def _tidy(out: Path) -> None:
    """Leave the same files, however often the command was stopped; the lock is removed by its holder."""
    for path in _leftovers(out):
        if path.name != LOCK:
            path.unlink(missing_ok=True)


def _decode_all(source: Source, out: Path, plan: dict[str, Any], workers: int) -> Skipped:
    """Decode every row that is not done yet. Rows that fail are tried again by the next run."""
    todo = unfinished(out)
    chunks = [todo[i : i + CHUNK] for i in range(0, len(todo), CHUNK)]  # not lists: there may be millions of rows
    workers = min(workers or available_cores(), len(chunks))
    task = _Task(source.read, out, plan["size"], plan["crop"])
    skipped: Skipped = {}
    with progress_bar(
        f"preparing {escape(source.title or source.name)}", plan["count"], start=plan["count"] - len(todo)
    ) as advance:
        if workers <= 1 or len(todo) < WORTH_WORKERS:
            for chunk in chunks:
                skipped |= task.decode(chunk.tolist())
                advance(len(chunk))
        else:
            _decode_in_workers(task, chunks, workers, skipped, advance)
    return skipped


@dataclass(frozen=True)
class _Task:
    """What a worker needs: where to read and where to write."""

    read: Read
    out: Path
    size: int
    crop: str

    def decode(self, rows: list[int]) -> Skipped:
        """Decode some rows into the shared files and mark them done; returns those that cannot be read."""
        pixels, done = open_parts(self.out)
        skipped: Skipped = {}
        for row, picture in zip(rows, self.read(rows), strict=True):
            try:
                pixels[row] = decode(picture, self.size, self.crop)
                done[row] = mark(pixels[row])
            except Unreadable as error:
                skipped[row] = str(error)
        return skipped


def _decode_in_workers(
    task: _Task, chunks: list[np.ndarray], workers: int, skipped: Skipped, advance: Advance
) -> None:
    """Chunks are taken in turn, so that neighbours in the source are read at about the same time."""
    # New interpreters: a fork of a process with threads, such as those of torch or of the progress bar, inherits
    # locks that nobody will release, and a fork server needs the script that `_starting` hides.
    context = multiprocessing.get_context("spawn")
    watched, held = context.Pipe(duplex=False)  # closes when this process ends, however it ends
    with watched, ProcessPoolExecutor(workers, context, _begin_worker, (task, watched)) as pool, held:
        with _starting():
            rows_of = {pool.submit(_decode_chunk, chunk): len(chunk) for chunk in chunks}
        try:
            for future in as_completed(rows_of):
                skipped |= future.result()
                advance(rows_of[future])
        except BrokenProcessPool:
            raise InputError(
                "a decoding process died, perhaps because memory ran out; the same command continues where it "
                "stopped, and --workers 1 needs the least memory"
            ) from None
        pool.shutdown()  # before `held` is closed, which ends workers at once


@contextmanager
def _starting() -> Iterator[None]:
    """Processes started in the block do not run the caller's script again and ignore Ctrl-C: the parent does that.

    A new interpreter imports the script it belongs to, which may have no guard against that; nothing in it is
    needed here.
    """
    script = sys.modules["__main__"]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited; a handler is not
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- In a worker --------------------------------------------------------------------------------------------

_tasks: list[_Task] = []  # the one that this process works on, sent once instead of with each chunk


def _begin_worker(task: _Task, watched: Connection) -> None:
    _tasks.append(task)
    threading.Thread(target=_end_with_parent, args=(watched,), daemon=True).start()


def _end_with_parent(watched: Connection) -> None:
    """End at once, even in the middle of an image, when the parent is gone or no longer needs this process."""
    watched.poll(None)
    os._exit(1)


def _decode_chunk(rows: np.ndarray) -> Skipped:
    return _tasks[0].decode(rows.tolist())


def _finish(source: Source, out: Path, plan: dict[str, Any], skipped: Skipped) -> None:
    """Move the pixels into place, write table and description. Every step can be repeated after a kill."""
    _require_all_done(out, skipped)
    kept = np.setdiff1d(np.arange(plan["count"]), list(skipped))
    _write_skipped(out, source, skipped)
    if len(kept) == 0:
        raise _none_readable(source, *next(iter(skipped.items())))
    table = with_split(source.table.take(pa.array(kept)))
    with atomic_path(out / TABLE) as temporary:
        pyarrow.parquet.write_table(table, temporary)
    if skipped:
        copy_readable(out, kept)
    else:
        (out / PIXELS).replace(out / IMAGES)
    write_json(out / INFO, _description(plan, source, table, out))


def _require_all_done(out: Path, skipped: Skipped) -> None:
    """A row that was not decoded is black, and nothing else would show it."""
    _, done = open_parts(out)
    lacking = np.setdiff1d(np.flatnonzero(done == 0), list(skipped))
    if len(lacking):
        raise InputError(
            f"{len(lacking):,} of {len(done):,} images were not decoded, though no process failed; the same "
            "command continues where this one stopped, --workers 1 starts no other processes"
        )


def _write_skipped(out: Path, source: Source, skipped: Skipped) -> None:
    """`skipped.csv` names every image that could not be read; no file when all could be read."""
    if not skipped and not source.left_out:
        (out / SKIPPED).unlink(missing_ok=True)
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "reason"])
    of_rows = [(source.table["file"][row].as_py(), reason) for row, reason in skipped.items()]
    left_out = [(file.encode(errors="backslashreplace").decode(), reason) for file, reason in source.left_out]
    writer.writerows(sorted([*of_rows, *left_out]))
    write_text(out / SKIPPED, text.getvalue())


def _description(plan: dict[str, Any], source: Source, table: pa.Table, out: Path) -> dict[str, Any]:
    """Contents of `dataset.json`."""
    return {
        **plan,
        **({"title": source.title} if source.title else {}),
        "count": table.num_rows,
        "skipped": plan["count"] - table.num_rows + len(source.left_out),
        "splits": split_counts(table),
        **attribute_kinds(table),
        **entries_of(read_contents(out)),
    }
