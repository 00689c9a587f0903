"""Pictures pushed along single dims of z, their noise x_T kept, and where in the picture that shows.

Notation: N pictures, X axes, S places on an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diti.core.images import grid, save_picture, to_uint8
from diti.core.progress import progress_bar
from diti.data.prepared import Dataset
from diti.edit.invert import Inverted
from diti.representation.models.decoding import DecodingModel

PLACES = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)  # standard deviations
VISIBLE = 0.08  # change of a pixel, of its whole range, that a person notices
WARMEST = 0.5  # change of a pixel that is drawn in the warmest colour


@dataclass(frozen=True, eq=False)
class Strips:
    """What each axis does to each face."""

    images: Tensor  # (X, N, S, 3, H, W) in [-1, 1]
    faces: Tensor  # (N, 3, H, W)

    def change(self) -> Tensor:
        """(X, N, H, W) change of each pixel from one end of the axis to the other, as a share of its range."""
        return (self.images[:, :, -1] - self.images[:, :, 0]).abs().mean(2) / 2

    def share_changed(self) -> Tensor:
        """(X,) share of the pixels that visibly change."""
        return (self.change() > VISIBLE).float().mean((1, 2, 3))


def draw_strips(model: DecodingModel, faces: Tensor, axes: Sequence[int], sampling_steps: int) -> Strips:
    """Each face (N, 3, H, W) with each axis set to mean + place × std, place by place; decoded in one go."""
    mean, std = model.statistics()
    with progress_bar("inverting", model.steps_of(len(faces), sampling_steps), unit="steps") as advance:
        start = Inverted.of(model, faces, sampling_steps, on_step=lambda index, total, x: advance())
    codes = pushed_codes(start.z, mean, std, axes, PLACES)  # (X, N, S, D)
    noise = start.x_T[None, :, None].expand(*codes.shape[:3], *start.x_T.shape[1:])
    steps = model.steps_of(codes[..., 0].numel(), sampling_steps)
    with progress_bar("drawing the axes", steps, unit="steps") as advance:
        drawn = start.shown(codes.flatten(0, 2), noise.flatten(0, 2), lambda index, total, x: advance())
    return Strips(drawn.unflatten(0, codes.shape[:3]), faces)


def pushed_codes(z: Tensor, mean: Tensor, std: Tensor, axes: Sequence[int], places: Sequence[float]) -> Tensor:
    """(X, N, S, D): codes z (N, D) with one dim each set to mean + place × std of that dim."""
    codes = z[None, :, None].repeat(len(axes), 1, len(places), 1)
    for index, axis in enumerate(axes):
        codes[index, :, :, axis] = mean[axis] + std[axis] * torch.tensor(places, dtype=z.dtype)
    return codes


def heat(change: Tensor) -> np.ndarray:
    """(..., H, W) change → uint8 (..., H, W, 3): white where nothing changes, then yellow, red, black."""
    level = (change / WARMEST).clamp(0, 1)[..., None]
    stops = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.85, 0.35], [0.85, 0.2, 0.1], [0.25, 0.0, 0.05]])
    place = level * (len(stops) - 1)
    low = place.floor().clamp(max=len(stops) - 2).long()[..., 0]
    colours = stops[low] + (place - low[..., None]) * (stops[low + 1] - stops[low])
    return (colours * 255).round().to(torch.uint8).numpy()


def strip_pictures(strips: Strips, index: int) -> np.ndarray:
    """uint8 (N, S + 1, H, W, 3) of one axis: a row per face, and at its end where it changes."""
    drawn = to_uint8(strips.images[index].flatten(0, 1)).reshape(*strips.images.shape[1:3], *_sides(strips), 3)
    return np.concatenate([drawn, heat(strips.change()[index])[:, None]], axis=1)


def save_axis_picture(
    pushed: np.ndarray, places: Sequence[float], dataset: Dataset, low: np.ndarray, high: np.ndarray, path: Path
) -> Path:
    """Rows of pushed pictures (N, S + 1, H, W, 3), then the images lowest and highest on the axis."""
    columns = pushed.shape[1]
    ends = [_filled(dataset.pixels(rows[:columns]), columns) for rows in (low, high)]
    labels = [*(f"picture {n + 1}" for n in range(len(pushed))), "lowest", "highest"]
    pictures = np.concatenate([pushed.reshape(-1, *pushed.shape[2:]), *ends])
    return save_picture(grid(pictures, columns, row_labels=labels, column_labels=headings(places)), path)


def headings(places: Sequence[float]) -> list[str]:
    """Above the columns of a strip."""
    return [*(f"{place:+g} sd" if place else "mean" for place in places), "change"]


def _filled(pixels: np.ndarray, count: int) -> np.ndarray:
    """A row of images, with white where there are too few."""
    blank = np.full((count - len(pixels), *pixels.shape[1:]), 255, np.uint8)
    return np.concatenate([pixels, blank])


def _sides(strips: Strips) -> tuple[int, int]:
    height, width = strips.images.shape[-2:]
    return height, width
