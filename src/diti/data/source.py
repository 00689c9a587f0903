"""What every reader hands over: a table with a row per image, and a way to read the pictures of some rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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
