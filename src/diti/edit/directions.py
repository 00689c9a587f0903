"""The direction of an attribute in z, learned from labels; `direction_files.py` keeps it with the model.

Notation: N images, D dims of z, d' of which a direction moves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from diti.core.device import AUTO, Device
from diti.core.errors import InputError
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset
from diti.edit.select import DEFAULT_SELECTION, Fit, check_selection, fit_few, fit_linear, largest, select
from diti.edit.strength import estimated_difference, usual_difference
from diti.probes.scores import average_precision, chance_ap, pearson
from diti.representation.features import encode_dataset, encoder_hash
from diti.representation.models.loading import as_model
from diti.representation.models.model import Model

ALONG = ("conditional", "pattern", "weight")  # what an edit follows; the paper follows the weight
RIDGE = 0.01  # of the regression on labels, for those that say the same; labels have variance 1
ALL = "all"  # the method that chooses no dims
MOST_DIMS = 32  # d' of a sparse direction unless given: of the authors' 512; for short codes a quarter
ENOUGH = 10  # training images per dim, with which nothing has to be held back
STEEPEST = 4.0  # slope by which readings from few images are made as large as the labels
CONTINUOUS = "ridge"  # the method for continuous attributes: largest weights of a ridge regression


@dataclass(frozen=True, eq=False)
class Direction:
    """Normal of a linear classifier (or regression) of one attribute, and how it came about."""

    attribute: str
    method: str  # how the dims were chosen: all, l1, weight, probmask; ridge for a continuous attribute
    dims: tuple[int, ...]  # the d' dims it moves, ascending
    weight: np.ndarray  # float64 (D,) for standardised codes, zero outside dims
    pattern: np.ndarray  # float64 (D,) how standardised codes move with the classifier's score, zero outside dims
    bias: float
    metric: str  # what the scores are: AP, or r for a continuous attribute
    score: float  # on the validation rows
    score_all_dims: float  # of a fit on all D dims
    chance: float  # of knowing nothing
    data: str  # name of the labelled data
    data_hash: str
    seed: int
    encoder: str  # digest of the encoder whose codes these are
    mean: np.ndarray  # float32 (D,) codes are standardised as (z - mean) / std
    std: np.ndarray  # float32 (D,) σ of algorithm 3
    along: str = "pattern"  # what an edit follows: conditional, pattern or weight
    conditional: np.ndarray | None = None  # float64 (D,) see `conditional_pattern`; None: learned without labels
    reading: np.ndarray | None = None  # float64 (D,) tells it in all dims, in strengths; None: of earlier versions
    response: np.ndarray | None = None  # float64 (D,) Σ reading: how standardised codes vary with it
    reach: np.ndarray | None = None  # float64 (S, 2) strengths within the safe range, see `reach.py`
    gain: float = 1.0  # how much farther the code goes for a picture to show as much, see `reach.py`
    images: int = 0  # training images that it was learned from; 0: of an earlier version, or of examples
    place: np.ndarray | None = None  # float16 (H, W) where in a picture it may change something, see `places.py`
    rest: np.ndarray | None = None  # float16 (1, H, W) light that is added to a picture for a strength of 1

    @property
    def heading(self) -> np.ndarray:
        """float64 (D,) what an edit follows, for standardised codes."""
        found: np.ndarray = getattr(self, self.along)
        return found

    @property
    def told(self) -> tuple[np.ndarray, np.ndarray]:
        """Reading and response (D,): the reading rises by 1 with a strength of 1, see `strength.py`.

        Where it was measured what pictures show of a step, that is `gain` usual differences of the code. For a
        file of an earlier version both are those of its weight, and the difference is an estimate.
        """
        if self.reading is not None and self.response is not None:
            return self.reading / self.gain, self.response / self.gain
        parts = self.method, self.metric, self.weight, self.pattern, self.score, self.chance
        unit = estimated_difference(*parts)
        if unit <= 0:
            raise InputError(f"the direction of {self.attribute!r} tells nothing apart; learn it again")
        return self.weight / unit, self.pattern / unit

    def following(self, along: str | None) -> Direction:
        """The same direction, followed in another way; None: as it is."""
        if along is None:
            return self
        check_along(along)
        if getattr(self, along) is None:
            raise InputError(
                f"the direction of {self.attribute!r} was learned without labels of other attributes; "
                "follow its pattern (--along pattern), or learn it from data with attributes"
            )
        return self if along == self.along else replace(self, along=along, gain=1.0, reach=None, rest=None)

    def scores(self, z: np.ndarray) -> np.ndarray:
        """Classifier scores (N,) of raw codes (N, D); positive means the attribute."""
        return standardise(z, self.mean, self.std) @ self.weight + self.bias

    def summary(self) -> str:
        """One line for people."""
        if self.metric not in ("AP", "r"):
            return (
                f"{self.attribute}: {len(self.dims)} of {len(self.weight)} dims from {self.data}; "
                f"{self.score:.0%} of these examples lie on their own side"
            )
        percent = 100 if self.metric == "AP" else 1
        score, whole, chance = (
            f"{percent * v:.3g}{' %' if percent > 1 else ''}"
            for v in (self.score, self.score_all_dims, self.chance)
        )
        if len(self.dims) == len(self.weight):
            dims = f"all {len(self.weight)} dims"
            return f"{self.attribute}: {dims}; validation {self.metric} {score} (chance {chance})"
        return (
            f"{self.attribute}: {len(self.dims)} of {len(self.weight)} dims by {self.method}; "
            f"validation {self.metric} {score} (all dims {whole}, chance {chance})"
        )


def standardise(z: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """(z - mean) / std, float32."""
    return ((z - mean) / std).astype(np.float32)


def check_along(along: str) -> None:
    """InputError for another word."""
    if along not in ALONG:
        raise InputError(f"along is {along!r}; allowed: {', '.join(ALONG)}")


def how_to_choose(model: Model, dims: int | None, selection: str | None) -> tuple[int, str]:
    """d' and the method. Neither given: all dims, none is chosen; one of them: the other as usual."""
    if selection not in (None, ALL):
        check_selection(str(selection))
    if (dims is None and selection is None) or (selection == ALL and dims in (None, model.dims)):
        return model.dims, ALL
    if selection == ALL:
        raise InputError(f"--selection all moves all {model.dims} dims; leave --dims {dims} out")
    dims = checked_dims(model, dims)
    return (dims, ALL) if selection is None and dims == model.dims else (dims, selection or DEFAULT_SELECTION)


def checked_dims(model: Model, dims: int | None) -> int:
    """d' of a sparse direction, by default 32 or a quarter of a short code."""
    if dims is None:
        return max(1, min(MOST_DIMS, model.dims // 4))
    if not 1 <= dims <= model.dims:
        raise InputError(f"--dims is {dims}; z of this model has {model.dims} dims: use 1 to {model.dims}")
    return dims


def pattern_of(z: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """float64 (D,) Σ w: how standardised codes (N, D) co-vary with the score z w, zero where the weight is.

    The weight says how to read an attribute: in dims that vary together it also cancels what disturbs the reading,
    and a code moved along it leaves the data. Along Σ w codes move as they do where the attribute differs
    (Haufe et al. 2014, "On the interpretation of weight vectors of linear models").
    """
    centred = z.astype(np.float64) - z.mean(0, dtype=np.float64)
    covariance = centred.T @ (centred @ weight) / len(z)
    return np.where(weight != 0, covariance, 0.0)


def conditional_pattern(z: np.ndarray, labels: np.ndarray, column: int) -> np.ndarray:
    """float64 (D,) how codes (N, D) move with one of the labels (N, A) while the others stay.

    A row of the regression of z on all labels together, in standard deviations. What goes with the attribute in
    the data, as make-up goes with sex, is left to its own label. A missing label (NaN) counts as the mean.
    """
    return label_weights(labels, column) @ z.astype(np.float64)


def label_weights(labels: np.ndarray, column: int) -> np.ndarray:
    """float64 (N,) w: wᵀx is the coefficient of one label in the regression of x (N,) on all labels (N, A)."""
    y = labels.astype(np.float64) - np.nanmean(labels, axis=0, dtype=np.float64)
    y = np.nan_to_num(y / np.maximum(np.nanstd(y, axis=0), 1e-12))
    inverse = np.linalg.inv(y.T @ y / len(y) + RIDGE * np.eye(y.shape[1]))
    return np.asarray(y @ inverse[:, column] / len(y))


def code_space_hash(model: Model) -> str:
    """sha256 over the encoder and the statistics of z: a direction fits this model and no other."""
    zero, one = torch.zeros(model.dims), torch.ones(model.dims)  # for unknown ones, as in earlier versions
    mean, std = zero if model.mean is None else model.mean, one if model.std is None else model.std
    statistics = mean.numpy().tobytes() + std.numpy().tobytes()
    return hashlib.sha256(encoder_hash(model.encoder).encode() + statistics).hexdigest()


def fit_direction(
    model: Model | str | Path,
    dataset: Dataset | str | Path,
    attribute: str,
    dims: int | None = None,
    selection: str | None = None,
    seed: int = 0,
    codes: np.ndarray | None = None,
    device: Device = AUTO,
) -> Direction:
    """Fit on the training rows, score on the validation rows. `codes` (N, D): of all images, if already computed.

    An edit then follows the conditional pattern, where the data has other attributes to be held. dims, selection:
    a sparse direction instead, as in the paper, which keeps to so many dims (by default 32, or a quarter of a
    short code) chosen by l1, weight or probmask, and follows its pattern; those of a continuous attribute are
    chosen by a ridge regression, whatever `selection` says.
    """
    model = as_model(model, device)
    dataset = as_dataset(dataset, model.size)
    dims, selection = how_to_choose(model, dims, selection)
    train, valid, y = _checked_rows(model, dataset, attribute)
    codes = encode_dataset(model, dataset) if codes is None else codes
    if codes.shape != (len(dataset), model.dims):
        raise InputError(f"codes have shape {codes.shape}; the data and the model need {len(dataset), model.dims}")
    mean, std = (s.numpy() for s in model.statistics(torch.from_numpy(codes[train])))
    z_train, z_valid = standardise(codes[train], mean, std), standardise(codes[valid], mean, std)
    method, binary = method_for(dataset, attribute, selection), dataset.is_binary(attribute)
    metric = None if model.metric is None else model.metric.numpy()
    kept, fit, whole = _fits(z_train, y[train], dims, method, seed, binary, metric)
    score, score_all = (
        float((average_precision if binary else pearson)(f.scores(z_valid)[:, None], y[valid][:, None])[0])
        for f in (fit, whole)
    )
    unit = usual_difference(whole.scores(z_train), y[train], binary)
    if not binary and len(train) < ENOUGH * model.dims:
        unit /= calibration(whole.scores(z_valid), y[valid])
    others = selection == ALL and len(dataset.attributes) > 1
    return Direction(
        attribute=attribute, method=method, dims=tuple(int(i) for i in kept),
        weight=fit.weight, pattern=pattern_of(z_train, fit.weight), bias=fit.bias,
        metric="AP" if binary else "r", score=score, score_all_dims=score_all,
        chance=float(chance_ap(y[valid][:, None])[0]) if binary else 0.0,
        data=dataset.name, data_hash=dataset.hash, seed=seed, encoder=code_space_hash(model), mean=mean, std=std,
        along="conditional" if others else "pattern",
        conditional=conditional_pattern(z_train, dataset.labels()[train], dataset.attributes.index(attribute)),
        reading=whole.weight / unit, response=pattern_of(z_train, whole.weight) / unit, images=len(train),
    )  # fmt: skip


def method_for(dataset: Dataset, attribute: str, selection: str) -> str:
    """The selection that was asked for, or ridge where the attribute is continuous."""
    return selection if dataset.is_binary(attribute) else CONTINUOUS


def calibration(scores: np.ndarray, y: np.ndarray) -> float:
    """The slope of labels (N,) on scores of images that were not fitted: penalties make scores too small."""
    known = np.isfinite(y)
    spread = float(scores[known].var())
    slope = float(np.cov(scores[known], y[known], bias=True)[0, 1]) / spread if spread > 0 else 1.0
    return min(max(slope, 1.0), STEEPEST)


def _fits(
    z: np.ndarray, y: np.ndarray, dims: int, method: str, seed: int, binary: bool, metric: np.ndarray | None
) -> tuple[np.ndarray, Fit, Fit]:
    """The kept dims, the fit on them, and the fit on all."""
    few = len(z) < ENOUGH * z.shape[1]
    whole = fit_few(z, y, binary, metric, seed) if few else fit_linear(z, y, binary)
    if dims == z.shape[1]:
        return np.arange(dims), whole, whole
    kept = select(z, y, dims, method, seed) if binary else largest(np.abs(whole.weight), dims)
    return kept, fit_linear(z, y, binary, kept), whole


def _checked_rows(model: Model, dataset: Dataset, attribute: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training rows, validation rows and labels (N,); a clear line where a direction cannot be learned."""
    y = dataset.labels([attribute])[:, 0]
    train, valid = dataset.rows("train"), dataset.rows("valid")
    for split, rows in (("train", train), ("valid", valid)):
        if len(rows) == 0:
            raise InputError(f"{dataset.path} has no {split} rows; prepare data with train and valid images")
        if len(np.unique(y[rows])) < 2:
            needed = "with and without it" if dataset.is_binary(attribute) else "in which it differs"
            raise InputError(
                f"attribute {attribute!r} is {y[rows[0]]:g} in all {len(rows):,} {split} rows of {dataset.path}; "
                f"a direction needs images {needed}"
            )
    return train, valid, y
