"""Codes of a whole dataset, computed once and kept, as arrays and as a table."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.machine import cache_folder
from diti.core.progress import progress_bar
from diti.core.runs import atomic_path
from diti.data.decode import decode
from diti.data.prepare import SKIPPED
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.representation.models.inputs import as_batch
from diti.representation.models.model import BATCH, Model, inference
from diti.representation.networks.encoder import Encoder

WRITERS = {
    ".parquet": pyarrow.parquet.write_table,
    ".csv": pyarrow.csv.write_csv,
}  # by the ending of a table's file

log = logging.getLogger(__name__)


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
    if (kept := _read(path, len(dataset))) is not None:
        return kept
    codes = _over_images(encoder, function, dataset, mirrored)
    try:
        with atomic_path(path) as temporary, temporary.open("wb") as handle:
            np.save(handle, codes)
    except OSError as error:  # nothing depends on the cache
        log.warning("the codes were not kept for the next time: %s: %s", path, error.strerror or error)
    return codes


def _read(path: Path, rows: int) -> np.ndarray | None:
    """A kept array of so many rows; None where there is none, or what is left of one."""
    try:
        kept = np.array(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError):
        return None
    return kept if kept.dtype == np.float32 and kept.ndim == 2 and len(kept) == rows else None


@torch.no_grad()
def _over_images(
    encoder: Encoder, function: Callable[[Tensor], Tensor], dataset: Dataset, mirrored: bool
) -> np.ndarray:
    device = encoder.head.weight.device
    parts = []
    fits = dataset.size == encoder.size
    if not fits:
        log.warning("images of %d px are resized to the model's %d px", dataset.size, encoder.size)
    with progress_bar("encoding", len(dataset)) as advance, inference(encoder):
        for start in range(0, len(dataset), BATCH):
            images = np.asarray(dataset.images[start : start + BATCH])
            if not fits:
                images = np.stack([decode(image, encoder.size, "centre") for image in images])
            pixels = as_batch(images, encoder.size).to(device)
            parts.append(function(pixels.flip(-1) if mirrored else pixels).cpu().numpy())
            advance(len(pixels))
    return np.concatenate(parts)


def encoder_hash(encoder: Encoder) -> str:
    """Hex digest of an encoder's shape and every weight."""
    digest = hashlib.sha256(json.dumps(encoder.description, sort_keys=True).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def check_table_file(out: Path) -> None:
    """Refuse, before any work, a kind of table that cannot be written."""
    if out.suffix.lower() not in WRITERS:
        raise InputError(f"--out {out} must end in {' or '.join(WRITERS)}; these tables can be written")


def write_features(model: Model, images: str, out: Path) -> str:
    """`diti encode`: a table with the file's name, split and z, a row per image; says what it wrote."""
    check_table_file(out)
    dataset = open_data(images, model.size)
    codes = encode_dataset(model, dataset)
    columns: dict[str, pa.Array] = {name: dataset.table[name] for name in ("file", "split")}
    columns |= {name: pa.array(codes[:, i]) for i, name in enumerate(model.feature_names())}
    with atomic_path(out) as temporary:
        WRITERS[out.suffix.lower()](pa.table(columns), temporary)
    skipped = dataset.info["skipped"]
    note = f"; {skipped} unreadable images are named in {dataset.path / SKIPPED}" if skipped else ""
    return f"wrote {out}: {len(dataset):,} images × {model.dims} dims{note}"
