"""What every probe starts from: checked input, the attributes that can be used, and folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diti.core.errors import InputError
from diti.probes.fit import check_features


@dataclass(frozen=True)
class Splits:
    """Row numbers. An empty `valid` means: choose by cross-validation inside `train`."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class LeftOut:
    name: str
    reason: str


@dataclass(frozen=True)
class Task:
    """Checked input: features (N, D), labels float64 (N, A) with NaN where missing, and what could not be used."""

    features: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]
    binary: np.ndarray  # (A,) bool
    left_out: tuple[LeftOut, ...] = ()

    @property
    def kinds(self) -> list[bool]:
        """True if there are binary attributes, False if there are continuous ones; in this order."""
        return [kind for kind in (True, False) if (self.binary == kind).any()]

    def usable(self, parts: dict[str, np.ndarray]) -> Task:
        """Without the attributes that cannot be learned or scored in some of the parts (name → rows)."""
        reasons = [self._reason(column, parts) for column in range(len(self.names))]
        left_out = tuple(LeftOut(n, why) for n, why in zip(self.names, reasons, strict=True) if why)
        keep = np.array([not why for why in reasons], bool)
        if not keep.any():
            shown = "; ".join(f"{item.name}: {item.reason}" for item in left_out[:3]) or "none was given"
            raise InputError(f"no attribute can be probed ({shown}); use other attributes or splits")
        names = tuple(n for n, kept in zip(self.names, keep, strict=True) if kept)
        return Task(self.features, self.labels[:, keep], names, self.binary[keep], self.left_out + left_out)

    def _reason(self, column: int, parts: dict[str, np.ndarray]) -> str:
        for part, rows in parts.items():
            values = self.labels[rows, column]
            values = values[np.isfinite(values)]
            if len(values) == 0:
                return f"no label in {part}"
            if (values == values[0]).all():
                alone = "negative" if values[0] else "positive"
                return f"no {alone} in {part}" if self.binary[column] else f"constant in {part}"
        return ""


def checked_task(
    features: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    binary: Sequence[bool] | np.ndarray,
    splits: Splits,
) -> Task:
    """The input as a Task, or an InputError that says what does not fit."""
    check_features(features)
    labels, binary = np.asarray(labels, np.float64), np.asarray(binary, bool)
    expected = (len(features), len(names))
    if labels.shape != expected or binary.shape != expected[1:]:
        raise InputError(
            f"labels {labels.shape} and binary {binary.shape} do not fit {expected[0]:,} rows of features and "
            f"{expected[1]} names; give labels {expected} and binary {expected[1:]}"
        )
    for name, values, is_binary in zip(names, labels.T, binary, strict=True):
        wrong = ~np.isin(values, (0, 1)) & ~np.isnan(values) if is_binary else np.isinf(values)
        if wrong.any():
            allowed = "0, 1" if is_binary else "finite numbers"
            raise InputError(
                f"labels of {name!r} must be {allowed}, or NaN for missing; found {values[wrong][0]:g}"
            )
    _check_splits(splits, len(features))
    return Task(features, labels, tuple(names), binary)


def _check_splits(splits: Splits, count: int) -> None:
    rows = np.concatenate([splits.train, splits.valid, splits.test])
    if len(splits.train) == 0:
        raise InputError("the train split has no image; a probe needs training images")
    if rows.min() < 0 or rows.max() >= count:
        raise InputError(f"splits name rows {rows.min()} to {rows.max()}; the features have rows 0 to {count - 1}")
    if len(np.unique(rows)) != len(rows):
        raise InputError("splits share images; every row may be in one split, once")


def group_folds(groups: np.ndarray, folds: int, rng: np.random.Generator) -> np.ndarray:
    """Fold (N,) of each row: groups stay whole; shuffled, then the largest goes first into the smallest fold."""
    _, owner, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(sizes) < 2:
        raise InputError("all images are of one group (person); a k-fold over groups needs at least two")
    shuffled = rng.permutation(len(sizes))
    filled = np.zeros(min(folds, len(sizes)), int)
    fold_of = np.zeros(len(sizes), int)
    for group in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        fold_of[group] = filled.argmin()
        filled[fold_of[group]] += sizes[group]
    return fold_of[owner.ravel()]


def label_folds(labels: np.ndarray, binary: bool, folds: int, rng: np.random.Generator) -> np.ndarray:
    """Fold (N, A) of each label: for binary attributes each class is spread evenly, attribute by attribute."""
    order = rng.permutation(len(labels))
    dealt = np.empty(labels.shape, int)
    for column, values in enumerate(labels[order].T):
        by_class = np.argsort(values, kind="stable") if binary else np.arange(len(order))  # NaN goes last
        dealt[order[by_class], column] = np.arange(len(order)) % folds
    return dealt
