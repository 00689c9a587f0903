"""The axes that one can name (`representation/models/axes.py`), drawn on a few pictures as far as they are seen.

Notation: N pictures, X axes, S places on an axis, D dims of z.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diti.core.images import save_picture, to_uint8
from diti.core.progress import progress_bar
from diti.data.prepared import Dataset
from diti.edit.invert import Inverted
from diti.exploring.strips import Strips, save_axis_picture, strip_pictures
from diti.representation.models.axes import Axes
from diti.representation.models.decoding import DecodingModel

REACHES = (2.0, 4.0)  # standard deviations: what is usual in the data, and more where nothing can be seen
FRAMES = 9  # places of a film, of which a strip shows every second
LEAST = 0.003  # share of the pixels that must change visibly: three of 32 × 32
FILM_SIDE = 192  # px of a picture in a film, about


@dataclass(frozen=True, eq=False)
class Seen:
    """One axis of which something can be seen."""

    axis: int
    reach: float  # standard deviations to either side
    strips: Strips  # of this axis alone: images (1, N, FRAMES, 3, H, W)

    @property
    def places(self) -> list[float]:
        """(FRAMES,) in standard deviations."""
        return [self.reach * float(share) for share in np.linspace(-1, 1, FRAMES)]

    @property
    def changed(self) -> float:
        """Share of the pixels that visibly change from one end to the other."""
        return float(self.strips.share_changed()[0])


def see_axes(model: DecodingModel, axes: Axes, chosen: list[int], pictures: Tensor, steps: int) -> list[Seen]:
    """The chosen axes on pictures (N, 3, H, W): as far as is usual, or farther where nothing is seen.

    Those of which even then nothing can be seen are left out.
    """
    with progress_bar("inverting", model.steps_of(len(pictures), steps), unit="steps") as advance:
        start = Inverted.of(model, pictures, steps, on_step=lambda index, total, x: advance())
    found: dict[int, Seen] = {}
    for reach in REACHES:
        left = [axis for axis in chosen if axis not in found]
        if not left:
            break
        codes = placed_codes(start.z, model.statistics()[0], axes, left, reach)
        drawn = _decoded(model, start, codes, steps)
        every = (Seen(axis, reach, Strips(drawn[i : i + 1], pictures)) for i, axis in enumerate(left))
        found |= {seen.axis: seen for seen in every if seen.changed > LEAST}
    return [found[axis] for axis in chosen if axis in found]


def placed_codes(z: Tensor, mean: Tensor, axes: Axes, chosen: list[int], reach: float) -> Tensor:
    """(X, N, FRAMES, D): codes z (N, D) put at places from -reach to reach on one axis each, the rest kept."""
    places = torch.linspace(-reach, reach, FRAMES, dtype=z.dtype)
    here, steps = axes.places(z, mean.to(z))[:, chosen].T, axes.directions[chosen].to(z)  # (X, N), (X, D)
    return z[None, :, None] + (places - here[..., None])[..., None] * steps[:, None, None]


def _decoded(model: DecodingModel, start: Inverted, codes: Tensor, steps: int) -> Tensor:
    """(X, N, FRAMES, 3, H, W)."""
    noise = start.x_T[None, :, None].expand(*codes.shape[:3], *start.x_T.shape[1:])
    with progress_bar("drawing the axes", model.steps_of(codes[..., 0].numel(), steps), unit="steps") as advance:
        drawn = start.shown(codes.flatten(0, 2), noise.flatten(0, 2), lambda index, total, x: advance())
    return drawn.unflatten(0, codes.shape[:3])


def save_strip(seen: Seen, dataset: Dataset, low: np.ndarray, high: np.ndarray, path: Path) -> Path:
    """A row per picture: places along the axis, and where it changes; then the images lowest and highest on it."""
    shown = Strips(seen.strips.images[:, :, ::2], seen.strips.faces)
    return save_axis_picture(strip_pictures(shown, 0), seen.places[::2], dataset, low, high, path)


def save_film(seen: Seen, path: Path) -> Path:
    """All frames side by side, each the pictures in a row: (N · W) × FRAMES px wide."""
    frames = seen.strips.images[0].permute(1, 3, 0, 4, 2)  # (FRAMES, H, N, W, 3)
    scale = max(1, round(FILM_SIDE / frames.shape[1]))
    flat = frames.flatten(2, 3).permute(0, 3, 1, 2)  # (FRAMES, 3, H, N · W)
    pixels = to_uint8(flat).repeat(scale, 1).repeat(scale, 2)
    return save_picture(Image.fromarray(np.concatenate(list(pixels), axis=1)), path)
