"""`python tools/pack_faces.py DATASET`: pack the faces that ship, from the whole set prepared at 64 px.

Only test faces, which no model in the box has learned from: the first 300 as `faces[:N]`, with a split of their
own, and two of the others as pictures to edit.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from diti.data.prepared import Dataset, open_dataset

COUNT = 300
SPLITS = ("test", "valid", *["train"] * 8)  # of each ten
ASSETS = Path(__file__).resolve().parents[1] / "src" / "diti" / "assets"


def pack(dataset: Dataset) -> None:
    """Write faces.parquet, face-a.png and face-b.png."""
    rows = dataset.rows("test")
    packed, others = rows[:COUNT], rows[COUNT:]
    table = dataset.table.take(packed)
    images = [
        {"bytes": _lossless(pixels), "path": Path(name).name}
        for pixels, name in zip(dataset.images[packed], table["file"].to_pylist(), strict=True)
    ]
    splits = [SPLITS[place % len(SPLITS)] for place in range(COUNT)]
    columns = {"image": pa.array(images), "split": pa.array(splits)}
    columns |= {name: table[name] for name in dataset.attributes}
    pq.write_table(pa.table(columns), ASSETS / "faces.parquet", compression="zstd", row_group_size=COUNT)
    for name, row in zip("ab", others, strict=False):
        Image.fromarray(dataset.images[row]).save(ASSETS / f"face-{name}.png", optimize=True)


def _lossless(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "WEBP", lossless=True, quality=100, method=6)
    return file.getvalue()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    pack(open_dataset(Path(sys.argv[1])))
