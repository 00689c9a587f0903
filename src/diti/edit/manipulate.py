"""Algorithm 3: push z along the direction of an attribute and decode, from the noise of the image itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError, nearest
from diti.core.images import ValueRange, grid, picture_kind, save_picture, to_uint8
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
    load_direction,
    save_direction,
)
from diti.edit.examples import example_direction_files, pair_direction_files
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


def scale_for(direction: Direction, deviations: float) -> float:
    """The scale s of `push` that moves the reading z w by so many standard deviations, along a heading h.

    A step δ = s √D h / ‖h‖ moves it by wᵀδ, and its variance is wᵀΣw, Σw the pattern.
    """
    weight, heading = direction.weight, direction.heading
    moved = float(weight @ heading) / float(np.linalg.norm(heading))  # by a step of length 1
    return deviations * float(weight @ direction.pattern) ** 0.5 / (len(weight) ** 0.5 * moved)


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
    value_range: ValueRange | None = None,
) -> Manipulation:
    """Algorithm 3 for all scales: each image is inverted once, then all its variants are decoded together.

    masked: z is masked by the subset of the current t as in training; the authors' code does not mask here.
    stop_guidance: share of the last steps (the lowest t) that follow ε_θ alone, without z, while inverting too.
    value_range: of float images, as in `Model.encode`.
    """
    scales = check_scales(scales)
    check_fits(model, direction)
    pixels = as_batch(images, model.size, value_range)  # (N, 3, H, W)
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


def check_fits(model: DecodingModel, direction: Direction) -> None:
    """InputError for a direction of another model's codes."""
    if len(direction.weight) != model.dims or direction.encoder != code_space_hash(model):
        raise InputError(
            f"the direction of {direction.attribute!r} ({len(direction.weight)} dims) was learned from an "
            f"encoder other than this model's ({model.dims} dims); learn it again for this model"
        )


def manipulation_picture(result: Manipulation, direction: Direction) -> Any:
    """A row per image: as given, reconstructed, then by rising scale."""
    order = sorted(range(len(result.scales)), key=lambda i: result.scales[i])
    columns = torch.stack([result.originals, result.reconstructions, *(result.images[i] for i in order)], dim=1)
    labels = ["image", "reconstruction", *(f"{result.scales[i]:+g}" for i in order)]
    title = f"{direction.attribute}: {len(direction.dims)} of {len(direction.weight)} dims ({direction.method})"
    return grid(to_uint8(columns.flatten(0, 1)), len(labels), column_labels=labels, title=title)


@dataclass(frozen=True)
class Wish:
    """What a direction is to be learned from: an attribute of labelled data, or example images."""

    attribute: str | None = None
    data: str | None = None
    like: tuple[Path, ...] = ()
    unlike: tuple[Path, ...] = ()
    pairs: tuple[Path, ...] = ()  # with it, without it, with it, without it, ...
    subset: str = "all"  # of examples: the part of the code that the direction may move
    save_as: str | None = None  # of examples: a name under which the model folder keeps the direction

    @property
    def examples(self) -> tuple[Path, ...]:
        """All example images."""
        return (*self.like, *self.unlike, *self.pairs)

    def check(self) -> None:
        """InputError where it is not clear what is wanted."""
        if [self.attribute is not None, bool(self.like), bool(self.pairs)].count(True) != 1:
            raise InputError(
                "name what to change, in one way: --attribute NAME, --axis AXIS, or example images with --like or "
                "--pairs"
            )
        if self.unlike and not self.like:
            raise InputError("--unlike goes with --like; name images that have what you want with --like")
        if len(self.pairs) % 2:
            raise InputError(
                f"--pairs names {len(self.pairs)} images; give them in pairs: with.png,without.png,..."
            )
        if self.examples and self.data:
            raise InputError("--data is for --attribute; examples with --like or --pairs need none")
        if self.save_as is not None and not self.examples:
            raise InputError("--save-as is for examples; a direction of --attribute is kept under its own name")


def manipulate_files(
    model: str,
    image: Path,
    wish: Wish,
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
    wish.check()
    picture_kind(out)
    require_writable({"--out": [out]}, [image, wish.data, *wish.examples], overwrite=overwrite)
    folder, loaded, scales = locate(model), load_with_decoder(model), check_scales(scales)
    checked_dims(loaded, dims)
    loaded.validate_sampling_steps(sampling_steps)
    _stop_below(loaded, stop_guidance, sampling_steps)
    (pixels,), resized = read_images([image], loaded.size)
    direction, lines = direction_and_lines(loaded, folder, wish, dims, selection, seed)
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
    model: DecodingModel, folder: Path, wish: Wish, dims: int | None, selection: str, seed: int
) -> tuple[Direction, list[str]]:
    """The wanted direction, and what to print about it."""
    if wish.examples:
        name = wish.save_as or "like the examples"
        if wish.pairs:
            direction, lines = pair_direction_files(model, name, wish.pairs, dims, wish.subset)
        else:
            direction, lines = example_direction_files(model, name, wish.like, wish.unlike, dims, wish.subset)
        if wish.save_as is not None:
            if not may_keep(folder):
                raise InputError(f"--save-as: {folder} is read-only or ships with diti; use a copy of it")
            lines.append(f"kept the direction in {save_direction(direction, folder)}")
        return direction, lines
    attribute = str(wish.attribute)
    if wish.data is None:
        return kept_direction(folder, attribute)
    dataset = open_data(wish.data, model.size)
    model.require_size(dataset.size)
    dataset.labels([attribute])  # a misspelt name is reported first
    direction, new = find_or_learn_direction(
        model, folder, dataset, attribute, checked_dims(model, dims), selection, seed
    )
    lines = [direction.summary()]
    if not new:
        return direction, [*lines, "direction learned earlier, taken from the model folder"]
    if direction.method == CONTINUOUS:
        lines.append(f"{attribute} is continuous: the direction is that of a ridge regression, its dims by weight")
    if may_keep(folder):
        lines.append(f"kept the direction in {direction_path(folder, attribute)}")
    return direction, lines


def kept_direction(folder: Path, attribute: str) -> tuple[Direction, list[str]]:
    """A direction that the model folder keeps, for those who name no data."""
    path = direction_path(folder, attribute)
    if not path.is_file():
        kept = sorted(unquote(p.stem) for p in (folder / "attributes").glob("*.safetensors"))
        known = f"it keeps {', '.join(kept)}" if kept else "it keeps none"
        raise InputError(
            f"{folder} keeps no direction of {attribute!r} ({known}); learn it with --data, or from examples with "
            f"--like.{nearest(attribute, kept)}"
        )
    direction = load_direction(path)
    return direction, [direction.summary(), "direction taken from the model folder"]
