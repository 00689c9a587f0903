"""What each axis of z does: how much of the loss it removes, and which images lie at its two ends.

Notation: N images, D dims of z, K subsets, A attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diti.core.device import AUTO, Device, fitted
from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE
from diti.core.progress import progress_bar
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset
from diti.diffusion.validation import fixed_batches
from diti.representation.features import encode_dataset
from diti.representation.models.diffusion import DiTi
from diti.representation.models.loading import as_model
from diti.representation.models.model import Model, inference
from diti.representation.networks.shift import losses_with
from diti.representation.partition import Partition

IMAGES = 128  # validation images, each at one time-step and noise
NAMED_LABELS, LEAST_R = 3, 0.15  # attributes shown beside an axis, and the least correlation of these
COPIES = 0.2  # of the mean squared distance: nearer images are frames of one film or cuts of one place


@dataclass(frozen=True)
class Axis:
    """One axis of z and how much it matters. Labels play no part in finding it."""

    axis: int
    name: str  # such as z012_t0300
    subset: int
    removed: float  # share of the frozen model's loss
    labels: dict[str, float]  # attribute → r, the strongest, where there are labels


def find_axes(
    model: Model | str | Path,
    dataset: Dataset | str | Path,
    per_subset: int = 1,
    *,
    images: int = IMAGES,
    device: Device = AUTO,
) -> list[Axis]:
    """The axes of each subset that remove most of the loss, from fine to coarse: `diti explore` without its page.

    images: of the validation split, on which the loss is measured.

        for axis in diti.find_axes(model, data):
            print(axis.name, axis.removed, axis.labels)
    """
    model = as_model(model, device)
    dataset = as_dataset(dataset, model.size)
    able = require_frozen(model)
    model.require_size(dataset.size)
    if min(per_subset, images) < 1:
        raise InputError(f"per_subset is {per_subset} and images {images}; give 1 or more of each")
    removed = removed_by(able, dataset, [[dim] for dim in range(model.dims)], images)
    labels, names = correlations(encode_dataset(model, dataset), dataset), model.feature_names()
    return [
        Axis(axis, names[axis], subset, float(removed[axis]), labels_along(labels, axis))
        for subset, axes in enumerate(strongest(removed, model.partition, per_subset))
        for axis in axes
    ]


def require_frozen(model: Model) -> DiTi:
    """The same model; InputError for one without the frozen diffusion model whose loss an axis removes."""
    if not isinstance(model, DiTi):
        raise InputError(f"a {model.method} model has no frozen diffusion model; explore diti and pdae models")
    return model


@torch.no_grad()
def removed_by(model: DiTi, dataset: Dataset, groups: Sequence[Sequence[int]], images: int = IMAGES) -> np.ndarray:
    """(G,) share of the frozen model's loss that each group of dims removes: what is missing without it.

    Without it: its dims at their mean, the others as they are. Eq. 6 on fixed images, time-steps and noise.
    """
    mean, _ = model.statistics()
    total = np.zeros(2 + len(groups))  # of the frozen model, with all of z, without each group
    shape = model.backbone.shape
    batches = list(fixed_batches(dataset, model.partition.timesteps, model.device, images, shape=shape))
    steps = len(batches) * len(groups)
    with inference(model.decoder), progress_bar("what each axis removes", steps, unit="axes") as advance:
        for pixels, t, noise in batches:
            z = model.encode(pixels, value_range=MODEL_RANGE)
            codes = (model.partition.mask(code, t) for code in chain([z], held_at(z, mean.to(z), groups)))
            x0 = fitted(model.backbone.encode, pixels)
            total += losses_with(model.decoder, x0, t, noise, codes).cpu().double().sum(1).numpy()
            advance(len(groups))
    return (total[2:] - total[1]) / total[0]


def held_at(z: Tensor, mean: Tensor, groups: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """The codes (B, D) with the dims of one group after the other at their mean (D,)."""
    for dims in groups:
        chosen = torch.zeros(len(mean), dtype=torch.bool)
        chosen[list(dims)] = True
        yield torch.where(chosen.to(z.device), mean, z)


def strongest(removed: np.ndarray, partition: Partition, count: int) -> list[list[int]]:
    """For each subset the dims that remove most, given what each of all D removes; the largest first."""
    found = []
    for subset in range(partition.subsets):
        dims = np.array(partition.dims_of(subset), dtype=int)
        order = np.argsort(-removed[dims], kind="stable")[:count]
        found.append([int(dim) for dim in dims[order]])
    return found


def extremes(
    values: np.ndarray, dataset: Dataset, count: int, measured: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the images lowest and highest on an axis (N,), outermost first; one per person where known.

    measured (N, D): codes in their metric, by which an image that is nearly a copy of one before it is left out.
    """
    order = np.argsort(values, kind="stable")
    return _one_each(order, dataset, count, measured), _one_each(order[::-1], dataset, count, measured)


def _one_each(order: np.ndarray, dataset: Dataset, count: int, measured: np.ndarray | None) -> np.ndarray:
    """The first `count` rows, never two of one person, where persons are known, nor two that are nearly copies."""
    known = "identity" in dataset.table.column_names
    people = dataset.table["identity"] if known else None
    near = COPIES * 2 * measured.var(0).sum() if measured is not None else 0.0  # 2 var: between images, on average
    seen: set[str] = set()
    rows: list[int] = []
    for row in map(int, order):
        if len(rows) == count:
            break
        person = people[row].as_py() if people is not None else str(row)
        copied = measured is not None and bool((((measured[rows] - measured[row]) ** 2).sum(1) < near).any())
        if person not in seen and not copied:
            seen.add(person)
            rows.append(row)
    return np.array(rows, dtype=np.int64)


def correlations(codes: np.ndarray, dataset: Dataset) -> dict[str, np.ndarray]:
    """Attribute → Pearson r (D,) with each dim of the codes (N, D); empty where there are no labels."""
    labels = dataset.labels().astype(np.float64)
    if not labels.shape[1]:
        return {}
    z = _standard(codes.astype(np.float64))
    found = z.T @ _standard(labels) / len(z)  # (D, A)
    return {name: found[:, place] for place, name in enumerate(dataset.attributes)}


def labels_along(labels: Mapping[str, np.ndarray], axis: int) -> dict[str, float]:
    """The attributes that go with an axis most, and how: r of each."""
    most = sorted(labels, key=lambda label: -abs(labels[label][axis]))[:NAMED_LABELS]
    return {label: round(float(labels[label][axis]), 3) for label in most if abs(labels[label][axis]) >= LEAST_R}


def _standard(columns: np.ndarray) -> np.ndarray:
    spread = columns.std(0)
    return (columns - columns.mean(0)) / np.where(spread > 0, spread, 1.0)
