"""What disentanglement is scored on: a sample of rows, factors as classes or numbers, and scalar dims of the code.

Notation: N rows, n of them sampled, D dims of the code, K subsets, F factors, M components that are kept.
The scores need scalar dims, but the subsets of a code are vectors: their principal components are used instead.
A code whose single dims are meant to be factors (a VAE) is given as one subset per dim, `ends = 1 .. D`: then the
components are the dims themselves and nothing is rotated. A code without structure is one subset, `ends = (D,)`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from diti.core.errors import InputError
from diti.core.rng import numpy_generator

BINS = 20  # of a histogram, for codes and for continuous factors
CLASSES = 100  # the most a discrete factor has; with more it is surely a number
TINY = 1e-10  # share of the largest variance below which a component counts as constant

Draw = Callable[[int, int, np.random.Generator], np.ndarray]  # factor, batch size, generator → codes (batch, D)


@dataclass(frozen=True)
class Sample:
    """The rows that are scored, and the factors that vary in them."""

    codes: np.ndarray  # (n, D) float64
    values: np.ndarray  # (n, F) float64: numbers, or class numbers where discrete
    labels: np.ndarray  # (n, F) int64: class numbers, bins where continuous
    discrete: np.ndarray  # (F,) bool
    train: np.ndarray  # (n,) bool: rows to fit on; the others are for measuring
    names: list[str]  # (F,)
    constant: list[str]  # factors left out, because they are constant in one of the parts

    @property
    def binary(self) -> np.ndarray:
        """(F,) bool: factors of two classes."""
        return self.discrete & (self.labels.max(0) == 1)


def take_sample(
    codes: np.ndarray,
    factors: np.ndarray,
    names: Sequence[str],
    discrete: np.ndarray,
    parts: tuple[np.ndarray, np.ndarray],
    samples: int,
    seed: int,
) -> Sample:
    """At most `samples` rows of the two parts (row numbers to fit on and to measure on), in proportion."""
    _check_tables(codes, factors, names, discrete)
    rows, first = _draw_rows(parts, len(codes), samples, seed)
    values = factors[rows].astype(np.float64)
    varies = (np.ptp(values[:first], axis=0) > 0) & (np.ptp(values[first:], axis=0) > 0)
    if varies.sum() < 2:
        raise InputError(f"{varies.sum()} of {len(names)} factors vary in {len(rows)} rows; at least 2 must")
    kept, constant = ([n for n, fine in zip(names, which, strict=True) if fine] for which in (varies, ~varies))
    values, discrete = values[:, varies], discrete[varies]
    labels = discretise(values)
    for f in np.flatnonzero(discrete):
        classes, labels[:, f] = np.unique(values[:, f], return_inverse=True)
        if len(classes) > CLASSES:
            raise InputError(f"factor {kept[f]!r} has {len(classes)} classes; above {CLASSES} call it continuous")
        values[:, f] = labels[:, f]
    train = np.arange(len(rows)) < first
    return Sample(codes[rows].astype(np.float64), values, labels, discrete, train, kept, constant)


def _check_tables(codes: np.ndarray, factors: np.ndarray, names: Sequence[str], discrete: np.ndarray) -> None:
    if codes.ndim != 2 or factors.shape != (len(codes), len(names)) or discrete.shape != (len(names),):
        shapes = f"codes {codes.shape}, factors {factors.shape}, {len(names)} names, kinds {discrete.shape}"
        raise InputError(f"got {shapes}; they must be (N, D), (N, F), F and (F,)")
    for what, table in (("codes", codes), ("factors", factors)):
        bad = np.flatnonzero(~np.isfinite(table).all(1))
        if len(bad):
            raise InputError(f"the {what} of {len(bad)} rows are not finite, first row {bad[0]}; leave them out")


def _draw_rows(
    parts: tuple[np.ndarray, np.ndarray], count: int, samples: int, seed: int
) -> tuple[np.ndarray, int]:
    """Row numbers (n,), those of the first part first, and how many these are."""
    sizes = [len(part) for part in parts]
    together = np.concatenate(parts)
    whole = all(np.asarray(part).dtype.kind in "iu" for part in parts)  # a mask is not a list of rows
    if not whole or len(together) == 0 or together.min() < 0 or together.max() >= count:
        raise InputError(f"train and test are not row numbers of a table of {count} rows; give 0 .. {count - 1}")
    if len(np.unique(together)) != len(together) or min(sizes) < 2 or samples < 4:
        given = f"{sizes[0]} train rows, {sizes[1]} test rows, {samples} samples"
        raise InputError(f"{given}: 2 or more rows each, none of them twice, and 4 or more samples are needed")
    size = min(samples, sum(sizes))
    first = min(max(round(size * sizes[0] / sum(sizes)), 2), size - 2)
    rng = numpy_generator(seed, "disentanglement-rows")
    drawn = [rng.choice(part, n, replace=False) for part, n in zip(parts, (first, size - first), strict=True)]
    return np.concatenate(drawn), first


def discretise(values: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Columns (N, D) → bin numbers (N, D): bins of equal width from least to largest value; constant → 0."""
    low, high = values.min(0), values.max(0)
    width = np.where(high > low, high - low, 1.0)
    return np.minimum(np.floor((values - low) / width * bins), bins - 1).astype(np.int64)


def drawable(labels: np.ndarray, batch: int) -> np.ndarray:
    """(F,) bool: whether a class of the factor has enough rows for a batch."""
    return np.array([np.bincount(column).max() >= batch for column in labels.T])


def draw_from_table(codes: np.ndarray, labels: np.ndarray) -> Draw:
    """Batches of rows that share the class of one factor: the class of a random row, among those with enough rows;
    within it rows are drawn without repeats."""
    classes = [[np.flatnonzero(column == c) for c in range(int(column.max()) + 1)] for column in labels.T]

    def draw(factor: int, batch: int, rng: np.random.Generator) -> np.ndarray:
        enough = [rows for rows in classes[factor] if len(rows) >= batch]
        if not enough:
            raise InputError(f"factor {factor} has no class with {batch} rows; give more rows or a smaller batch")
        sizes = np.array([len(rows) for rows in enough])
        rows = enough[rng.choice(len(enough), p=sizes / sizes.sum())]
        return codes[rng.choice(rows, batch, replace=False)]

    return draw


@dataclass(frozen=True)
class Reduced:
    """The kept components, subset by subset; within a subset the largest variance first."""

    codes: np.ndarray  # (N, M) float64, centred on the training rows
    subsets: np.ndarray  # (M,) the subset a component comes from
    variances: np.ndarray  # (M,) over the training rows

    def keep(self, which: np.ndarray) -> Reduced:
        """Some of the components, by place or by a mask (M,)."""
        return Reduced(self.codes[:, which], self.subsets[which], self.variances[which])


def reduce_subsets(
    codes: np.ndarray, ends: Sequence[int], per_subset: int = 1, *, train: np.ndarray | None = None
) -> Reduced:
    """The first `per_subset` principal components of every non-empty subset, fitted on the rows `train`.

    Components that are constant next to the largest are left out.
    """
    if per_subset < 1:
        raise InputError(f"{per_subset} components per subset were asked for; ask for 1 or more")
    rows = codes if train is None else codes[train]
    parts = []
    for index, part in _slices(ends, codes.shape[1]):
        mean, axes, variances = principal_components(rows[:, part])
        projected = (codes[:, part].astype(np.float64) - mean) @ axes[:, :per_subset]
        parts.append((projected, np.full(projected.shape[1], index), variances[:per_subset]))
    found = Reduced(*(np.concatenate(each, -1) for each in zip(*parts, strict=True)))
    largest = found.variances.max()
    if largest == 0:
        raise InputError(f"all {codes.shape[1]} dims of the code are constant in {len(rows)} rows; score another")
    return found.keep(found.variances > TINY * largest)


def reduce_total(
    codes: np.ndarray, ends: Sequence[int], total: int, *, train: np.ndarray | None = None
) -> Reduced:
    """`total` principal components over all subsets, so that codes of different K have equally many dims.

    Rule: the components of all subsets are ranked by their variance and the `total` largest are kept, so a subset
    gets components in proportion to the variance it explains. With one subset this is PCA of the whole code.
    Fewer than `total` come back where the code varies in fewer directions.
    """
    if total < 1:
        raise InputError(f"{total} components in total were asked for; ask for 1 or more")
    found = reduce_subsets(codes, ends, total, train=train)
    ranked = np.argsort(-found.variances, kind="stable")  # equal variances: the earlier subset goes first
    return found.keep(np.sort(ranked[:total]))


def principal_components(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean (d,), unit axes (d, d) as columns, largest entry positive, and variances (d,), the largest first."""
    shifted = rows.astype(np.float64) - rows[0]  # so that a constant dim is exactly 0
    centred = shifted - shifted.mean(0)
    variances, axes = np.linalg.eigh(centred.T @ centred / max(len(rows) - 1, 1))  # ascending
    variances, axes = np.maximum(variances[::-1], 0.0), axes[:, ::-1]
    largest = np.take_along_axis(axes, np.abs(axes).argmax(0)[None], 0)  # (1, d)
    return rows[0] + shifted.mean(0), axes * np.sign(largest), variances


def _slices(ends: Sequence[int], dims: int) -> list[tuple[int, slice]]:
    """The non-empty subsets: subset i owns the dims ends[i-1] .. ends[i] - 1."""
    bounds = [0, *(int(end) for end in ends)]
    if any(a > b for a, b in itertools.pairwise(bounds)) or bounds[-1] != dims:
        raise InputError(f"the subsets end at {bounds[1:]}, the code has {dims} dims; ends rise and end at {dims}")
    return [(i, slice(a, b)) for i, (a, b) in enumerate(itertools.pairwise(bounds)) if a < b]
