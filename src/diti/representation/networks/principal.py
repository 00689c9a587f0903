"""Mean, standard deviation and principal axes of features, in one pass. Notation: N images, F features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from diti.core.device import HOST
from diti.core.errors import InputError
from diti.representation.networks.network_files import drawn_from

TINY = 1e-5  # relative size of a standard deviation that float32 features cannot tell from 0
MANY_FEATURES = 4_096  # beyond it the exact components would take minutes
OVERSAMPLED = 40  # axes beyond those wanted of a randomised decomposition, which make these exact to 1e-4
BATCH = 128


@dataclass(frozen=True, eq=False)
class Components:
    """Principal components of standardised features, the largest first; float64."""

    mean: Tensor  # (F,)
    std: Tensor  # (F,)
    variance: Tensor  # (E,)
    axes: Tensor  # (F, E), of unit length
    total: float  # variance of all components


def principal_components(features: Tensor, most: int, least: int, seed: int = 0) -> Components:
    """The first `most` components of features (N, F), or as many as they vary in: `least` or more.

    Those of very many features come from a randomised decomposition.
    """
    if len(features) < 2:
        raise InputError(f"the features of {len(features)} images were given; principal axes need many more")
    count, width = features.shape
    if width > MANY_FEATURES:
        return _of_matrix(features, most, least, lambda x: low_rank(x, most + OVERSAMPLED, seed, "features")[1:])
    if count < width:  # a smaller matrix than that of their correlations
        return _of_matrix(features.to(HOST, torch.float64), most, least, _singular)
    moments = Moments(width)
    for part in features.split(BATCH):
        moments.add(part)
    mean, std, correlation = moments.standardised()
    return Components(mean, std, *principal_axes(correlation, most, least), float(correlation.trace()))


def _of_matrix(
    features: Tensor, most: int, least: int, decompose: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> Components:
    """From the singular values (E,) and right vectors (F, E) of the standardised features themselves."""
    mean, std = features.mean(0), features.std(0, correction=0)
    varies = std > TINY * (std + mean.abs())
    std = torch.where(varies, std, 1.0)
    sizes, axes = decompose((features - mean) / std)
    found = leading(sizes[:most].double() ** 2 / len(features), axes[:, :most].double(), least)
    return Components(mean.double(), std.double(), *found, float(varies.sum()))


def _singular(matrix: Tensor) -> tuple[Tensor, Tensor]:
    _, sizes, axes = torch.linalg.svd(matrix, full_matrices=False)
    return sizes, axes.T


def low_rank(matrix: Tensor, count: int, seed: int, purpose: str) -> tuple[Tensor, Tensor, Tensor]:
    """The first singular vectors and values of a matrix (N, F), by a randomised decomposition."""
    with drawn_from(seed, purpose):
        return torch.svd_lowrank(matrix, q=min(count, *matrix.shape), niter=3)


class Moments:
    """Sums over images, in float64: the order and the size of the batches change no more than the last digits."""

    def __init__(self, features: int) -> None:
        self.count = 0
        self.total = torch.zeros(features, dtype=torch.float64)
        self.products = torch.zeros(features, features, dtype=torch.float64)

    def add(self, batch: Tensor) -> None:
        """Take in the features (B,F) of a batch."""
        rows = batch.detach().to(HOST, torch.float64)
        self.count += len(rows)
        self.total += rows.sum(0)
        self.products += rows.T @ rows

    def standardised(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (F,), standard deviation (F,) and correlation matrix (F,F). A constant feature gets std 1."""
        mean = self.total / self.count
        covariance = self.products / self.count - mean.outer(mean)
        std = covariance.diagonal().clamp(min=0).sqrt()
        varies = std > TINY * (std + mean.abs())
        std = torch.where(varies, std, 1.0)
        both = varies[:, None] & varies
        return mean, std, torch.where(both, covariance / std.outer(std), 0.0)


def principal_axes(correlation: Tensor, dims: int, least: int | None = None) -> tuple[Tensor, Tensor]:
    """Variance (D,) and unit axes (F,D) of the first principal components, the largest first; see `leading`."""
    variance, axes = torch.linalg.eigh(correlation)  # ascending
    return leading(variance.flip(0)[:dims], axes.flip(1)[:, :dims], dims if least is None else least)


def leading(variance: Tensor, axes: Tensor, least: int) -> tuple[Tensor, Tensor]:
    """Of components (D,), (F,D), the largest first, those that vary; fewer than `least` of them are refused.

    An axis and its negative are equally good: the entry of largest size is made positive.
    """
    rank = int((variance > TINY**2 * variance[0]).sum())
    if rank < least:
        raise InputError(
            f"the features vary in {rank} directions over the given images, the code has {least} dims: "
            "give more and different images, or take a code of fewer dims"
        )
    variance, axes = variance[:rank], axes[:, :rank]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))  # (1,D)
    return variance, axes * largest.sign()
