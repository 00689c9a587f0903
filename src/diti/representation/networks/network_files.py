"""Weights of the networks here: drawn from a seed alone, and on disk as config.json with model.safetensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from diti.core.errors import InputError
from diti.core.rng import stream_seed
from diti.core.runs import atomic_path, write_json
from diti.diffusion.files import read_safetensors, read_settings, require_finite

WEIGHTS = "model.safetensors"


@contextmanager
def drawn_from(seed: int, purpose: str) -> Iterator[None]:
    """Layers made inside get weights of (seed, purpose) only; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed the other devices, and those are not forked.
        torch.default_generator.manual_seed(stream_seed(seed, purpose))
        yield


def write_network(folder: str | Path, description: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Write the folder of a network; its weights in float32 unless they have another type."""
    folder = Path(folder)
    require_finite(state, f"the weights for {folder}")
    write_json(folder / "config.json", dict(description))
    with atomic_path(folder / WEIGHTS) as temporary:
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in state.items()}, temporary)


def read_network(folder: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and state dict that `write_network` wrote."""
    folder = Path(folder)
    description = read_settings(folder / "config.json")
    path = folder / WEIGHTS
    if not path.is_file():
        raise InputError(f"{path} is missing: the folder of a network holds config.json and {WEIGHTS}")
    return description, read_safetensors(path)
