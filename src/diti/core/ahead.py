"""Batches read ahead: a thread prepares the next one while the device computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

Batches = Callable[[int, int], Tensor]  # (start, count) → images (count, C, H, W) in [-1, 1] at these positions


class Ahead:
    """The same batches. Each is a function of its position, so a wrong guess of the next costs time alone."""

    def __init__(self, batches: Batches, finish: Callable[[Tensor], Tensor] = lambda batch: batch) -> None:
        """finish: what is done with a batch in the thread, too, such as pinning its memory."""
        self._batches, self._finish = batches, finish
        self._pool = ThreadPoolExecutor(1, "ahead")  # one thread: readers need not be safe for several
        self._next: tuple[tuple[int, int], Future[Tensor]] | None = None

    def __call__(self, start: int, count: int, then: int | None = None) -> Tensor:
        """The batch at a position; then: where the next one, of the same count, will begin."""
        guessed, self._next = self._next, None
        batch = None if guessed is None else guessed[1].result()
        if guessed is None or guessed[0] != (start, count):
            batch = self._read(start, count)
        assert batch is not None
        if then is not None:
            self._next = (then, count), self._pool.submit(self._read, then, count)
        return batch

    def _read(self, start: int, count: int) -> Tensor:
        return self._finish(self._batches(start, count))

    def close(self) -> None:
        """End the thread; the batch it has ready is dropped."""
        self._pool.shutdown(cancel_futures=True)
