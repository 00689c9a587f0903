"""Directions in a model folder: `attributes/NAME.safetensors`, learned once and then found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from diti.core.errors import InputError, nearest
from diti.core.runs import atomic_path
from diti.data.prepared import Dataset
from diti.diffusion.files import locate, may_keep
from diti.edit.directions import Direction, code_space_hash, fit_direction, how_to_choose, method_for
from diti.representation.models.model import Model

ARRAYS = ("weight", "pattern", "mean", "std", "conditional", "reading", "response", "reach", "place", "rest")
# not in files of earlier versions
LATER = {"conditional", "reading", "response", "reach", "gain", "images", "place", "rest"}
FORMATS = ("3", "2")  # that are read; the first is written


def direction_path(folder: Path, attribute: str) -> Path:
    """Where an attribute's direction lies in a model folder; what a file name may not hold is escaped."""
    return folder / "attributes" / f"{quote(attribute, safe=' ()+,=')}.safetensors"


def save_direction(direction: Direction, folder: Path) -> Path:
    """Write it into a model folder, whole or not at all; replaces the attribute's earlier one."""
    path = direction_path(folder, direction.attribute)
    facts = {name: value for name, value in asdict(direction).items() if name not in ARRAYS}
    known = {name: getattr(direction, name) for name in ARRAYS}
    arrays = {name: torch.from_numpy(np.array(array)) for name, array in known.items() if array is not None}
    with atomic_path(path) as temporary:
        save_file(arrays, temporary, metadata={"format": FORMATS[0], "direction": json.dumps(facts)})
    return path


def load_direction(path: Path) -> Direction:
    """Strictly what `save_direction` wrote, or a line that says what is wrong."""
    if not path.is_file():
        raise InputError(f"{path} is missing; learn the direction with diti manipulate")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118 (not a dict)
        facts: dict[str, Any] = json.loads(metadata["direction"])
    except (SafetensorError, KeyError, OSError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not a saved direction ({error}); delete it and learn it again") from None
    if not isinstance(facts, dict) or not isinstance(facts.get("dims"), list):
        raise InputError(f"{path} is not a saved direction; delete it and learn it again")
    known = {field.name for field in fields(Direction)} - (LATER - arrays.keys() - facts.keys())
    if metadata.get("format") not in FORMATS or {*facts, *arrays} != known:
        odd = ", ".join(sorted({*facts, *arrays} ^ known)) or f"format {metadata.get('format')}"
        raise InputError(f"{path} was written by another version ({odd}); delete it and learn it again")
    if metadata["format"] != FORMATS[0] and "conditional" in arrays:  # nobody had chosen what it follows
        facts["along"] = "conditional"
    direction = Direction(**{**facts, **arrays, "dims": tuple(facts["dims"])})
    moved = tuple(np.flatnonzero(direction.weight).tolist())
    finite = all(np.isfinite(array).all() for array in arrays.values())
    shapes = {array.shape for name, array in arrays.items() if name not in ("reach", "place", "rest")}
    if not finite or len(shapes) > 1 or not set(moved) <= set(direction.dims):
        raise InputError(f"{path} is damaged: its arrays do not fit its dims; delete it and learn it again")
    return direction


def saved_direction(
    model: Model,
    folder: Path,
    dataset: Dataset,
    attribute: str,
    dims: int | None = None,
    selection: str | None = None,
    seed: int = 0,
) -> Direction | None:
    """The saved direction if it is what `fit_direction` would give for these arguments."""
    path = direction_path(folder, attribute)
    if not path.exists():
        return None
    try:
        found = load_direction(path)
    except InputError:  # cut off, or from another version: it is learned again, and replaced
        return None
    dims, selection = how_to_choose(model, dims, selection)
    wanted = (dataset.hash, dims, method_for(dataset, attribute, selection), seed, code_space_hash(model))
    same = (found.data_hash, len(found.dims), found.method, found.seed, found.encoder) == wanted
    return found if same and found.reading is not None else None  # else from an earlier version


def find_or_learn_direction(
    model: Model,
    folder: Path,
    dataset: Dataset,
    attribute: str,
    dims: int | None = None,
    selection: str | None = None,
    seed: int = 0,
    codes: Callable[[], np.ndarray] | None = None,
) -> tuple[Direction, bool]:
    """The direction in the model folder if it is the one asked for, else a new one, kept there; True if it is new.

    codes: gives those of all images (N, D), asked for only if there is something to learn.
    """
    found = saved_direction(model, folder, dataset, attribute, dims, selection, seed)
    if found is not None:
        return found, False
    learned = fit_direction(model, dataset, attribute, dims, selection, seed, codes() if codes else None)
    if may_keep(folder):
        save_direction(learned, folder)
    return learned, True


def kept_names(folder: Path) -> list[str]:
    """The directions that a model folder keeps."""
    return sorted(unquote(path.stem) for path in (folder / "attributes").glob("*.safetensors"))


def kept_direction(model: str | Path, attribute: str) -> Direction:
    """A direction that a model folder keeps, or a model in the box, for those who have no labelled data.

    older = diti.load("faces64-diti").manipulate(images, diti.kept_direction("faces64-diti", "age"), 2)
    """
    folder = locate(model)
    path, kept = direction_path(folder, attribute), kept_names(folder)
    if not path.is_file():
        known = f"it keeps {', '.join(kept)}" if kept else "it keeps none"
        raise InputError(
            f"{folder} keeps no direction of {attribute!r} ({known}); learn it with --data, or from examples with "
            f"--like.{nearest(attribute, kept)}"
        )
    return load_direction(path)
