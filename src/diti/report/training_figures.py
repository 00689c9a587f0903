"""Figures from the logs of runs: A9, the loss by time-step early and late in training; A10, the loss of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from diti.core.images import save_figure
from diti.core.runs import RunFolder

SMOOTHED = 5  # log lines whose mean is one point of a curve


def training_log(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log about training steps, oldest first."""
    return [line for line in RunFolder(run).read_log() if "loss" in line]


def save_loss_by_time(run: Path, path: Path) -> Path | None:
    """Figure A9: mean training loss by time-step over the first tenth of a run and over its last; None: no log."""
    lines = [line["loss_by_time"] for line in training_log(run) if "loss_by_time" in line]
    if len(lines) < 2:
        return None
    share = max(1, len(lines) // 10)
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    for label, part in (("first tenth", lines[:share]), ("last tenth", lines[-share:])):
        means = mean_by_stretch(part)
        axes.step(np.arange(len(means) + 1) / len(means), [*means, means[-1]], where="post", label=label)
    axes.set(xlabel="time-step t / T", ylabel="training loss, λ-weighted", xlim=(0, 1), ylim=(0, None))
    axes.legend(title="of the training", frameon=False)
    return save_figure(figure, path)


def mean_by_stretch(lines: Sequence[Sequence[float | None]]) -> list[float]:
    """Mean of each stretch of time over log lines; a stretch without images in a line does not count there."""
    table = np.array([[np.nan if value is None else value for value in line] for line in lines], dtype=np.float64)
    known = np.isfinite(table)
    total = np.where(known, table, 0).sum(0)
    return [float(t / n) if n else float("nan") for t, n in zip(total, known.sum(0), strict=True)]


def save_training_losses(runs: Mapping[str, Path], path: Path) -> Path | None:
    """Figure A10: training loss over images seen, a curve per labelled run; None where no run has a log."""
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    drawn = False
    for label, run in runs.items():
        lines = training_log(run)
        if lines:
            points = smoothed([line["images"] for line in lines], [line["loss"] for line in lines])
            axes.plot(*points, label=label)
            drawn = True
    if not drawn:
        return None
    axes.set(xlabel="images seen", ylabel="training loss, λ-weighted")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False)
    return save_figure(figure, path)


def smoothed(x: Sequence[float], y: Sequence[float], width: int = SMOOTHED) -> tuple[list[float], list[float]]:
    """Means over `width` neighbours that follow each other, each group once; few points stay as they are."""
    if len(x) < 4 * width:
        return list(x), list(y)
    groups = [slice(start, start + width) for start in range(0, len(x) - width + 1, width)]
    return [float(np.mean(x[g])) for g in groups], [float(np.mean(y[g])) for g in groups]
