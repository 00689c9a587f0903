"""Mode collapse: does a generator draw as many different images as there are?

Images are compared by the mean colours of 8×8 cells, which need no network and are the same for every run.
Notation: N real images, M generated ones, F features.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from diti.core.errors import InputError

CELLS = 8  # per side
NEIGHBOURS = 5  # k of the coverage; Naeem et al. use 5
LEAST_DIVERSITY, LEAST_NOVELTY = 0.5, 0.25  # other real images have 1 and 1


@dataclass(frozen=True)
class Variety:
    """How generated images compare with real ones, and what that says."""

    diversity: float  # distance between two generated images, as a share of that between two real ones
    novelty: float  # distance from a generated image to the nearest other one, as a share of that of real ones
    coverage: float  # share of the real images that have a generated one nearby: low also for images that are off

    @property
    def collapsed(self) -> bool:
        """All alike, or a few kinds that repeat, however far apart these are."""
        return self.diversity < LEAST_DIVERSITY or self.novelty < LEAST_NOVELTY

    def record(self) -> dict[str, float]:
        """For the log and for JSON."""
        return asdict(self)

    def sentence(self) -> str:
        """For people."""
        found = "mode collapse" if self.collapsed else "no mode collapse"
        return (
            f"{found}: two generated images are {self.diversity:.2f} times as far apart as two real ones (limit "
            f"{LEAST_DIVERSITY}), a generated one and the nearest other {self.novelty:.2f} times (limit "
            f"{LEAST_NOVELTY}); {self.coverage:.0%} of the real ones have a generated one nearby (other real "
            f"images reach {expected_coverage(NEIGHBOURS):.0%})"
        )


def variety(real: Tensor, generated: Tensor) -> Variety:
    """Compare images (N, 3, H, W) and (M, 3, H, W) in [-1, 1]; M should be N."""
    if len(real) < 2 or len(generated) < 2:
        raise InputError(
            f"{len(real)} real and {len(generated)} generated images; mode collapse needs 2 or more of each"
        )
    here, there = cell_colours(real), cell_colours(generated)
    least = torch.finfo(torch.float32).eps  # real images that are all the same have no distance
    return Variety(
        mean_distance(there) / max(mean_distance(here), least),
        nearest_distance(there) / max(nearest_distance(here), least),
        coverage(here, there, min(NEIGHBOURS, len(real) - 1)),
    )


def cell_colours(images: Tensor) -> Tensor:
    """(N, 3, H, W) -> (N, F = 192): mean colours of 8×8 cells."""
    return F.adaptive_avg_pool2d(images, CELLS).flatten(1)


def mean_distance(points: Tensor) -> float:
    """Mean Euclidean distance over the pairs of (N, F)."""
    return torch.pdist(points.double()).mean().item()


def nearest_distance(points: Tensor) -> float:
    """Median over (N, F) of the Euclidean distance to the nearest other point."""
    distances = torch.cdist(points.double(), points.double()).fill_diagonal_(torch.inf)
    return distances.min(dim=1).values.median().item()


def coverage(real: Tensor, generated: Tensor, k: int) -> float:
    """Share of the real points (N, F) within whose k-th nearest real one lies a generated one (M, F).

    Equation 4 of Naeem et al., Reliable Fidelity and Diversity Metrics for Generative Models, 2020.
    """
    real, generated = real.double(), generated.double()
    radius = torch.cdist(real, real).kthvalue(k + 1, dim=1).values  # + 1: the nearest one is the point itself
    return (torch.cdist(real, generated).min(dim=1).values <= radius).double().mean().item()


def expected_coverage(k: int) -> float:
    """Of many points of the same distribution, as many as the real ones: 1 - 2^-k."""
    return 1 - 0.5**k
