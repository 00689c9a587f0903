"""A dataset folder: `images.npy` (memory map), `table.parquet`, `dataset.json`; and batches drawn from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from diti.core.errors import InputError, nearest
from diti.core.images import to_float
from diti.core.rng import numpy_generator
from diti.core.runs import read_json
from diti.data.attributes import SPLITS, attribute_names, is_binary, read_parquet
from diti.data.contents import IMAGES, TABLE, are_records, current_contents, entries_of

if TYPE_CHECKING:
    import torch

    from diti.data.joined import Joined

Pixels: TypeAlias = "np.ndarray | Joined"
INFO = "dataset.json"


def is_dataset(path: Path) -> bool:
    """Whether `path` is a complete dataset folder: the description is written last."""
    return (path / INFO).is_file()


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """An opened dataset folder. Opening costs no memory: pixels are read when rows are asked for.

    data = diti.open_data("data/mine")
    data.images[:16], data.attributes, data.labels(["Smiling"]), data.rows("test")
    """

    path: Path
    images: Pixels  # uint8 (N, H, W, 3), a memory map
    table: pa.Table
    info: dict[str, Any]

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        labels = f", {len(self.attributes)} attributes" if self.attributes else ""
        return f"<Dataset {self.title}: {len(self):,} images of {self.size} px{labels}; {self.path}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from diti.data.summary import dataset_html

        return dataset_html(self)

    @property
    def name(self) -> str:
        return str(self.info["name"])

    @property
    def title(self) -> str:
        """Its name on pages: the folder's own name for a folder of images, else the name of the set."""
        return str(self.info.get("title") or self.name)

    @property
    def size(self) -> int:
        """Side of the images, px."""
        return int(self.images.shape[1])

    @property
    def hash(self) -> str:
        """sha256 over pixels and table as they are now, whatever the folder held when it was written."""
        return str(self.info["hash"])

    @cached_property
    def attributes(self) -> list[str]:
        return attribute_names(self.table)

    def is_binary(self, attribute: str) -> bool:
        return is_binary(self._column(attribute))

    def labels(self, attributes: list[str] | None = None) -> np.ndarray:
        """float32 (N, A) of the given attributes, by default of all."""
        names = self.attributes if attributes is None else attributes
        if not names:
            return np.zeros((len(self), 0), np.float32)
        return np.stack([self._column(n).to_numpy().astype(np.float32) for n in names], axis=1)

    def _column(self, attribute: str) -> pa.ChunkedArray:
        if attribute not in self.attributes:
            known = ", ".join(self.attributes[:8]) or "none"
            hint = nearest(attribute, self.attributes)
            raise InputError(f"{self.path} has no attribute {attribute!r} (it has {known}).{hint}")
        return self.table[attribute]

    def rows(self, split: str | None = None) -> np.ndarray:
        """Row numbers of a split, in order; of all images without one."""
        if split is None:
            return np.arange(len(self))
        if split not in SPLITS:
            raise InputError(f"split {split!r} is unknown; use {', '.join(SPLITS)}")
        return np.flatnonzero(self.table["split"].to_numpy(zero_copy_only=False) == split)

    def pixels(self, rows: np.ndarray, flips: np.ndarray | None = None) -> np.ndarray:
        """uint8 (B, H, W, 3) of the given rows; where `flips` is true, mirrored left to right."""
        batch = self.images[rows]
        if flips is not None:
            mirrored = np.flatnonzero(flips)
            before = batch[mirrored]
            for channel in range(3):  # NumPy flips the rows of one channel three times faster than whole pixels
                batch[mirrored, :, :, channel] = before[:, :, ::-1, channel]
        return batch


def open_dataset(path: Path) -> Dataset:
    """Open a complete dataset folder, or say what is wrong with it."""
    if not is_dataset(path):
        raise InputError(f"{path} is not a complete dataset folder ({INFO} is missing); run diti prepare")
    try:
        info = read_json(path / INFO)
        _check_info(info)
        if lost := [name for name in (IMAGES, TABLE) if not (path / name).is_file()]:
            raise InputError(f"{lost[0]} is missing")
        images = _open_images(path / IMAGES)
        table = read_parquet(path / TABLE)
        _check_table(table, len(images))
    except (InputError, ValueError, OSError, pa.ArrowException) as error:
        fault = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path} is damaged: {fault}; run diti prepare again with --overwrite") from None
    return Dataset(path, images, table, {**info, **_true_contents(path, info)})


def _check_info(info: object) -> None:
    """InputError for anything but the contents of `dataset.json`."""
    if not isinstance(info, dict):
        raise InputError(f"{INFO} does not describe a dataset")
    for key, kind in {"name": str, "skipped": int, "splits": dict}.items():
        if not isinstance(info.get(key), kind):
            raise InputError(f"{INFO} has no {key}")
    if not are_records(info.get("files", {})):  # missing in folders of earlier versions
        raise InputError(f"files in {INFO} are not records of files")
    marks = info.get("predicted", {})
    if not isinstance(marks, dict) or not all(isinstance(mark, dict) for mark in marks.values()):
        raise InputError(f"predicted in {INFO} does not name columns")


def _open_images(path: Path) -> np.ndarray:
    try:
        images = np.lib.format.open_memmap(path, mode="r")
    except ValueError as error:
        raise InputError(f"{IMAGES} is not an array of images ({error})") from None
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (images.shape[1], images.shape[1], 3):
        raise InputError(f"{IMAGES} holds {images.dtype} {images.shape} instead of uint8 (N, size, size, 3)")
    if not images.size:
        raise InputError(f"{IMAGES} is empty")
    return images


def _check_table(table: pa.Table, images: int) -> None:
    """A table may be edited, but must keep its form."""
    names = table.column_names
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise InputError(f"{TABLE} has the column {twice[0]!r} twice")
    for name in ("file", "split"):
        kind = table.schema.field(name).type if name in names else None
        if kind not in (pa.string(), pa.large_string()):
            raise InputError(f"{TABLE} has no column {name!r} of text")
    if table.num_rows != images:
        raise InputError(f"{IMAGES} holds {images:,} images, {TABLE} {table.num_rows:,} rows")
    for word in table["split"].unique().to_pylist():
        if word not in SPLITS:
            raise InputError(f"{TABLE} has the split {word!r}, which is not one of {', '.join(SPLITS)}")
    for name in attribute_names(table):
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise InputError(f"{TABLE} has the attribute {name!r} of {kind}, not of numbers")


def _true_contents(path: Path, info: dict[str, Any]) -> dict[str, Any]:
    """Hash and records of the files as they are, so that results from other images are never taken for theirs.

    A table may be edited: the folder then has another hash. Edited pixels cannot be told from damaged ones.
    """
    written = info.get("files", {})  # missing in folders of earlier versions: these are read once
    now = current_contents(path, written)
    if IMAGES in written and now[IMAGES]["sha256"] != written[IMAGES]["sha256"]:
        raise InputError(
            f"{path / IMAGES} was changed or damaged after diti prepare had written it; "
            "run diti prepare again, with --overwrite or into another folder"
        )
    return entries_of(now)


def require_training_images(dataset: Dataset) -> Dataset:
    """The dataset; InputError where its own split leaves nothing to train on."""
    if len(dataset.rows("train")):
        return dataset
    held = ", ".join(f"{split} {count:,}" for split in SPLITS if (count := len(dataset.rows(split))))
    raise InputError(
        f"{dataset.title} has no training images ({held}); mark some of them as train: in the column split of its "
        "table, or by their folders"
    )


class Stream:
    """An endless shuffled walk over rows: every epoch has a new order, and any stretch can be read directly.

    The row at position p depends on (seed, p) only. So a continued run goes on where it stopped, and each of
    several processes takes its own stretch of the same walk.
    """

    def __init__(self, rows: np.ndarray, seed: int, *, flip: bool) -> None:
        if len(rows) == 0:
            raise InputError("the dataset has no image in this split; use another split or more images")
        self.all_rows, self.seed, self.flip = rows, seed, flip
        self._epoch: tuple[int, np.ndarray, np.ndarray] | None = None

    def take(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows and flips of the positions start .. start + count - 1."""
        size, end = len(self.all_rows), start + count
        rows, flips = [], []
        for epoch in range(start // size, (end - 1) // size + 1):
            order, flipped = self._shuffled(epoch)
            stretch = slice(max(start - epoch * size, 0), end - epoch * size)
            rows.append(order[stretch])
            flips.append(flipped[stretch])
        return np.concatenate(rows), np.concatenate(flips)

    def _shuffled(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Order and flips of one epoch; the latest is kept, because it is used again and again."""
        if self._epoch is None or self._epoch[0] != epoch:
            rng = numpy_generator(self.seed, "epoch", epoch)
            order = self.all_rows[rng.permutation(len(self.all_rows))]
            flips = rng.random(len(order)) < 0.5 if self.flip else np.zeros(len(order), bool)
            self._epoch = (epoch, order, flips)
        return self._epoch[1], self._epoch[2]


def training_batches(dataset: Dataset, seed: int, *, flip: bool) -> Callable[[int, int], torch.Tensor]:
    """Training images at given positions (start, count) of the endless walk, as floats in [-1, 1]."""
    stream = Stream(dataset.rows("train"), seed, flip=flip)
    return lambda start, count: to_float(dataset.pixels(*stream.take(start, count)))
