"""Step 3: the theory as an algorithm. z is turned so that its dims run from lost early (fine) to late (coarse).

A rotation changes no probe; it decides what a subset means. What is lost of z at a time-step is what a linear map
of the frozen model's reconstruction û does not tell (`lost_in_pixels`), or what the same features of û no longer
show (`lost_in_features`). Notation: S stretches, F features, D length of z.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from diti.representation.solve.keep import Unknown
from diti.representation.solve.sums import Shown

NOTHING = 1e-12  # variance of codes of reconstructions that are all the same
ICA_STEPS, ICA_IMAGES = 100, 4_096  # a rotation that is nearly the best changes no loss either
ICA_DIMS = 256  # with more in one subset so few images cannot tell axes apart, and FastICA takes minutes

Lost = Callable[[Tensor], Tensor]  # directions (F, D) of a whitened z → (S, D, D) covariance of what is lost of it


def whiten(directions: Tensor, phi_phi: Tensor) -> Tensor:
    """(F, D) the directions mixed so that z = Hᵀφ has the identity as its second moments."""
    lower = torch.linalg.cholesky(directions.T @ phi_phi @ directions)
    return torch.linalg.solve_triangular(lower, directions.T, upper=False).T


def lost_in_pixels(unknown: Sequence[Unknown]) -> Lost:
    """What a linear map of û does not tell of z. The diagonals are the lost shares."""
    return lambda directions: torch.stack([directions.T @ u.features @ directions for u in unknown])


def lost_in_features(shown: Sequence[Shown]) -> Lost:
    """E (z - γẑ)(z - γẑ)ᵀ of centred codes z of images and ẑ of their reconstructions û, in units of E zzᵀ.

    γ, one number per stretch, is the regression of all dims of z on those of ẑ. Where û is the posterior mean and
    the code linear in pixels it is 1, and both ways of measuring agree.
    """

    def lost(directions: Tensor) -> Tensor:
        found = []
        for s in shown:
            z_z, hat_hat, hat_z = (directions.T @ m @ directions for m in (s.phi_phi, s.hat_hat, s.hat_phi))
            gamma = (hat_z.trace() / hat_hat.trace().clamp(min=NOTHING)).clamp(0)
            left = z_z - gamma * (hat_z + hat_z.T) + gamma**2 * hat_hat
            unit = _inverse_root(z_z)  # these images are few: by chance their z is not quite white
            found.append(unit @ left @ unit)
        return torch.stack(found)

    return lost


def fine_to_coarse(directions: Tensor, lost: Lost, share: Tensor) -> Tensor:
    """(F, D) whitened directions turned into the eigenvectors of the mean lost covariance, lost earliest first.

    share (S,): the stretches' parts of the time-steps, so that an eigenvalue is the share of time-steps at which
    its direction is lost.
    """
    mean = torch.einsum("s,sij->ij", share, lost(directions))
    turned = directions @ torch.linalg.eigh(mean)[1].flip(1)
    return turned * _signs(turned)


def independent_inside(directions: Tensor, phi: Tensor, ends: Sequence[int], seed: int) -> Tensor:
    """(F, D) with the dims of each subset turned to be as independent as they can over the images φ (N, F).

    Any rotation inside a subset leaves its masks, its loss and every probe as they are; independent dims are
    easier to read one by one. Subsets of more than ICA_DIMS stay as they are. ends (K,): where each subset ends.
    """
    codes = phi[:ICA_IMAGES].double() @ directions
    parts = []
    for first, stop in pairwise((0, *ends)):
        part = directions[:, first:stop]
        parts.append(
            part @ independent_rotation(codes[:, first:stop], seed) if 1 < stop - first <= ICA_DIMS else part
        )
    turned = torch.cat(parts, dim=1)
    return turned * _signs(turned)


def independent_rotation(codes: Tensor, seed: int) -> Tensor:
    """(D, D) rotation of white codes (N, D) by FastICA, made exactly orthogonal."""
    from sklearn.decomposition import FastICA
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a rotation that could be better changes no loss
        ica = FastICA(whiten=False, fun="logcosh", random_state=seed, max_iter=ICA_STEPS).fit(codes.numpy())
    u, _, v = torch.linalg.svd(torch.from_numpy(ica.components_.T.copy()).double())
    return u @ v


def by_lost_share(directions: Tensor, lost: Lost, share: Tensor, ends: Sequence[int]) -> Tensor:
    """(F, D) with the dims of each subset from lost early to lost late."""
    mean = share @ lost_shares(directions, lost)
    places = [first + mean[first:stop].argsort(descending=True) for first, stop in pairwise((0, *ends))]
    return directions[:, torch.cat(places)]


def lost_shares(directions: Tensor, lost: Lost) -> Tensor:
    """(S, D) the paper's degree of loss of each dim: 0 = x_t still tells it, 1 = lost."""
    return lost(directions).diagonal(dim1=1, dim2=2).clamp(0, 1)


def _inverse_root(matrix: Tensor) -> Tensor:
    """The inverse of the symmetric square root of a covariance matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=1e-9 * float(values[-1])).rsqrt() @ vectors.T


def _signs(directions: Tensor) -> Tensor:
    """(D,) ±1 that make the entry of largest size of each direction positive."""
    return directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()[0]
