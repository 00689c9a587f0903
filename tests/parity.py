"""The authors' numbers from the small fixture, whose weights are drawn again: see tools/shrink_parity.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

SMALL = Path(__file__).resolve().parent / "interop" / "parity"
NOISE, NOISE_ON_ZERO = 0.01, 0.03  # standard deviations


def write_large_layout(folder: Path) -> Path:
    """The files of the large fixture in `folder`, with the fewer images of the small one."""
    weights = json.loads((SMALL / "weights.json").read_text())
    rand = uniform_stream(weights)
    unet, decoder, encoder = (
        {name: drawn(place, rand) for name, place in weights[network].items()}
        for network in ("unet", "decoder", "encoder")
    )
    tiny = folder / "pdae_tiny"
    tiny.mkdir()
    torch.save({"ema_denoise_fn": unet}, tiny / "ddpm_checkpoint.pt")
    model = {"step": weights["step"], "ema_encoder": encoder, "ema_decoder": {**unet, **decoder}}
    torch.save(model, tiny / "diti_checkpoint.pt")
    for name in ("ddpm_config.yml", "expected.pt"):
        shutil.copyfile(SMALL / name, tiny / name)
    shutil.copyfile(SMALL / "staged_ends.json", folder / "staged_ends.json")
    return folder


def uniform_stream(weights: dict[str, Any]) -> np.ndarray:
    """Numbers in [0, 1) as torch draws them from seed 0: 24 bits of each word of a Mersenne twister.

    NumPy has promised never to change this generator; torch has not.
    """
    places = [place for network in weights.values() if isinstance(network, dict) for place in network.values()]
    length = max(place["normal_from"] + int(np.prod(place["shape"])) for place in places if "normal_from" in place)
    words = np.frombuffer(np.random.RandomState(0).bytes(4 * length), "<u4")
    return (words & 0xFFFFFF) / 2**24


def drawn(place: dict[str, Any], rand: np.ndarray) -> Tensor:
    """A layer as torch makes it, and noise on it."""
    if "values" in place:
        return torch.tensor(place["values"])
    count = int(np.prod(place["shape"]))
    if "filled" in place:
        start = np.full(count, place["filled"], float)
    else:
        begin = place["uniform_from"]
        start = (2 * rand[begin : begin + count] - 1) / place["fan_in"] ** 0.5
    noise = NOISE if start.any() else NOISE_ON_ZERO
    values = start + noise * normal(rand[place["normal_from"] : place["normal_from"] + count])
    return torch.from_numpy(values.astype(np.float32)).reshape(place["shape"])


def normal(uniform: np.ndarray) -> np.ndarray:
    """Box and Muller's transform, in blocks of sixteen as torch makes it."""
    blocks = uniform.reshape(-1, 2, 8)
    radius, angle = np.sqrt(-2 * np.log(1 - blocks[:, 0])), 2 * np.pi * blocks[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).ravel()
