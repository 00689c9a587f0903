"""Codes of a whole dataset, computed once, as arrays and as a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from diti.core.progress import progress_bar
from diti.core.runs import atomic_path
from diti.data.prepare import SKIPPED
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.representation.model import BATCH, DiTi


def encode_dataset(model: DiTi, dataset: Dataset) -> np.ndarray:
    """z float32 (N, D) of all images, in their order."""
    codes = np.empty((len(dataset), model.dims), np.float32)
    with progress_bar("encoding", len(dataset)) as advance:
        for start in range(0, len(dataset), BATCH):
            pixels = dataset.images[start : start + BATCH]
            codes[start : start + len(pixels)] = model.encode(np.asarray(pixels)).numpy()
            advance(len(pixels))
    return codes


def write_features(model: DiTi, images: str, out: Path) -> str:
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
