"""Scores of predictions for all attributes at once, with bootstrap intervals over the images.

Every function takes two arrays (N, A), the predicted scores and the truth, and answers per attribute (A,). A NaN
in the truth is a missing label: that image is left out for that attribute. A score that is not defined (no
positive, a constant column) is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diti.core.errors import InputError
from diti.core.rng import numpy_generator

RESAMPLES = 1000
BLOCK = 100  # resamples worked on at once: N x 100 counts stay small


def average_precision(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """AP = Σ_k (R_k - R_{k-1}) P_k over the distinct thresholds k, as scikit-learn defines it, ties included."""
    scores, truth = checked(scores, truth)
    once = np.ones((len(scores), 1))
    return np.array([_Column.sort(s, t).weighted_ap(once)[0] for s, t in zip(scores.T, truth.T, strict=True)])


def auroc(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Area under the ROC curve: the chance that a positive scores above a negative, ties counting half."""
    scores, truth = checked(scores, truth)
    return np.array([_column_auroc(s, t) for s, t in zip(scores.T, truth.T, strict=True)])


def chance_ap(truth: np.ndarray) -> np.ndarray:
    """AP of an uninformative score: the share of positives."""
    seen = np.isfinite(truth)
    return _ratio((np.where(seen, truth, 0) > 0).sum(0), seen.sum(0))


def pearson(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Pearson's correlation r."""
    predicted, truth = checked(predicted, truth)
    return _r_and_mse(np.ones((len(truth), 1)), _moments(predicted, truth))[0][0]


def mse(predicted: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Mean squared error, in the units of the truth."""
    predicted, truth = checked(predicted, truth)
    seen = np.isfinite(truth)
    return _ratio((np.where(seen, predicted - truth, 0) ** 2).sum(0), seen.sum(0))


def ap_draws(
    scores: np.ndarray,
    truth: np.ndarray,
    *,
    seed: int,
    resamples: int = RESAMPLES,
    groups: np.ndarray | None = None,
) -> np.ndarray:
    """AP of every attribute in every bootstrap resample (B, A). Images are drawn jointly for all attributes.

    With `groups` (N,) whole groups (persons) are drawn instead of images. A resample without a positive is NaN.
    """
    scores, truth = checked(scores, truth)
    columns = [_Column.sort(s, t) for s, t in zip(scores.T, truth.T, strict=True)]
    blocks = [
        np.stack([column.weighted_ap(counts) for column in columns], axis=1)
        for counts in bootstrap_counts(len(scores), resamples, seed, groups)
    ]
    return np.concatenate(blocks)


def regression_draws(
    predicted: np.ndarray,
    truth: np.ndarray,
    *,
    seed: int,
    resamples: int = RESAMPLES,
    groups: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """r and MSE of every attribute in every bootstrap resample, both (B, A); images (or groups) drawn jointly."""
    predicted, truth = checked(predicted, truth)
    moments = _moments(predicted, truth)
    blocks = [_r_and_mse(counts, moments) for counts in bootstrap_counts(len(truth), resamples, seed, groups)]
    return np.concatenate([r for r, _ in blocks]), np.concatenate([e for _, e in blocks])


def percentile_interval(draws: np.ndarray) -> np.ndarray:
    """95 % percentile interval along the first axis: (B, ...) → (..., 2). Undefined resamples do not count."""
    defined = np.isfinite(draws)
    filled = np.where(defined.any(0), draws, 0.0)  # nanpercentile warns about columns of NaN only
    ends = np.moveaxis(np.nanpercentile(filled, [2.5, 97.5], axis=0), 0, -1)
    return np.where(defined.any(0)[..., None], ends, np.nan)


def mean_over_attributes(draws: np.ndarray) -> np.ndarray:
    """(B, A) → (B,): mean over the attributes that are defined in the resample."""
    defined = np.isfinite(draws)
    return _ratio(np.where(defined, draws, 0).sum(1), defined.sum(1))


def bootstrap_counts(
    count: int, resamples: int, seed: int, groups: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """How often each image is drawn in each resample, float32 (N, ≤ BLOCK) at a time."""
    if resamples < 1:
        raise InputError(f"resamples is {resamples}; an interval needs at least 1, usually {RESAMPLES}")
    rng = numpy_generator(seed, "bootstrap")
    owner = np.arange(count) if groups is None else np.unique(groups, return_inverse=True)[1].ravel()
    units = int(owner.max()) + 1
    for start in range(0, resamples, BLOCK):
        size = min(BLOCK, resamples - start)
        drawn = [np.bincount(rng.integers(0, units, units), minlength=units) for _ in range(size)]
        yield np.stack(drawn, axis=1).astype(np.float32)[owner]


def checked(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 (N, A), or an InputError that says what does not fit."""
    scores, truth = np.asarray(scores, np.float64), np.asarray(truth, np.float64)
    if scores.shape != truth.shape or scores.ndim != 2 or len(scores) == 0:
        raise InputError(
            f"scores {scores.shape} and truth {truth.shape} must both be (N, A) with N > 0; give one column each"
        )
    if not np.isfinite(scores).all():
        raise InputError(
            f"{(~np.isfinite(scores)).sum()} predicted scores are NaN or infinite; check the features"
        )
    return scores, truth


@dataclass(frozen=True)
class _Column:
    """One attribute sorted once: all that a weighted AP needs besides the weights.

    Only thresholds with a positive add to AP, so the images are summed in runs that end there.
    """

    order: np.ndarray  # rows with a label, from the highest score to the lowest
    starts: np.ndarray  # first place of each run
    stop: int  # one after the last run
    positives: np.ndarray  # rows of the positives, in order
    positive_starts: np.ndarray  # first positive of each run

    @classmethod
    def sort(cls, scores: np.ndarray, truth: np.ndarray) -> _Column:
        seen = np.flatnonzero(np.isfinite(truth))
        order = seen[np.argsort(-scores[seen], kind="stable")]
        positive = truth[order] > 0
        ends, first = np.unique(_tie_ends(scores[order])[positive], return_index=True)
        starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
        return cls(order, starts, int(ends[-1]) + 1 if len(ends) else 0, order[positive], first)

    def weighted_ap(self, counts: np.ndarray) -> np.ndarray:
        """AP (B,) when image n occurs counts[n, b] times in resample b."""
        if len(self.starts) == 0:
            return np.full(counts.shape[1], np.nan)
        images = np.cumsum(np.add.reduceat(counts[self.order[: self.stop]], self.starts, axis=0), axis=0)
        hits = np.add.reduceat(counts[self.positives], self.positive_starts, axis=0)  # (runs, B)
        found = np.cumsum(hits, axis=0)
        precision = found / np.maximum(images, 1)  # no image yet means no hit yet
        return _ratio((hits * precision).sum(0, dtype=np.float64), found[-1])


def _tie_ends(ordered: np.ndarray) -> np.ndarray:
    """For each place of a sorted array the last place with the same value."""
    last = np.append(ordered[1:] != ordered[:-1], True)
    ends = np.flatnonzero(last)
    return ends[np.searchsorted(ends, np.arange(len(ordered)))]


def _column_auroc(scores: np.ndarray, truth: np.ndarray) -> float:
    """Mann-Whitney: (Σ mid-ranks of the positives - P (P + 1) / 2) / (P Q)."""
    from scipy.stats import rankdata

    seen = np.isfinite(truth)
    hits = truth[seen] > 0
    positives, negatives = int(hits.sum()), int((~hits).sum())
    if positives == 0 or negatives == 0:
        return float("nan")
    above = rankdata(scores[seen])[hits].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def _moments(predicted: np.ndarray, truth: np.ndarray) -> list[np.ndarray]:
    """[1, p, t, p², t², p t, (p - t)²], each (N, A), 0 where the label is missing; p and t about their means."""
    seen = np.isfinite(truth)
    count = np.maximum(seen.sum(0), 1)
    difference = np.where(seen, predicted - truth, 0)
    p = np.where(seen, predicted - np.where(seen, predicted, 0).sum(0) / count, 0)
    t = np.where(seen, truth - np.where(seen, truth, 0).sum(0) / count, 0)
    return [seen.astype(np.float64), p, t, p * p, t * t, p * t, difference**2]


def _r_and_mse(counts: np.ndarray, moments: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """r and MSE (B, A) when image n occurs counts[n, b] times; `moments` as above."""
    weights = counts.T.astype(np.float64)
    n, p, t, pp, tt, pt, error = (weights @ moment for moment in moments)
    covariance, spread_p, spread_t = n * pt - p * t, n * pp - p * p, n * tt - t * t
    noise = 1e-12 * n * n  # rounding of a constant column stays below this share of its size
    constant = (spread_p <= noise * moments[3].max(0)) | (spread_t <= noise * moments[4].max(0))
    r = np.where(constant, np.nan, _ratio(covariance, np.sqrt(np.maximum(spread_p * spread_t, 0))))
    return r, _ratio(error, n)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below, NaN where below is 0."""
    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    return np.divide(above, below, out=np.full(np.broadcast(above, below).shape, np.nan), where=below != 0)
