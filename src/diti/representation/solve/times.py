"""Step 4: from when on a subset of z may be seen. Notation: S stretches, K subsets, D length of z."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from diti.representation.partition import Partition


def first_stretch_lost(lost: Tensor, tau: float) -> int:
    """First stretch at which a lost share (S,) reaches τ, the degree of the paper's definition; S - 1 if never."""
    reached = torch.nonzero(lost >= tau)
    return int(reached[0]) if len(reached) else len(lost) - 1


def matched_partition(
    lost: Tensor, centres: Sequence[float], timesteps: int, subsets: int, tau: float
) -> Partition:
    """Subsets of equal width, each visible from where the mean lost share of its dims (S, D) reaches τ.

    The decoder's weights are known at the centres of the stretches (S,) and linear between them. So a subset
    enters right after the previous centre, where its weights are still 0: the field has no jump.
    """
    dims = lost.shape[1]
    ends = Partition.balanced(timesteps, subsets, dims)
    starts, latest = [], 0
    for subset in range(subsets):
        owned = ends.dims_of(subset)
        latest = max(latest, first_stretch_lost(lost[:, owned.start : owned.stop].mean(1), tau))
        starts.append(0 if latest == 0 else math.floor(centres[latest - 1]) + 1)
    return Partition.matched(timesteps, subsets, dims, starts)
