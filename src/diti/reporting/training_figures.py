"""Figures from the logs of runs: A9, the loss by time-step early and late in training; A10, the loss of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from diti.core.images import save_figure
from diti.core.runs import RunFolder

SMOOTHED = 5  # log lines whose mean is one point of a curve
COLUMNS = 2  # panels beside each other


@dataclass(frozen=True)
class LossPanel:
    """Runs whose training losses can be compared."""

    loss: str  # what it is
    runs: dict[str, Path] = field(default_factory=dict)  # label → folder

    def logs(self) -> dict[str, list[dict[str, Any]]]:
        """Label → lines of the log, of the runs that have one."""
        return {label: lines for label, run in self.runs.items() if (lines := training_log(run))}


def training_log(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log about training steps, oldest first."""
    return [line for line in RunFolder(run).read_log() if "loss" in line]


def save_loss_by_time(run: Path, loss: str, path: Path) -> Path | None:
    """Figure A9: `draw_loss_by_time` as a file; None where the run has no such log."""
    figure = draw_loss_by_time(run, loss)
    return save_figure(figure, path) if figure else None


def draw_loss_by_time(run: Path, loss: str) -> Figure | None:
    """Mean of a loss by time-step over the first tenth of a run and over its last; None without a log."""
    lines = [line["loss_by_time"] for line in training_log(run) if "loss_by_time" in line]
    if len(lines) < 2:
        return None
    share = max(1, len(lines) // 10)
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    for label, part in (("first tenth", lines[:share]), ("last tenth", lines[-share:])):
        means = mean_by_stretch(part)
        axes.step(np.arange(len(means) + 1) / len(means), [*means, means[-1]], where="post", label=label)
    axes.set(xlabel="time-step t / T", ylabel=loss, xlim=(0, 1), ylim=(0, None))
    axes.legend(title="of the training", frameon=False)
    return figure


def mean_by_stretch(lines: Sequence[Sequence[float | None]]) -> list[float]:
    """Mean of each stretch of time over log lines; a stretch without images in a line does not count there."""
    table = np.array([[np.nan if value is None else value for value in line] for line in lines], dtype=np.float64)
    known = np.isfinite(table)
    total = np.where(known, table, 0).sum(0)
    return [float(t / n) if n else float("nan") for t, n in zip(total, known.sum(0), strict=True)]


def save_training_losses(panels: Sequence[LossPanel], path: Path) -> Path | None:
    """Figure A10: `draw_training_losses` as a file; None where no run has a log."""
    figure = draw_training_losses(panels)
    return save_figure(figure, path) if figure else None


def draw_training_losses(panels: Sequence[LossPanel]) -> Figure | None:
    """Training loss over images seen: a panel for each loss, a curve per labelled run; None without a log."""
    found = [panel.logs() for panel in panels]
    logs = [(panel.loss, runs) for panel, runs in zip(panels, found, strict=True) if runs]
    if not logs:
        return None
    columns = min(len(logs), COLUMNS)
    rows = -(-len(logs) // columns)
    figure = Figure(figsize=(6 if columns == 1 else 4.5 * columns, 3.2 * rows), layout="constrained")
    for place, (loss, runs) in enumerate(logs):
        axes = figure.add_subplot(rows, columns, place + 1)
        for label, lines in runs.items():
            axes.plot(*smoothed([line["images"] for line in lines], [line["loss"] for line in lines]), label=label)
        axes.set(xlabel="images seen", ylabel=loss)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(frameon=False)
    return figure


def smoothed(x: Sequence[float], y: Sequence[float], width: int = SMOOTHED) -> tuple[list[float], list[float]]:
    """Means over groups of `width` consecutive points; if there are few points, the points themselves."""
    if len(x) < 4 * width:
        return list(x), list(y)
    groups = [slice(start, start + width) for start in range(0, len(x) - width + 1, width)]
    return [float(np.mean(x[g])) for g in groups], [float(np.mean(y[g])) for g in groups]
