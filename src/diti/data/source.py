"""What every reader hands over: a table with a row per image, and a way to read the pictures of some rows."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import numpy as np
import pyarrow as pa

# A picture as stored in the source: a file, the bytes of a file, or pixels (H, W, 3) uint8.
# An exception in its place means that this one cannot be read; it is skipped and reported.
Picture = Path | bytes | np.ndarray | Exception

# Reads the pictures of ascending row numbers, in that order. It is pickled and runs in several processes: it
# holds no open file, handles are opened inside the call, or on first use in each process.
Read = Callable[[Sequence[int]], Iterable[Picture]]


@dataclass(frozen=True)
class Source:
    """Images of one kind, found but not yet decoded."""

    name: str  # short name of the set: celeba, lfw, folder, ...
    location: str  # what the user gave
    table: pa.Table  # columns: file, then optional split and identity, then attributes (see attributes.py)
    read: Read
    crop: str = "centre"  # a name in decode.CROPS
    notes: tuple[str, ...] = ()  # what the user should know, e.g. rows of the attribute file without an image
    title: str = ""  # its name on pages, where that is not `name`: a folder's own name
    left_out: tuple[tuple[str, str], ...] = ()  # images of a kind that cannot be read, and why


@dataclass(frozen=True)
class ReadOptions:
    """What `diti prepare` lets the user say about reading."""

    size: int | None = None  # side of the prepared images, px; None: the images' own
    attributes: Path | None = None  # table of attributes for a folder of images
    ignore: tuple[str, ...] = ()  # columns to leave out
    only_labelled: bool = False  # leave out images that the attribute table does not name


@dataclass(frozen=True)
class ReadFiles:
    """`Read` for sources whose rows are files below one folder."""

    root: Path
    files: Sequence[str]

    def __call__(self, rows: Sequence[int]) -> Iterable[Picture]:
        return (self.root / self.files[row] for row in rows)


@dataclass(frozen=True)
class ReadStretch:
    """`Read` of some rows that follow each other."""

    read: Read
    first: int

    def __call__(self, rows: Sequence[int]) -> Iterable[Picture]:
        return self.read([self.first + row for row in rows])


def stretch_of(source: Source, rows: slice) -> Source:
    """The source with these rows alone, which follow each other."""
    if isinstance(source.read, ReadFiles):
        read: Read = replace(source.read, files=source.read.files[rows])
    else:
        read = ReadStretch(source.read, rows.start)
    table = source.table.slice(rows.start, rows.stop - rows.start)
    return replace(source, table=table, read=read, left_out=source.left_out if rows.start == 0 else ())


def read_blocks(
    rows: Sequence[int],
    starts: Sequence[int],
    read_block: Callable[[int, list[int]], Iterable[Picture]],
    errors: type[Exception] | tuple[type[Exception], ...],
) -> Iterator[Picture]:
    """`Read` of rows that are stored in blocks, of which each is read once; errors in one spoil its rows only.

    starts: the first row of each block. read_block: the pictures of some rows, counted from the block's first.
    """
    for number, members in groupby(rows, key=lambda row: bisect_right(starts, row) - 1):
        local = [row - starts[number] for row in members]
        try:
            pictures = read_block(number, local)
        except errors as error:
            pictures = [error] * len(local)
        yield from pictures


T = TypeVar("T")
More = TypeVarTuple("More")


def keep_latest(load: Callable[[Path, *More], T]) -> Callable[[Path, *More], T]:
    """Keep what was loaded last from a file, because the next rows are mostly from it too.

    Nothing is kept from a file that was changed since, or in a forked process, which must not share positions.
    """

    @lru_cache(maxsize=1)
    def loaded(_written: int, _process: int, path: Path, *more: *More) -> T:
        return load(path, *more)

    return lambda path, *more: loaded(path.stat().st_mtime_ns, os.getpid(), path, *more)
