"""Algorithm 3: push z along the direction of an attribute and decode, from the noise of the image itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import ValueRange, grid, to_uint8
from diti.diffusion.generate import SAMPLING_STEPS
from diti.diffusion.sampler import OnStep, timesteps
from diti.edit.compose import What, step_for, strength_at
from diti.edit.directions import Direction
from diti.edit.interpolate import check_scales
from diti.edit.invert import Inverted
from diti.edit.places import touch_of, touched
from diti.edit.reach import beyond
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.diffusion import DiTi
from diti.representation.models.inputs import Images, as_batch

SCALE = 2.0  # strength: far enough to be seen, see `strength.py`
SCALES = (-SCALE, -SCALE / 2, SCALE / 2, SCALE)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Manipulation:
    """Images with an attribute pushed by each of S scales, and what the model makes of the images themselves."""

    images: Tensor  # (S, N, 3, H, W)
    scales: tuple[float, ...]  # S
    z: Tensor  # (S, N, D) the codes they were decoded from
    originals: Tensor  # (N, 3, H, W)
    reconstructions: Tensor  # (N, 3, H, W) decoded from the unchanged z, with the same noise

    @property
    def errors(self) -> Tensor:
        """Mean squared error (N,) of the reconstructions, for pixels in [-1, 1]."""
        return (self.reconstructions - self.originals).square().mean((1, 2, 3))


def manipulate(
    model: DecodingModel,
    images: Images,
    moves: Direction | Mapping[What, float],
    scales: Sequence[float] = SCALES,
    *,
    keep: Sequence[What] = (),
    local: bool = True,
    masked: bool = True,
    stop_guidance: float = 0.0,
    sampling_steps: int = SAMPLING_STEPS,
    on_step: OnStep | None = None,
    value_range: ValueRange | None = None,
) -> Manipulation:
    """Algorithm 3 for all scales: each image is inverted once, then all its variants are decoded together.

    moves: a direction, moved by each of the scales, which are strengths (1: the usual difference, see
    `strength.py`); or several things with a strength each, all of them times each scale, see `compose.py`. keep:
    what stays as it is read. local: the picture changes only where the attribute lives in pictures, where that is
    known, see `places.py`. masked: z is masked by the subset of the current t as in training; the authors' code
    does not mask here. stop_guidance: share of the last steps (the lowest t) that follow ε_θ alone, without z,
    while inverting too. value_range: of float images, as in `Model.encode`.
    """
    scales = check_scales(scales)
    wanted = moves if isinstance(moves, Mapping) else {moves: 1.0}
    variants = [{what: scale * strength for what, strength in wanted.items()} for scale in scales]
    result = manipulate_each(
        model, images, variants,
        keep=keep, local=local, masked=masked, stop_guidance=stop_guidance, sampling_steps=sampling_steps,
        on_step=on_step, value_range=value_range,
    )  # fmt: skip
    return replace(result, scales=tuple(scales))


def one_scale(moves: Direction | Mapping[What, float], scale: float, paper_scale: float | None) -> float:
    """The strength of an edit that is asked for by its strength or by the paper's s."""
    if paper_scale is None:
        return scale
    if not isinstance(moves, Direction):
        raise InputError("paper_scale is for one direction; give several things their strengths")
    return strength_at(moves, check_scales([paper_scale])[0])


def manipulate_each(
    model: DecodingModel,
    images: Images,
    variants: Sequence[Mapping[What, float]],
    *,
    keep: Sequence[What] = (),
    local: bool = True,
    masked: bool = True,
    stop_guidance: float = 0.0,
    sampling_steps: int = SAMPLING_STEPS,
    on_step: OnStep | None = None,
    value_range: ValueRange | None = None,
) -> Manipulation:
    """The same for variants, each of some things with a strength; their scales are just their numbers."""
    moves = [(list(variant), check_scales(list(variant.values()))) for variant in variants]
    steps = torch.from_numpy(np.stack([step_for(model, what, strengths, keep) for what, strengths in moves]))
    _warn_beyond(variants)
    pixels = as_batch(images, model.size, value_range)  # (N, 3, H, W)
    stop_below = stop_step(model, stop_guidance, sampling_steps)
    start = Inverted.of(model, pixels, sampling_steps, masked=masked, stop_below=stop_below, on_step=on_step)
    z = start.z
    codes = torch.cat([z[None], z + steps.to(z)[:, None]])  # (1 + S, N, D), unchanged z first
    noises = start.x_T.expand(len(codes), *start.x_T.shape)
    decoded = start.decode(codes.flatten(0, 1), noises.flatten(0, 1), on_step).unflatten(0, codes.shape[:2])
    touches = [touch_of(variant) if local else None for variant in variants]
    edited = torch.stack([touched(d, decoded[0], touch) for d, touch in zip(decoded[1:], touches, strict=True)])
    return Manipulation(edited, tuple(float(i) for i in range(len(variants))), codes[1:], pixels, decoded[0])


def _warn_beyond(variants: Sequence[Mapping[What, float]]) -> None:
    """A line for each direction that goes beyond its safe range."""
    for direction in dict.fromkeys(what for variant in variants for what in variant):
        strengths = [variant[direction] for variant in variants if direction in variant]
        if isinstance(direction, Direction) and (said := beyond(direction, strengths)):
            log.warning("%s", said)


def first_guided_step(steps: Sequence[int], stop_guidance: float) -> int:
    """The t from which z guides, when that share of the last of the descending steps goes without it."""
    if not 0 <= stop_guidance < 1:
        raise InputError(f"--stop-guidance is {stop_guidance:g}; give a share of the steps, 0 or more and below 1")
    free = round(stop_guidance * len(steps))
    return steps[min(len(steps) - free, len(steps) - 1)] + (1 if free else 0)


def stop_step(model: DecodingModel, stop_guidance: float, sampling_steps: int) -> int:
    """The t below which z does not guide; InputError where the model cannot do without z."""
    if not stop_guidance:
        return 0
    if not isinstance(model, DiTi):
        raise InputError(
            f"--stop-guidance is {stop_guidance:g}: it follows a frozen model without z, and a {model.method} "
            "model has none; use 0, or a diti or pdae model"
        )
    return first_guided_step(timesteps(model.schedule, sampling_steps), stop_guidance)


def manipulation_picture(result: Manipulation, title: str, labels: Sequence[str] = ()) -> Any:
    """A row per image: as given, reconstructed, then by rising strength, or in the order of the labels."""
    order = list(range(len(result.scales)))
    if not labels:
        order.sort(key=lambda i: result.scales[i])
        labels = [f"{result.scales[i]:+.3g}" for i in order]
    columns = torch.stack([result.originals, result.reconstructions, *(result.images[i] for i in order)], dim=1)
    heads = ["image", "reconstruction", *labels]
    return grid(to_uint8(columns.flatten(0, 1)), len(heads), column_labels=heads, title=title)
