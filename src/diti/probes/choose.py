"""The penalty of a linear model, chosen on validation images or by cross-validation.

Features are standardised, float32 (N, D); labels (N, A), NaN where missing; penalties (L,), from strong to weak.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diti.probes.fit import Basis, FitPath, Linear, fit_logistic, fit_ridge
from diti.probes.scores import average_precision, mse

STALE = 2  # penalties in a row that help no attribute, after which weaker ones are not tried


# ---- fewer images than dims ----


@dataclass(frozen=True)
class Span:
    """An orthonormal basis of what images span. No penalised fit to them has weights outside it (representer
    theorem), so N images with more than N dims are fitted in N dims, with the same result."""

    axes: Tensor  # (D, N) float64

    @classmethod
    def of(cls, x: Tensor) -> Span | None:
        """Of features (N, D); None where there are no more dims than images."""
        return cls(torch.linalg.qr(x.double().T)[0]) if len(x) < x.shape[1] else None

    def inside(self, x: Tensor) -> Tensor:
        """Features (M, D) in these axes: float32 (M, N)."""
        return x @ self.axes.float()

    def outside(self, fit: Linear) -> Linear:
        """A fit of N dims as one of all D."""
        return dataclasses.replace(fit, weights=self.axes.numpy() @ fit.weights)


# ---- choice of the penalty ----


def fit_path(x: Tensor, labels: np.ndarray, binary: bool, grid: np.ndarray, basis: Basis | None = None) -> FitPath:
    """Logistic regression for binary attributes, ridge for continuous ones."""
    return fit_logistic(x, labels, grid, basis) if binary else fit_ridge(x, labels, grid)


def quality(predicted: np.ndarray, truth: np.ndarray, binary: bool) -> np.ndarray:
    """What a choice on validation images maximises (A,): AP, or minus the MSE."""
    return average_precision(predicted, truth) if binary else -mse(predicted, truth)


def fit_chosen_on(
    x: Tensor, labels: np.ndarray, binary: bool, valid: tuple[Tensor, np.ndarray], grid: np.ndarray
) -> Linear:
    """Each attribute with the penalty that is best on the validation images; the strongest of equals.

    The path from strong to weak ends when STALE penalties in a row were best for no attribute.
    """
    if span := Span.of(x):
        seen = (span.inside(valid[0]), valid[1])
        return span.outside(fit_chosen_on(span.inside(x), labels, binary, seen, grid))
    found: list[np.ndarray] = []

    def past_the_best(fit: Linear) -> bool:
        found.append(quality(fit.predict(valid[0]), valid[1], binary))
        return bool((np.argmax(found, axis=0) < len(found) - STALE).all())

    if binary:
        path = fit_logistic(x, labels, grid, enough=past_the_best)
    else:
        path = fit_ridge(x, labels, grid)
        for index in range(len(grid)):
            past_the_best(path.at(index))
    return path.at(np.argmax(found, axis=0))


def fit_cross_validated(
    x: Tensor, labels: np.ndarray, binary: bool, folds: np.ndarray, grid: np.ndarray
) -> Linear:
    """Each attribute with the penalty of the lowest held-out loss over `folds` (N, A), refitted to all images."""
    return fit_best_scaled([x], labels, binary, folds, grid)[1]


def fit_best_scaled(
    scaled: Sequence[Tensor],
    labels: np.ndarray,
    binary: bool,
    folds: np.ndarray,
    grid: np.ndarray,
    multiples: Sequence[float] = (1.0,),
    borrowed: float = 0.0,
) -> tuple[int, Linear]:
    """`fit_cross_validated` of the same features in several scalings: the best of these, and its fit.

    The scaling is chosen for all attributes together, since a few labels of one say too little. borrowed: weight
    of the mean loss of all attributes, beside its own, in the choice of an attribute's penalty.
    """
    spans = [Span.of(x) for x in scaled]
    inside = [span.inside(x) if span else x for span, x in zip(spans, scaled, strict=True)]
    bases = [Basis.suited(x) if binary else None for x in inside]
    held_out = [
        held_out_loss(x, labels, binary, folds, grid, basis, multiples)
        for x, basis in zip(inside, bases, strict=True)
    ]
    losses = [loss + borrowed * loss.mean(1, keepdims=True) for loss in held_out]
    best = int(np.argmin([loss.min(0).sum() for loss in losses]))
    fit = fit_path(inside[best], labels, binary, grid, bases[best]).at(np.argmin(losses[best], axis=0))
    span = spans[best]
    return best, span.outside(fit) if span else fit


def held_out_loss(
    x: Tensor,
    labels: np.ndarray,
    binary: bool,
    folds: np.ndarray,
    grid: np.ndarray,
    basis: Basis | None,
    multiples: Sequence[float] = (1.0,),
) -> np.ndarray:
    """Summed loss (L, A) of the labels of each fold under the fit to the other folds: log-loss, squared error.

    The loss is defined with few labels where AP is not. A fold is skipped if the other folds hold only one class.
    multiples: of x·w, of which the best counts. Strong penalties shrink x·w, at which the loss takes offence and a
    score of the order does not.
    """
    total = np.zeros((len(multiples), len(grid), labels.shape[1]))
    for fold in range(folds.max() + 1):
        training = np.where(folds == fold, np.nan, labels)
        columns = np.flatnonzero(np.nanmax(training, 0, initial=-np.inf) > np.nanmin(training, 0, initial=np.inf))
        if len(columns) == 0:
            continue
        path = fit_path(x, training[:, columns], binary, grid, basis)
        rows, places = np.nonzero((folds == fold)[:, columns] & np.isfinite(labels[:, columns]))
        held = labels[rows, columns[places]]
        for i in range(len(grid)):
            fit = path.at(i)
            linear, bias = (fit.predict(x) - fit.bias)[rows, places], fit.bias[places]
            for m, multiple in enumerate(multiples):
                f = multiple * linear + bias
                loss = np.logaddexp(0, f) - held * f if binary else (f - held) ** 2
                total[m, i, columns] += np.bincount(places, loss, len(columns))
    return total.min(0)
