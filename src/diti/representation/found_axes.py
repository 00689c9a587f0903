"""The axes of a model (`models/axes.py`): from its folder, else found in images and kept for the next time."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from diti.core.errors import InputError
from diti.core.machine import cache_folder
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.representation.features import METRIC_IMAGES, encoder_hash, kept_features, metric_of
from diti.representation.models.axes import SMALL, Axes, read_axes, visible_axes, write_axes
from diti.representation.models.axis_names import Key, axis_number, find_axis, is_named
from diti.representation.models.model import BATCH, Model, inference

FEWEST_IMAGES = 2  # with which anything varies

log = logging.getLogger(__name__)


def axes_of(model: Model, dataset: Dataset | None = None) -> Axes:
    """The model's axes; if it has none, those found earlier, else those of these images, which a line says."""
    if model.axes is None:
        path = cache_folder() / "axes" / f"{encoder_hash(model.encoder)[:24]}.safetensors"
        model.axes = _read_kept(path, model)
    if model.axes is None and dataset is not None:
        log.warning("the model has no axes yet: they are found in %s", dataset.name)
        model.axes = axes_over(model, dataset)
        try:
            write_axes(model.axes, path)
        except OSError as error:  # nothing depends on the cache
            log.warning("the axes could not be kept for next time: %s: %s", path, error.strerror or error)
    if model.axes is None:
        raise InputError("the model has no axes yet, such as a07: diti explore finds them in images")
    return model.axes


def _read_kept(path: Path, model: Model) -> Axes | None:
    try:
        return read_axes(path, model.partition)
    except InputError:  # damaged, or of another cut
        return None


@torch.no_grad()
def axes_over(model: Model, dataset: Dataset) -> Axes:
    """The axes that some training images show, or others where there are none."""
    rows = dataset.rows("train") if len(dataset.rows("train")) >= FEWEST_IMAGES else dataset.rows()
    if len(rows) < FEWEST_IMAGES:
        raise InputError(f"{dataset.name} has {len(rows)} images; axes are found in {FEWEST_IMAGES} or more")
    if len(rows) > METRIC_IMAGES:
        rows = np.sort(numpy_generator(0, "axes").permutation(rows)[:METRIC_IMAGES])
    z, small = [], []
    with inference(model.encoder), progress_bar("looking for axes", len(rows)) as advance:
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            z.append(_codes(model, dataset, part))
            small.append(_small(dataset.pixels(part)))
            advance(len(part))
    codes = torch.cat(z)
    mean, std = model.statistics(codes)
    return visible_axes(metric_of(model, dataset), (codes - mean) / std, torch.cat(small), model.partition, std)


def _codes(model: Model, dataset: Dataset, rows: np.ndarray) -> Tensor:
    """(B, D) of some images, from their features where these were kept."""
    seen = kept_features(model.encoder, dataset)
    if seen is None:
        return model.encode(dataset.pixels(rows)).cpu()
    return model.encoder.code(torch.from_numpy(seen[rows]).to(model.device)).cpu()


def _small(pixels: np.ndarray) -> Tensor:
    """(B, 3, S, S) in [0, 1] of uint8 (B, H, W, 3), averaged down to a side that still shows what it is."""
    images = torch.from_numpy(np.ascontiguousarray(pixels)).permute(0, 3, 1, 2).float() / 255
    return adaptive_avg_pool2d(images, SMALL) if images.shape[-1] > SMALL else images


def find_key(model: Model, word: str) -> tuple[Key, float]:
    """The axis (a07), the dim (37, z037) or the named one that a word stands for, and its sign."""
    word = word.strip()
    named = (key for key, given in model.axis_names.items() if is_named({key: given}, word))
    owner = next(named, axis_number(word))
    count = len(axes_of(model)) if isinstance(owner, str) else len(model.axes or ())
    return find_axis(model.axis_names, model.dims, word, count)
