"""All steps at once: sums of products → the code's directions, its order and times, and the linear decoder.

Notation: S stretches, E whitened features, D length of z, P pixel axes, R = 1 + P + D.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diti.config import SolutionConfig
from diti.representation.networks.linear import LinearPart
from diti.representation.partition import Partition
from diti.representation.solve.fit import best_ridge, normal_equations, ridge_weights
from diti.representation.solve.keep import Unknown, keep, not_known_yet
from diti.representation.solve.look import Look
from diti.representation.solve.order import (
    Lost,
    by_lost_share,
    fine_to_coarse,
    independent_inside,
    lost_in_features,
    lost_in_pixels,
    lost_shares,
    whiten,
)
from diti.representation.solve.stretches import Stretches
from diti.representation.solve.sums import Sums
from diti.representation.solve.times import matched_partition

KNOWN_PENALTY = 1e-3  # of the regressions of step 1, of the mean diagonal; 1e-4 to 1e-2 give the same
QUICK_PENALTY = 3e-3  # of g while images are still being added


@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that was measured on images; what follows are matrix decompositions."""

    stretches: Stretches
    look: Look
    train: Sums
    valid: Sums


@dataclass(frozen=True, eq=False)
class Solution:
    """A code and its linear decoder."""

    directions: Tensor  # (E, D) z = directionsᵀ φ
    partition: Partition
    lost: Tensor  # (S, D) degree of loss of each dim in each stretch
    weights: Tensor  # (S, R, P)
    penalties: tuple[float, ...]  # (S,) of the ridge, chosen on validation sums
    removed: float  # share of the frozen model's validation loss, by the sums
    removed_without_z: float  # the same for the regression on û alone

    def linear_part(self, evidence: Evidence) -> LinearPart:
        """The decoder's linear part."""
        axes = evidence.look.pixel_axes
        dims, stretches = self.directions.shape[1], evidence.stretches.count
        part = LinearPart(axes.size, axes.count, dims, stretches, axes.channels)
        part.axes.load_state_dict(axes.state_dict())
        part.times.copy_(evidence.stretches.centres)
        part.weights.copy_(self.weights)
        return part

    def head(self, evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
        """Mean (F,), std (F,) and axes (F, D) of the encoder's linear layer over the feature map."""
        whitening = evidence.look.whitening
        return whitening.mean, whitening.std, whitening.axes @ self.directions


def solve(
    evidence: Evidence,
    dims: int,
    settings: SolutionConfig,
    *,
    timesteps: int,
    subsets: int,
    seed: int,
    partition: Partition | None = None,
    tau: float | None = None,
) -> Solution:
    """Steps 1 to 5. subsets: 1 for PDAE. partition: a cut to keep to, in place of the matched one.

    tau: overrides that of the settings, and may be 0, which they do not allow: every subset is then seen from the
    first time-step on.
    """
    stretches, train = evidence.stretches, evidence.train
    unknown = [not_known_yet(means, KNOWN_PENALTY) for means in train]
    measured = lost_by(settings, evidence, unknown)
    directions = kept_in_order(unknown, measured, evidence, dims, settings.features_weight)
    tau = settings.tau if tau is None else tau
    if partition is None and subsets == 1:
        partition = Partition.single(timesteps, dims)
    elif partition is None:
        lost = lost_shares(directions, measured)
        partition = matched_partition(lost, stretches.centres.tolist(), timesteps, subsets, tau)
    if settings.axes == "independent":
        directions = independent_inside(directions, evidence.look.phi, partition.ends, seed)
        directions = by_lost_share(directions, measured, stretches.share, partition.ends)
    return fitted(evidence, directions, partition, lost_shares(directions, measured))


def lost_by(settings: SolutionConfig, evidence: Evidence, unknown: list[Unknown]) -> Lost:
    """How to measure what is lost of a code."""
    if settings.lost_in == "pixels":
        return lost_in_pixels(unknown)
    return lost_in_features([evidence.train.shown(stretch) for stretch in range(evidence.stretches.count)])


def kept_in_order(
    unknown: list[Unknown], lost: Lost, evidence: Evidence, dims: int, features_weight: float
) -> Tensor:
    """Steps 2 and 3: (E, D) directions, kept, whitened, and turned from fine to coarse."""
    stretches, train = evidence.stretches, evidence.train
    kept = keep(unknown, stretches.mass, evidence.look.whitening.variance, dims, features_weight)
    return fine_to_coarse(whiten(kept, train.means(0).phi_phi), lost, stretches.share)


def fitted(evidence: Evidence, directions: Tensor, partition: Partition, lost: Tensor) -> Solution:
    """Step 5 for any code and cut: g in each stretch, its penalty and its loss from validation sums."""
    stretches = evidence.stretches
    pixels = evidence.look.pixel_axes.count
    weights, penalties = [], []
    left, left_without, frozen = torch.zeros(3, dtype=torch.float64)
    steps = stretches.centres.floor().long()  # a subset enters right after a centre, see `matched_partition`
    for stretch, (train, valid) in enumerate(zip(evidence.train, evidence.valid, strict=True)):
        known = torch.ones(1 + pixels, dtype=torch.bool)
        visible = partition.visible(int(steps[stretch]))
        of_train, of_valid = normal_equations(train, directions), normal_equations(valid, directions)
        found, penalty = best_ridge(of_train, of_valid, torch.cat([known, visible]))
        plain = ridge_weights(of_train, torch.cat([known, torch.zeros_like(visible)]), penalty)
        mass = stretches.mass[stretch]
        left = left + mass * of_valid.loss(found)
        left_without = left_without + mass * of_valid.loss(plain)
        frozen = frozen + mass * of_valid.lost
        weights.append(found)
        penalties.append(penalty)
    return Solution(
        directions, partition, lost, torch.stack(weights), tuple(penalties),
        removed=1 - float(left / frozen), removed_without_z=1 - float(left_without / frozen),
    )  # fmt: skip


def quick_removed(evidence: Evidence, dims: int, features_weight: float) -> float:
    """Share of the validation loss that z removes when it is never masked; every second stretch will do."""
    sums = (list(evidence.train)[::2], list(evidence.valid)[::2])
    mass = evidence.stretches.mass[::2]
    unknown = [not_known_yet(means, KNOWN_PENALTY) for means in sums[0]]
    kept = keep(unknown, mass, evidence.look.whitening.variance, dims, features_weight)
    directions = whiten(kept, evidence.train.means(0).phi_phi)
    left, frozen = torch.zeros(2, dtype=torch.float64)
    for weight, train, valid in zip(mass, *sums, strict=True):
        of_train, of_valid = normal_equations(train, directions), normal_equations(valid, directions)
        weights = ridge_weights(of_train, torch.ones(len(of_train.b_b), dtype=torch.bool), QUICK_PENALTY)
        left, frozen = left + weight * of_valid.loss(weights), frozen + weight * of_valid.lost
    return 1 - float(left / frozen)
