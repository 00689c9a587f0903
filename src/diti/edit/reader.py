"""What a picture shows of the labels, as all features of the encoder tell it: of these z keeps only some.

A ridge regression of the labels on the features, fitted once on training images and kept in the cache. It says how
far an edit got, without anybody's eyes. Notation: N images, F features, A labels.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from diti.core.device import fitted, sent
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.machine import cache_folder
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.core.runs import atomic_path
from diti.data.prepared import Dataset
from diti.diffusion.files import read_safetensors
from diti.probes.scores import pearson
from diti.representation.features import encoder_hash, frozen_features
from diti.representation.models.model import Model, inference

ROWS, HELD = 4_096, 1_024  # training images it is fitted to, validation images that choose its penalty
PENALTIES = 10.0 ** np.arange(-2, 3)  # of the mean squared length of the features
BATCH = 64

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Reader:
    """features (N, F) → (N, A), counted in usual differences: see `strength.py`."""

    mean: Tensor  # (F,)
    scale: Tensor  # (F,)
    weights: Tensor  # (F, A)
    told: Tensor  # (A,) correlation with the labels of validation images

    def __call__(self, model: Model, images: Tensor) -> np.ndarray:
        """float64 (N, A) of images (N, 3, H, W) in [-1, 1], up to a constant."""
        with torch.no_grad(), inference(model.encoder):
            parts = [seen_in(model, part) for part in images.split(BATCH)]
        return self.of_features(torch.cat(parts))

    def of_features(self, features: Tensor) -> np.ndarray:
        """The same of features (N, F)."""
        return np.asarray(((features - self.mean) / self.scale @ self.weights).double().numpy())


def reader_of(model: Model, dataset: Dataset) -> Reader:
    """The reader of all labels of the data, from the cache if it was fitted before."""
    facts = f"{encoder_hash(model.encoder)}/{dataset.hash}/{','.join(dataset.attributes)}/2"
    path = cache_folder() / "readers" / f"{hashlib.sha256(facts.encode()).hexdigest()[:24]}.safetensors"
    expected = {field.name for field in fields(Reader)}
    try:
        if path.is_file() and (tensors := read_safetensors(path)).keys() == expected:
            return Reader(**tensors)
    except InputError:  # damaged: it is fitted again
        pass
    found = fit_reader(model, dataset)
    try:
        with atomic_path(path) as temporary:
            save_file({name: getattr(found, name).contiguous() for name in expected}, temporary)
    except OSError as error:  # nothing depends on the cache
        log.warning("what reads pictures could not be kept: %s: %s", path, error.strerror or error)
    return found


def fit_reader(model: Model, dataset: Dataset, seed: int = 0) -> Reader:
    """Fitted to some training images, its penalty chosen on validation images, attribute by attribute."""
    rng = numpy_generator(seed, "reader")
    train, held = (
        np.sort(rng.permutation(dataset.rows(split))[:most]) for split, most in (("train", ROWS), ("valid", HELD))
    )
    labels = dataset.labels().astype(np.float64)
    centre, spread = np.nanmean(labels[train], 0), np.maximum(np.nanstd(labels[train], 0), 1e-12)
    y_train, y_held = (np.nan_to_num((labels[rows] - centre) / spread) for rows in (train, held))
    x_train, x_held = _features(model, dataset, (train, held))
    mean, scale = x_train.mean(0), x_train.std(0, correction=0).clamp(min=1e-6)
    x_train, x_held = (x_train - mean) / scale, (x_held - mean) / scale
    weights = ridge_chosen(x_train, y_train, x_held, y_held)
    told = (x_held @ weights).double().numpy()
    binary = [dataset.is_binary(name) for name in dataset.attributes]
    r = np.nan_to_num(pearson(told, labels[held]))
    return Reader(
        mean,
        scale,
        weights / torch.from_numpy(_usual(told, labels[held], binary)).float(),
        torch.from_numpy(r).float(),
    )


def ridge_chosen(x: Tensor, y: np.ndarray, x_held: Tensor, y_held: np.ndarray) -> Tensor:
    """(F, A) weights Xᵀ(XXᵀ + λI)⁻¹Y of features (N, F), each label with the λ of least error on held images."""
    gram, across = (x @ x.T).double(), (x_held @ x.T).double()
    unit, labels = gram.diagonal().mean(), torch.from_numpy(y)
    best = torch.full((y.shape[1],), torch.inf, dtype=torch.float64)
    dual = torch.zeros(y.shape, dtype=torch.float64)
    for penalty in PENALTIES:
        root = torch.linalg.cholesky(gram + penalty * unit * torch.eye(len(gram)))
        tried = torch.cholesky_solve(labels, root)
        error = (across @ tried - torch.from_numpy(y_held)).square().mean(0)
        dual = torch.where(error < best, tried, dual)
        best = torch.minimum(error, best)
    return x.T @ dual.float()


def _usual(told: np.ndarray, labels: np.ndarray, binary: Sequence[bool]) -> np.ndarray:
    """(A,) what a strength of 1 is of what is told (N, A) of held images, labels being counted in deviations."""
    found = np.ones(told.shape[1])
    for i in np.flatnonzero(binary):
        sides = told[labels[:, i] == 1, i], told[labels[:, i] == 0, i]
        apart = sides[0].mean() - sides[1].mean() if all(map(len, sides)) else 0.0
        found[i] = apart if apart > 0.1 else 1.0
    return found


def _features(model: Model, dataset: Dataset, wanted: Sequence[np.ndarray]) -> list[Tensor]:
    """Features (N, F) of some rows each: those of all images where these are kept, else computed for the rows."""
    if (seen := frozen_features(model.encoder, dataset)) is not None:
        return [torch.from_numpy(seen[rows]) for rows in wanted]
    found = []
    with torch.no_grad(), inference(model.encoder), progress_bar("features", sum(map(len, wanted))) as advance:
        for rows in wanted:
            parts = []
            for start in range(0, len(rows), BATCH):
                part = rows[start : start + BATCH]
                parts.append(seen_in(model, to_float(dataset.pixels(part))))
                advance(len(part))
            found.append(torch.cat(parts))
    return found


def seen_in(model: Model, images: Tensor) -> Tensor:
    """(B, F) what the encoder's trunk sees in images (B, 3, H, W), on the CPU."""
    return fitted(model.encoder.features, sent(images, model.device)).cpu()
