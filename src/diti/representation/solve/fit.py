"""Step 5: g, a ridge regression of what is lost on (1, p, visible z) in each stretch; losses from the same sums.

Notation: S stretches, P pixel axes, D length of z, R = 1 + P + D regressors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diti.representation.solve.keep import ridge
from diti.representation.solve.sums import Means

PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of the mean diagonal
STRONGER = (3e-1, 1.0, 3.0, 10.0, 30.0)  # where the last of these is the best: features with far outliers


@dataclass(frozen=True, eq=False)
class Normal:
    """Normal equations of one stretch for the regressors b = (1, p, z)."""

    b_b: Tensor  # (R, R)
    b_rho: Tensor  # (R, P)
    rho_square: Tensor  # ()
    lost: Tensor  # ()

    def loss(self, weights: Tensor) -> Tensor:
        """() mean of |x0 - û - V Wᵀb|² for W (R, P): a quadratic form of the sums."""
        explained = 2 * (weights * self.b_rho).sum() - (weights * (self.b_b @ weights)).sum()
        return self.lost - explained


def normal_equations(means: Means, directions: Tensor) -> Normal:
    """Of z = Hᵀφ for directions H (F, D)."""
    a_z = means.a_phi @ directions
    z_z = directions.T @ means.phi_phi @ directions
    b_b = torch.cat([torch.cat([means.a_a, a_z], 1), torch.cat([a_z.T, z_z], 1)])
    return Normal(b_b, torch.cat([means.a_rho, directions.T @ means.phi_rho]), means.rho_square, means.lost)


def ridge_weights(normal: Normal, visible: Tensor, penalty: float) -> Tensor:
    """(R, P) weights of the ridge regression on the visible regressors, bool (R,); 0 at the others."""
    seen = torch.nonzero(visible)[:, 0]
    matrix = ridge(normal.b_b[seen][:, seen], penalty)
    weights = torch.zeros_like(normal.b_rho)
    weights[seen] = torch.cholesky_solve(normal.b_rho[seen], torch.linalg.cholesky(matrix))
    return weights


def best_ridge(
    train: Normal, valid: Normal, visible: Tensor, penalties: Sequence[float] = PENALTIES
) -> tuple[Tensor, float]:
    """The weights (R, P) and penalty that are best on validation sums; stronger ones while they help."""

    def attempt(penalty: float) -> tuple[float, Tensor, float]:
        weights = ridge_weights(train, visible, penalty)
        return float(valid.loss(weights)), weights, penalty

    tried = [attempt(penalty) for penalty in penalties]
    best = min(tried, key=lambda one: one[0])
    for penalty in STRONGER if best is tried[-1] else ():
        next_one = attempt(penalty)
        if next_one[0] >= best[0]:
            break
        best = next_one
    return best[1], best[2]
