"""Which subset of the code carries which attribute: probes on each subset alone, on all but it, and on the first
or last few subsets. Binary attributes are scored by AP, continuous ones by Pearson's r.

All fits share one fixed penalty, the Gram matrix, and good first guesses, so that hundreds of fits stay cheap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.probes.fit import Basis, RidgeMoments, Standard, fit_logistic, gram_matrix, ridge_moments
from diti.probes.scores import average_precision, chance_ap, pearson
from diti.probes.task import LeftOut, Splits, Task, checked_task

L2 = 1e-3  # the shared penalty
TOLERANCE = 1e-3  # of the fits: the loss is then within 1e-6 of its minimum, far below the noise of a score


@dataclass(frozen=True, kw_only=True)
class _Scores:
    """What is known of every score of attributes by parts of the code."""

    protocol: str
    names: tuple[str, ...]  # (A,)
    scores: tuple[str, ...]  # (A,) ap or r
    ends: tuple[int, ...]  # (K,)
    chance: np.ndarray  # (A,) share of positives; 0 for r
    left_out: tuple[LeftOut, ...]

    def record(self) -> dict[str, Any]:
        """JSON-able."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found.items()}
        return plain | {"left_out": [dataclasses.asdict(item) for item in self.left_out]}


@dataclass(frozen=True, kw_only=True)
class SubsetMatrix(_Scores):
    """Scores of the probe by subset (rows) and attribute (columns)."""

    alone: np.ndarray  # (K, A) the subset's dims only; an empty subset has the score of chance
    without: np.ndarray  # (K, A) all dims but the subset's
    full: np.ndarray  # (A,) all dims


@dataclass(frozen=True, kw_only=True)
class Cumulative(_Scores):
    """Scores against the number of subsets in use."""

    early: np.ndarray  # (K, A) row i: subsets 0 .. i
    late: np.ndarray  # (K, A) row i: the last i + 1 subsets

    def means(self) -> dict[str, dict[str, np.ndarray]]:
        """{"ap": {"early": (K,), "late": (K,)}, "r": ...}: mean over the attributes with that score."""
        found = {}
        for score in sorted(set(self.scores)):
            columns = np.array(self.scores) == score
            found[score] = {"early": self.early[:, columns].mean(1), "late": self.late[:, columns].mean(1)}
        return found

    def record(self) -> dict[str, Any]:
        """JSON-able."""
        means = {s: {way: m.tolist() for way, m in ways.items()} for s, ways in self.means().items()}
        return super().record() | {"means": means}


@dataclass(frozen=True)
class Carrier:
    """Where in the code one attribute sits."""

    name: str
    subset: int | None  # the subset with the best score alone; None if no subset is above chance
    score: float | None  # of that subset alone
    above_chance: float
    position: float | None  # mean place of the subsets, 0 (first) .. 1 (last), weighted by score above chance


def carriers(matrix: SubsetMatrix) -> list[Carrier]:
    """For each attribute the subset that reads it best alone, and the mean place of the subsets that read it."""
    above = np.maximum(matrix.alone - matrix.chance, 0)  # (K, A)
    places = np.linspace(0, 1, len(above)) if len(above) > 1 else np.zeros(1)
    found = []
    for column, name in enumerate(matrix.names):
        gain = above[:, column]
        if gain.max() == 0:
            found.append(Carrier(name, None, None, 0.0, None))
            continue
        best = int(gain.argmax())
        position = float(places @ gain / gain.sum())
        found.append(Carrier(name, best, float(matrix.alone[best, column]), float(gain[best]), position))
    return found


def _bounds(ends: Sequence[int], dims: int) -> tuple[int, ...]:
    """(0, *ends), checked."""
    bounds = (0, *(int(end) for end in ends))
    if len(bounds) == 1 or bounds[-1] != dims or any(a > b for a, b in pairwise(bounds)):
        raise InputError(f"ends {list(ends)[:8]} do not divide {dims} dims; give rising ends, the last {dims}")
    return bounds


@dataclass(frozen=True)
class SubsetProbe:
    """Everything that probes of parts of one code share; `read` probes the dims low .. high - 1.

    matrix = SubsetProbe.of(codes, labels, names, binary, splits, partition.ends).matrix()
    """

    task: Task
    x: Tensor  # (N, D) standardised training images
    y: np.ndarray  # (N, A)
    scored: Tensor  # (M, D) standardised images to score
    truth: np.ndarray  # (M, A)
    bounds: tuple[int, ...]  # (K + 1,) of the subsets
    gram: Tensor  # (D, D)
    moments: list[tuple[np.ndarray, RidgeMoments]]  # continuous attributes: columns, and what ridge needs
    l2: float
    protocol: str

    @classmethod
    def of(
        cls,
        features: np.ndarray,
        labels: np.ndarray,
        names: Sequence[str],
        binary: Sequence[bool] | np.ndarray,
        splits: Splits,
        ends: Sequence[int],
        split: str = "test",
        *,
        l2: float = L2,
        rows: int | None = None,
        seed: int = 0,
    ) -> SubsetProbe:
        """Fits train, scores `split`; subset i owns the dims ends[i-1] .. ends[i] - 1.

        With `rows` at most that many training images are used, drawn with `seed`.
        """
        if split not in ("test", "valid") or l2 <= 0 or (rows is not None and rows < 2):
            raise InputError(f"split {split!r}, l2 {l2:g}, rows {rows}: use split test or valid, l2 > 0, rows > 1")
        task = checked_task(features, labels, names, binary, splits)
        train, tested = splits.train, splits.test if split == "test" else splits.valid
        if rows is not None and rows < len(train):
            train = np.sort(numpy_generator(seed, "matrix rows").choice(train, rows, replace=False))
        task = task.usable({"train": train, split: tested})
        standard = Standard.of(features, train)
        x, y, continuous = standard.apply(features, train), task.labels[train], np.flatnonzero(~task.binary)
        text = (
            f"logistic regression (AP) and ridge regression (r) on standardised codes, L2 {l2:g} for all, "
            f"fitted to {len(train):,} of {len(splits.train):,} training images, scored on {split}"
        )
        return cls(
            task=task,
            x=x,
            y=y,
            scored=standard.apply(features, tested),
            truth=task.labels[tested],
            bounds=_bounds(ends, features.shape[1]),
            gram=gram_matrix(x),
            moments=[(continuous[columns], m) for columns, m in ridge_moments(x, y[:, continuous])],
            l2=l2,
            protocol=text,
        )

    def matrix(self, *, progress: bool = False) -> SubsetMatrix:
        """Every subset alone, and all but it."""
        whole, theta = self.read(0, self.bounds[-1])
        alone, without = [], []
        with progress_bar("subset matrix", len(self.bounds) - 1, unit="subsets", shown=progress) as advance:
            for low, high in pairwise(self.bounds):
                alone.append(self.read(low, high)[0])
                without.append(self.read_without(low, high, theta) if high > low else whole)
                advance()
        return SubsetMatrix(alone=np.stack(alone), without=np.stack(without), full=whole, **self.about)

    def cumulative(self, *, progress: bool = False) -> Cumulative:
        """Score against the number of subsets, taken from early to late and from late to early."""
        early, late, first, last = [], [], None, None
        with progress_bar("cumulative scores", 2 * len(self.bounds) - 2, unit="fits", shown=progress) as advance:
            for high in self.bounds[1:]:
                score, first = self.read(0, high, first)
                early.append(score)
                advance()
            for low in self.bounds[-2::-1]:
                score, last = self.read(low, self.bounds[-1], last)
                late.append(score)
                advance()
        return Cumulative(early=np.stack(early), late=np.stack(late), **self.about)

    @property
    def about(self) -> dict[str, Any]:
        """The fields of `_Scores`."""
        return {
            "protocol": self.protocol, "names": self.task.names, "ends": self.bounds[1:], "chance": self.chance,
            "scores": tuple("ap" if binary else "r" for binary in self.task.binary),
            "left_out": self.task.left_out,
        }  # fmt: skip

    @property
    def chance(self) -> np.ndarray:
        """Score (A,) of a constant prediction."""
        return np.where(self.task.binary, chance_ap(self.truth), 0.0)

    def read(self, low: int, high: int, start: Tensor | None = None) -> tuple[np.ndarray, Tensor | None]:
        """Scores (A,), and the logistic weights and bias (D + 1, binary attributes) as a first guess for others.

        The dims outside low .. high - 1 have weight 0.
        """
        if high == low:
            return self.chance, start
        here = slice(low, high)
        inner = None if start is None else torch.cat([start[:-1][here], start[-1:]])
        theta = self._logistic(self.x[:, here], Basis.of(self.gram[here, here]), inner)
        spread = torch.zeros(self.x.shape[1] + 1, theta.shape[1], dtype=torch.float64)
        spread[:-1][here], spread[-1] = theta[:-1], theta[-1]
        return self._score(spread, torch.arange(low, high)), spread

    def read_without(self, low: int, high: int, start: Tensor | None) -> np.ndarray:
        """Scores (A,) of all dims but low .. high - 1; `start` is the fit to all dims."""
        dims = torch.cat([torch.arange(low), torch.arange(high, self.x.shape[1])])
        if len(dims) == 0 or start is None:
            return self.chance
        start = start.clone()
        start[low:high] = 0
        return self._score(self._logistic(self.x, Basis.of(self.gram, dims), start), dims)

    def _logistic(self, x: Tensor, basis: Basis, start: Tensor | None) -> Tensor:
        """Weights and bias (D + 1, binary attributes)."""
        y = self.y[:, self.task.binary]
        if y.shape[1] == 0:
            return torch.zeros(x.shape[1] + 1, 0, dtype=torch.float64)
        fit = fit_logistic(x, y, np.array([self.l2]), basis, start, TOLERANCE).at(0)
        return torch.from_numpy(np.concatenate([fit.weights, fit.bias[None]]))

    def _score(self, theta: Tensor, dims: Tensor) -> np.ndarray:
        """AP of the logistic fits `theta` and r of ridge on `dims`; a constant prediction has r 0."""
        found = np.zeros(len(self.task.names))
        binary = self.task.binary
        if binary.any():
            predicted = self.scored @ theta[:-1].float()
            found[binary] = average_precision(predicted.numpy(), self.truth[:, binary])
        for columns, moments in self.moments:
            weights, _ = moments.ridge(self.l2, dims)
            predicted = self.scored @ weights.float()
            found[columns] = np.nan_to_num(pearson(predicted.numpy(), self.truth[:, columns]))
        return found
