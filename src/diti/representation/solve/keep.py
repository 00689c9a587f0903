"""Steps 1 and 2: what z could add to what x_t tells already, and which D directions of the features to keep.

Notation: S stretches, F whitened features φ, P pixel axes, D length of z, a = (1, p) what x_t tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from diti.representation.solve.sums import Means


def ridge(products: Tensor, penalty: float) -> Tensor:
    """(R, R) normal matrix with a penalty on all but its first column, in units of their mean diagonal."""
    diagonal = products.diagonal()[1:]
    added = torch.zeros_like(products.diagonal())
    added[1:] = penalty * diagonal.mean()
    return products + torch.diag(added)


def residual(a_a: Tensor, a_x: Tensor, a_y: Tensor, x_y: Tensor, penalty: float) -> Tensor:
    """Step 1: E x⊥ y⊥ᵀ, the products (X, Y) of what a regression on a leaves of x and of y.

    With a penalty the two are taken as left by the same (shrunken) regression of y only, which keeps E x⊥ yᵀ.
    """
    return x_y - a_x.T @ torch.linalg.solve(ridge(a_a, penalty), a_y)


@dataclass(frozen=True, eq=False)
class Unknown:
    """What the features hold in one stretch beyond what x_t tells."""

    features: Tensor  # (F, F) E φ⊥φ⊥ᵀ
    pixels: Tensor  # (F, P) E φ⊥ρ⊥ᵀ


def not_known_yet(means: Means, penalty: float) -> Unknown:
    """Step 1 for one stretch."""
    features = residual(means.a_a, means.a_phi, means.a_phi, means.phi_phi, penalty)
    pixels = residual(means.a_a, means.a_phi, means.a_rho, means.phi_rho, penalty)
    return Unknown((features + features.T) / 2, pixels)


def keep(
    unknown: Sequence[Unknown], mass: Tensor, feature_variance: Tensor, dims: int, features_weight: float
) -> Tensor:
    """Step 2: (F, D) directions H of the features whose z = Hᵀφ explains most of what is lost, the best first.

    Lost in pixels, ρ⊥, and lost in the frozen model's own features, Λ½φ⊥ (feature_variance (F,) is Λ), weigh the
    same at features_weight α = 1; at 0 the pixels alone decide, as eq. 6 says. mass (S,): the stretches' weights.
    """
    total = sum(float(m) * u.features for m, u in zip(mass, unknown, strict=True))
    lower = torch.linalg.cholesky(_steady(torch.as_tensor(total)))
    of_pixels, of_features = torch.zeros_like(lower), torch.zeros_like(lower)
    for m, u in zip(mass, unknown, strict=True):
        c = torch.linalg.solve_triangular(lower, float(m) * u.pixels, upper=False)
        of_pixels += c @ c.T
        c = torch.linalg.solve_triangular(lower, float(m) * u.features * feature_variance.sqrt(), upper=False)
        of_features += c @ c.T
    of_features *= of_pixels.trace() / of_features.trace()
    chosen = torch.linalg.eigh(of_pixels + features_weight**2 * of_features)[1].flip(1)[:, :dims]
    return torch.linalg.solve_triangular(lower.T, chosen, upper=True)


def _steady(matrix: Tensor) -> Tensor:
    """The matrix plus a little of the identity, so that features which x_t tells exactly do not break it."""
    return matrix + 1e-9 * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=matrix.dtype)
