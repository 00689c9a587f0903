"""Step 3: the theory as an algorithm. z is turned so that its dims run from lost early (fine) to late (coarse).

A rotation changes no probe; it decides what a subset means. Letters: S stretches, F features, D length of z.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from diti.representation.solve.keep import Unknown

ICA_STEPS, ICA_IMAGES = 100, 4_096  # a rotation that is nearly the best is as free as the best one


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


def independent_inside(directions: Tensor, phi: Tensor, ends: Sequence[int], seed: int) -> Tensor:
    """(F, D) with the dims of each subset turned to be as independent as they can over the images φ (N, F).

    Any rotation inside a subset leaves its masks, its loss and every probe as they are; independent dims are
    easier to read one by one. ends (K,): where each subset ends.
    """
    codes = phi[:ICA_IMAGES].double() @ directions
    parts = []
    for first, stop in pairwise((0, *ends)):
        turn = independent_rotation(codes[:, first:stop], seed) if stop - first > 1 else torch.eye(stop - first)
        parts.append(directions[:, first:stop] @ turn.double())
    turned = torch.cat(parts, dim=1)
    return turned * _signs(turned)


def independent_rotation(codes: Tensor, seed: int) -> Tensor:
    """(D, D) rotation of white codes (N, D) by FastICA, made exactly orthogonal."""
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a rotation that could be better is still free
        ica = FastICA(whiten=False, fun="logcosh", random_state=seed, max_iter=ICA_STEPS).fit(codes.numpy())
    u, _, v = torch.linalg.svd(torch.from_numpy(ica.components_.T.copy()).double())
    return u @ v


def by_lost_share(directions: Tensor, unknown: Sequence[Unknown], share: Tensor, ends: Sequence[int]) -> Tensor:
    """(F, D) with the dims of each subset from lost early to lost late."""
    lost = (lost_shares(directions, unknown) * share[:, None]).sum(0)
    places = [first + lost[first:stop].argsort(descending=True) for first, stop in pairwise((0, *ends))]
    return directions[:, torch.cat(places)]


def lost_shares(directions: Tensor, unknown: Sequence[Unknown]) -> Tensor:
    """(S, D) the paper's degree of loss of each dim: 0 = x_t still tells it, 1 = lost."""
    return torch.stack([lost_covariance(directions, u).diagonal() for u in unknown]).clamp(0, 1)


def _signs(directions: Tensor) -> Tensor:
    """(D,) ±1 that make the entry of largest size of each direction positive."""
    return directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()[0]
