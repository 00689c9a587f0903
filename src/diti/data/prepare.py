"""`diti prepare`: decode a source once, with all cores, into a dataset folder; a killed run continues exactly.

While it runs, the folder holds `images.part` (a row per image of the source), `done.part` (a byte per row)
and `plan.json` (what is being prepared). `dataset.json` is written last: with it, the folder is complete.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import math
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from diti.core.errors import InputError
from diti.core.machine import available_cores
from diti.core.progress import Advance, progress_bar
from diti.core.runs import atomic_path, read_json, write_json, write_text
from diti.data.attributes import SPLITS, attribute_names, is_binary
from diti.data.contents import IMAGES, TABLE, Records, hash_of, read_contents
from diti.data.decode import CROPS, Unreadable, check_crop, decode, picture_size
from diti.data.prepared import INFO, Dataset, is_dataset, open_dataset
from diti.data.source import ReadFiles, Source
from diti.data.split import with_split

PLAN, PIXELS, DONE, SKIPPED, LOCK = "plan.json", "images.part", "done.part", "skipped.csv", ".lock"
OUR_FILES = (INFO, PLAN, PIXELS, DONE, SKIPPED, LOCK, IMAGES, TABLE)
MIN_SIZE, MAX_SIZE = 8, 1024
CHUNK = 128  # images a worker decodes before it reports
WORTH_WORKERS = 256  # fewer images than this are decoded before a worker would have started

Skipped = dict[int, str]  # row of the source → why it cannot be read


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
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise InputError(f"--size {size} is out of range; use {MIN_SIZE} to {MAX_SIZE} px")
    _require_images(source)
    plan = _plan(source, size, crop)
    with _writing_errors(out):
        _check_target(out, plan, overwrite=overwrite)
        if is_dataset(out) and not overwrite:
            return open_dataset(out)
        out.mkdir(parents=True, exist_ok=True)
        with locked(out):
            if overwrite:
                _clear(out)
            _allocate(out, plan)
            skipped = _decode_all(source, out, plan, workers)
            _finish(source, out, plan, skipped)
    return open_dataset(out)


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
    return {
        "name": source.name,
        "source": source.location,
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
def _writing_errors(out: Path) -> Iterator[None]:
    """Full disk, read-only target and the like as one line; what was written stays and can be continued."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot write to {out}: {reason}; free space or choose another --out") from error


def _check_target(out: Path, plan: dict[str, Any], *, overwrite: bool) -> None:
    """Refuse to mix two datasets in one folder, or to write among files that are not ours."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder")
    if not out.is_dir():
        return
    foreign = sorted(p.name for p in out.iterdir() if p.name not in OUR_FILES and not p.name.endswith(".part"))
    if foreign:
        raise InputError(f"--out {out} holds other files ({', '.join(foreign[:2])}); choose a new or empty folder")
    if overwrite or not (out / PLAN).is_file():
        return
    before = read_json(out / PLAN)
    for key, value in plan.items():
        if before.get(key) != value:
            state = "holds" if is_dataset(out) else "holds the beginning of"
            raise InputError(
                f"--out {out} {state} another dataset ({key}: {before.get(key)!s:.60}, now {value!s:.60}); "
                "choose another folder, or start again with --overwrite"
            )


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """One writer at a time. The lock is the process's own: it ends with it and workers do not inherit it."""
    with (out / LOCK).open("w") as handle:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another diti command is writing to {out}; wait for it to end") from None
        try:
            yield
        finally:
            (out / LOCK).unlink()


def _clear(out: Path) -> None:
    """Remove what an earlier run wrote, the mark of completeness first."""
    for name in OUR_FILES:
        if name != LOCK:
            (out / name).unlink(missing_ok=True)


def _allocate(out: Path, plan: dict[str, Any]) -> None:
    """Reserve the disk space before the first image: a full disk under a memory map would kill the process."""
    if (out / PLAN).is_file() and (out / PIXELS).is_file() and (out / DONE).is_file():
        return
    shape = (plan["count"], plan["size"], plan["size"], 3)
    need = math.prod(shape)
    free = shutil.disk_usage(out).free
    if need > free:
        raise InputError(
            f"{plan['count']:,} images of {plan['size']} px need {need / 1e9:,.1f} GB and {out} has "
            f"{free / 1e9:,.1f} GB free; free space, choose another --out, or a smaller --size"
        )
    _reserve(out / PIXELS, shape)
    _reserve(out / DONE, shape[:1])
    write_json(out / PLAN, plan)


def _reserve(path: Path, shape: tuple[int, ...]) -> None:
    """An array file of zeros whose blocks are really there, where the system can promise that (macOS cannot)."""
    try:
        np.lib.format.open_memmap(path, "w+", np.uint8, shape).flush()
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as handle:
                os.posix_fallocate(handle.fileno(), 0, path.stat().st_size)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _open_parts(out: Path) -> tuple[np.ndarray, np.ndarray]:
    """The pixels (N, S, S, 3) and the done marks (N,) of a folder in the making."""
    return np.load(out / PIXELS, mmap_mode="r+"), np.load(out / DONE, mmap_mode="r+")


def _decode_all(source: Source, out: Path, plan: dict[str, Any], workers: int) -> Skipped:
    """Decode every row that is not done yet. Rows that fail are tried again by the next run."""
    _, done = _open_parts(out)
    todo = np.flatnonzero(done == 0)
    chunks = [todo[i : i + CHUNK].tolist() for i in range(0, len(todo), CHUNK)]
    workers = min(workers or available_cores(), len(chunks))
    task = _Task(source, out, plan)
    skipped: Skipped = {}
    with progress_bar(f"preparing {source.name}", plan["count"], start=plan["count"] - len(todo)) as advance:
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
        pixels, done = _open_parts(self.out)
        skipped: Skipped = {}
        for row, picture in zip(rows, self.source.read(rows), strict=True):
            try:
                pixels[row] = decode(picture, self.plan["size"], self.plan["crop"])
                done[row] = 1
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
        raise RuntimeError("a decoding process died; the same command continues where it stopped")


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
        _copy_readable(out, kept)
    else:
        (out / PIXELS).replace(out / IMAGES)
    write_json(out / INFO, _description(plan, table, skipped, read_contents(out)))
    for name in (PIXELS, DONE):
        (out / name).unlink(missing_ok=True)


def _copy_readable(out: Path, kept: np.ndarray) -> None:
    """`images.npy` without the rows that could not be read."""
    pixels, _ = _open_parts(out)
    with atomic_path(out / IMAGES) as temporary:
        compact = np.lib.format.open_memmap(temporary, "w+", np.uint8, (len(kept), *pixels.shape[1:]))
        for start in range(0, len(kept), CHUNK):
            compact[start : start + CHUNK] = pixels[kept[start : start + CHUNK]]
        compact.flush()


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
