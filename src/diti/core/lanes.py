"""Independent pieces of work in parallel on a CPU, one thread each.

A small network hardly gains from a second thread inside its layers; two networks in parallel do twice the work
of one (measured: 870 against 440 images/s of a 32 px U-Net on two cores).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_lanes(work: Callable[[Item], Result], items: Iterable[Item], lanes: int | None = None) -> Iterator[Result]:
    """The results in the order of the items; by default as many lanes as torch has threads, one on a GPU."""
    lanes = lanes or (1 if torch.cuda.is_available() else torch.get_num_threads())
    with ThreadPoolExecutor(lanes, "lane", initializer=_one_thread if lanes > 1 else None) as pool:
        yield from pool.map(_no_grad(work), items)


def _one_thread() -> None:
    torch.set_num_threads(1)  # for this lane only: the setting belongs to the calling thread


def _no_grad(work: Callable[[Item], Result]) -> Callable[[Item], Result]:
    """Whether gradients are recorded is also a setting of each thread."""

    def quiet(item: Item) -> Result:
        with torch.no_grad():
            return work(item)

    return quiet
