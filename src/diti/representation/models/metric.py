"""The metric of a code: how far the features of an image move when its code moves.

u = (z - mean) / std is a standardised code, F the standardised features that the encoder's last layer sees, and
F ≈ B u their best linear reconstruction from u. Then ‖ΔF‖² = Δuᵀ M Δu with M = BᵀB. All dims of u have variance 1,
whether they carry a tenth of what the network sees or next to nothing; in M½u they have the lengths that they had
among the features. M is scaled to trace D, so that codes keep their mean square length.
Notation: N images, F features, E whitened features, D length of z.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

PENALTY = 1e-3  # of the regression on codes, of their mean variance: for fewer images than dims


def solved_metric(directions: Tensor, variance: Tensor, std: Tensor) -> Tensor:
    """(D, D) of z = Hᵀφ with H = directions (E, D), φ whitened principal components of variance Λ (E,).

    F = UΛ½φ with orthonormal U and C = HᵀH, so that B = UΛ½HC⁻¹ for z and M = C⁻¹HᵀΛHC⁻¹. std (D,): of z.
    """
    h = directions.double()
    reached = torch.linalg.solve(h.T @ h, h.T).T * std.double()  # (E, D) φ ≈ reached @ u
    return unit_trace(reached.T @ (variance.double()[:, None] * reached))


def regressed_metric(batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """(D, D) by the regression of features (B, F) on standardised codes (B, D), from sums over the batches."""
    count, totals = 0, [torch.zeros((), dtype=torch.float64)] * 5
    for f, u in batches:
        f, u = f.double(), u.double()
        parts = (f.sum(0), f.square().sum(0), u.sum(0), f.T @ u, u.T @ u)
        totals = [total + part for total, part in zip(totals, parts, strict=True)]
        count += len(f)
    mean_f, squares_f, mean_u, f_u, u_u = (total / count for total in totals)
    variance = squares_f - mean_f.square()
    varies = variance > 1e-12 * squares_f.clamp(min=1e-30)
    scale = torch.where(varies, variance.clamp(min=1e-30).rsqrt(), 0.0)
    covariance = u_u - mean_u.outer(mean_u)
    covariance = covariance + PENALTY * covariance.diagonal().mean() * torch.eye(len(covariance))
    b = torch.linalg.solve(covariance, (scale[:, None] * (f_u - mean_f.outer(mean_u))).T).T  # (F, D)
    return unit_trace(b.T @ b)


def unit_trace(metric: Tensor) -> Tensor:
    """The metric as it is kept: float32, symmetric, trace D."""
    even = (metric + metric.T) / 2
    return (even * (len(even) / even.trace())).float()


def metric_root(metric: Tensor, power: float = 0.5, ends: Sequence[int] | None = None) -> Tensor:
    """M^power (D, D): with the half, distances between u @ root are those that the metric gives.

    ends: of subsets, the last being D. Each then has a root of its own block, and they stay apart.
    """
    if ends is not None:
        blocks = [metric_root(metric[a:b, a:b], power) for a, b in pairwise((0, *ends)) if b > a]
        return torch.block_diag(*blocks)
    values, axes = torch.linalg.eigh(metric.double())
    return (axes * values.clamp(min=0) ** power @ axes.T).float()
