"""Progress bars with rate and time left, on the terminal's error stream so that output stays clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


class _RateColumn(ProgressColumn):
    """Units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {self.unit}/s" if speed else f"– {self.unit}/s", no_wrap=True)


Advance = Callable[..., None]  # advance(count=1, note="", total=None)


@contextmanager
def progress_bar(
    label: str, total: int, unit: str = "images", start: int = 0, shown: bool = True
) -> Iterator[Advance]:
    """A bar from `start` to `total`. Yields `advance(count=1, note="")`; the note stands behind the bar."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        _RateColumn(unit),
        TimeRemainingColumn(),
        TextColumn("left {task.fields[note]}"),
    )
    with Progress(
        *columns, console=Console(stderr=True, soft_wrap=True), disable=not shown, refresh_per_second=4
    ) as progress:
        task = progress.add_task(label, total=total, completed=start, note="")

        def advance(count: int = 1, note: str | None = None, total: int | None = None) -> None:
            progress.advance(task, count)
            if note is not None:
                progress.update(task, note=note)
            if total is not None:
                progress.update(task, total=total)

        yield advance
