"""Algorithm 2: images between two images, by moving subsets of z from one to the other (figures 5 and 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diti.core.errors import InputError, nearest
from diti.core.images import ValueRange, picture_kind, save_picture
from diti.core.outputs import require_apart, require_writable
from diti.core.progress import progress_bar
from diti.diffusion.generate import SAMPLING_STEPS
from diti.edit.invert import Inverted
from diti.edit.mix import lerp, slerp
from diti.edit.pictures import (
    animation_kind,
    frame_files,
    interpolation_frames,
    interpolation_grid,
    save_animation,
    save_frames,
)
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.inputs import Images, as_batch, read_images
from diti.representation.partition import THIRDS, Partition

DIRECTIONS = ("a_to_b", "b_to_a")  # the dims outside the subset stay those of A; of B
NOISES = ("slerp", "keep", "random")  # x_T goes along the sphere; stays that of the start; is newly drawn
FARTHEST = 100  # scale: whatever lies beyond no longer looks like an image
MOST_VARIANTS = 10_000  # images of one interpolation
BORROWED_SUBSETS = 64  # of the balanced split that a model without a partition borrows, as in figure 5 for PDAE


@dataclass(frozen=True)
class Variant:
    """One counterfactual image: how it was made.

    a_to_b: z and x_T start at A; the dims of the subset move towards B by `scale`, the others stay those of A.
    b_to_a: the same with A and B exchanged, so that scale 0 is B and scale 1 is B with the subset of A.
    """

    subset: str
    direction: str
    scale: float


@dataclass(frozen=True)
class Interpolation:
    """Counterfactual images between A and B, and what the model makes of A and B themselves."""

    images: Tensor  # (V, 3, H, W)
    variants: tuple[Variant, ...]  # V
    ends: Tensor  # (2, 3, H, W) A and B as given
    reconstructions: Tensor  # (2, 3, H, W) A and B decoded from their unchanged z and x_T: every path's scale 0
    partition: Partition  # that the subsets belong to, the model's own or a borrowed one
    notes: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[float, float]:
        """Mean squared errors of the reconstructions of A and B, for pixels in [-1, 1]."""
        first, second = (self.reconstructions - self.ends).square().mean((1, 2, 3)).tolist()
        return first, second


def interpolate(
    model: DecodingModel,
    a: Images,
    b: Images,
    subsets: Sequence[str] = THIRDS,
    scales: Sequence[float] = (0.0, 0.5, 1.0),
    *,
    directions: Sequence[str] = DIRECTIONS,
    x_t: str = "slerp",
    masked: bool = True,
    partition: Partition | None = None,
    sampling_steps: int = SAMPLING_STEPS,
    seed: int = 0,
    progress: bool = False,
    value_range: ValueRange | None = None,
) -> Interpolation:
    """Algorithm 2 for all subsets × directions × scales: A and B are inverted once, all variants decode together.

    masked: z is masked by the subset of the current t as in training; algorithm 2 prints the unmasked one.
    partition: cuts z for the choice of dims instead of the model's own; masks stay those the model was trained
    with. A model of one subset borrows a balanced split, and has no masks. seed: of x_t "random". value_range: of
    float images, as in `Model.encode`.
    """
    ends = torch.cat([_one_image(model, name, image, value_range) for name, image in (("A", a), ("B", b))])
    partition, notes = cut_of(model, partition)
    variants = plan(partition, subsets, check_scales(scales), directions, x_t)
    model.validate_sampling_steps(sampling_steps)
    shared = model.new_noise(1, seed, "interpolate").expand(2, *model.noise_shape) if x_t == "random" else None
    start = invert_ends(model, ends, sampling_steps, masked, shared, progress)
    codes, noises = mix_variants(start.z, start.x_T, variants, partition, x_t)
    codes, noises = (
        torch.cat([start.z, codes]),
        torch.cat([start.x_T, noises]),
    )  # the ends decode in the same batch
    images = decode_distinct(start, codes, noises, progress)
    if outside := [f"{s:g}" for s in sorted({v.scale for v in variants}) if not 0 <= s <= 1]:
        notes.append(f"scale {', '.join(outside)} is outside 0..1: extrapolated beyond A and B")
    return Interpolation(images[2:], tuple(variants), ends, images[:2], partition, tuple(notes))


def plan(
    partition: Partition, subsets: Sequence[str], scales: Sequence[float], directions: Sequence[str], x_t: str
) -> list[Variant]:
    """The variants in the order subset, direction, scale; for the whole of z one direction, as both coincide.

    They coincide (scale λ one way is 1 - λ the other way) unless x_T stays that of the start.
    """
    _check_choices("x_t", [x_t], NOISES)
    _check_choices("direction", directions, DIRECTIONS)
    if not subsets:
        raise InputError(f"no subsets were given; use {', '.join(THIRDS)}, all, I or I:J")
    variants = []
    for subset in dict.fromkeys(str(subset) for subset in subsets):
        once = bool(moved_dims(partition, subset).all()) and x_t != "keep"
        for direction in dict.fromkeys(directions[:1] if once else directions):
            variants += [Variant(subset, direction, scale) for scale in dict.fromkeys(scales)]
    if len(variants) > MOST_VARIANTS:
        raise InputError(
            f"{len(variants):,} images at once; give fewer scales or subsets: {MOST_VARIANTS:,} at most"
        )
    return variants


def mix_variants(
    z: Tensor, x_T: Tensor, variants: Sequence[Variant], partition: Partition, x_t: str
) -> tuple[Tensor, Tensor]:
    """Codes (V, D) and noises (V, 3, H, W) of the variants, from those of A and B: z (2, D), x_T (2, 3, H, W)."""
    start = torch.tensor([DIRECTIONS.index(v.direction) for v in variants])  # 0 for A, 1 for B
    scale = torch.tensor([v.scale for v in variants], dtype=torch.float64)
    moved = torch.stack([moved_dims(partition, v.subset) for v in variants])  # (V, D)
    codes = lerp(z[start], z[1 - start], scale, moved)
    return codes, slerp(x_T[start], x_T[1 - start], scale) if x_t == "slerp" else x_T[start]


def decode_distinct(start: Inverted, z: Tensor, x_T: Tensor, progress: bool = False) -> Tensor:
    """(N, 3, H, W) images; equal pairs of code and noise are decoded once, so their images are the same bits.

    Scale 0 of every subset is one such pair.
    """
    pairs = torch.cat([z, x_T.flatten(1)], dim=1)
    distinct, place = torch.unique(pairs, dim=0, return_inverse=True)  # (M, D + 3HW), (N,)
    codes, noises = distinct[:, : z.shape[1]], distinct[:, z.shape[1] :].unflatten(1, x_T.shape[1:])
    steps = start.model.steps_of(len(codes), start.sampling_steps)
    with progress_bar("decoding", steps, unit="steps", shown=progress) as advance:
        return start.decode(codes, noises, lambda index, total, x: advance())[place]


def invert_ends(
    model: DecodingModel, ends: Tensor, sampling_steps: int, masked: bool, noise: Tensor | None, progress: bool
) -> Inverted:
    """A and B (2, 3, H, W) with their own noise, or with one that was drawn for both."""
    steps, shown = model.steps_of(len(ends), sampling_steps), progress and noise is None
    with progress_bar("inverting A and B", steps, unit="steps", shown=shown) as advance:
        return Inverted.of(
            model,
            ends,
            sampling_steps,
            masked=masked,
            noise=noise,
            on_step=lambda index, total, x: advance(),
        )


def cut_of(model: DecodingModel, given: Partition | None) -> tuple[Partition, list[str]]:
    """The partition that names the subsets, and what to tell about it: given, the model's own, or borrowed."""
    if given is None and model.partition.subsets > 1:
        return model.partition, []
    if given is None:
        subsets = min(BORROWED_SUBSETS, model.dims)
        note = f"the model has one subset: a balanced split into {subsets} names the dims, and z is not masked"
        # A one-step decoder has no time-steps; as many as there are subsets give the dims an order.
        return Partition.balanced(max(model.partition.timesteps, subsets), subsets, model.dims), [note]
    if (given.dims, given.timesteps) != (model.dims, model.partition.timesteps):
        raise InputError(
            f"the partition is for {given.dims} dims and T = {given.timesteps}, the model has {model.dims} dims "
            f"and T = {model.partition.timesteps}; they must agree"
        )
    return given, []


def moved_dims(partition: Partition, subset: str) -> Tensor:
    """(D,) True at the dims of the named subsets; where they own none, an InputError lists those that do."""
    filled = [i for i in range(partition.subsets) if partition.dims_of(i)]
    thirds = [partition.third(i) for i in filled]
    nowhere = subset in THIRDS and subset not in thirds
    if nowhere or not partition.group(subset) & set(filled):
        names = [name for name in THIRDS if name in thirds]
        raise InputError(
            f"subset {subset!r} owns no dims in this {partition.kind} partition; not empty: "
            f"{', '.join(names)}; by number {_ranges(filled)}"
        )
    return partition.subset_mask(subset)


def check_scales(scales: Sequence[Any]) -> list[float]:
    """Scales as numbers that an edit can follow, at least one."""
    checked = []
    for scale in scales:
        try:
            number = float(scale)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"scale {scale!r} is not a number; give numbers with commas between, such as 0,0.5,1")
        if abs(number) > FARTHEST:
            raise InputError(f"scale {number:g} is too far; give numbers from {-FARTHEST:g} to {FARTHEST:g}")
        checked.append(number)
    if not checked:
        raise InputError("no scales were given; give at least one number, such as 0.5")
    return checked


def interpolate_files(
    model: DecodingModel,
    first: str,
    second: str,
    subsets: list[str],
    scales: list[float],
    out: Path,
    *,
    x_t: str = "slerp",
    masked: bool = True,
    frames: Path | None = None,
    animate: Path | None = None,
    sampling_steps: int = SAMPLING_STEPS,
    seed: int = 0,
    overwrite: bool = False,
) -> list[str]:
    """`diti interpolate`: two image files → a grid, on request single frames and an animation; what to print."""
    variants = plan(cut_of(model, None)[0], subsets, check_scales(scales), DIRECTIONS, x_t)
    check_files(variants, (first, second), out, frames, animate, overwrite)
    (a, b), lines = read_images((first, second), model.size)
    options: dict[str, Any] = {"x_t": x_t, "masked": masked, "sampling_steps": sampling_steps, "seed": seed}
    result = interpolate(model, a, b, subsets, scales, progress=True, **options)
    for subset in dict.fromkeys(v.subset for v in result.variants):
        numbers = _ranges(sorted(result.partition.group(subset)))
        count = int(moved_dims(result.partition, subset).sum())
        lines.append(f"{subset}: {count} of {model.dims} dims (subsets {numbers})")
    lines.append("reconstruction error (MSE, pixels in [-1, 1]): A {:.2g}, B {:.2g}".format(*result.errors))
    lines += [*result.notes, f"wrote {save_picture(interpolation_grid(result), out)}"]
    if frames is not None:
        lines.append(f"wrote {save_frames(result, frames)} single images to {frames}")
    if animate is not None:
        lines.append(f"wrote {save_animation(interpolation_frames(result), animate)}")
    return lines


def check_files(
    variants: Sequence[Variant],
    inputs: Sequence[str],
    out: Path,
    frames: Path | None,
    animate: Path | None,
    overwrite: bool,
) -> None:
    """InputError for files that cannot be written, or must not."""
    picture_kind(out)
    outputs = {"--out": [out]}
    if frames is not None:
        require_apart("--frames", frames, inputs)
        outputs["--frames"] = frame_files(variants, frames)
    if animate is not None:
        animation_kind(animate)
        outputs["--animate"] = [animate]
    require_writable(outputs, inputs, overwrite=overwrite)


def _one_image(model: DecodingModel, name: str, image: Images, value_range: ValueRange | None) -> Tensor:
    """(1, 3, H, W)."""
    pixels = as_batch(image, model.size, value_range)
    if len(pixels) != 1:
        raise InputError(f"{name} is a batch of {len(pixels)} images; give one image")
    return pixels


def _check_choices(name: str, given: Sequence[str], allowed: Sequence[str]) -> None:
    if not given:
        raise InputError(f"no {name} was given; use {', '.join(allowed)}")
    for word in given:
        if word not in allowed:
            raise InputError(f"{name} is {word!r}; allowed: {', '.join(allowed)}.{nearest(str(word), allowed)}")


def _ranges(numbers: Sequence[int]) -> str:
    """Rising numbers with runs joined: 0-3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
