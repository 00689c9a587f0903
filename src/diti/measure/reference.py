"""Distance to the data: how far an edited image is from images that exist, in the code of one fixed encoder.

Notation: N images, M data images, D numbers of a code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from diti.core.device import fitted
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.representation.models.model import BATCH, inference

NEIGHBOURS = 5  # data codes whose mean an edited image's code is compared with


def nearest_distance(codes: Tensor, data: Tensor, neighbours: int = NEIGHBOURS) -> Tensor:
    """(N,) distance of each code (N, D) to the mean of its nearest codes among data (M, D)."""
    closest = torch.cdist(codes, data).topk(neighbours, largest=False).indices  # (N, neighbours)
    return (codes - data[closest].mean(1)).norm(dim=1)


@dataclass(frozen=True, eq=False)
class Reference:
    """Distance to the data in the code of one fixed encoder, the same for all models that are compared.

    1 is the usual distance of an image of the same data that the encoder's neighbours do not include.
    """

    name: str  # of the encoder
    encoder: nn.Module  # (B, 3, H, W) in [-1, 1] → (B, D)
    mean: Tensor  # (D,) codes are standardised as (code - mean) / std
    std: Tensor  # (D,)
    codes: Tensor  # (M, D) of data images, standardised
    usual: float  # mean `nearest_distance` of validation images

    def distances(self, images: Tensor) -> np.ndarray:
        """(N,) of images (N, 3, H, W), relative to the usual one."""
        codes = (encode(self.encoder, images) - self.mean) / self.std
        return nearest_distance(codes, self.codes).double().numpy() / self.usual

    @property
    def about(self) -> str:
        return (
            f"distance in the code of {self.name} to the mean of the {NEIGHBOURS} nearest of {len(self.codes):,} "
            "data codes, relative to that of unedited validation images"
        )


def make_reference(
    name: str, encoder: nn.Module, dataset: Dataset, count: int = 4_000, held_out: int = 1_000, seed: int = 0
) -> Reference:
    """From `count` training images; `held_out` validation images say what distance is usual."""
    pixels = []
    for split, number in (("train", count), ("valid", held_out)):
        rows = numpy_generator(seed, f"yardstick-{split}").permutation(dataset.rows(split))[:number]
        if len(rows) < NEIGHBOURS:
            raise InputError(
                f"{dataset.path} has {len(rows)} {split} rows; the distance needs {NEIGHBOURS} or more"
            )
        pixels.append(to_float(dataset.pixels(np.sort(rows))))
    known, unseen = (encode(encoder, images) for images in pixels)
    mean, std = known.mean(0), known.std(0).clamp(min=1e-6)
    codes = (known - mean) / std
    usual = nearest_distance((unseen - mean) / std, codes).mean().item()
    return Reference(name, encoder, mean, std, codes, usual)


@torch.no_grad()
def encode(encoder: nn.Module, images: Tensor) -> Tensor:
    """(N, D) codes of images (N, 3, H, W), on the CPU."""
    device = next((p.device for p in encoder.parameters()), images.device)
    with inference(encoder):
        return torch.cat([fitted(encoder, part.to(device)).cpu() for part in images.split(BATCH)])
