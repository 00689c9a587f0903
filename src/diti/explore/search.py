"""`diti search`: the images nearest to one, in the whole code or in chosen subsets, and the odd ones.

Letters: N images, D dims of z.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diti.config import Range, check_number
from diti.core.errors import InputError
from diti.core.images import grid, picture_kind, save_picture
from diti.core.outputs import require_writable
from diti.core.runs import versions, write_json
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.edit.directions import standardise
from diti.representation.features import encode_dataset
from diti.representation.models.axis_names import find_axis
from diti.representation.models.inputs import read_images
from diti.representation.models.loading import load
from diti.representation.models.model import Model
from diti.representation.partition import LEVELS, THIRDS

COLUMNS = 8
ROWS_AT_ONCE = 65_536  # distances are computed for so many images at a time


@dataclass(frozen=True)
class Found:
    """Images in the order of what was asked for."""

    rows: np.ndarray  # (M,)
    values: np.ndarray  # (M,) distance to the image, or oddness


def chosen_dims(model: Model, words: str) -> np.ndarray:
    """(d,) dims that a comma list names: all, fine, coarse, early, middle, late, I, I:J, or a named axis."""
    dims: set[int] = set()
    for word in (piece.strip() for piece in words.split(",")):
        if word == "all" or word in THIRDS or word in LEVELS or word.replace(":", "").isdigit():
            mask = model.partition.subset_mask(word)
            dims |= set(np.flatnonzero(mask.numpy()).tolist())
        else:
            dims.add(find_axis(model.axis_names, model.dims, word)[0])
    return np.array(sorted(dims))


def nearest(codes: np.ndarray, wanted: np.ndarray, count: int) -> Found:
    """The `count` rows of standardised codes (N, d) that lie nearest to one (d,), nearest first: an exact search.

    ‖c - w‖² = ‖c‖² - 2 c·w + ‖w‖²: one matrix product over all images.
    """
    squares = np.concatenate(
        [
            np.einsum("nd,nd->n", part, part) - 2 * (part @ wanted)
            for part in np.array_split(codes, -(-len(codes) // ROWS_AT_ONCE))
        ]
    )
    count = min(count, len(squares))
    first = np.argpartition(squares, count - 1)[:count]
    order = first[np.argsort(squares[first], kind="stable")]
    exact = np.linalg.norm(codes[order].astype(np.float64) - wanted, axis=1)
    return Found(order, exact)


def oddest(codes: np.ndarray, count: int) -> Found:
    """The rows of standardised codes (N, d) that lie farthest from the mean of all, oddest first."""
    squares = np.einsum("nd,nd->n", codes, codes) / codes.shape[1]
    order = np.argsort(-squares, kind="stable")[:count]
    return Found(order, squares[order])


def search(
    source: str,
    data: str,
    out: Path,
    *,
    image: Path | None,
    odd: int | None,
    count: int,
    subset: str,
    overwrite: bool = False,
) -> list[str]:
    """`diti search`: a sheet and a JSON beside it; what to print."""
    if (image is None) == (odd is None):
        raise InputError("give one image to search for, or --odd N for the N oddest images, and not both")
    number, option = (count, "count") if odd is None else (odd, "odd")
    check_number(option, number, Range(1, 10_000))
    picture_kind(out)
    beside = out.with_suffix(".json")
    require_writable({"--out": [out, beside]}, [image, data], overwrite=overwrite)
    model = load(source)
    dims = chosen_dims(model, subset)
    given, lines = read_images([] if image is None else [image], model.size)
    dataset = open_data(data, model.size)
    codes = encode_dataset(model, dataset)
    mean, std = (s.numpy()[dims] for s in model.statistics(torch.from_numpy(codes)))
    standard = standardise(codes[:, dims], mean, std)
    if odd is not None:
        found = oddest(standard, number)
    else:
        wanted = standardise(model.encode(given[0]).numpy()[:, dims], mean, std)[0]
        found = nearest(standard, wanted, number)
    save_picture(sheet(dataset, found, given), out)
    write_json(beside, record(dataset, found, subset, image))
    part = f"in {len(dims)} of {model.dims} dims ({subset})"
    what = f"the {len(found.rows)} oddest images {part}" if odd is not None else f"the nearest images {part}"
    return [*lines, f"{what} of {len(dataset):,}", f"wrote {out} and {beside}"]


def sheet(dataset: Dataset, found: Found, given: list[np.ndarray]) -> Any:
    """The images found, each with its value below; first the one searched for."""
    pictures = [*given, *dataset.pixels(found.rows)]
    captions = [*(["searched"] * len(given)), *(f"{value:.2f}" for value in found.values)]
    return grid(np.stack(pictures), COLUMNS, captions=captions)


def record(dataset: Dataset, found: Found, subset: str, image: Path | None) -> dict[str, Any]:
    """For JSON: files in the order of the sheet."""
    files = dataset.table["file"]
    listed = [
        {"file": files[int(row)].as_py(), "row": int(row), "value": float(value)}
        for row, value in zip(found.rows, found.values, strict=True)
    ]
    return {
        "searched": None if image is None else str(image),
        "subset": subset,
        "found": listed,
        "versions": versions(),
    }
