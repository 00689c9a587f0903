"""Linear models for all attributes at once: logistic regression to convergence, ridge in closed form.

Features are standardised, float32 (N, D); labels (N, A), NaN where missing. Per attribute the objective is

    logistic:  mean BCE(x·w + b, y)  +  l2/2 |w|²          ridge:  mean (x·w + b - y)²  +  l2 |w|²

with the mean over the images that have the label, and b free of the penalty. Scikit-learn's C is 1 / (N l2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diti.core.errors import InputError
from diti.core.progress import progress_bar

CHUNK = 8192  # rows per float32 product; their sums are added up in float64
TOLERANCE = 1e-5  # gradient norm in the metric of the preconditioner: the loss is then within 1e-10 of its minimum
ONE_CLASS = 1e-12  # share of positives used instead of 0: the fit is then constant, with finite log-odds
NEWTON_STEPS, CG_STEPS, HALVINGS = 60, 60, 30
MANY_DIMS = 4_096  # with more, the whole principal basis would take minutes
LOOKED_AT, FIRST = 8_192, 1_024  # images used, and principal axes then found
RANK_TOLERANCE = 1e-10  # principal components below this share of the largest variance are numerically empty


def chunks(count: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


def check_features(features: np.ndarray) -> None:
    """(N, D), D > 0, all finite."""
    if features.ndim != 2 or features.shape[1] == 0:
        raise InputError(f"features have shape {features.shape}; give (images, dims) with at least one dim")
    bad_dims = np.zeros(features.shape[1], bool)
    bad_rows = 0
    for part in chunks(len(features)):
        bad = ~np.isfinite(features[part])
        bad_dims |= bad.any(0)
        bad_rows += int(bad.any(1).sum())
    if bad_rows:
        raise InputError(
            f"features are NaN or infinite in {bad_rows:,} of {len(features):,} rows and {bad_dims.sum()} of "
            f"{len(bad_dims)} dims; encode these images again or leave them out"
        )


@dataclass(frozen=True)
class Standard:
    """Mean and standard deviation per dim of the training images; a constant dim has std 1 and becomes 0."""

    mean: np.ndarray  # (D,) float64
    std: np.ndarray  # (D,) float64

    @classmethod
    def of(cls, features: np.ndarray, rows: np.ndarray) -> Standard:
        total = sum(features[rows[part]].sum(0, dtype=np.float64) for part in chunks(len(rows)))
        mean = total / len(rows)
        squares = sum(((features[rows[part]] - mean) ** 2).sum(0) for part in chunks(len(rows)))
        std = np.sqrt(squares / len(rows))
        return cls(mean, np.where(std > 1e-7 * np.abs(mean), std, 1.0))  # 1e-7: what float32 can tell apart

    @classmethod
    def identity(cls, dims: int) -> Standard:
        return cls(np.zeros(dims), np.ones(dims))

    def apply(self, features: np.ndarray, rows: np.ndarray) -> Tensor:
        """float32 (len(rows), D); the one copy of the features that a fit makes."""
        out = torch.empty((len(rows), features.shape[1]))
        for part in chunks(len(rows)):
            out[part] = torch.from_numpy((features[rows[part]] - self.mean) / self.std)
        return out


@dataclass(frozen=True)
class Linear:
    """One linear model per attribute."""

    weights: np.ndarray  # (D, A)
    bias: np.ndarray  # (A,)
    l2: np.ndarray  # (A,) penalty each was fitted with
    gradient: np.ndarray  # (A,) gradient norm where the fit stopped; 0 for closed forms

    def predict(self, x: Tensor) -> np.ndarray:
        """x·w + b (N, A)."""
        return (x @ torch.from_numpy(self.weights).float()).double().numpy() + self.bias


@dataclass(frozen=True)
class FitPath:
    """Fits along a grid of L penalties, from strong to weak."""

    l2: np.ndarray  # (L,)
    weights: np.ndarray  # (L, D, A)
    bias: np.ndarray  # (L, A)
    gradient: np.ndarray  # (L, A)

    def at(self, index: int | np.ndarray) -> Linear:
        """The fit at `index`, or at a separate index (A,) for each attribute."""
        columns = np.arange(self.bias.shape[1])
        index = np.broadcast_to(index, columns.shape)
        weights = np.ascontiguousarray(self.weights[index, :, columns].T)
        return Linear(weights, self.bias[index, columns], self.l2[index], self.gradient[index, columns])


def label_patterns(labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Attributes grouped by which images have their label: (rows, columns) per group, mostly one."""
    seen, owner = np.unique(np.isfinite(labels), axis=1, return_inverse=True)
    return [(np.flatnonzero(seen[:, i]), np.flatnonzero(owner.ravel() == i)) for i in range(seen.shape[1])]


# ---- ridge ----


@dataclass(frozen=True)
class RidgeMoments:
    """What ridge needs to know about n images; float64."""

    mean_x: Tensor  # (D,)
    mean_y: Tensor  # (A,)
    cov: Tensor  # (D, D) mean (x - mean)(x - mean)ᵀ
    cross: Tensor  # (D, A) mean (x - mean)(y - mean)

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> RidgeMoments:
        """Of x (n, D) and y (n, A) without missing values."""
        n, y = len(x), y.double()
        mean_x = sum((x[part].sum(0, dtype=torch.float64) for part in chunks(n)), torch.zeros(())) / n
        mean_y = y.mean(0)
        cov = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
        cross = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64)
        for part in chunks(n):
            centred = x[part].double() - mean_x
            cov.addmm_(centred.T, centred, alpha=1 / n)
            cross.addmm_(centred.T, y[part] - mean_y, alpha=1 / n)
        return cls(mean_x, mean_y, cov, cross)

    def ridge(self, l2: float, dims: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (D, A), zero outside `dims`, and bias (A,): (cov + l2) w = cross on these dims."""
        weights = torch.zeros_like(self.cross)
        inside = self.cov[dims][:, dims] + l2 * torch.eye(len(dims), dtype=torch.float64)
        weights[dims] = torch.linalg.solve(inside, self.cross[dims])
        return weights, self.mean_y - self.mean_x @ weights


def ridge_moments(x: Tensor, labels: np.ndarray) -> Iterator[tuple[np.ndarray, RidgeMoments]]:
    """Columns of the labels (N, A), and the moments of the images that have these labels; none for no columns."""
    for rows, columns in label_patterns(labels) if labels.shape[1] else ():
        part = x if len(rows) == len(x) else x[torch.from_numpy(rows)]
        yield columns, RidgeMoments.of(part, torch.from_numpy(labels[np.ix_(rows, columns)]))


def fit_ridge(x: Tensor, labels: np.ndarray, grid: np.ndarray) -> FitPath:
    """Ridge for every penalty of the grid from one eigen-decomposition: w = V (Λ + l2)⁻¹ Vᵀ cross."""
    weights = np.zeros((len(grid), x.shape[1], labels.shape[1]))
    bias = np.zeros((len(grid), labels.shape[1]))
    for columns, moments in ridge_moments(x, labels):
        values, vectors = torch.linalg.eigh(moments.cov)
        turned = vectors.T @ moments.cross
        for i, l2 in enumerate(grid):
            w = vectors @ (turned / (values.clamp(min=0) + l2)[:, None])
            weights[i][:, columns] = w.numpy()
            bias[i, columns] = (moments.mean_y - moments.mean_x @ w).numpy()
    return FitPath(grid, weights, bias, np.zeros_like(bias))


# ---- logistic regression ----


@dataclass(frozen=True)
class Basis:
    """Principal basis of the features. A dim whose row of `vectors` is 0 keeps its weight through a fit.

    It only makes a fit fast: the first axes are enough, with a mean variance for all others.
    """

    vectors: Tensor  # (D, R) float64
    values: Tensor  # (R,) variances, all > 0
    others: float = 0.0  # mean variance of the axes not in it; 0 = weights along these do not move

    @classmethod
    def suited(cls, x: Tensor) -> Basis:
        """Of features (N, D): the whole basis, or the first axes of very many dims."""
        return cls.first(x) if x.shape[1] > MANY_DIMS else cls.of(gram_matrix(x))

    @classmethod
    def of(cls, gram: Tensor, dims: Tensor | None = None) -> Basis:
        """Of gram = XᵀX / N (D, D); with `dims` of these dims only, and 0 elsewhere."""
        dims = torch.arange(len(gram)) if dims is None else dims
        values, inside = torch.linalg.eigh(gram[dims][:, dims])
        keep = values > RANK_TOLERANCE * values.max().clamp(min=1e-30)
        vectors = torch.zeros(len(gram), int(keep.sum()), dtype=torch.float64)
        vectors[dims] = inside[:, keep]
        return cls(vectors, values[keep])

    @classmethod
    def first(cls, x: Tensor) -> Basis:
        """The first axes of very many standardised dims (N, D), found from some of the images."""
        from sklearn.utils.extmath import randomized_svd

        some = x[:: -(-len(x) // LOOKED_AT)].numpy()
        _, sizes, axes = randomized_svd(some, min(FIRST, *some.shape), random_state=0)
        vectors = torch.linalg.qr(torch.from_numpy(axes.T.copy()).double())[0]  # float32: nearly orthogonal
        values = torch.from_numpy(sizes).double().square() / len(some)
        left = float(np.square(some, dtype=np.float64).sum()) / len(some) - float(values.sum())
        return cls(vectors, values.clamp(min=1e-10), max(left / (x.shape[1] - len(values) or 1), 1e-10))


def gram_matrix(x: Tensor) -> Tensor:
    """XᵀX / N (D, D) in float64."""
    gram = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for part in chunks(len(x)):
        rows = x[part].double()
        gram.addmm_(rows.T, rows, alpha=1 / len(x))
    return gram


def fit_logistic(
    x: Tensor,
    labels: np.ndarray,
    grid: np.ndarray,
    basis: Basis | None = None,
    start: Tensor | None = None,
    tolerance: float = TOLERANCE,
    enough: Callable[[Linear], bool] | None = None,
) -> FitPath:
    """Logistic regression of all attributes for every penalty of the grid, each started from the one before.

    An attribute of one class gets weights of 0. `start` (D + 1, A) is a first guess, the bias last. `enough`
    sees each fit and may end the path: with many dims the weakest penalties take longest and help least.
    """
    many = x.shape[1] > MANY_DIMS
    basis = basis or Basis.suited(x)
    problem = _Logistic.of(x, labels)
    theta = problem.constant_model() if start is None else start.clone()
    fits, norms = [], []
    with progress_bar(f"a probe of {x.shape[1]:,} dims", len(grid), unit="penalties", shown=many) as advance:
        for l2 in grid:
            theta, norm = _newton(problem, theta, float(l2), basis, tolerance)
            fits.append(theta.numpy())
            norms.append(norm.numpy())
            advance(1)
            fitted = Linear(fits[-1][:-1], fits[-1][-1], np.full(len(norm), l2), norms[-1])
            if enough is not None and enough(fitted):
                break
    thetas = np.stack(fits)
    return FitPath(grid[: len(fits)], thetas[:, :-1], thetas[:, -1], np.stack(norms))


@dataclass(frozen=True)
class _Logistic:
    """The data of A logistic regressions; theta (D + 1, A) holds weights and, last, bias, in float64."""

    x: Tensor  # (N, D) float32
    y: Tensor  # (N, A) float32, 0 where the label is missing
    seen: Tensor  # (N, A) float32, 1 where there is a label
    count: Tensor  # (A,) float64, labels per attribute

    @classmethod
    def of(cls, x: Tensor, labels: np.ndarray) -> _Logistic:
        y = torch.from_numpy(labels).float()
        seen = torch.isfinite(y).float()
        return cls(x, torch.nan_to_num(y), seen, seen.sum(0, dtype=torch.float64))

    def columns(self, index: Tensor) -> _Logistic:
        if len(index) == self.y.shape[1]:
            return self
        return _Logistic(self.x, self.y[:, index], self.seen[:, index], self.count[index])

    def constant_model(self) -> Tensor:
        """Weights 0, bias at the log-odds of the training images."""
        share = self.y.sum(0, dtype=torch.float64) / self.count
        return torch.cat(
            [torch.zeros(self.x.shape[1], len(share), dtype=torch.float64), torch.logit(share, ONE_CLASS)[None]]
        )

    def logits(self, theta: Tensor) -> Tensor:
        """x·w + b (N, A), float32."""
        return torch.addmm(theta[-1].float(), self.x, theta[:-1].float())

    def pull(self, residual: Tensor) -> Tensor:
        """Mean of residual times (x, 1): float32 (N, A) → float64 (D + 1, A)."""
        total = torch.zeros(self.x.shape[1] + 1, residual.shape[1], dtype=torch.float64)
        for part in chunks(len(self.x)):
            total[:-1] += self.x[part].T @ residual[part]
        total[-1] = residual.sum(0, dtype=torch.float64)
        return total / self.count

    def hessian(self, curvature: Tensor, penalty: Tensor) -> Callable[[Tensor], Tensor]:
        """The product v → H v for p (1 - p) = curvature (N, A)."""
        return lambda v: self.pull(curvature * self.logits(v)) + penalty * v

    def loss(self, logits: Tensor, theta: Tensor, l2: float) -> Tensor:
        """Objective (A,), float64."""
        bce = (self.seen * (F.softplus(logits) - self.y * logits)).sum(0, dtype=torch.float64) / self.count
        return bce + l2 / 2 * theta[:-1].square().sum(0)


def _newton(data: _Logistic, start: Tensor, l2: float, basis: Basis, tolerance: float) -> tuple[Tensor, Tensor]:
    """Minimise all attributes together: Newton steps by conjugate gradients, halved until the loss falls.

    An attribute stops on its own when its gradient norm is below the tolerance, or when float32 shows no descent.
    """
    theta, norms = start.clone(), torch.full((start.shape[1],), math.inf, dtype=torch.float64)
    active = torch.arange(start.shape[1])
    penalty = torch.full((start.shape[0], 1), l2, dtype=torch.float64)
    penalty[-1] = 0
    for _ in range(NEWTON_STEPS):
        part, here = data.columns(active), theta[:, active]
        logits = part.logits(here)
        p = torch.sigmoid(logits)
        gradient = part.pull(part.seen * (p - part.y)) + penalty * here
        curvature = part.seen * p * (1 - p)
        precondition = _preconditioner(curvature.sum(0, dtype=torch.float64) / part.count, l2, basis)
        norms[active] = (gradient * precondition(gradient)).sum(0).sqrt()
        going = norms[active] > tolerance
        if not going.any():
            break
        step = _conjugate_gradients(part.hessian(curvature, penalty), gradient, precondition)
        length = _line_search(part, logits, here, step, (gradient * step).sum(0), l2) * going
        theta[:, active] += length * step
        active = active[length > 0]
        if len(active) == 0:
            break
    return theta, norms


def _preconditioner(curvature: Tensor, l2: float, basis: Basis) -> Callable[[Tensor], Tensor]:
    """Inverse of the Hessian as it would be if every image had the attribute's mean curvature (A,).

    That is curvature·Λ + l2 in the principal basis: diagonal there, and close to the real Hessian.
    """
    curvature = curvature.clamp(min=1e-10)
    diagonal = basis.values[:, None] * curvature + l2  # (R, A)

    def apply(v: Tensor) -> Tensor:
        turned = basis.vectors.T @ v[:-1]
        inside = basis.vectors @ (turned / diagonal)
        if basis.others:
            inside += (v[:-1] - basis.vectors @ turned) / (basis.others * curvature + l2)
        return torch.cat([inside, v[-1:] / curvature])

    return apply


def _conjugate_gradients(
    hessian: Callable[[Tensor], Tensor], gradient: Tensor, precondition: Callable[[Tensor], Tensor]
) -> Tensor:
    """step ≈ -H⁻¹ gradient for all columns at once, to a tenth of the gradient's norm: Newton needs no more."""
    step, residual = torch.zeros_like(gradient), -gradient
    z = precondition(residual)
    direction, rho = z, (residual * z).sum(0)
    target = 0.01 * rho
    for _ in range(CG_STEPS):
        going = rho > target
        if not going.any():
            break
        product = hessian(direction)
        alpha = torch.where(going, rho / (direction * product).sum(0).clamp(min=1e-300), 0.0)
        step, residual = step + alpha * direction, residual - alpha * product
        z = precondition(residual)
        new = torch.where(going, (residual * z).sum(0), rho)
        direction, rho = z + torch.where(going, new / rho.clamp(min=1e-300), 0.0) * direction, new
    return step


def _line_search(data: _Logistic, logits: Tensor, theta: Tensor, step: Tensor, slope: Tensor, l2: float) -> Tensor:
    """Largest of 1, 1/2, 1/4 … (A,) that lowers the loss by 1e-4 of what the slope promises; else 0."""
    before, move = data.loss(logits, theta, l2), data.logits(step)
    length = torch.ones_like(slope)
    noise = 1e-8 * (1 + before)  # rounding of the float32 loss
    for _ in range(HALVINGS):
        after = data.loss(logits + length.float() * move, theta + length * step, l2)
        bad = after > before + 1e-4 * length * slope + noise
        if not bad.any():
            return length
        length = torch.where(bad, length / 2, length)
    return torch.where(bad, 0.0, length)
