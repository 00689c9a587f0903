"""Progress with the time left, on the error stream so that output stays clean: a bar, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

LINE_SECONDS = 30.0  # between lines where there is no terminal, such as in the log of a job


Advance = Callable[..., None]  # advance(count=1, note="", total=None)
Follower = Callable[[str, float], None]  # gets the name of what is running, and the share of it that is done
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
    """Inside the block no progress is shown.

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
        (work := _Followed(label, total, start, follower)).show()
        yield work.advance
        return
    console = Console(stderr=True, soft_wrap=True)
    in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None  # rich draws its bar with these
    if not (shown and (console.is_terminal or in_notebook)):
        yield (_Lines if shown else _Work)(label, total, start).advance
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
        yield _Bar(label, total, start, progress).advance


@dataclass
class _Work:
    """How far a piece of work has come; this one shows nothing."""

    label: str
    total: int
    done: int
    note = ""

    def advance(self, count: int = 1, note: str | None = None, total: int | None = None) -> None:
        self.done += count
        self.note = self.note if note is None else note
        self.total = self.total if total is None else total
        self.show()

    def show(self) -> None:
        pass


@dataclass
class _Followed(_Work):
    """Passes it on to a follower."""

    follower: Follower

    def show(self) -> None:
        self.follower(self.label, min(1.0, self.done / max(1, self.total)))


@dataclass
class _Bar(_Work):
    """Draws a bar."""

    progress: Progress

    def __post_init__(self) -> None:
        self.task = self.progress.add_task(self.label, total=self.total, completed=self.done, note="")

    def show(self) -> None:
        self.progress.update(self.task, completed=self.done, total=self.total, note=self.note)


class _RateColumn(ProgressColumn):
    """Units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {self.unit}/s" if speed else f"– {self.unit}/s", no_wrap=True)


@dataclass
class _Lines(_Work):
    """Prints a line once the last one, whichever work printed it, is half a minute old."""

    last_printed: ClassVar[float] = time.monotonic()

    def __post_init__(self) -> None:
        self.start, self.began = self.done, time.monotonic()

    def show(self) -> None:
        now = time.monotonic()
        if now - _Lines.last_printed >= LINE_SECONDS:
            _Lines.last_printed = now
            parts = [f"{self.label}: {self.done:,.0f}/{self.total:,.0f}", self._left(now - self.began), self.note]
            line = ", ".join(part for part in parts if part)
            Console(stderr=True, soft_wrap=True, highlight=False).print(line, markup=False)

    def _left(self, elapsed: float) -> str:
        """Time until the end, at the rate so far; empty where that is not known."""
        if self.done <= self.start:
            return ""
        seconds = (self.total - self.done) * elapsed / (self.done - self.start)
        if seconds < 90:
            return f"{max(0.0, seconds):.0f} s left"
        return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"
