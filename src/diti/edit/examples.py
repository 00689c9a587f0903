"""A direction from a few example images instead of labels: those that are like it, and those that are not.

Notation: P images that have it, Q that do not, D dims of z, d' of which the direction moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.edit.directions import Direction, checked_dims, code_space_hash, standardise
from diti.edit.select import largest
from diti.representation.models.inputs import read_images
from diti.representation.models.model import Model

METHOD = "examples"
DISCRIMINANT_FROM = 8  # examples of each side: with fewer the spread inside a side cannot be estimated


def example_direction(
    model: Model,
    name: str,
    like: Tensor,
    unlike: Tensor | None = None,
    *,
    dims: int | None = None,
    subset: str = "all",
    codes: Tensor | None = None,
) -> Direction:
    """From codes like (P, D) and unlike (Q, D); without the latter, against the mean of the data.

    subset: from these subsets alone. codes (N, D): of any images, where the statistics of z are not known.
    """
    mean, std = (s.numpy() for s in model.statistics(codes))
    has = standardise(like.numpy(), mean, std).astype(np.float64)
    lacks = (
        np.zeros((0, model.dims)) if unlike is None else standardise(unlike.numpy(), mean, std).astype(np.float64)
    )
    if len(has) == 0:
        raise InputError("no image was given with --like; name one or more")
    allowed = model.partition.subset_mask(subset).numpy()
    heading = shrunken_difference(has, lacks)
    weight = discriminant(has, lacks)
    strength = np.abs(weight * (heading != 0)) * allowed
    if not strength.any():
        raise InputError(
            "the examples do not differ by more than any two images do; give more of them, or others "
            "(or a larger part of the code than --subset allows)"
        )
    kept = largest(strength, min(checked_dims(model, dims), int((strength > 0).sum())))
    moved = np.zeros(model.dims, dtype=bool)
    moved[kept] = True
    weight, heading = np.where(moved, weight, 0.0), np.where(moved, heading, 0.0)
    middle = (has.mean(0) + (lacks.mean(0) if len(lacks) else 0.0)) / 2
    bias = -float(weight @ middle)
    right = float(np.mean([*(has @ weight + bias > 0), *(lacks @ weight + bias <= 0)]))
    return Direction(
        attribute=name, method=METHOD, dims=tuple(int(i) for i in kept), weight=weight, pattern=heading, bias=bias,
        metric="share of the examples on their side", score=right, score_all_dims=right, chance=0.5,
        data=f"{len(has)} images like it, {len(lacks)} unlike", data_hash="", seed=0,
        encoder=code_space_hash(model), mean=mean, std=std,
    )  # fmt: skip


def shrunken_difference(has: np.ndarray, lacks: np.ndarray) -> np.ndarray:
    """(D,) difference of the means of standardised codes (P, D), (Q, D), shrunk by what chance gives.

    Δ max(0, 1 - v / Δ²) with v = 1/P + 1/Q, the variance of Δ for images drawn at random: the positive-part
    James-Stein estimate of each dim. No `lacks`: the mean of the data, 0, which is known.
    """
    difference = has.mean(0) - (lacks.mean(0) if len(lacks) else 0.0)
    variance = 1 / len(has) + (1 / len(lacks) if len(lacks) else 0.0)
    with np.errstate(divide="ignore"):
        return difference * np.maximum(0.0, 1 - variance / difference**2)


def discriminant(has: np.ndarray, lacks: np.ndarray) -> np.ndarray:
    """(D,) normal of a plane between codes (P, D) and (Q, D): Fisher's, with Ledoit and Wolf's covariance.

    With few examples the spread inside a side is taken to be that of the data, 1 in each dim: the difference.
    """
    difference = has.mean(0) - (lacks.mean(0) if len(lacks) else 0.0)
    if min(len(has), len(lacks)) < DISCRIMINANT_FROM:
        return difference
    from sklearn.covariance import ledoit_wolf

    inside = np.concatenate([has - has.mean(0), lacks - lacks.mean(0)])
    covariance, _ = ledoit_wolf(inside, assume_centered=True)
    return np.linalg.solve(covariance, difference)


def codes_of(model: Model, pixels: list[np.ndarray]) -> Tensor:
    """(P, D) of images uint8 (H, W, 3)."""
    return model.encode(np.stack(pixels)) if pixels else torch.zeros(0, model.dims)


def example_direction_files(
    model: Model, name: str, like: Sequence[Path], unlike: Sequence[Path], dims: int | None, subset: str
) -> tuple[Direction, list[str]]:
    """The direction of image files, and lines to print."""
    files = [*like, *unlike]
    pixels, lines = read_images(files, model.size)
    codes = codes_of(model, pixels)
    has, lacks = codes[: len(like)], codes[len(like) :]
    direction = example_direction(model, name, has, lacks if len(lacks) else None, dims=dims, subset=subset)
    return direction, [*lines, direction.summary()]
