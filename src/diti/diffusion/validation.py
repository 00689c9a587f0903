"""Validation on fixed images, time-steps and noise, so that two runs, or two stages of one, can be compared."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from diti.core.device import sent
from diti.core.images import to_float
from diti.core.rng import torch_generator
from diti.data.prepared import Dataset

IMAGES, BATCH, SEED = 1_024, 128, 0


def fixed_rows(dataset: Dataset, images: int = IMAGES, split: str = "valid") -> np.ndarray:
    """(images,) rows of the images of `fixed_batches`, in their order."""
    rows = dataset.rows(split)
    rows = rows if len(rows) else dataset.rows("train")
    return rows[np.arange(images) % len(rows)]


def fixed_batches(
    dataset: Dataset,
    timesteps: int,
    device: torch.device,
    images: int = IMAGES,
    split: str = "valid",
    shape: tuple[int, ...] | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Pixels (B, 3, H, W), time-steps (B,) and noise: all time-steps alike, images of one split.

    shape: of the noise of one image, where the diffusion model has something else in place of its pixels.
    A set without such a split uses its training images; a small set is repeated with other noise.
    """
    rows = fixed_rows(dataset, images, split)
    rng = torch_generator(SEED, "validation")
    t = (torch.arange(images) * timesteps // images)[torch.randperm(images, generator=rng)]
    for start in range(0, images, BATCH):
        part = slice(start, start + BATCH)
        pixels = to_float(dataset.pixels(rows[part]))
        noise = torch.randn((len(pixels), *(shape or pixels.shape[1:])), generator=rng)
        yield sent(pixels, device), sent(t[part], device), sent(noise, device)
