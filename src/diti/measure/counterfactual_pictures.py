"""Figures 2a, 5 and 7 of the paper for any model: attributes pushed, subsets swapped, whole codes interpolated.

And two tables as pictures: which edit, and which swapped third of the code, moves which reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from diti.core.images import grid, save_figure, save_picture, to_uint8
from diti.edit.compose import push
from diti.edit.directions import Direction
from diti.edit.interpolate import interpolate
from diti.edit.invert import Inverted
from diti.edit.pictures import interpolation_grid
from diti.edit.places import touch_of, touched
from diti.representation.models.decoding import DecodingModel

PUSHES = (-1, -0.5, 0, 0.5, 1)  # figure 2a, in units of the scale; 0 is the reconstruction
HALVES = (0.0, 0.5, 1.0)  # scales of figure 5
WAY = tuple(np.linspace(0, 1, 7).tolist())  # scales of figure 7


def save_pushes(
    model: DecodingModel,
    directions: Sequence[Direction],
    image: Tensor,
    strengths: Sequence[float],
    sampling_steps: int,
    path: Path,
) -> Path:
    """Figure 2a: one image (1, 3, H, W), a row per attribute, pushed from -1 to 1 times its strength."""
    start = Inverted.of(model, image, sampling_steps)
    each = list(zip(directions, strengths, strict=True))
    codes = torch.cat([push(start.z, d, times * strength) for d, strength in each for times in PUSHES])
    edited = start.shown(codes, start.x_T.expand(len(codes), *model.noise_shape))
    still = edited[PUSHES.index(0)]
    in_rows = zip(edited.split(len(PUSHES)), each, strict=True)
    times = torch.tensor(PUSHES)[:, None, None, None]
    rows = torch.stack(
        [torch.cat([image, touched(row, still, touch_of({d: s}), times)]) for row, (d, s) in in_rows]
    )
    alike = len(set(strengths)) == 1  # else they are the paper's, and each is another number of differences
    pushes = [f"{times * strengths[0]:+.2g}" if alike else f"{times:+g} s" for times in PUSHES]
    labels = ["image", *("0" if times == 0 else push for times, push in zip(PUSHES, pushes, strict=True))]
    sheet = grid(
        to_uint8(rows.flatten(0, 1)), len(labels), column_labels=labels,
        row_labels=[d.attribute for d in directions], title="strength of the push (0: reconstruction)",
    )  # fmt: skip
    return save_picture(sheet, path)


def save_swaps(
    model: DecodingModel, a: Tensor, b: Tensor, subsets: Sequence[str], sampling_steps: int, path: Path
) -> Path:
    """Figure 5: the dims of each group of subsets move between two images (1, 3, H, W), the others stay.

    So does the noise x_T: moved too, as in the paper, it would show its own effect in every row.
    """
    result = interpolate(model, a, b, subsets, HALVES, x_t="keep", sampling_steps=sampling_steps)
    return save_picture(interpolation_grid(result), path)


def save_ways(model: DecodingModel, firsts: Tensor, seconds: Tensor, sampling_steps: int, path: Path) -> Path:
    """Figure 7: a row per pair of images (N, 3, H, W), the whole code on its way from one to the other."""
    cells = []
    for a, b in zip(firsts.split(1), seconds.split(1), strict=True):
        between = interpolate(
            model, a, b, ["all"], WAY, directions=("a_to_b",), sampling_steps=sampling_steps
        ).images
        cells += [a, between, b]
    labels = ["A", *(f"{scale:.2g}" for scale in WAY), "B"]
    title = "from A to B (0 and 1: reconstructions)"
    return save_picture(grid(to_uint8(torch.cat(cells)), len(labels), column_labels=labels, title=title), path)


def save_moves(moves: Mapping[str, Any], path: Path) -> Path:
    """Which edit (row) moves which reading (column), in standard deviations; what is wanted is the diagonal."""
    return _save_table(moves["mean"], moves["edited"], moves["read"], "mean change, sd", path)


def save_transfers(record: Mapping[str, Any], path: Path) -> Path:
    """Which third, swapped from B into A with x_T kept, takes which reading (row) how far on its way to B."""
    shares = [[score and score["value"] for score in group] for group in record["x_t"]["keep"]["transfer"]]
    order = np.argsort([-_latest(column) for column in zip(*shares, strict=True)], kind="stable")
    rows = [[group[i] for group in shares] for i in order]
    names = [record["attributes"][i] for i in order]
    return _save_table(rows, names, record["groups"], "share of the way from A to B", path)


def _latest(shares: Sequence[float | None]) -> float:
    """Which of the groups (G,) moves it, on average: 0 is the first; what none moves comes last."""
    weights = np.array([max(share or 0.0, 0.0) for share in shares])
    return float(weights @ np.arange(len(weights)) / weights.sum()) if weights.sum() > 0 else -1.0


def _save_table(
    values: Sequence[Sequence[float | None]], rows: Sequence[str], columns: Sequence[str], what: str, path: Path
) -> Path:
    """Numbers as colours, blue below 0 and red above, written into their cells where there are few columns."""
    shown = np.array([[np.nan if value is None else value for value in row] for row in values], float)
    limit = max(1.0, float(np.nanmax(np.abs(shown), initial=0)))
    figure = Figure(figsize=(2.6 + 0.42 * max(len(columns), 6), 1.2 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=0 if len(columns) < 4 else 90)
    axes.set_yticks(range(len(rows)), rows)
    for (i, j), value in np.ndenumerate(shown):
        if np.isfinite(value) and (len(columns) < 4 or abs(value) >= 0.25):
            axes.text(j, i, f"{value:.1f}".replace("-", "−"), ha="center", va="center", fontsize=7)
    figure.colorbar(image, label=what)
    return save_figure(figure, path)
