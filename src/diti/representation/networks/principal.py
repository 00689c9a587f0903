"""Mean, standard deviation and principal axes of features, from batches in one pass. Letters: F features."""

from __future__ import annotations

import torch
from torch import Tensor

from diti.core.errors import InputError

TINY = 1e-5  # relative size of a standard deviation that float32 features cannot tell from 0


class Moments:
    """Sums over images, in float64: the order and the size of the batches change no more than the last digits."""

    def __init__(self, features: int) -> None:
        self.count = 0
        self.total = torch.zeros(features, dtype=torch.float64)
        self.products = torch.zeros(features, features, dtype=torch.float64)

    def add(self, batch: Tensor) -> None:
        """Take in the features (B,F) of a batch."""
        rows = batch.detach().to("cpu", torch.float64)
        self.count += len(rows)
        self.total += rows.sum(0)
        self.products += rows.T @ rows

    def standardised(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (F,), standard deviation (F,) and correlation matrix (F,F). A constant feature gets std 1."""
        if self.count < 2:
            raise InputError(f"the features of {self.count} images were given; principal axes need many more")
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
            "give more and different images, or lower code_dim"
        )
    variance, axes = variance[:rank], axes[:, :rank]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))  # (1,D)
    return variance, axes * largest.sign()
