"""`diti encode` and `diti.encode`: the codes of images as an array, a table, or one part of a folder of tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from diti.core.device import AUTO, Device
from diti.core.errors import InputError
from diti.core.loop import compile_networks
from diti.core.outputs import require_writable
from diti.core.part import Part
from diti.core.runs import as_path, atomic_path
from diti.data.joined import in_part
from diti.data.prepare import SKIPPED
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset, place_of
from diti.representation.features import (
    ROWS_AT_ONCE,
    codes_in_metric,
    encode_dataset,
    explained_by_z,
    measuring,
    parts_of,
)
from diti.representation.models.inputs import Images
from diti.representation.models.loading import as_model
from diti.representation.models.model import Model

WRITERS = {".parquet": pyarrow.parquet.ParquetWriter, ".csv": pyarrow.csv.CSVWriter}  # by the ending of the file
EXPLAINED = "explained"  # column of the table; those of z begin with z and a digit


def encode(
    model: Model | str | Path,
    images: Images | Dataset,
    out: str | Path | None = None,
    *,
    explained: bool = True,
    metric: bool = False,
    part: str | None = None,
    compile: bool = False,
    overwrite: bool = False,
    device: Device = AUTO,
) -> np.ndarray:
    """z float32 (N, D) of images, a row per image in their order, as `diti encode` writes it to a table.

    images: a Dataset, the name of one or whatever else --data accepts, or images themselves, as `Model.encode`
    takes them. out: table to write, .parquet or .csv, of images that have names. explained: also the share of each
    image that z explains, in that table, where the model can tell. metric: instead of z, codes in which distances
    mean something, see `Model.in_metric`. part: such as 3/16, of the images; out is then a folder, for a file per
    part. compile: let torch compile the encoder for the table. device: where to compute, such as "cuda:1"; by
    default where a given model is, else a GPU where torch finds one. Many codes come as a memory map.

        z = diti.encode("runs/model", "photos", "features.parquet")
    """
    if isinstance(images, Dataset | str | Path):
        if out is not None:
            options = {"explained": explained, "metric": metric, "compile": compile, "overwrite": overwrite}
            write_features(model, images, as_path(out, "out"), part=part, **options, device=device)
        model = as_model(model, device)
        dataset = in_part(as_dataset(images, model.size), part)
        return codes_in_metric(model, dataset) if metric else encode_dataset(model, dataset)
    if out is not None or part is not None:
        name = "part" if out is None else "out"
        raise InputError(f"{name} is a table with names of images, which arrays lack; give a folder or a Dataset")
    model = as_model(model, device)
    z = model.encode(images)
    return (model.in_metric(z) if metric else z).cpu().numpy()


def write_features(
    model: Model | str | Path,
    images: Dataset | str | Path,
    out: Path,
    *,
    explained: bool = True,
    metric: bool = False,
    part: str | None = None,
    compile: bool = False,
    overwrite: bool = False,
    device: Device = AUTO,
) -> str:
    """z as a table with the file's name and split, a row per image; what was written.

    explained: also the share of each image that z explains, where the model can tell, in a column of that name.
    metric: instead of z, codes in which distances mean something. part: such as 3/16, into a file of the folder.
    compile: let torch compile the encoder, which takes a minute.
    """
    out = table_file(out, part)
    require_writable({"--out": [out]}, [place_of(images)], overwrite=overwrite)
    model = as_model(model, device)
    dataset = in_part(as_dataset(images, model.size), part)
    if compile:
        compile_networks(model.encoder)
    codes = encode_dataset(model, dataset)
    measured = measuring(model, dataset) if metric else None
    shares = explained_by_z(model, dataset) if explained else None

    def table(rows: slice) -> pa.Table:
        z = np.asarray(codes[rows]) if measured is None else measured(codes[rows])
        named = dataset.table.slice(rows.start, rows.stop - rows.start)
        columns: dict[str, pa.Array] = {name: named[name] for name in ("file", "split")}
        columns |= {name: pa.array(z[:, i]) for i, name in enumerate(model.feature_names())}
        columns |= {} if shares is None else {EXPLAINED: pa.array(shares[rows])}  # last: others keep their places
        return pa.table(columns)

    with (
        atomic_path(out) as temporary,
        WRITERS[out.suffix.lower()](temporary, table(slice(0, 0)).schema) as writer,
    ):
        for rows in parts_of(len(dataset), ROWS_AT_ONCE):  # a row group each: memory does not grow
            writer.write_table(table(rows))
    skipped = dataset.info["skipped"]
    note = f"; {skipped} unreadable images are named in {dataset.path / SKIPPED}" if skipped else ""
    told = "" if shares is None else f"; for half the images z explains {np.median(shares):.0%} or more"
    return f"wrote {out}: {len(dataset):,} images × {model.dims} dims{note}{told}"


def table_file(out: Path, part: str | None) -> Path:
    """The file to write; refused, before any work, where it is a kind of table that cannot be written."""
    is_table = out.suffix.lower() in WRITERS
    if part is None:
        if not is_table:
            raise InputError(f"--out {out} must end in {' or '.join(WRITERS)}; these are the tables it can write")
        return out
    if is_table:
        raise InputError(f"--part {part} is written into a folder, a file for each; use --out features")
    return out / f"{Part.read(part).name}.parquet"
