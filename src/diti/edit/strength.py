"""What a strength means: 1 is the usual difference, from images without an attribute to those with it.

A direction has a reading, a linear function of the code that tells the attribute, and a heading, the way the code
goes. A step of strength 1 along any heading moves the reading by the usual difference:

    binary        the mean of the reading over training images with the attribute, less that over those without
    continuous    one standard deviation of the attribute, which the reading predicts
    axis, dim     one standard deviation of it
    examples      as far apart as the two sides lie when they are left out (see `examples.py`)

Notation: N images, D dims of z, u standardised codes, Σ their covariance.
"""

from __future__ import annotations

import numpy as np

PAPER_SCALE = 0.3  # s of the authors, PDAE and Diff-AE
FEW = 2.0  # deviations, of examples in files of earlier versions: as far apart as the two halves of data can be


def usual_difference(scores: np.ndarray, y: np.ndarray, binary: bool) -> float:
    """By how much a strength of 1 moves the scores (N,) that tell an attribute y (N,); unlabelled rows are NaN."""
    if not binary:
        return float(np.nanstd(y))
    return float(scores[y > 0.5].mean() - scores[y <= 0.5].mean())


def estimated_difference(
    method: str, metric: str, weight: np.ndarray, response: np.ndarray, score: float, share: float
) -> float:
    """The same from what files of earlier versions hold: weight w, Σw, validation score, share with the attribute.

    Continuous: least squares explain r² of the variance. Binary: for two normal heaps with one covariance the
    weights w lie a gap g = wᵀΣ'w apart within which w has this variance, so that wᵀΣw = g + share (1 - share) g².
    Examples stood at ±1, pairs at the two ends of the weight.
    """
    variance = max(float(weight @ response), 0.0)
    if method == "pairs":
        return float(weight @ weight)
    if method == "examples":
        return min(2.0, FEW * variance**0.5)
    if metric == "r":
        return float(variance**0.5 / max(score, 0.1))
    both = max(share * (1 - share), 1e-6)
    return float(((1 + 4 * both * variance) ** 0.5 - 1) / (2 * both))


def step_of(reading: np.ndarray, heading: np.ndarray) -> np.ndarray | None:
    """(D,) along a heading, of strength 1: the reading (D,) rises by 1. None where it does not rise along it."""
    rise = float(reading @ heading)
    return heading / rise if rise > 0 and np.isfinite(heading / rise).all() else None


def paper_strength(reading: np.ndarray, heading: np.ndarray, scale: float) -> float:
    """The strength of algorithm 3, line 3: a step λ w / ‖w‖ of u along a heading w, λ = s √D; `scale` is s."""
    return scale * len(heading) ** 0.5 * float(reading @ heading) / float(np.linalg.norm(heading))
