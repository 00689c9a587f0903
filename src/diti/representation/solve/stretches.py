"""Time-steps cut into stretches, finer where the diffusion model loses most. Notation: S stretches, T steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.diffusion.sampler import time_scale
from diti.diffusion.schedule import Schedule, lambda_x0


@dataclass(frozen=True, eq=False)
class Stretches:
    """Stretch s holds the time-steps bounds[s] .. bounds[s + 1] - 1. Inside it t is drawn by its weight λ_t.

    A mean over such draws is the λ-weighted mean of eq. 6, so that no sum has to carry weights.
    """

    bounds: tuple[int, ...]  # (S+1,)
    weight: Tensor  # (T,) float64, λ_t of eq. 6

    @property
    def count(self) -> int:
        """S."""
        return len(self.bounds) - 1

    @cached_property
    def mass(self) -> Tensor:
        """(S,) each stretch's part of the loss weight: the sum of its λ_t over T."""
        return torch.stack([self.weight[a:b].sum() for a, b in self._pairs]) / len(self.weight)

    @cached_property
    def share(self) -> Tensor:
        """(S,) each stretch's part of the time-steps; they sum to 1."""
        return torch.tensor([b - a for a, b in self._pairs], dtype=torch.float64) / self.bounds[-1]

    @cached_property
    def centres(self) -> Tensor:
        """(S,) the mean time-step of the draws in each stretch, rising."""
        steps = torch.arange(len(self.weight), dtype=torch.float64)
        means = [(self.weight[a:b] * steps[a:b]).sum() / self.weight[a:b].sum() for a, b in self._pairs]
        # Rounding must not lead below a stretch of one step: masks ask for the whole step at a centre.
        return torch.stack([m.clamp(a, b - 1) for m, (a, b) in zip(means, self._pairs, strict=True)])

    def draw(self, stretch: int, uniform: Tensor) -> Tensor:
        """(B,) int64 time-steps of a stretch from (B,) numbers in [0, 1), each t with a chance by its λ_t."""
        first, stop = self.bounds[stretch], self.bounds[stretch + 1]
        below = self.weight[first:stop].cumsum(0)
        drawn = torch.searchsorted(below, uniform.double() * below[-1], right=True)
        return first + drawn.clamp(max=stop - first - 1)

    @property
    def _pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.bounds[:-1], self.bounds[1:], strict=True))


def make_stretches(schedule: Schedule, count: int, spacing: str = "mixed") -> Stretches:
    """`count` stretches, even on the axis of `spacing` (see `sampler.timesteps`), each of one step or more."""
    scale = time_scale(schedule, spacing)
    usable = len(scale)
    if not 1 <= count <= usable:
        raise InputError(f"{count} stretches of time-steps; this schedule allows 1 to {usable}")
    inner = np.searchsorted(scale, np.linspace(0, 1, count + 1)[1:-1])
    order = np.arange(1, count)
    distinct = order + np.maximum.accumulate(inner - order) if count > 1 else inner
    inner = np.minimum(np.maximum(distinct, order), usable - count + order)
    return Stretches((0, *(int(t) for t in inner), usable), lambda_x0(schedule)[:usable])
