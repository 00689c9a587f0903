"""Progress with the time left, on the error stream so that output stays clean: a bar, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LINE_SECONDS = 30.0  # between lines where there is no terminal, such as in the log of a job


class _RateColumn(ProgressColumn):
    """Units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {self.unit}/s" if speed else f"– {self.unit}/s", no_wrap=True)


Advance = Callable[..., None]  # advance(count=1, note="", total=None)
Follower = Callable[[str, float], None]  # is told what is running, and which share of it is done
_follower: ContextVar[Follower | None] = ContextVar("follower", default=None)


@contextmanager
def followed(by: Follower) -> Iterator[None]:
    """Inside the block progress goes to `by` instead of the terminal; an exception from `by` ends the work."""
    token = _follower.set(by)
    try:
        yield
    finally:
        _follower.reset(token)


def quiet() -> AbstractContextManager[None]:
    """Inside the block nothing tells how far the work is.

    with diti.quiet():
        model = diti.solve("data/mine", "runs/backbone")
    """
    return followed(lambda label, share: None)


@contextmanager
def progress_bar(
    label: str, total: int, unit: str = "images", start: int = 0, shown: bool = True
) -> Iterator[Advance]:
    """A bar from `start` to `total`. Yields `advance(count=1, note="")`; the note is shown after the bar.

    Without a terminal a line every half minute, so that a log shows whether the work goes on.
    """
    if (follower := _follower.get()) is not None:
        yield _Told(follower, label, total, start).advance
        return
    console = Console(stderr=True, soft_wrap=True)
    in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None  # rich draws its bar with these
    if not (shown and (console.is_terminal or in_notebook)):
        yield _Lines(label, total, start).advance if shown else _nothing
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        _RateColumn(unit),
        TimeRemainingColumn(),
        TextColumn("left {task.fields[note]}"),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        task = progress.add_task(label, total=total, completed=start, note="")

        def advance(count: int = 1, note: str | None = None, total: int | None = None) -> None:
            progress.advance(task, count)
            if note is not None:
                progress.update(task, note=note)
            if total is not None:
                progress.update(task, total=total)

        yield advance


def _nothing(count: int = 1, note: str | None = None, total: int | None = None) -> None:
    pass


class _Told:
    """Tells a follower how far the work has come."""

    def __init__(self, follower: Follower, label: str, total: int, start: int) -> None:
        self.follower, self.label, self.total, self.done = follower, label, total, start
        self.advance(0)

    def advance(self, count: int = 1, note: str | None = None, total: int | None = None) -> None:
        self.done += count
        self.total = self.total if total is None else total
        self.follower(self.label, min(1.0, self.done / max(1, self.total)))


class _Lines:
    """Prints how far the work has come, when the last line is half a minute old, whichever work wrote it."""

    last_told = time.monotonic()

    def __init__(self, label: str, total: int, start: int) -> None:
        self.label, self.total = label, total
        self.start = self.done = start
        self.note = ""
        self.began = time.monotonic()

    def advance(self, count: int = 1, note: str | None = None, total: int | None = None) -> None:
        self.done += count
        self.total = self.total if total is None else total
        self.note = self.note if note is None else note
        now = time.monotonic()
        if now - _Lines.last_told >= LINE_SECONDS:
            _Lines.last_told = now
            parts = [f"{self.label}: {self.done:,.0f}/{self.total:,.0f}", *self._left(now - self.began)]
            Console(stderr=True, soft_wrap=True, highlight=False).print(
                ", ".join([*parts, *([self.note] if self.note else [])]), markup=False
            )

    def _left(self, elapsed: float) -> list[str]:
        """Minutes until the end, at the rate so far; nothing where that is not known."""
        if self.done <= self.start:
            return []
        seconds = (self.total - self.done) * elapsed / (self.done - self.start)
        if seconds < 90:
            return [f"{max(0.0, seconds):.0f} s left"]
        return [f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"]
