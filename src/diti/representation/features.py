"""Codes of a whole dataset, computed once and kept, as arrays and as a table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from torch import Tensor

from diti.core.machine import cache_folder
from diti.core.progress import progress_bar
from diti.core.runs import atomic_path
from diti.data.prepare import SKIPPED
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.representation.models.inputs import as_batch
from diti.representation.models.model import BATCH, Model, inference
from diti.representation.networks.encoder import Encoder


def encode_dataset(model: Model, dataset: Dataset, *, mirrored: bool = False) -> np.ndarray:
    """z float32 (N, D) of all images, in their order; of the same encoder and data computed only once."""
    return encoder_codes(model.encoder, dataset, mirrored=mirrored)


def encoder_codes(encoder: Encoder, dataset: Dataset, *, mirrored: bool = False) -> np.ndarray:
    """The same for an encoder that belongs to no model."""
    return _kept(encoder, encoder, dataset, "z", mirrored)


def trunk_features(encoder: Encoder, dataset: Dataset) -> np.ndarray:
    """float32 (N, F): what the encoder's trunk sees in each image, before the linear layer to z."""
    return _kept(encoder, encoder.features, dataset, "features", mirrored=False)


def _kept(
    encoder: Encoder, function: Callable[[Tensor], Tensor], dataset: Dataset, kind: str, mirrored: bool
) -> np.ndarray:
    """The array of this encoder and data from the cache, else computed and put there."""
    key = hashlib.sha256(f"{encoder_hash(encoder)}/{dataset.hash}/{kind}/{mirrored}".encode()).hexdigest()[:24]
    path = cache_folder() / "features" / f"{key}.npy"
    if path.is_file():
        return np.asarray(np.load(path, allow_pickle=False))
    codes = _over_images(encoder, function, dataset, mirrored)
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        np.save(handle, codes)
    return codes


@torch.no_grad()
def _over_images(
    encoder: Encoder, function: Callable[[Tensor], Tensor], dataset: Dataset, mirrored: bool
) -> np.ndarray:
    device = encoder.head.weight.device
    parts = []
    with progress_bar("encoding", len(dataset)) as advance, inference(encoder):
        for start in range(0, len(dataset), BATCH):
            pixels = as_batch(np.asarray(dataset.images[start : start + BATCH]), encoder.size).to(device)
            parts.append(function(pixels.flip(-1) if mirrored else pixels).cpu().numpy())
            advance(len(pixels))
    return np.concatenate(parts)


def encoder_hash(encoder: Encoder) -> str:
    """Hex digest of an encoder's shape and every weight."""
    digest = hashlib.sha256(json.dumps(encoder.description, sort_keys=True).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_features(model: Model, images: str, out: Path) -> str:
    """`diti encode`: a parquet table with the file's name, split and z, a row per image; says what it wrote."""
    dataset = open_data(images, model.size)
    codes = encode_dataset(model, dataset)
    columns: dict[str, pa.Array] = {name: dataset.table[name] for name in ("file", "split")}
    columns |= {name: pa.array(codes[:, i]) for i, name in enumerate(model.feature_names())}
    with atomic_path(out) as temporary:
        pyarrow.parquet.write_table(pa.table(columns), temporary)
    skipped = dataset.info["skipped"]
    note = f"; {skipped} unreadable images are named in {dataset.path / SKIPPED}" if skipped else ""
    return f"wrote {out}: {len(dataset):,} images × {model.dims} dims{note}"
