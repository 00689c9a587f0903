"""`diti manipulate --axis`: push an image along axes or dims of z, by standard deviations, its noise kept.

Notation: R rows of the picture, S strengths, D dims of z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diti.core.images import grid, picture_kind, save_picture, to_uint8
from diti.core.outputs import require_writable
from diti.core.progress import progress_bar
from diti.diffusion.files import locate
from diti.diffusion.sampler import OnStep
from diti.edit.compose import What, step_for
from diti.edit.interpolate import check_scales
from diti.edit.invert import Inverted
from diti.edit.wishes import Means, Wish
from diti.representation.found_axes import find_key
from diti.representation.models.axes import Axes
from diti.representation.models.axis_names import Key, axis_of
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.inputs import Images, as_batch, read_images
from diti.representation.models.loading import load_with_decoder

Move = Mapping[Key, float]  # axis or dim → sign


@dataclass(frozen=True, eq=False)
class Moved:
    """One image pushed along several axes, each alone and then together."""

    images: Tensor  # (R, S, 3, H, W)
    names: tuple[str, ...]  # R
    scales: tuple[float, ...]  # S, standard deviations
    original: Tensor  # (3, H, W)
    reconstruction: Tensor  # (3, H, W) from the unchanged code

    def picture(self) -> Image.Image:
        """A row per axis: as given, reconstructed, then by strength."""
        ends = torch.stack([self.original, self.reconstruction])
        rows = torch.cat([torch.cat([ends, row]) for row in self.images])
        labels = ["image", "reconstruction", *(f"{scale:+g} sd" for scale in self.scales)]
        return grid(to_uint8(rows), len(labels), row_labels=self.names, column_labels=labels)


def planned_moves(model: DecodingModel, words: Sequence[str]) -> tuple[list[Move], list[str]]:
    """What each row moves, and its name: each axis alone and, of several, all together."""
    found = [find_key(model, word) for word in words]
    moves: list[Move] = [{key: sign} for key, sign in found]
    names = [word.strip() if not word.strip().isdigit() else f"axis {int(word)}" for word in words]
    if len(moves) > 1:
        moves.append(dict(found))
        names.append("together")
    return moves, names


def deviation(key: Key, std: Tensor, axes: Axes | None = None) -> Tensor:
    """(D,) how z changes by one standard deviation of an axis, or of a dim, given those of z (D,)."""
    if (axis := axis_of(key)) is not None and axes is not None:
        return axes.directions[axis].to(std)
    step = torch.zeros_like(std)
    step[int(key)] = std[int(key)]
    return step


def move_axes(
    model: DecodingModel,
    image: Images,
    words: Sequence[str],
    scales: Sequence[float],
    *,
    keep: Sequence[What] = (),
    masked: bool = True,
    sampling_steps: int,
    on_step: OnStep | None = None,
) -> Moved:
    """One image along the named axes; it is inverted once and all its variants are decoded together."""
    scales = check_scales(scales)
    moves, names = planned_moves(model, words)
    pixels = as_batch(image, model.size)[:1]
    start = Inverted.of(model, pixels, sampling_steps, masked=masked, on_step=on_step)
    steps = np.stack([step_for(model, list(move), list(move.values()), keep) for move in moves])  # (R, D)
    codes = start.z[0] + torch.from_numpy(np.multiply.outer(scales, steps).swapaxes(0, 1)).to(start.z)
    flat = torch.cat([start.z, codes.flatten(0, 1)])
    drawn = start.shown(flat, start.x_T.expand(len(flat), *start.x_T.shape[1:]), on_step)
    return Moved(drawn[1:].unflatten(0, codes.shape[:2]), tuple(names), tuple(scales), pixels[0], drawn[0])


def move_axes_files(
    source: str,
    image: Path,
    words: Sequence[str],
    scales: Sequence[float],
    out: Path,
    *,
    keep: Sequence[str] = (),
    data: str | None = None,
    masked: bool,
    sampling_steps: int,
    overwrite: bool,
) -> list[str]:
    """`diti manipulate --axis`: an image file → a picture with a row per axis; what to print."""
    picture_kind(out)
    wish = Wish(keep=tuple(keep))
    require_writable({"--out": [out]}, [image, *wish.files], overwrite=overwrite)
    model = load_with_decoder(source)
    moves, _ = planned_moves(model, words)
    model.validate_sampling_steps(sampling_steps)
    model.statistics()
    means = Means.of(model, locate(source), data)
    means.check(wish)
    kept = means.kept(wish)
    (pixels,), lines = read_images([image], model.size)
    steps = model.steps_of(1, sampling_steps) + model.steps_of(1 + len(moves) * len(scales), sampling_steps)
    with progress_bar("manipulating", steps, unit="steps") as advance:
        moved = move_axes(
            model,
            pixels,
            words,
            scales,
            keep=kept,
            masked=masked,
            sampling_steps=sampling_steps,
            on_step=lambda index, total, x: advance(),
        )
    return [*lines, f"wrote {save_picture(moved.picture(), out)}"]
