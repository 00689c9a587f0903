"""`diti search`: the images nearest to one, in the whole code or in chosen subsets, and the odd ones.

Notation: N images, D dims of z.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.core.device import AUTO, Device
from diti.core.errors import InputError
from diti.core.errors import nearest as like
from diti.core.images import grid, picture_kind, save_picture, to_uint8
from diti.core.outputs import require_writable
from diti.core.ranges import Range, check_number
from diti.core.runs import as_path, versions, write_json
from diti.data.decode import decode
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset, place_of
from diti.edit.directions import standardise
from diti.exploring.index import Place, closest, open_index
from diti.representation.features import encode_dataset, encoder_hash, explained_by_z, metric_of
from diti.representation.found_axes import axes_of, find_key
from diti.representation.models.axis_names import (
    Key,
    axis_key,
    axis_number,
    axis_of,
    in_order,
    is_named,
    key_label,
    words_of,
)
from diti.representation.models.inputs import Picture, as_batch, read_images
from diti.representation.models.loading import as_model
from diti.representation.models.metric import metric_root
from diti.representation.models.model import Model
from diti.representation.partition import LEVELS, THIRDS

COLUMNS = 8
COUNT, SHEET = 24, Range(1, 10_000)  # images to find
ROWS_AT_ONCE = 4_096  # codes whose differences are computed at a time: they fit a core's cache
MANY = 2_000_000  # codes; an exact search of more takes about a second or longer
SPARE = 32  # images beyond those wanted whose distances are computed exactly
DISTANCE = "distance to the image searched for, by the metric of the code"
FARTHEST = "mean square of the code's dims, in standard deviations: farthest first"
EXPLAINED = "share of the image that z explains: least first"


def as_they_are(codes: np.ndarray) -> np.ndarray:
    """The place of a code is the code."""
    return codes


@dataclass(frozen=True)
class Found:
    """Images in the order of what was asked for."""

    rows: np.ndarray  # (M,)
    values: np.ndarray  # (M,) what they are ordered by
    by: str  # what the values are
    files: tuple[str, ...] = ()  # (M,) of the images, where they have names
    told: tuple[str, ...] = ()  # lines about the search


def searched_dims(model: Model, words: str) -> np.ndarray:
    """(d,) dims that a comma list names: all, fine, coarse, early, middle, late, I, I:J, or dims."""
    return np.array([key for key in searched_keys(model, words) if isinstance(key, int)])


def searched_keys(model: Model, words: str) -> list[Key]:
    """Dims and axes that a comma list names: all, fine, coarse, early, middle, late, I, I:J, or one of them."""
    keys: set[Key] = set()
    for word in (piece.strip() for piece in words.split(",")):
        if word == "all" or word in THIRDS or word in LEVELS or word.replace(":", "").isdigit():
            mask = model.partition.subset_mask(word)
            keys |= set(np.flatnonzero(mask.numpy()).tolist())
        elif is_named(model.axis_names, word) or (word[:1] in ("a", "z") and axis_number(word) is not None):
            keys.add(find_key(model, word)[0])
        else:
            raise InputError(_no_part(model, word))
    return in_order(keys)


def with_axes(model: Model, subset: str, axis: str) -> str:
    """The parts to be near in, where axes were asked for: these alone, unless a part was named too."""
    if not axis.strip():
        return subset
    words = [key_label(find_key(model, word)[0]) for word in axis.split(",")]
    return ",".join([*words, *([] if subset == "all" else [subset])])


def in_deviations(model: Model, z: np.ndarray, keys: list[Key], codes: np.ndarray) -> np.ndarray:
    """(N, d) of codes z (N, D): where they lie on each axis and dim; codes: of the data."""
    return placing(model, keys, codes)(z)


def placing(model: Model, keys: list[Key], codes: np.ndarray) -> Place:
    """The same as a function of codes (B, D)."""
    mean, std = model.statistics(torch.from_numpy(codes))
    dims = [key for key in keys if isinstance(key, int)]
    axes = [axis for key in keys if (axis := axis_of(key)) is not None]

    def place(z: np.ndarray) -> np.ndarray:
        parts = [standardise(z[:, dims], mean.numpy()[dims], std.numpy()[dims])] if dims else []
        if axes:
            parts.append(axes_of(model).places(torch.from_numpy(z), mean)[:, axes].numpy())
        return np.concatenate(parts, axis=1)

    return place


def _no_part(model: Model, word: str) -> str:
    """What may be said instead."""
    parts, named = ["all", *LEVELS, *THIRDS], words_of(model.axis_names)
    found = [f"a00 to {key_label(axis_key(len(model.axes) - 1))}"] if model.axes is not None else []
    axes = ", ".join([*found, f"z000 to z{model.dims - 1:03d}", *named])
    return (
        f"--subset {word!r} names no part of this code; use {', '.join(parts)}, subsets by number (0 to "
        f"{model.partition.subsets - 1}, or I:J), or an axis: {axes}.{like(word, [*parts, *named])}"
    )


def root_inside(metric: Tensor, dims: np.ndarray) -> np.ndarray:
    """(d, d) for standardised codes in these dims of a metric (D, D): distances after it are those of its block.

    The block is scaled to trace d, so that distances in large and in small parts of the code can be read alike.
    """
    block = metric[dims][:, dims]
    return metric_root(block * (len(dims) / block.trace())).numpy()


def nearest(codes: np.ndarray, wanted: np.ndarray, count: int, place: Place = as_they_are) -> Found:
    """The `count` rows of codes (N, D) nearest to a place (d,), nearest first: an exact search.

    place: what makes of codes (B, D) the places (B, d) between which distances are taken.
    """
    squares = _squares(codes, lambda part: place(part) - wanted)
    candidates = min(2 * count + SPARE, len(squares))  # more than wanted: float32 may swap neighbours
    first = np.sort(np.argpartition(squares, candidates - 1)[:candidates])
    exact = np.linalg.norm(place(np.asarray(codes[first])).astype(np.float64) - wanted, axis=1)
    order = np.argsort(exact, kind="stable")[:count]
    return Found(first[order], exact[order], DISTANCE)


def _squares(codes: np.ndarray, place: Place) -> np.ndarray:
    """(N,) squared lengths of the places of codes (N, D), which may be too many for the memory."""
    parts = (place(codes[start : start + ROWS_AT_ONCE]) for start in range(0, len(codes), ROWS_AT_ONCE))
    return np.concatenate([np.einsum("nd,nd->n", part, part) for part in parts])


def oddest(codes: np.ndarray, count: int, place: Place = as_they_are) -> Found:
    """The rows of codes (N, D) whose places (N, d) lie farthest from the mean of all, oddest first."""
    squares = _squares(codes, place) / place(codes[:1]).shape[1]
    order = np.argsort(-squares, kind="stable")[:count]
    return Found(order, squares[order], FARTHEST)


def least_explained(shares: np.ndarray, count: int) -> Found:
    """The rows of the images that z explains least, given these shares (N,); the least first."""
    order = np.argsort(shares, kind="stable")[:count]
    return Found(order, shares[order], EXPLAINED)


def search(
    model: Model | str | Path,
    image: Picture | None = None,
    *,
    data: Dataset | str | Path,
    subset: str = "all",
    axis: str = "",
    count: int | None = None,
    odd: int | None = None,
    index: bool = False,
    out: str | Path = "found.png",
    overwrite: bool = False,
    device: Device = AUTO,
) -> Found:
    """Find the images nearest to one, or the odd ones, as `diti search` does: a sheet and a JSON beside it.

    subset: where to be near. axis: be near on these axes alone, a07 or by name. count: images to find, by default
    24. odd: find so many odd images instead. index: search millions through an index, made once; needs the extra
    of that name. device: where to compute, such as "cuda:1".

        diti.search("runs/model", "a.png", data="data/mine", subset="coarse").files
    """
    number = _number(image, count, odd)
    if odd is not None and index:
        raise InputError("--odd looks at every code; leave --index out")
    out = as_path(out, "out")
    picture_kind(out)
    beside = out.with_suffix(".json")
    name = str(image) if isinstance(image, str | Path) else None
    require_writable({"--out": [out, beside]}, [name, place_of(data)], overwrite=overwrite)
    model = as_model(model, device)
    if any(isinstance(axis_number(word), str) for word in f"{subset},{axis}".split(",")):
        axes_of(model, as_dataset(data, model.size))
    subset = with_axes(model, subset, axis)
    keys = searched_keys(model, subset)
    given, lines = read_images([] if name is None else [name], model.size)
    if image is not None and name is None:
        given = list(to_uint8(as_batch(image, model.size)[:1]))
    dataset = as_dataset(data, model.size)
    codes = encode_dataset(model, dataset)
    axes = sum(isinstance(key, str) for key in keys)
    part = f"on {axes} axes and {len(keys) - axes} dims" if axes else f"in {len(keys)} of {model.dims} dims"
    part = f"{part} ({subset})"
    if image is not None:
        z = model.encode(given[0]).cpu().numpy()
        found = _nearest_images(model, dataset, codes, keys, z, number, index)
        told = f"the nearest images {part} of {len(dataset):,}{''.join(found.told)}"
    else:
        shares = explained_by_z(model, dataset) if len(keys) == model.dims and not axes else None
        found = (
            oddest(codes, number, placing(model, keys, codes))
            if shares is None
            else least_explained(shares, number)
        )
        told = f"the {len(found.rows)} oddest images of {len(dataset):,}, {_why_odd(found, shares, part)}"
    save_picture(sheet(dataset, found, given), out)
    written = record(dataset, found, subset, name if image is None or name else "given in Python")
    write_json(beside, written)
    files = tuple(item["file"] for item in written["found"])
    return replace(found, files=files, told=(*lines, told, f"wrote {out} and {beside}"))


def _number(image: Picture | None, count: int | None, odd: int | None) -> int:
    """How many images to find; InputError where it is not clear which."""
    for option, number in (("count", count), ("odd", odd)):
        if number is not None:
            check_number(option, number, SHEET)
    if (image is None) == (odd is None):
        raise InputError("give one image to search for, or --odd N for the N oddest images, not both")
    if odd is not None and count is not None:
        raise InputError("--odd says how many images to find; leave --count (-n) out")
    return (COUNT if count is None else count) if odd is None else odd


def _nearest_images(
    model: Model, dataset: Dataset, codes: np.ndarray, keys: list[Key], z: np.ndarray, count: int, by_index: bool
) -> Found:
    """The images with codes (N, D) nearest to a code z (1, D), on these axes and dims."""
    standard = place = placing(model, keys, codes)
    if all(isinstance(key, int) for key in keys):  # an axis has its own length already
        root = root_inside(metric_of(model, dataset), np.array(keys, dtype=int))

        def place(part: np.ndarray) -> np.ndarray:
            return standard(part) @ root

    if not by_index:
        hint = ("; --index makes further searches of so many faster",) if len(codes) > MANY else ()
        return replace(nearest(codes, place(z)[0], count, place), told=hint)
    index = open_index(codes, place, f"{encoder_hash(model.encoder)}/{dataset.hash}")
    rows, distances = closest(index, codes, place(z)[0], count, place)
    return Found(rows, distances, DISTANCE, told=(f", {index.recall:.0%} of them by an index",))


def _why_odd(found: Found, shares: np.ndarray | None, part: str) -> str:
    """Which of the two ways was used, and how far out these images are."""
    if shares is None:
        return f"by the farthest codes {part}"
    usual = np.median(shares)
    return f"by what z explains least: {found.values[0]:.0%} to {found.values[-1]:.0%} of them, usual {usual:.0%}"


def sheet(dataset: Dataset, found: Found, given: list[np.ndarray]) -> Any:
    """The images found, each with its value below; first the one searched for."""
    searched = [decode(image, dataset.size, "centre") for image in given]  # data may be of another size
    pictures = [*searched, *dataset.pixels(found.rows)]
    captions = [*(["searched"] * len(given)), *(f"{value:.2f}" for value in found.values)]
    return grid(np.stack(pictures), COLUMNS, captions=captions)


def record(dataset: Dataset, found: Found, subset: str, image: str | None) -> dict[str, Any]:
    """For JSON: files in the order of the sheet."""
    files = dataset.table["file"]
    listed = [
        {"file": files[int(row)].as_py(), "row": int(row), "value": float(value)}
        for row, value in zip(found.rows, found.values, strict=True)
    ]
    return {
        "searched": image,
        "subset": subset,
        "values_are": found.by,
        "found": listed,
        "versions": versions(),
    }
