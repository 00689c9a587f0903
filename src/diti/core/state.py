"""Training states on disk: written whole or not at all, checked by hash, the last two kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from diti.core.errors import InputError
from diti.core.runs import atomic_path, read_mapping, sha256_file, write_json

TENSORS, FACTS = "tensors.safetensors", "state.json"
KEPT = 2  # the newest state and the one before
BETWEEN = "between"  # a fact: saved when the run was stopped, where none was due


def save_state(folder: Path, images: int, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> None:
    """Write the state after `images` images as folder/<images>/ and drop all but the newest two.

    An older one saved by a stop goes too: a continued run then has the same states as an uninterrupted one.
    """
    with atomic_path(folder / f"{images:012d}") as temporary:
        temporary.mkdir()
        try:
            save_file({name: t.detach().contiguous() for name, t in tensors.items()}, temporary / TENSORS)
        except SafetensorError as error:  # what it raises when the disk is full
            free = shutil.disk_usage(folder).free
            raise InputError(
                f"cannot write the state after {images:,} images to {folder} ({error}); {free / 1e6:,.0f} MB are "
                "free there: make room, and the same command continues from the state before"
            ) from error
        digest = sha256_file(temporary / TENSORS)
        write_json(temporary / FACTS, {**facts, "images": images, "sha256": digest})
    older = _states(folder)[:-1]
    due = [state for state in older if not _is_between(state)]
    for old in older:
        if old not in due[1 - KEPT :]:
            shutil.rmtree(old)


def load_state(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], list[str]] | None:
    """Tensors and facts of the newest undamaged state, and notes on damaged ones; None when there is no state."""
    notes: list[str] = []
    for path in reversed(_states(folder)):
        try:
            facts = read_mapping(path / FACTS)
            if facts.get("sha256") != sha256_file(path / TENSORS):
                raise InputError("its hash does not match")
            if facts.get("images") != int(path.name):
                raise InputError(f"{FACTS} does not say that it belongs to image {int(path.name):,}")
            return load_file(path / TENSORS), facts, notes
        except (InputError, OSError, SafetensorError) as error:
            notes.append(f"the state {path} is damaged ({error}) and was skipped")
    if notes:
        raise InputError(f"{notes[-1]}; no undamaged state is left in {folder}: remove that folder to start again")
    return None


def _is_between(state: Path) -> bool:
    try:
        return read_mapping(state / FACTS).get(BETWEEN) is True
    except (InputError, OSError):  # damaged: unknown
        return False


def _states(folder: Path) -> list[Path]:
    """Complete states, oldest first. Names of states still being written begin with a dot."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and p.name.isdigit())
