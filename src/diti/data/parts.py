"""An unfinished dataset folder: space for all pixels, and a checksum of each row that is done.

`images.part` has a row per image of the source, `done.part` the checksums; what was cut off or damaged since an
earlier run counts as not done.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from diti.core.errors import InputError
from diti.core.runs import atomic_path
from diti.data.contents import IMAGES

PIXELS, DONE = "images.part", "done.part"
ROWS_AT_ONCE = 128

log = logging.getLogger(__name__)


def allocate(out: Path, plan: dict[str, Any], remedy: str) -> None:
    """Reserve the disk space before the first image: a full disk under a memory map would kill the process.

    What an earlier run left is kept, and extended where it was cut off. remedy: what to do if there is too little
    space, besides freeing some.
    """
    shape = (plan["count"], plan["size"], plan["size"], 3)
    held = sum((out / name).stat().st_blocks * 512 for name in (PIXELS, DONE) if (out / name).is_file())
    need, free = math.prod(shape), shutil.disk_usage(out).free
    if need > free + held:
        raise InputError(
            f"{plan['count']:,} images of {plan['size']} px need {_amount(need)} and {out} has "
            f"{_amount(free)} free; free space, or {remedy}"
        )
    _reserve(out / PIXELS, np.uint8, shape)
    _reserve(out / DONE, np.uint32, shape[:1])


def _amount(count: float) -> str:
    """A number of bytes in a suitable unit."""
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 1000:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:,.1f} TB"


def _reserve(path: Path, kind: type[np.generic], shape: tuple[int, ...]) -> None:
    """An array file whose blocks are really allocated, where the system can guarantee that (macOS cannot).

    An existing file of that kind and shape keeps its contents; zeros replace what was lost.
    """
    kept = _is_array(path, kind, shape)
    try:
        np.lib.format.open_memmap(path, "r+" if kept else "w+", kind, shape).flush()  # "r+" makes it long enough
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as handle:
                os.posix_fallocate(handle.fileno(), 0, path.stat().st_size)
    except OSError:
        if not kept:
            path.unlink(missing_ok=True)
        raise


def _is_array(path: Path, kind: type[np.generic], shape: tuple[int, ...]) -> bool:
    """Whether a file begins as an array of this kind and shape; its end may be missing."""
    try:
        with path.open("rb") as handle:
            np.lib.format.read_magic(handle)
            return np.lib.format.read_array_header_1_0(handle) == (shape, False, np.dtype(kind))
    except (OSError, ValueError):
        return False


def open_parts(out: Path) -> tuple[np.ndarray, np.ndarray]:
    """The pixels (N, S, S, 3) and the marks (N,) of an unfinished folder."""
    return np.load(out / PIXELS, mmap_mode="r+"), np.load(out / DONE, mmap_mode="r+")


def mark(pixels: np.ndarray) -> int:
    """The entry in `done.part` for an image that is done: its checksum; 0 is for one that is not."""
    return zlib.crc32(pixels.tobytes()) or 1


def unfinished(out: Path) -> np.ndarray:
    """Rows that are not done, or have changed: a truncated file or a power failure can lose pixels."""
    pixels, done = open_parts(out)
    marked = np.flatnonzero(done)
    whole = [row for row in marked.tolist() if done[row] == mark(pixels[row])]
    if len(whole) < len(marked):
        log.warning("%d images in %s are damaged and are decoded again", len(marked) - len(whole), out / PIXELS)
    return np.setdiff1d(np.arange(len(done)), whole)


def copy_readable(out: Path, kept: np.ndarray) -> None:
    """`images.npy` without the rows that could not be read."""
    pixels, _ = open_parts(out)
    with atomic_path(out / IMAGES) as temporary:
        _reserve(temporary, np.uint8, (len(kept), *pixels.shape[1:]))
        compact = np.load(temporary, mmap_mode="r+")
        for start in range(0, len(kept), ROWS_AT_ONCE):
            compact[start : start + ROWS_AT_ONCE] = pixels[kept[start : start + ROWS_AT_ONCE]]
        compact.flush()
