"""Linear probes: how well does a linear model read each attribute from the codes?

`probe` fits all attributes to convergence (or as the authors do, `protocol="paper"`), chooses the penalty on the
validation images, and scores the test images once. `few_shot` asks the same with 10, 100 or 1000 labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diti.core.errors import InputError, nearest
from diti.core.rng import numpy_generator, stream_seed
from diti.probes import scores
from diti.probes.choose import fit_chosen_on, fit_cross_validated
from diti.probes.few_shot import FewShotResult, few_shot
from diti.probes.fit import MANY_DIMS, Linear, Standard, check_features
from diti.probes.layer import fit_layer
from diti.probes.task import LeftOut, Splits, Task, checked_task, group_folds, label_folds

__all__ = ["AttributeRow", "FewShotResult", "LeftOut", "ProbeResult", "Splits", "few_shot", "probe"]

PROTOCOLS = ("converged", "paper")
L2_GRID = 10.0 ** np.arange(1, -7, -1)  # strong to weak: each fit starts from the one before
WEAKEST_OF_MANY = 1e-3  # with very many dims; a fit with a weaker penalty then takes tens of minutes
FOLDS = 5

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class AttributeRow:
    """Scores of one attribute on the test images; what does not apply to its kind is None."""

    name: str
    kind: str  # binary or continuous
    ap: float | None = None
    ap_interval: Interval | None = None
    auroc: float | None = None
    chance: float | None = None  # AP of an uninformative score
    positives: int | None = None  # among the test images
    r: float | None = None
    r_interval: Interval | None = None
    mse: float | None = None
    mse_interval: Interval | None = None
    l2: float | None = None  # None where the protocol has no penalty
    gradient: float | None = None  # gradient norm where the fit stopped


@dataclass(frozen=True, kw_only=True)
class ProbeResult:
    """What a probe found. `weights`, `bias` act on (features - mean) / std; row i of them belongs to rows[i]."""

    protocol: str
    features: int  # D
    images: dict[str, int]  # per split
    rows: tuple[AttributeRow, ...]
    mean_ap: float | None = None
    mean_ap_interval: Interval | None = None
    mean_r: float | None = None
    mean_r_interval: Interval | None = None
    mean_mse: float | None = None
    mean_mse_interval: Interval | None = None
    left_out: tuple[LeftOut, ...] = ()
    weights: np.ndarray  # (A, D)
    bias: np.ndarray  # (A,)
    mean: np.ndarray  # (D,) of the training images
    std: np.ndarray  # (D,)

    def record(self) -> dict[str, Any]:
        """JSON-able: all but the arrays."""
        fields = [f.name for f in dataclasses.fields(self) if f.name not in ("weights", "bias", "mean", "std")]
        found = {name: getattr(self, name) for name in fields}
        found["rows"] = [dataclasses.asdict(row) for row in self.rows]
        found["left_out"] = [dataclasses.asdict(item) for item in self.left_out]
        return found


def probe(
    features: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    binary: Sequence[bool] | np.ndarray,
    splits: Splits,
    *,
    protocol: str = "converged",
    mirrored: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    seed: int = 0,
    resamples: int = scores.RESAMPLES,
) -> ProbeResult:
    """Probe features (N, D) for labels (N, A; NaN = missing): AP for binary attributes, r and MSE for the others.

    mirrored: (len(splits.train), D) codes of the mirrored training images, for protocol "paper".
    groups: (N,) person of each image. Without test images they are the folds of a k-fold over train and valid;
    with test images they only make the bootstrap draw persons instead of images.
    """
    task = checked_task(features, labels, names, binary, splits)
    plan = _Plan(protocol, mirrored, None if groups is None else np.asarray(groups), seed, resamples)
    plan.check(task, splits)
    rounds = _rounds(splits, plan)
    task = task.usable(_parts(rounds))
    fits = [_fit_round(task, part, plan, index) for index, part in enumerate(rounds)]
    found = [_measure(task, part, fit, plan) for part, fit in zip(rounds, fits, strict=True)]
    final = fits[0]
    if len(rounds) > 1:  # the weights are those of a fit to all images
        rows = np.concatenate([part.test for part in rounds])
        final = _fit_round(task, Splits(rows, rows[:0], rows[:0]), plan, len(rounds))
    means = {kind: _Scores.mean([part[kind] for part in found]) for kind in found[0]}
    return _result(task, splits, final, means, plan, len(rounds))


@dataclass(frozen=True)
class _Plan:
    """The options of `probe`."""

    protocol: str
    mirrored: np.ndarray | None
    groups: np.ndarray | None
    seed: int
    resamples: int

    def check(self, task: Task, splits: Splits) -> None:
        count, dims = task.features.shape
        if self.protocol not in PROTOCOLS:
            hint = nearest(self.protocol, PROTOCOLS)
            raise InputError(f"protocol {self.protocol!r} is unknown; use {' or '.join(PROTOCOLS)}.{hint}")
        if self.groups is not None and self.groups.shape != (count,):
            raise InputError(f"groups has shape {self.groups.shape}; give the group of each of the {count:,} rows")
        if len(splits.test) == 0 and self.groups is None:
            raise InputError(
                "there is no test image; give a test split, or groups (persons) for a k-fold over them"
            )
        if self.mirrored is None:
            return
        if self.protocol != "paper" or len(splits.test) == 0:
            raise InputError("mirrored codes are for protocol 'paper' with a test split only; leave them out")
        if self.mirrored.shape != (len(splits.train), dims):
            expected = (len(splits.train), dims)
            raise InputError(
                f"mirrored has shape {self.mirrored.shape}; give the training images' codes {expected}"
            )
        check_features(self.mirrored)


# ---- rounds: one for a test split, k for a k-fold ----


def _rounds(splits: Splits, plan: _Plan) -> list[Splits]:
    if len(splits.test) or plan.groups is None:
        return [splits]
    rows = np.concatenate([splits.train, splits.valid])
    folds = group_folds(plan.groups[rows], FOLDS, numpy_generator(plan.seed, "folds"))
    return [Splits(rows[folds != fold], rows[:0], rows[folds == fold]) for fold in range(folds.max() + 1)]


def _parts(rounds: list[Splits]) -> dict[str, np.ndarray]:
    """Where every attribute needs labels of both classes."""
    if len(rounds) == 1:
        found = {"train": rounds[0].train, "valid": rounds[0].valid, "test": rounds[0].test}
        return {name: rows for name, rows in found.items() if len(rows)}
    training = {f"the training part of fold {i}": part.train for i, part in enumerate(rounds, 1)}
    return training | {f"fold {i}": part.test for i, part in enumerate(rounds, 1)}


# ---- fits ----


@dataclass(frozen=True)
class _Fit:
    model: Linear  # on standardised features
    standard: Standard
    predicted: np.ndarray  # (test images, A)
    penalties: np.ndarray  # (L,) that were tried
    seed: int


def _fit_round(task: Task, part: Splits, plan: _Plan, index: int) -> _Fit:
    """Fit train, choose on valid (or inside train), predict test; binary and continuous attributes in turn."""
    standard = Standard.of(task.features, part.train)
    used = standard if plan.protocol == "converged" else Standard.identity(task.features.shape[1])
    x, valid, test = (used.apply(task.features, rows) for rows in (part.train, part.valid, part.test))
    seed = stream_seed(plan.seed, "probe round", index)
    dims, count, penalties = task.features.shape[1], len(task.names), affordable_penalties(*x.shape)
    model = Linear(np.zeros((dims, count)), np.zeros(count), np.zeros(count), np.zeros(count))
    predicted = np.zeros((len(part.test), count))
    for kind in task.kinds:
        columns = np.flatnonzero(task.binary == kind)
        y, chosen_on = task.labels[np.ix_(part.train, columns)], (valid, task.labels[np.ix_(part.valid, columns)])
        if plan.protocol == "paper":
            turned = None if plan.mirrored is None else used.apply(plan.mirrored, np.arange(len(plan.mirrored)))
            found = fit_layer(x, y, kind, chosen_on, turned, seed)
        elif len(part.valid):
            found = fit_chosen_on(x, y, kind, chosen_on, penalties)
        else:
            found = fit_cross_validated(x, y, kind, _inner_folds(y, kind, part.train, plan, seed), penalties)
        predicted[:, columns] = found.predict(test)
        model.weights[:, columns], model.bias[columns] = found.weights, found.bias
        model.l2[columns], model.gradient[columns] = found.l2, found.gradient
    if plan.protocol == "paper":  # x·w + b of raw x, written for standardised x
        bias = model.bias + standard.mean @ model.weights
        model = dataclasses.replace(model, weights=model.weights * standard.std[:, None], bias=bias)
    return _Fit(model, standard, predicted, penalties, seed)


def affordable_penalties(images: int, dims: int) -> np.ndarray:
    """The penalties that are tried; with fewer images than dims, the fit has as many dims as images."""
    return L2_GRID[L2_GRID >= WEAKEST_OF_MANY] if min(images, dims) > MANY_DIMS else L2_GRID


def _inner_folds(y: np.ndarray, kind: bool, rows: np.ndarray, plan: _Plan, seed: int) -> np.ndarray:
    """Fold (N, A) of each training label: whole groups where there are groups."""
    rng = numpy_generator(seed, "inner folds")
    if plan.groups is None:
        return label_folds(y, kind, FOLDS, rng)
    return np.broadcast_to(group_folds(plan.groups[rows], FOLDS, rng)[:, None], y.shape)


# ---- scores ----


@dataclass(frozen=True)
class _Scores:
    """Scores (A,) of one kind of attribute and their bootstrap draws (B, A), by name of the score."""

    value: dict[str, np.ndarray]
    draws: dict[str, np.ndarray]

    @classmethod
    def mean(cls, parts: list[_Scores]) -> _Scores:
        """Mean over the folds of a k-fold; positives are summed."""
        value = {name: np.mean([part.value[name] for part in parts], axis=0) for name in parts[0].value}
        if "positives" in value:
            value["positives"] = np.sum([part.value["positives"] for part in parts], axis=0)
        return cls(value, {name: np.mean([part.draws[name] for part in parts], axis=0) for name in parts[0].draws})


def _measure(task: Task, part: Splits, fit: _Fit, plan: _Plan) -> dict[bool, _Scores]:
    """Scores on the test images of the binary attributes (True) and of the continuous ones (False)."""
    groups = None if plan.groups is None else plan.groups[part.test]
    options: dict[str, Any] = {"seed": fit.seed, "resamples": plan.resamples, "groups": groups}
    found = {}
    for kind in task.kinds:
        columns = np.flatnonzero(task.binary == kind)
        truth, predicted = task.labels[np.ix_(part.test, columns)], fit.predicted[:, columns]
        if kind:
            value = {"ap": scores.average_precision(predicted, truth), "auroc": scores.auroc(predicted, truth)}
            value |= {"chance": scores.chance_ap(truth), "positives": np.nansum(truth, axis=0)}
            draws = {"ap": scores.ap_draws(predicted, truth, **options)}
        else:
            value = {"r": scores.pearson(predicted, truth), "mse": scores.mse(predicted, truth)}
            draws = dict(zip(("r", "mse"), scores.regression_draws(predicted, truth, **options), strict=True))
        found[kind] = _Scores(value, draws)
    return found


def _result(
    task: Task, splits: Splits, final: _Fit, found: dict[bool, _Scores], plan: _Plan, rounds: int
) -> ProbeResult:
    rows: dict[int, AttributeRow] = {}
    means: dict[str, Any] = {}
    for kind, score in found.items():
        for place, column in enumerate(np.flatnonzero(task.binary == kind)):
            rows[int(column)] = _row(task, int(column), score, place, final.model, plan.protocol == "converged")
        for name, draws in score.draws.items():
            means[f"mean_{name}"] = _number(scores.mean_over_attributes(score.value[name][None])[0])
            ends = scores.percentile_interval(scores.mean_over_attributes(draws))
            means[f"mean_{name}_interval"] = _interval(ends)
    on_valid = rounds == 1 and len(splits.valid) > 0
    return ProbeResult(
        protocol=_protocol_text(task, plan, rounds, final.penalties, on_valid=on_valid),
        features=task.features.shape[1],
        images={"train": len(splits.train), "valid": len(splits.valid), "test": len(splits.test)},
        rows=tuple(rows[column] for column in sorted(rows)),
        left_out=task.left_out,
        weights=np.ascontiguousarray(final.model.weights.T),
        bias=final.model.bias,
        mean=final.standard.mean,
        std=final.standard.std,
        **means,
    )


def _row(task: Task, column: int, score: _Scores, place: int, model: Linear, penalised: bool) -> AttributeRow:
    fields: dict[str, Any] = {name: _number(values[place]) for name, values in score.value.items()}
    if "positives" in fields:
        fields["positives"] = int(fields["positives"])
    for name, draws in score.draws.items():
        fields[f"{name}_interval"] = _interval(scores.percentile_interval(draws[:, place]))
    if penalised:
        fields |= {"l2": float(model.l2[column]), "gradient": float(model.gradient[column])}
    kind = "binary" if task.binary[column] else "continuous"
    return AttributeRow(name=task.names[column], kind=kind, **fields)


def _number(value: float) -> float | None:
    """NaN (not defined) has no place in JSON."""
    return float(value) if np.isfinite(value) else None


def _interval(ends: np.ndarray) -> Interval | None:
    return (float(ends[0]), float(ends[1])) if np.isfinite(ends).all() else None


def _protocol_text(task: Task, plan: _Plan, rounds: int, tried: np.ndarray, *, on_valid: bool) -> str:
    """What was done, as text."""
    words = _paper_words(plan, on_valid) if plan.protocol == "paper" else _converged_words(plan, on_valid, tried)
    fitted = "; ".join(words[kind] for kind in task.kinds)
    tested = "scored once on test"
    if rounds > 1:
        tested = f"scored on each of {rounds} folds of whole groups and averaged; weights of a fit to all images"
    drawn = f"{plan.resamples:,} bootstrap resamples of the {'images' if plan.groups is None else 'groups'}"
    return f"{plan.protocol}: {fitted}; {tested}; 95 % intervals from {drawn}"


def _converged_words(plan: _Plan, on_valid: bool, tried: np.ndarray) -> dict[bool, str]:
    """By binary or not."""
    grid = f"on standardised codes, L2 per attribute from {tried[0]:g} to {tried[-1]:g} by"
    by_group = "" if plan.groups is None else ", by group"
    inside = f"{FOLDS}-fold cross-validation inside the training images{by_group}"
    return {
        True: f"logistic regression {grid} {'AP on valid' if on_valid else f'log-loss in {inside}'}",
        False: f"ridge regression {grid} {'MSE on valid' if on_valid else f'MSE in {inside}'}",
    }


def _paper_words(plan: _Plan, on_valid: bool) -> dict[bool, str]:
    """By binary or not."""
    layer = f"linear layer on raw codes, Adam 1e-3, 15 epochs, {'no' if plan.mirrored is None else 'random'} flips"
    ap, mse = (f"best epoch by mean {score} on valid" if on_valid else "last epoch" for score in ("AP", "MSE"))
    return {True: f"{layer}, BCE, batch 128, {ap}", False: f"{layer}, squared error, batch 64, {mse}"}
