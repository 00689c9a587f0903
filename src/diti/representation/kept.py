"""Arrays of a row per image that are computed once and kept in the cache, by everything they depend on."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

import numpy as np

from diti.core.errors import InputError
from diti.core.machine import cache_folder
from diti.core.runs import atomic_path

IN_MEMORY = 2**28  # bytes; larger arrays stay on the disk and are memory maps, so that memory does not grow

log = logging.getLogger(__name__)

Parts = Iterable[np.ndarray]  # float32 (B, D), one after the other


def kept(facts: str, rows: int, compute: Callable[[], Parts]) -> np.ndarray:
    """The array float32 (rows, D) that belongs to these facts from the cache, else computed and put there."""
    path = place_of_kept(facts)
    if (found := read_kept(path, rows)) is not None:
        return found
    parts = iter(compute())
    first = next(parts)
    if rows * first[0].nbytes > IN_MEMORY:
        return _streamed(path, rows, first, parts)
    array = np.empty((rows, *first.shape[1:]), first.dtype)
    array[: len(first)] = first
    done = len(first)
    for part in parts:
        array[done : done + len(part)] = part
        done += len(part)
    try:
        with atomic_path(path) as temporary, temporary.open("wb") as handle:
            np.save(handle, array)
    except OSError as error:  # nothing depends on the cache
        log.warning("the codes could not be kept for next time: %s: %s", path, error.strerror or error)
    return array


def _streamed(path: Path, rows: int, first: np.ndarray, parts: Parts) -> np.ndarray:
    """Each part is written as it comes; the whole is a memory map."""
    size = rows * first[0].nbytes
    try:
        with atomic_path(path) as temporary, temporary.open("wb") as handle:
            _begin(handle, (rows, *first.shape[1:]), first.dtype)
            handle.write(first.tobytes())
            for part in parts:
                handle.write(part.tobytes())
    except OSError as error:
        raise InputError(
            f"{size / 1e9:,.1f} GB of codes do not fit in the cache ({path.parent}: {error.strerror or error}); "
            "free space, set DITI_CACHE to a folder on a larger disk, or encode in parts with --part 1/4 and so on"
        ) from None
    found = read_kept(path, rows)
    assert found is not None  # it was written just now
    return found


def _begin(handle: IO[bytes], shape: tuple[int, ...], kind: np.dtype) -> None:
    """What stands before the numbers in a file of NumPy."""
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(handle, header)


def place_of_kept(facts: str) -> Path:
    return cache_folder() / "features" / f"{hashlib.sha256(facts.encode()).hexdigest()[:24]}.npy"


def read_kept(path: Path, rows: int) -> np.ndarray | None:
    """A kept array with that many rows; None where it is missing, damaged or incomplete. A large one is a map."""
    try:
        # Written to, a map of this kind changes in memory alone.
        found = np.lib.format.open_memmap(path, mode="c")
    except (OSError, ValueError):
        return None
    if found.dtype != np.float32 or found.ndim != 2 or len(found) != rows:
        return None
    return found if found.nbytes > IN_MEMORY else np.array(found)
