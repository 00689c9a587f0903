"""The direction of an attribute in z: learned from labels, kept with the model as `attributes/NAME.safetensors`.

Notation: N images, D dims of z, d' of which a direction moves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from diti.core.device import AUTO, Device
from diti.core.errors import InputError
from diti.core.runs import atomic_path
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset
from diti.diffusion.files import may_keep
from diti.edit.select import DEFAULT_SELECTION, Fit, check_selection, fit_linear, largest, select
from diti.probes.scores import average_precision, chance_ap, pearson
from diti.representation.features import encode_dataset, encoder_hash
from diti.representation.models.loading import as_model
from diti.representation.models.model import Model

ARRAYS = ("weight", "pattern", "mean", "std", "conditional")
FORMAT = "2"
ALONG = ("pattern", "conditional", "weight")  # what an edit follows; the paper follows the weight
RIDGE = 0.01  # of the regression on labels, for those that say the same; labels have variance 1
MOST_DIMS = 32  # d' unless given: of the authors' 512; for short codes a quarter
CONTINUOUS = "ridge"  # the method for continuous attributes: largest weights of a ridge regression


@dataclass(frozen=True, eq=False)
class Direction:
    """Normal of a linear classifier (or regression) of one attribute, and how it came about."""

    attribute: str
    method: str  # how the dims were chosen: l1, weight, probmask; ridge for a continuous attribute
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
    along: str = "pattern"  # what an edit follows: pattern, conditional or weight
    conditional: np.ndarray | None = None  # float64 (D,) see `conditional_pattern`; None: learned without labels

    @property
    def heading(self) -> np.ndarray:
        """float64 (D,) what an edit follows, for standardised codes."""
        found: np.ndarray = getattr(self, self.along)
        return found

    def following(self, along: str) -> Direction:
        """The same direction, followed in another way."""
        check_along(along)
        if getattr(self, along) is None:
            raise InputError(
                f"the direction of {self.attribute!r} was learned without labels of other attributes; "
                "follow its pattern (--along pattern), or learn it from data with attributes"
            )
        return replace(self, along=along)

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


def checked_dims(model: Model, dims: int | None) -> int:
    """d', by default 32 or a quarter of a short code."""
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
    y = labels.astype(np.float64) - np.nanmean(labels, axis=0, dtype=np.float64)
    y = np.nan_to_num(y / np.maximum(np.nanstd(y, axis=0), 1e-12))
    moved = np.linalg.solve(y.T @ y / len(y) + RIDGE * np.eye(y.shape[1]), y.T @ z.astype(np.float64) / len(y))
    return np.asarray(moved[column])


def code_space_hash(model: Model) -> str:
    """sha256 over the encoder and the statistics of z: a direction fits this model and no other."""
    zero, one = torch.zeros(model.dims), torch.ones(model.dims)  # for unknown ones, as in earlier versions
    mean, std = zero if model.mean is None else model.mean, one if model.std is None else model.std
    statistics = mean.numpy().tobytes() + std.numpy().tobytes()
    return hashlib.sha256(encoder_hash(model.encoder).encode() + statistics).hexdigest()


def learn_direction(
    model: Model | str | Path,
    dataset: Dataset | str | Path,
    attribute: str,
    dims: int = 32,
    selection: str = DEFAULT_SELECTION,
    seed: int = 0,
    codes: np.ndarray | None = None,
    device: Device = AUTO,
) -> Direction:
    """Fit on the training rows, score on the validation rows. `codes` (N, D): of all images, if already computed.

    A continuous attribute gets the direction of a ridge regression, whatever `selection` says.

        smile = diti.learn_direction(model, data, "Smiling")
        edited = model.manipulate(images, smile, scale=0.3)
    """
    model = as_model(model, device)
    dataset = as_dataset(dataset, model.size)
    train, valid, y = _checked_rows(model, dataset, attribute, dims, selection)
    codes = encode_dataset(model, dataset) if codes is None else codes
    if codes.shape != (len(dataset), model.dims):
        raise InputError(f"codes have shape {codes.shape}; the data and the model need {len(dataset), model.dims}")
    mean, std = (s.numpy() for s in model.statistics(torch.from_numpy(codes[train])))
    z_train, z_valid = standardise(codes[train], mean, std), standardise(codes[valid], mean, std)
    kept, fit, whole = _fits(z_train, y[train], dims, method_for(dataset, attribute, selection), seed)
    binary = dataset.is_binary(attribute)
    truth = y[valid][:, None]
    score, score_all = (
        float((average_precision if binary else pearson)(f.scores(z_valid)[:, None], truth)[0])
        for f in (fit, whole)
    )
    return Direction(
        attribute=attribute,
        method=method_for(dataset, attribute, selection),
        dims=tuple(int(i) for i in kept),
        weight=fit.weight,
        pattern=pattern_of(z_train, fit.weight),
        bias=fit.bias,
        metric="AP" if binary else "r",
        score=score,
        score_all_dims=score_all,
        chance=float(chance_ap(truth)[0]) if binary else 0.0,
        data=dataset.name,
        data_hash=dataset.hash,
        seed=seed,
        encoder=code_space_hash(model),
        mean=mean,
        std=std,
        conditional=conditional_pattern(z_train, dataset.labels()[train], dataset.attributes.index(attribute)),
    )


def method_for(dataset: Dataset, attribute: str, selection: str) -> str:
    """The selection that was asked for, or ridge where the attribute is continuous."""
    return selection if dataset.is_binary(attribute) else CONTINUOUS


def _fits(z: np.ndarray, y: np.ndarray, dims: int, method: str, seed: int) -> tuple[np.ndarray, Fit, Fit]:
    """The kept dims, the fit on them, and the fit on all."""
    binary = method != CONTINUOUS
    whole = fit_linear(z, y, binary)
    kept = select(z, y, dims, method, seed) if binary else largest(np.abs(whole.weight), dims)
    return kept, fit_linear(z, y, binary, kept), whole


def _checked_rows(
    model: Model, dataset: Dataset, attribute: str, dims: int, selection: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training rows, validation rows and labels (N,); a clear line where a direction cannot be learned."""
    check_selection(selection)
    y = dataset.labels([attribute])[:, 0]
    checked_dims(model, dims)
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


# ---- On disk ----------------------------------------------------------------------------------------------


def direction_path(folder: Path, attribute: str) -> Path:
    """Where an attribute's direction lies in a model folder; what a file name may not hold is escaped."""
    return folder / "attributes" / f"{quote(attribute, safe=' ()+,=')}.safetensors"


def save_direction(direction: Direction, folder: Path) -> Path:
    """Write it into a model folder, whole or not at all; replaces the attribute's earlier one."""
    path = direction_path(folder, direction.attribute)
    facts = {name: value for name, value in asdict(direction).items() if name not in ARRAYS}
    known = {name: getattr(direction, name) for name in ARRAYS}
    arrays = {name: torch.from_numpy(np.array(array)) for name, array in known.items() if array is not None}
    with atomic_path(path) as temporary:
        save_file(arrays, temporary, metadata={"format": FORMAT, "direction": json.dumps(facts)})
    return path


def load_direction(path: Path) -> Direction:
    """Strictly what `save_direction` wrote, or a line that says what is wrong."""
    if not path.is_file():
        raise InputError(f"{path} is missing; learn the direction with diti manipulate")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118 (not a dict)
        facts: dict[str, Any] = json.loads(metadata["direction"])
    except (SafetensorError, KeyError, OSError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not a saved direction ({error}); delete it and learn it again") from None
    known = {field.name for field in fields(Direction)} - (
        {"conditional"} - arrays.keys()
    )  # not in earlier versions
    if not isinstance(facts, dict) or not isinstance(facts.get("dims"), list):
        raise InputError(f"{path} is not a saved direction; delete it and learn it again")
    if metadata.get("format") != FORMAT or {*facts, *arrays} != known:
        odd = ", ".join(sorted({*facts, *arrays} ^ known)) or f"format {metadata.get('format')}"
        raise InputError(f"{path} was written by another version ({odd}); delete it and learn it again")
    direction = Direction(**{**facts, **arrays, "dims": tuple(facts["dims"])})
    moved = tuple(np.flatnonzero(direction.weight).tolist())
    finite = all(np.isfinite(array).all() for array in arrays.values())
    if not finite or len({a.shape for a in arrays.values()}) > 1 or not set(moved) <= set(direction.dims):
        raise InputError(f"{path} is damaged: its arrays do not fit its dims; delete it and learn it again")
    return direction


def saved_direction(
    model: Model, folder: Path, dataset: Dataset, attribute: str, dims: int, selection: str, seed: int
) -> Direction | None:
    """The saved direction if it is what `learn_direction` would give for these arguments."""
    path = direction_path(folder, attribute)
    if not path.exists():
        return None
    try:
        found = load_direction(path)
    except InputError:  # cut off, or from another version: it is learned again, and replaced
        return None
    wanted = (dataset.hash, dims, method_for(dataset, attribute, selection), seed, code_space_hash(model))
    same = (found.data_hash, len(found.dims), found.method, found.seed, found.encoder) == wanted
    return found if same and found.conditional is not None else None  # else from an earlier version


def find_or_learn_direction(
    model: Model,
    folder: Path,
    dataset: Dataset,
    attribute: str,
    dims: int,
    selection: str = DEFAULT_SELECTION,
    seed: int = 0,
    codes: Callable[[], np.ndarray] | None = None,
) -> tuple[Direction, bool]:
    """The direction in the model folder if it is the wanted one, else a new one, kept there; True if it is new.

    codes: gives those of all images (N, D), called only if there is something to learn.
    """
    found = saved_direction(model, folder, dataset, attribute, dims, selection, seed)
    if found is not None:
        return found, False
    learned = learn_direction(model, dataset, attribute, dims, selection, seed, codes() if codes else None)
    if may_keep(folder):
        save_direction(learned, folder)
    return learned, True
