"""Figures of a probe: attributes, differences (figure 4), weights (figure 2b), subsets × attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from diti.core.images import save_figure
from diti.probes.linear import AttributeRow, ProbeResult
from diti.probes.matrix import Cumulative, SubsetMatrix

OURS, OTHER, BETTER, WORSE, PALE = "#2f6f9f", "#8a8f98", "#c8423b", "#3f78c4", "#d9dde2"
HIGHLIGHT = 0.02  # the paper marks improvements of more than 2 %
ROWS = {"ap": "AP", "r": "Pearson r"}


def score_of(row: AttributeRow | dict[str, Any]) -> float | None:
    """AP of a binary attribute, r of a continuous one."""
    values = row if isinstance(row, dict) else vars(row)
    score = values["ap"] if values["kind"] == "binary" else values["r"]
    return None if score is None else float(score)


def save_attributes(result: ProbeResult, path: Path) -> Path:
    """Score of every attribute with its interval, best first; a mark where knowing nothing would be."""
    rows = sorted(result.rows, key=lambda row: score_of(row) or 0)
    figure, axes = _tall(len(rows))
    for place, row in enumerate(rows):
        score, interval = score_of(row) or 0.0, row.ap_interval or row.r_interval
        axes.barh(place, score, color=OURS if row.kind == "binary" else "#5a9e7c", height=0.7)
        if interval:
            axes.plot(interval, [place, place], color="black", linewidth=1)
        axes.plot([row.chance or 0.0] * 2, [place - 0.4, place + 0.4], color=BETTER, linewidth=1.5)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set(
        xlabel="AP (blue) or Pearson r (green), 95 % interval; red tick: chance", ylim=(-0.6, len(rows) - 0.4)
    )
    return save_figure(figure, path)


def gains_over(rows: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Score minus that of another probe, for the attributes that both could score."""
    known = {row["name"]: score_of(row) for row in others}
    found = {row["name"]: (score_of(row), known.get(row["name"])) for row in rows}
    return {name: own - other for name, (own, other) in found.items() if own is not None and other is not None}


def save_differences(gains: Mapping[str, float], other: str, path: Path) -> Path:
    """Figure 4: improvement of each attribute over another probe; above 2 % red, negative blue."""
    found = sorted(gains.items(), key=lambda item: item[1])
    figure, axes = _tall(len(found))
    colours = [BETTER if gain > HIGHLIGHT else WORSE if gain < 0 else PALE for _, gain in found]
    axes.barh(range(len(found)), [gain for _, gain in found], color=colours, height=0.7)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(found)), [name for name, _ in found])
    mean = float(np.mean([gain for _, gain in found]))
    axes.set(xlabel=f"score minus that of {Path(other).name}; mean {mean:+.3f}", ylim=(-0.6, len(found) - 0.4))
    return save_figure(figure, path)


def save_weights(result: ProbeResult, path: Path) -> Path:
    """Figure 2b: how the classifier's weights are spread, each attribute's scaled to its largest."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.hist(relative_weights(result.weights).ravel(), bins=40, range=(0, 1), density=True, color=OURS)
    axes.set(xlabel="|weight| / largest |weight| of the attribute", ylabel="density", xlim=(0, 1))
    return save_figure(figure, path)


def relative_weights(weights: np.ndarray) -> np.ndarray:
    """(A, D) sizes of weights, 1 for the largest of each attribute."""
    sizes = np.abs(weights)
    return np.asarray(sizes / np.maximum(sizes.max(1, keepdims=True), 1e-30))


def save_matrix(matrix: SubsetMatrix, times: Sequence[int], path: Path) -> Path:
    """Which subsets carry which attribute: score alone above chance, and what is lost without the subset."""
    order = np.argsort(_centre(matrix.alone - matrix.chance))
    names = [f"{matrix.names[i]} ({ROWS[matrix.scores[i]]})" for i in order]
    figure = Figure(figsize=(4 + 0.36 * len(matrix.ends), 1.6 + 0.2 * len(names)), layout="constrained")
    panels = {
        "subset alone, above chance": (matrix.alone - matrix.chance)[:, order],
        "lost without the subset": (matrix.full - matrix.without)[:, order],
    }
    tell_apart = len(set(times)) == len(times)  # not so where several subsets are seen from the same time on
    words = "subset, by the time-step at which it starts" if tell_apart else "subset, from fine to coarse"
    labels = times if tell_apart else range(len(times))
    for axes, (title, values) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        image = axes.imshow(np.maximum(values.T, 0), aspect="auto", cmap="Blues", vmin=0)
        axes.set(title=title, xlabel=words)
        shown = range(0, len(times), max(1, len(times) // 8))
        axes.set_xticks(list(shown), [str(labels[i]) for i in shown])
        axes.set_yticks(range(len(names)), names, fontsize=8)
        figure.colorbar(image, ax=axes, shrink=0.6)
    return save_figure(figure, path)


def _centre(gain: np.ndarray) -> np.ndarray:
    """(A,) mean subset of each attribute, weighted by what the subset knows of it."""
    weight = np.maximum(gain, 0) + 1e-9
    return np.asarray(np.arange(len(gain)) @ weight / weight.sum(0))


def save_cumulative(growing: Cumulative, path: Path) -> Path:
    """Mean score against the number of subsets, from the early and from the late end."""
    means = growing.means()
    figure = Figure(figsize=(4.4 * len(means), 3.4), layout="constrained")
    counts = range(1, len(growing.ends) + 1)
    for axes, (score, ways) in zip(np.atleast_1d(figure.subplots(1, len(means))), means.items(), strict=True):
        axes.plot(counts, ways["early"], marker="o", markersize=3, color=OURS, label="from the early end (fine)")
        axes.plot(counts, ways["late"], marker="o", markersize=3, color=OTHER, label="from the late end (coarse)")
        chance = growing.chance[np.array(growing.scores) == score].mean()
        axes.axhline(chance, color=WORSE, linewidth=1, linestyle=":", label="chance")
        axes.set(xlabel="subsets in use", ylabel=f"mean {ROWS[score]}")
        axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, path)


def _tall(rows: int) -> tuple[Figure, Any]:
    """A figure of one row of text per bar."""
    figure = Figure(figsize=(6, 1 + 0.2 * rows), layout="constrained")
    axes = figure.subplots()
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
