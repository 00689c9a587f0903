"""Choosing d' of the D dims of z that tell a binary attribute, and fitting a linear classifier on them.

Three ways at the same d': `probmask` (the paper's), `weight` (largest weights of the fit on all dims) and `l1`
(the dims that an L1 penalty lets in first). z is standardised by the caller. Notation: N images, D dims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError, nearest
from diti.core.rng import numpy_generator
from diti.edit.probmask import probmask_probabilities
from diti.probes.choose import fit_best_scaled, fit_path
from diti.probes.few_shot import FOLDS, L2_GRID, MULTIPLES, POWERS, scalings
from diti.probes.scores import average_precision
from diti.probes.task import label_folds

L2 = 1e-3  # weight of ½‖w‖² beside the mean log loss: only keeps separable data from running away
L1_FACTOR = 0.9  # the penalty falls by this factor along the path
L1_LONGEST = 100  # points of the path: the last penalty is 3e-5 of the first
L1_ROWS = 16_384  # images that decide the order of entry; 48,000 toy faces give the same AP in 2.5 times the time


@dataclass(frozen=True)
class Fit:
    """A linear classifier of standardised codes: score = z · weight + bias."""

    weight: np.ndarray  # float64 (D,), zero outside the kept dims
    bias: float

    def scores(self, z: np.ndarray) -> np.ndarray:
        """(N,) of codes (N, D)."""
        return z @ self.weight + self.bias


@dataclass(frozen=True)
class Selection:
    """One row of `compare_selections`."""

    method: str
    ap: float  # average precision on the validation rows
    dims: tuple[int, ...]  # the dims it kept, ascending


def fit_linear(z: np.ndarray, y: np.ndarray, binary: bool, kept: np.ndarray | None = None, l2: float = L2) -> Fit:
    """Logistic regression of labels 0/1, or ridge regression of values, on the kept dims (by default all).

    The objectives are those of `diti.probes.fit`.
    """
    kept = np.arange(z.shape[1]) if kept is None else kept
    found = fit_path(torch.from_numpy(z[:, kept]).float(), y[:, None], binary, np.array([l2])).at(0)
    weight = np.zeros(z.shape[1])
    weight[kept] = found.weights[:, 0]
    return Fit(weight, float(found.bias[0]))


def fit_few(z: np.ndarray, y: np.ndarray, binary: bool, metric: np.ndarray | None, seed: int = 0) -> Fit:
    """The same from few images: penalty and power of the metric (D, D) of the code by cross-validation."""
    x, labels = torch.from_numpy(z).float(), y[:, None].astype(np.float64)
    roots = [torch.eye(z.shape[1])] if metric is None else scalings(x, metric, POWERS)
    folds = label_folds(labels, binary, FOLDS, numpy_generator(seed, "few labels"))
    best, found = fit_best_scaled([x @ root for root in roots], labels, binary, folds, L2_GRID, MULTIPLES)
    return Fit(roots[best].double().numpy() @ found.weights[:, 0], float(found.bias[0]))


def with_ones(z: np.ndarray) -> Tensor:
    """Codes float32 (N, D + 1) with a last column of ones for the bias."""
    return torch.from_numpy(np.concatenate([z, np.ones((len(z), 1))], axis=1)).float()


def derivatives(codes: Tensor, labels: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient (D + 1,) and Hessian (D + 1, D + 1) of the mean log loss at theta, float64."""
    p = torch.sigmoid(codes @ theta.float())
    gradient = (p - labels) @ codes / len(codes)
    hessian = (codes * (p * (1 - p))[:, None]).T @ codes / len(codes)
    return gradient.double(), hessian.double()


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` largest values, ascending; of equal values the first."""
    return np.sort(np.argsort(-values, kind="stable")[:count])


def select_by_weight(z: np.ndarray, y: np.ndarray, dims: int, seed: int = 0) -> np.ndarray:
    """The dims with the largest |weight| in the fit on all of them. Nothing is random: seed is not used."""
    return largest(np.abs(fit_linear(z, y, binary=True).weight), dims)


def select_by_l1(z: np.ndarray, y: np.ndarray, dims: int, seed: int = 0) -> np.ndarray:
    """The dims that enter first as an L1 penalty falls; of several at once, those of larger weight.

    Should fewer than `dims` be in at the end of the path, the fit on all dims gives the rest. Not random either:
    of many images, L1_ROWS are looked at, with and without the attribute in proportion.
    """
    places = np.linspace(0, len(z) - 1, min(len(z), L1_ROWS)).round().astype(int)
    rows = np.sort(np.argsort(y, kind="stable")[places])
    z, y = z[rows], y[rows]
    codes, labels = with_ones(z), torch.from_numpy(y).float()
    theta = torch.zeros(codes.shape[1], dtype=torch.float64)  # weights and, last, bias
    theta[-1] = torch.logit(labels.mean(), eps=1e-6)
    penalty = float(((labels - labels.mean()) @ codes[:, :-1]).abs().max() / len(codes))  # here all weights are 0
    entered = np.zeros(z.shape[1], dtype=bool)
    for _ in range(L1_LONGEST):
        penalty *= L1_FACTOR
        theta = fit_l1(codes, labels, penalty, theta)
        weight = np.abs(theta[:-1].numpy())
        if (weight > 0).sum() > dims:
            break
        entered = weight > 0
    else:
        weight = np.abs(fit_linear(z, y, binary=True).weight)
    return largest(weight + entered * (1 + weight.max()), dims)


def fit_l1(codes: Tensor, labels: Tensor, penalty: float, theta: Tensor, rounds: int = 3) -> Tensor:
    """Minimise mean log loss + penalty ‖w‖₁ from a near start theta (D + 1,), by a few proximal Newton steps.

    Codes (N, D + 1) end in a column of ones for the bias, which is not penalised. All of N is touched only for the
    gradient and the Hessian of a step.
    """
    for _ in range(rounds):
        gradient, hessian = derivatives(codes, labels, theta)
        before, theta = theta, soft_quadratic(hessian, gradient - hessian @ theta, penalty, theta)
        if (theta - before).abs().max() < 1e-4:
            break
    return theta


def soft_quadratic(hessian: Tensor, linear: Tensor, penalty: float, theta: Tensor, longest: int = 300) -> Tensor:
    """Minimise ½ θᵀHθ + linear·θ + penalty Σ|θ_i| over all but the last i, by FISTA (Beck & Teboulle 2009)."""
    step = 1 / torch.linalg.eigvalsh(hessian)[-1]
    shrink = torch.full_like(theta, penalty) * step
    shrink[-1] = 0
    ahead, pace = theta, 1.0
    for _ in range(longest):
        moved = ahead - step * (hessian @ ahead + linear)
        new = moved.sign() * (moved.abs() - shrink).clamp(min=0)
        next_pace = (1 + (1 + 4 * pace**2) ** 0.5) / 2
        ahead = new + (pace - 1) / next_pace * (new - theta)
        change = (new - theta).abs().max()
        theta, pace = new, next_pace
        if change < 1e-6:
            break
    return theta


def select_by_probmask(z: np.ndarray, y: np.ndarray, dims: int, seed: int = 0) -> np.ndarray:
    """The dims of largest probability after ProbMask. (The authors toss coins instead, and get about d' dims.)"""
    return largest(probmask_probabilities(z, y[:, None], dims, seed)[0], dims)


Selector = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]  # z (N, D), y (N,), d', seed → dims (d',)
SELECTORS: dict[str, Selector] = {"l1": select_by_l1, "weight": select_by_weight, "probmask": select_by_probmask}
# Mean validation AP (%) on eight CelebA attributes, 16 / 32 of 128 principal components of the pixels, one seed:
# l1 69.0 / 73.2, weight 68.8 / 72.5, probmask 68.5 / 73.1, all 128 dims 75.6.
DEFAULT_SELECTION = "l1"


def check_selection(method: str) -> None:
    """InputError for a method that does not exist."""
    if method not in SELECTORS:
        raise InputError(f"selection is {method!r}; allowed: {', '.join(SELECTORS)}.{nearest(method, SELECTORS)}")


def select(z: np.ndarray, y: np.ndarray, dims: int, method: str = DEFAULT_SELECTION, seed: int = 0) -> np.ndarray:
    """The d' dims (ascending) that a method keeps, from standardised codes (N, D) and labels 0/1 (N,)."""
    check_selection(method)
    if not 1 <= dims <= z.shape[1]:
        raise InputError(f"dims is {dims}; the codes have {z.shape[1]} dims: use 1 to {z.shape[1]}")
    return SELECTORS[method](z, y, dims, seed)


def compare_selections(
    z_train: np.ndarray, y_train: np.ndarray, z_valid: np.ndarray, y_valid: np.ndarray, dims: int, seed: int = 0
) -> list[Selection]:
    """Validation AP of every method at the same d', the classifier refitted on the kept dims; best first."""
    rows = []
    for method in SELECTORS:
        kept = select(z_train, y_train, dims, method, seed)
        scores = fit_linear(z_train, y_train, True, kept).scores(z_valid)
        ap = float(average_precision(scores[:, None], y_valid[:, None])[0])
        rows.append(Selection(method, ap, tuple(int(i) for i in kept)))
    return sorted(rows, key=lambda row: -row.ap)
