"""Step 3: the theory as an algorithm. z is turned so that its dims run from lost early (fine) to lost late (coarse).

A rotation changes no probe; it decides what a subset means. Letters: S stretches, F features, D length of z.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from diti.representation.solve.keep import Unknown


def whiten(directions: Tensor, phi_phi: Tensor) -> Tensor:
    """(F, D) the directions mixed so that z = Hᵀφ has the identity as its second moments."""
    lower = torch.linalg.cholesky(directions.T @ phi_phi @ directions)
    return torch.linalg.solve_triangular(lower, directions.T, upper=False).T


def lost_covariance(directions: Tensor, unknown: Unknown) -> Tensor:
    """(D, D) of whitened z in one stretch: what x_t does not tell of it. Its diagonal are the lost shares."""
    return directions.T @ unknown.features @ directions


def fine_to_coarse(directions: Tensor, unknown: Sequence[Unknown], share: Tensor) -> Tensor:
    """(F, D) whitened directions turned into the eigenvectors of the mean lost covariance, lost earliest first.

    share (S,): the stretches' parts of the time-steps, so that an eigenvalue is the share of time-steps at which
    its direction is lost.
    """
    lost = sum(float(w) * lost_covariance(directions, u) for w, u in zip(share, unknown, strict=True))
    turned = directions @ torch.linalg.eigh(torch.as_tensor(lost))[1].flip(1)
    return turned * _signs(turned)


def lost_shares(directions: Tensor, unknown: Sequence[Unknown]) -> Tensor:
    """(S, D) the paper's degree of loss of each dim: 0 = x_t still tells it, 1 = lost."""
    return torch.stack([lost_covariance(directions, u).diagonal() for u in unknown]).clamp(0, 1)


def _signs(directions: Tensor) -> Tensor:
    """(D,) ±1 that make the entry of largest size of each direction positive."""
    return directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()[0]
