"""A folder of prepared folders as one dataset, without copying a pixel.

The parts are what `diti prepare --part 1/16` and so on wrote, or any dataset folders of one size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from diti.core.errors import InputError
from diti.core.part import Part
from diti.data.attributes import attribute_kinds
from diti.data.prepared import Dataset, Pixels, is_dataset, open_dataset
from diti.data.source import Source, stretch_of
from diti.data.split import split_counts


class Joined:
    """Arrays (N_i, H, W, 3), one after the other, read like one. Rows are copied when they are asked for."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays = list(arrays)
        self.starts = np.array([0, *accumulate(len(array) for array in arrays)])
        self.shape = (int(self.starts[-1]), *arrays[0].shape[1:])
        self.dtype, self.ndim = arrays[0].dtype, arrays[0].ndim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> np.ndarray:
        """By a number, a slice, or an array of numbers or of truth values."""
        if isinstance(key, slice) and key.step in (None, 1):
            pieces = self.stretch(key).arrays
            return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        rows = np.arange(len(self))[key] if isinstance(key, slice) else np.asarray(key)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        flat = np.atleast_1d(np.where(rows < 0, rows + len(self), rows))
        if len(flat) and not (flat.min() >= 0 and flat.max() < len(self)):
            raise IndexError(f"row {rows} is out of range of {len(self)} rows")
        found = np.empty((len(flat), *self.shape[1:]), self.dtype)
        owner = np.searchsorted(self.starts, flat, "right") - 1
        for number in np.unique(owner):
            own = owner == number
            found[own] = self.arrays[number][flat[own] - self.starts[number]]
        return found if rows.ndim else found[0]

    def stretch(self, rows: slice) -> Joined:
        """Some rows that follow each other, without reading them."""
        first, stop, _ = rows.indices(len(self))
        bounds = zip(self.arrays, self.starts.tolist(), strict=False)
        pieces = [array[max(first - start, 0) : max(stop - start, 0)] for array, start in bounds]
        return Joined([piece for piece in pieces if len(piece)] or [self.arrays[0][:0]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype)


def _stretch(images: Pixels, rows: slice) -> Pixels:
    """Some images that follow each other, without reading them."""
    return images.stretch(rows) if isinstance(images, Joined) else images[rows]


def in_part(dataset: Dataset, text: str | None) -> Dataset:
    """The images of a part such as 3/16; all of them without one."""
    if text is None:
        return dataset
    part = Part.read(text)
    rows = part.rows(len(dataset))
    if rows.start == rows.stop:
        raise InputError(f"--part {text} of {len(dataset):,} images is empty; use fewer parts")
    info = {**dataset.info, "hash": f"{dataset.hash}/{part}", "part": str(part)}
    table = dataset.table.slice(rows.start, rows.stop - rows.start)
    return replace(dataset, images=_stretch(dataset.images, rows), table=table, info=info)


def part_of(source: Source, out: Path, part: Part) -> tuple[Source, Path]:
    """The part of a source, and its folder in `out`, which holds parts alone."""
    held = sorted(entry.name for entry in out.iterdir() if not entry.name.startswith(".")) if out.is_dir() else []
    if foreign := [name for name in held if Part.of_name(name) is None]:
        raise InputError(
            f"--out {out} holds other files ({', '.join(foreign[:2])}); choose a folder for parts alone"
        )
    if other := [found for name in held if (found := Part.of_name(name)) and found.of != part.of]:
        raise InputError(f"--out {out} holds parts of {other[0].of}; use --part {part.number}/{other[0].of}")
    rows = part.rows(source.table.num_rows)
    if rows.start == rows.stop:
        raise InputError(f"--part {part} of {source.table.num_rows:,} images is empty; use fewer parts")
    return stretch_of(source, rows), out / part.name


def part_folders(path: Path) -> list[Path]:
    """The dataset folders in a folder that holds nothing else; none where it holds other things."""
    try:
        held = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError:  # no folder, or an impossible name, which others report
        return []
    ours = [entry for entry in held if is_dataset(entry) or Part.of_name(entry.name)]
    return held if held and len(ours) == len(held) else []


def open_joined(path: Path) -> Dataset:
    """All parts as one dataset; InputError where one is missing, unfinished, or of another kind."""
    folders = part_folders(path)
    _require_all(path, folders)
    parts = [open_dataset(folder) for folder in folders]
    first = parts[0]
    for part in parts:
        if part.size != first.size:
            raise InputError(
                f"{path} holds parts of {first.size} and of {part.size} px ({first.path.name}, {part.path.name}); "
                "prepare all of them with the same --size"
            )
    table = _joined_table(path, parts)
    marks = {name: mark for part in parts for name, mark in part.info.get("predicted", {}).items()}
    info = {
        **first.info,
        "count": table.num_rows,
        "skipped": sum(part.info["skipped"] for part in parts),
        "splits": split_counts(table),
        "hash": hashlib.sha256("\n".join(part.hash for part in parts).encode()).hexdigest(),
        "title": first.info.get("title", path.name),
        "predicted": marks,
        **attribute_kinds(table),
    }
    return Dataset(path, Joined([np.asarray(part.images) for part in parts]), table, info)


def _require_all(path: Path, folders: Sequence[Path]) -> None:
    """InputError for parts that are missing, or that belong to different cuts."""
    found = [part for folder in folders if (part := Part.of_name(folder.name))]
    if len({part.of for part in found}) > 1:
        cuts = sorted({part.of for part in found})
        raise InputError(
            f"{path} holds parts of {cuts[0]} and of {cuts[1]}; remove those that do not belong together"
        )
    here = {part.number for folder in folders if (part := Part.of_name(folder.name)) and is_dataset(folder)}
    lacking = [number for number in range(1, found[0].of + 1) if number not in here] if found else []
    if lacking:
        others = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise InputError(
            f"{path} lacks part {lacking[0]}/{found[0].of}{others}; run diti prepare --part "
            f"{lacking[0]}/{found[0].of} into it"
        )


def _joined_table(path: Path, parts: Sequence[Dataset]) -> pa.Table:
    """The rows of all parts; files get the name of their folder, unless the parts are those of one source."""
    tables = []
    for part in parts:
        table, place = part.table, part.table.column_names.index("file")
        if Part.of_name(part.path.name) is None:
            names = [f"{part.path.name}/{name}" for name in table["file"].to_pylist()]
            table = table.set_column(place, "file", pa.array(names, pa.string()))
        tables.append(table)
    for part, table in zip(parts, tables, strict=True):
        if set(table.column_names) != set(tables[0].column_names):
            odd = sorted(set(table.column_names) ^ set(tables[0].column_names))
            raise InputError(
                f"{path}: {parts[0].path.name} and {part.path.name} differ in the column {odd[0]!r}; prepare them "
                f"again with the same attributes, or leave it out with --ignore {odd[0]}"
            )
    try:
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{path}: the parts do not fit together ({str(error).splitlines()[0]})") from None
