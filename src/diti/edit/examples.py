"""A direction from a few example images instead of labels: some that are like it and some that are not, or pairs.

Few examples share much by chance, and in z all of it weighs the same. What a person means changes few places of
the picture, or is independent of the rest; so it lies on few axes of a basis that was made to be like this
(`models/axes.py`). A regression that finds out which of these matter takes less along than the difference of the
means does. How far the examples lie apart is asked of those left out. Pairs show the same thing with and without
it, and need no such help. Notation: P images that have it, Q that do not, n = P + Q, D dims of z, K axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.edit.directions import Direction, checked_dims, code_space_hash, standardise
from diti.edit.select import largest
from diti.representation.found_axes import axes_of
from diti.representation.models.inputs import read_images
from diti.representation.models.model import Model

METHOD, PAIRS = "examples", "pairs"
NOISE = 1.0  # variance of an example's side, 1 or -1, that the axes do not explain
# Of what an axis tells of the features, where codes are independent: what is large comes along by chance, so that
# the small goes first. In photographs, where they are not, large and small are alike.
POWER = -0.25
LARGE_FIRST = (
    0.5  # the same for eigenvectors of the metric, of which the small ones hold noise, and with few examples
)
FEW = 16  # examples, below which small axes fit them by chance: that the large ones matter is then counted, too
ROUNDS = 20  # of the regression
FOLDS = 8  # parts of the examples that are left out in turn
LEAST, MOST = 0.25, 3.0  # deviations of a step of strength 1, whatever examples tell of those left out
UNASKED = 2.0  # the same where there are too few to leave one out: as far as halves of any data can lie apart
NO_DIFFERENCE = (
    "the examples do not differ; give more of them, or others (or a larger part of the code than --subset allows)"
)


class Basis(NamedTuple):
    """K directions of standardised codes u."""

    directions: np.ndarray  # (D, K) u + s · direction moves s deviations along one
    readings: np.ndarray  # (D, K) places u @ readings are white
    prior: np.ndarray  # (K,) how likely each is to matter


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

    dims: how many dims of z may move at most; all by default. subset: move these subsets alone. codes (N, D): of
    any images, where the statistics of z are not known.
    """
    if len(like) == 0:
        raise InputError("no image was given with --like; name one or more")
    mean, std = (s.numpy() for s in model.statistics(codes))
    sides = (like, torch.zeros(0, model.dims) if unlike is None else unlike)
    has, lacks = (standardise(z.numpy(), mean, std).astype(np.float64) for z in sides)
    bases = bases_of(model, std, len(has) + len(lacks))
    weight, heading = regression(bases, has, lacks)
    apart = told_apart(bases, has, lacks)
    return _direction(
        model, name, METHOD, has, lacks, (weight, heading), dims, subset, mean, std,
        f"{len(has)} images like it, {len(lacks)} unlike", apart,
    )  # fmt: skip


def pair_direction(
    model: Model,
    name: str,
    having: Tensor,
    lacking: Tensor,
    *,
    dims: int | None = None,
    subset: str = "all",
    codes: Tensor | None = None,
) -> Direction:
    """From codes (P, D) of the same things with and without it, in this order: the mean of their differences."""
    if len(having) == 0 or len(having) != len(lacking):
        raise InputError(f"pairs need as many images with it as without; given {len(having)} and {len(lacking)}")
    mean, std = (s.numpy() for s in model.statistics(codes))
    has, lacks = (standardise(z.numpy(), mean, std).astype(np.float64) for z in (having, lacking))
    difference = (has - lacks).mean(0)
    return _direction(
        model, name, PAIRS, has, lacks, (difference, difference), dims, subset, mean, std, f"{len(has)} pairs"
    )


def bases_of(model: Model, std: np.ndarray, examples: int = FEW) -> list[Basis]:
    """The model's axes and those made for examples; where it has none, its metric's eigenvectors, or dims of z."""
    metric = None if model.metric is None else model.metric.double().numpy()
    try:
        axes = axes_of(model)
    except InputError:
        if metric is None:
            return [Basis(np.eye(model.dims), np.eye(model.dims), np.ones(model.dims))]
        told, vectors = np.linalg.eigh(metric)
        return [Basis(vectors, vectors, told.clip(min=0) ** LARGE_FIRST)]
    whole = [readings.double().numpy().T * std[:, None] for readings in axes.bases]
    directions, readings = (a.double().numpy().T for a in (axes.directions, axes.readings))
    own = (directions / std[:, None], readings * std[:, None])
    made = [(np.linalg.inv(readings).T, readings) for readings in whole]
    metric = np.eye(model.dims) if metric is None else metric
    # One alone: things are not independent in these images, so neither are axes turned for it.
    power = POWER if len(made) > 1 else 0.0
    found = [_likely(basis, metric, power) for basis in (made if len(made) == 1 else [*made, own])]
    return [*found, _likely(own, metric, LARGE_FIRST)] if examples < FEW else found


def _likely(basis: tuple[np.ndarray, np.ndarray], metric: np.ndarray, power: float) -> Basis:
    """Directions and readings (D, K), the likelier the more they tell of the features, to a power."""
    told = np.einsum("dk,de,ek->k", basis[0], metric, basis[0])
    return Basis(*basis, told.clip(min=1e-6 * told.mean()) ** power)


def regression(bases: Sequence[Basis], has: np.ndarray, lacks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight and heading (D,) for standardised codes (P, D), (Q, D): the mean over bases, by their evidence."""
    u, side = np.concatenate([has, lacks]), np.repeat([1.0, -1.0], [len(has), len(lacks)])
    found = [relevant_axes(u @ basis.readings, side, basis.prior) for basis in bases]
    evidence = np.array([log_evidence for _, log_evidence in found])
    share = np.exp(evidence - evidence.max())
    share /= share.sum()
    parts = list(zip(share, bases, found, strict=True))
    weight = sum(q * (basis.readings @ w) for q, basis, (w, _) in parts)
    return np.asarray(weight), np.asarray(sum(q * (basis.directions @ w) for q, basis, (w, _) in parts))


def relevant_axes(places: np.ndarray, side: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, float]:
    """(K,) weights w of side ≈ places w, with places (n, K) and side (n,), most of them near 0; and the evidence.

    Automatic relevance determination (MacKay 1994, Tipping 2001): w_j ~ N(0, a_j), and in each round the posterior
    of w, with mean A Pᵀ (P A Pᵀ + NOISE)⁻¹ side, gives new a_j = E w_j². These begin as the prior (K,), scaled to
    sum 1. The first round is a ridge regression, right where many axes matter a little; the last keeps to few. w
    is the mean over all rounds, the evidence log N(side; 0, P A Pᵀ + NOISE) that of the last, up to a constant. No
    intercept: codes are centred, so that images like it alone are compared with the mean of the data.
    """
    variance, total, evidence = prior / prior.sum(), np.zeros(places.shape[1]), 0.0
    for _ in range(ROUNDS):
        scaled = places * variance  # (n, K)
        spread = places @ scaled.T + NOISE * np.eye(len(places))
        solved = np.linalg.solve(spread, np.column_stack([scaled, side]))
        gain = solved[:, :-1]
        weight = gain.T @ side
        evidence = -(np.linalg.slogdet(spread)[1] + float(side @ solved[:, -1])) / 2
        variance = weight**2 + variance - (scaled * gain).sum(0)
        total += weight
    return total / ROUNDS, evidence


def told_apart(bases: Sequence[Basis], has: np.ndarray, lacks: np.ndarray) -> float:
    """By how many deviations of the score examples lie apart that had no part in it; LEAST to MOST.

    A part of each side is left out in turn. Those that made a direction always lie apart, even along noise.
    """
    least = min(len(side) for side in (has, lacks) if len(side))
    if least < 2:
        return UNASKED
    found, folds = [], min(FOLDS, least)
    for fold in range(folds):
        out, kept = zip(
            *((s[fold::folds], np.delete(s, np.s_[fold::folds], 0)) for s in (has, lacks)), strict=True
        )
        weight, heading = regression(bases, *kept)
        scores = [float(side.mean(0) @ weight) if len(side) else 0.0 for side in out]
        deviation = max(float(weight @ heading), 0.0) ** 0.5
        found.append((scores[0] - scores[1]) / deviation if deviation > 0 else 0.0)
    return min(max(float(np.mean(found)), LEAST), MOST)


def _direction(
    model: Model, name: str, method: str, has: np.ndarray, lacks: np.ndarray, found: tuple[np.ndarray, np.ndarray],
    dims: int | None, subset: str, mean: np.ndarray, std: np.ndarray, data: str, apart: float | None = None,
) -> Direction:  # fmt: skip
    """What was found, weight and heading (D,) of standardised codes, kept to the dims that may move.

    apart: deviations of the score that a strength of 1 is; None: the whole difference, as of pairs.
    """
    allowed = model.partition.subset_mask(subset).numpy()
    strength = np.abs(found[1]) * allowed
    if not strength.any():
        raise InputError(NO_DIFFERENCE)
    most = model.dims if dims is None else checked_dims(model, dims)
    kept = largest(strength, min(most, int((strength > 0).sum())))
    moved = np.zeros(model.dims, dtype=bool)
    moved[kept] = True
    weight, heading = (np.where(moved, part, 0.0) for part in found)
    variance = float(weight @ heading)
    unit = variance if apart is None else apart * max(variance, 0.0) ** 0.5
    if unit <= 0:
        raise InputError(NO_DIFFERENCE)
    middle = (has.mean(0) + (lacks.mean(0) if len(lacks) else 0.0)) / 2
    bias = -float(weight @ middle)
    right = float(np.mean([*(has @ weight + bias > 0), *(lacks @ weight + bias <= 0)]))
    return Direction(
        attribute=name, method=method, dims=tuple(int(i) for i in kept), weight=weight, pattern=heading, bias=bias,
        metric="share of the examples on their side", score=right, score_all_dims=right, chance=0.5,
        data=data, data_hash="", seed=0, encoder=code_space_hash(model), mean=mean, std=std,
        reading=weight / unit, response=heading / unit,
    )  # fmt: skip


def codes_of(model: Model, pixels: list[np.ndarray]) -> Tensor:
    """(P, D) of images uint8 (H, W, 3)."""
    return model.encode(np.stack(pixels)).cpu() if pixels else torch.zeros(0, model.dims)


def example_direction_files(
    model: Model, name: str, like: Sequence[Path], unlike: Sequence[Path], dims: int | None, subset: str
) -> tuple[Direction, list[str]]:
    """The direction of image files, and lines to print."""
    pixels, lines = read_images([*like, *unlike], model.size)
    codes = codes_of(model, pixels)
    direction = example_direction(model, name, codes[: len(like)], codes[len(like) :], dims=dims, subset=subset)
    if model.axes is None:
        lines.append("the model has no axes yet, with which few examples go further: diti explore finds them")
    return direction, [*lines, direction.summary()]


def pair_direction_files(
    model: Model, name: str, files: Sequence[Path], dims: int | None, subset: str
) -> tuple[Direction, list[str]]:
    """The same for files in pairs: with it, without it."""
    pixels, lines = read_images(files, model.size)
    codes = codes_of(model, pixels)
    direction = pair_direction(model, name, codes[::2], codes[1::2], dims=dims, subset=subset)
    return direction, [*lines, direction.summary()]
