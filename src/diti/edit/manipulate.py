"""Algorithm 3: push z along the direction of an attribute and decode, from the noise of the image itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import grid, picture_kind, save_picture, to_uint8
from diti.core.outputs import require_writable
from diti.core.progress import progress_bar
from diti.data.sources import open_data
from diti.diffusion.files import locate, may_keep
from diti.diffusion.generate import SAMPLING_STEPS
from diti.diffusion.sampler import OnStep, timesteps
from diti.edit.directions import (
    CONTINUOUS,
    Direction,
    checked_dims,
    code_space_hash,
    direction_path,
    find_or_learn_direction,
)
from diti.edit.interpolate import check_scales
from diti.edit.invert import Inverted
from diti.edit.select import DEFAULT_SELECTION
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.diffusion import DiTi
from diti.representation.models.inputs import Images, as_batch, read_images
from diti.representation.models.loading import load_with_decoder

SCALE = 0.3  # s of the authors, PDAE and Diff-AE
SCALES = (-SCALE, -SCALE / 2, SCALE / 2, SCALE)


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


def push(z: Tensor, direction: Direction, scale: float) -> Tensor:
    """z' = z + λ σ w / ‖w‖ with λ = s √D, of codes (N, D). Algorithm 3, line 3; `scale` is s.

    w is the classifier's weight, as in the paper, or its pattern: see `Direction.along`.
    """
    heading = torch.from_numpy(direction.heading)
    length = heading.norm()
    if length == 0:
        raise InputError(f"the direction of {direction.attribute!r} is zero in every dim; it cannot be followed")
    step = scale * len(heading) ** 0.5 * torch.from_numpy(direction.std) * heading / length  # (D,)
    return z + step.to(z)


def manipulate(
    model: DecodingModel,
    images: Images,
    direction: Direction,
    scales: Sequence[float] = SCALES,
    *,
    masked: bool = True,
    stop_guidance: float = 0.0,
    sampling_steps: int = SAMPLING_STEPS,
    on_step: OnStep | None = None,
) -> Manipulation:
    """Algorithm 3 for all scales: each image is inverted once, then all its variants are decoded together.

    masked: z is masked by the subset of the current t as in training; the authors' code does not mask here.
    stop_guidance: share of the last steps (the lowest t) that follow ε_θ alone, without z, while inverting too.
    """
    scales = check_scales(scales)
    _check_fits(model, direction)
    pixels = as_batch(images, model.size)  # (N, 3, H, W)
    stop_below = _stop_below(model, stop_guidance, sampling_steps)
    start = Inverted.of(model, pixels, sampling_steps, masked=masked, stop_below=stop_below, on_step=on_step)
    z = start.z
    codes = torch.stack([z, *(push(z, direction, scale) for scale in scales)])  # (1 + S, N, D), unchanged z first
    noises = start.x_T.expand(len(codes), *start.x_T.shape)
    decoded = start.decode(codes.flatten(0, 1), noises.flatten(0, 1), on_step).unflatten(0, codes.shape[:2])
    return Manipulation(decoded[1:], tuple(scales), codes[1:], pixels, decoded[0])


def first_guided_step(steps: Sequence[int], stop_guidance: float) -> int:
    """The t from which z guides, when that share of the last of the descending steps goes without it."""
    if not 0 <= stop_guidance < 1:
        raise InputError(f"--stop-guidance is {stop_guidance:g}; give a share of the steps, 0 or more and below 1")
    free = round(stop_guidance * len(steps))
    return steps[min(len(steps) - free, len(steps) - 1)] + (1 if free else 0)


def _stop_below(model: DecodingModel, stop_guidance: float, sampling_steps: int) -> int:
    """The t below which z does not guide; InputError where the model cannot do without z."""
    if not stop_guidance:
        return 0
    if not isinstance(model, DiTi):
        raise InputError(
            f"--stop-guidance is {stop_guidance:g}: it follows a frozen model without z, and a {model.method} "
            "model has none; use 0, or a diti or pdae model"
        )
    return first_guided_step(timesteps(model.schedule, sampling_steps), stop_guidance)


def _check_fits(model: DecodingModel, direction: Direction) -> None:
    if len(direction.weight) != model.dims or direction.encoder != code_space_hash(model):
        raise InputError(
            f"the direction of {direction.attribute!r} ({len(direction.weight)} dims) was learned from another "
            f"encoder than this model's ({model.dims} dims); learn it again for this model"
        )


def manipulation_picture(result: Manipulation, direction: Direction) -> Any:
    """A row per image: as given, reconstructed, then by rising scale."""
    order = sorted(range(len(result.scales)), key=lambda i: result.scales[i])
    columns = torch.stack([result.originals, result.reconstructions, *(result.images[i] for i in order)], dim=1)
    labels = ["image", "reconstruction", *(f"{result.scales[i]:+g}" for i in order)]
    title = f"{direction.attribute}: {len(direction.dims)} of {len(direction.weight)} dims ({direction.method})"
    return grid(to_uint8(columns.flatten(0, 1)), len(labels), column_labels=labels, title=title)


def manipulate_files(
    model: str,
    image: Path,
    attribute: str,
    data: str,
    dims: int | None,
    scales: Sequence[float],
    out: Path,
    *,
    selection: str = DEFAULT_SELECTION,
    along: str = "pattern",
    masked: bool = True,
    stop_guidance: float = 0.0,
    sampling_steps: int = SAMPLING_STEPS,
    seed: int = 0,
    overwrite: bool = False,
) -> list[str]:
    """`diti manipulate`: an image file → a captioned row; the model folder keeps the direction; what to print."""
    picture_kind(out)
    require_writable({"--out": [out]}, [image, data], overwrite=overwrite)
    folder, loaded, scales = locate(model), load_with_decoder(model), check_scales(scales)
    dims = checked_dims(loaded, dims)
    loaded.validate_sampling_steps(sampling_steps)
    _stop_below(loaded, stop_guidance, sampling_steps)
    (pixels,), resized = read_images([image], loaded.size)
    direction, lines = direction_and_lines(loaded, folder, attribute, data, dims, selection, seed)
    direction, lines = direction.following(along), [*resized, *lines]
    steps = loaded.steps_of(1, sampling_steps) + loaded.steps_of(1 + len(scales), sampling_steps)
    with progress_bar("manipulating", steps, unit="steps") as advance:
        result = manipulate(
            loaded,
            pixels,
            direction,
            scales,
            masked=masked,
            stop_guidance=stop_guidance,
            sampling_steps=sampling_steps,
            on_step=lambda index, total, x: advance(),
        )
    lines.append(f"reconstruction error (MSE, pixels in [-1, 1]): {result.errors.mean():.2g}")
    return [*lines, f"wrote {save_picture(manipulation_picture(result, direction), out)}"]


def direction_and_lines(
    model: DecodingModel, folder: Path, attribute: str, data: str, dims: int, selection: str, seed: int
) -> tuple[Direction, list[str]]:
    """The attribute's direction in the labelled data, and what to print of it."""
    dataset = open_data(data, model.size)
    dataset.labels([attribute])  # a misspelt name is told first
    direction, new = find_or_learn_direction(model, folder, dataset, attribute, dims, selection, seed)
    lines = [direction.summary()]
    if not new:
        return direction, [*lines, "direction learned earlier, taken from the model folder"]
    if direction.method == CONTINUOUS:
        lines.append(f"{attribute} is continuous: the direction is that of a ridge regression, its dims by weight")
    if may_keep(folder):
        lines.append(f"kept the direction in {direction_path(folder, attribute)}")
    return direction, lines
