"""Validation on fixed images, time-steps and noise, so that two runs, or two moments of one, can be compared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from diti.core.images import to_float
from diti.core.rng import torch_generator
from diti.data.prepared import Dataset

IMAGES, BATCH, SEED = 1_024, 128, 0


def fixed_batches(
    dataset: Dataset, timesteps: int, device: torch.device, images: int = IMAGES, split: str = "valid"
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Pixels (B, 3, H, W), time-steps (B,) and noise: all time-steps alike, images of one split.

    Where a set has no such split its training images serve; a small set is gone through again, with other
    noise.
    """
    rows = dataset.rows(split)
    rows = rows if len(rows) else dataset.rows("train")
    rows = rows[np.arange(images) % len(rows)]
    rng = torch_generator(SEED, "validation")
    t = (torch.arange(images) * timesteps // images)[torch.randperm(images, generator=rng)]
    for start in range(0, images, BATCH):
        part = slice(start, start + BATCH)
        pixels = to_float(dataset.pixels(rows[part]))
        noise = torch.randn(pixels.shape, generator=rng)
        yield pixels.to(device), t[part].to(device), noise.to(device)
