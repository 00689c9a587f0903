"""A first look at some training images: principal axes of their pixels, and whitened features.

Notation: N images looked at, F features of the feature map, E whitened ones (φ), P pixel axes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from diti.core.device import fitted, on_host, sent, widest
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.lanes import in_lanes, lanes_on
from diti.core.processes import is_main
from diti.core.progress import progress_bar
from diti.data.prepared import Dataset, Stream
from diti.representation.models.model import images_at_once
from diti.representation.networks.pixel_axes import PixelAxes
from diti.representation.networks.principal import OVERSAMPLED, low_rank, principal_components

Shape: TypeAlias = tuple[int, int, int]  # (C,h,h) of one x0

LOOKED_AT = 8_192  # images; the axes of more would hardly differ, and memory must not grow with the data
PIXEL_IMAGES = 4_096  # of these for the axes of the pixels
BATCH = 128

FeatureMap = Callable[[Tensor, np.ndarray], Tensor]  # x0 (B,C,h,h), their rows (B,) → features (B, F)


def _as_they_are(pixels: Tensor) -> Tensor:
    return pixels


@dataclass(frozen=True, eq=False)
class Walk:
    """Images at the positions of an endless shuffled walk, with what the feature map sees in them."""

    dataset: Dataset
    stream: Stream
    features: FeatureMap
    device: torch.device
    purpose: str  # names the random numbers that go with the images
    encode: Callable[[Tensor], Tensor] = _as_they_are  # pictures (B,3,H,H) to x0 of the diffusion model

    def clean(self, start: int, count: int) -> tuple[Tensor, np.ndarray]:
        """x0 (B,C,h,h) of images on the device, and their rows (B,)."""
        rows, flips = self.stream.take(start, count)
        with torch.no_grad():
            return fitted(self.encode, sent(to_float(self.dataset.pixels(rows, flips)), self.device)), rows

    @property
    def at_once(self) -> int:
        """Images in one batch."""
        return images_at_once(self.dataset.size, self.device)


@dataclass(frozen=True, eq=False)
class Whitening:
    """φ = ((features - mean) / std) @ axes: principal components of unit variance, float64."""

    mean: Tensor  # (F,)
    std: Tensor  # (F,)
    axes: Tensor  # (F, E)
    variance: Tensor  # (E,) of the components before whitening

    def __call__(self, features: Tensor) -> Tensor:
        """(B, F) → φ (B, E)."""
        return (features.to(self.mean.dtype) - self.mean) / self.std @ self.axes


@dataclass(frozen=True, eq=False)
class Look:
    """What was found, and φ (N, E) of the first N images of the walk, float32."""

    pixel_axes: PixelAxes
    whitening: Whitening
    phi: Tensor
    walk: Walk

    def phi_of(self, walk: Walk, start: int, x: Tensor, rows: np.ndarray) -> Tensor:
        """φ (B, E) of images at positions of a walk; those that were looked at are not run again."""
        stop = start + len(rows)
        if walk is self.walk and stop <= len(self.phi):
            return self.phi[start:stop].to(self.whitening.mean.dtype)
        return self.whitening(walk.features(x, rows))

    @cached_property
    def there(self) -> Look:
        """The same on the device of the walk; itself on the CPU."""
        device = self.walk.device
        if on_host(device):
            return self
        axes = copy.deepcopy(self.pixel_axes).to(device)
        kept = (tensor.to(widest(device)).to(device) for tensor in vars(self.whitening).values())
        return Look(axes, Whitening(*kept), self.phi.to(device), self.walk)

    def state(self) -> dict[str, Tensor]:
        """Everything that was found, by name."""
        axes = {f"pixel_axes.{name}": tensor for name, tensor in self.pixel_axes.state_dict().items()}
        return {**vars(self.whitening), "phi": self.phi, **axes}

    @classmethod
    def restored(cls, state: Mapping[str, Tensor], shape: Shape, walk: Walk) -> Look:
        """What `state` gave, of x0 of that shape, for the same walk."""
        axes = PixelAxes(shape[1], state["pixel_axes.axes"].shape[1], shape[0])
        axes.load_state_dict({name: state[f"pixel_axes.{name}"] for name in axes.state_dict()})
        whitening = Whitening(*(state[name] for name in ("mean", "std", "axes", "variance")))
        return cls(axes, whitening, state["phi"], walk)


@torch.no_grad()
def first_look(walk: Walk, images: int, shape: Shape, pixels: int, features: int, dims: int, seed: int) -> Look:
    """Look at the first `images` of the walk; keep `pixels` axes, and `features` features, or `dims` at least.

    shape: (C,h,h) of one x0.
    """
    found: list[Tensor] = []
    on_grid: list[Tensor] = []
    axes = PixelAxes(shape[1], pixels, shape[0])
    together = walk.at_once
    starts = range(0, images, together)

    def look(start: int) -> tuple[Tensor, Tensor | None]:
        x, rows = walk.clean(start, min(together, images - start))
        return walk.features(x, rows).cpu().float(), axes.on_grid(x.cpu()) if start < PIXEL_IMAGES else None

    with progress_bar("a first look", images, shown=is_main()) as advance:
        for seen, small in in_lanes(look, starts, lanes_on(walk.device)):
            found.append(seen)
            on_grid += [] if small is None else [small]
            advance(len(seen))
    everything = torch.cat(found)
    if not bool(torch.isfinite(everything).all()):
        raise InputError("the features of some images are not finite; check the weights of the backbone")
    set_pixel_axes(axes, torch.cat(on_grid), seed)
    whitening = whitened(everything, features, dims, seed)
    phi = torch.cat([whitening(part).float() for part in everything.split(BATCH)])
    return Look(axes, whitening, phi, walk)


def whitened(features: Tensor, most: int, least: int, seed: int = 0) -> Whitening:
    """Whitening of features (N, F) to `most` principal components, or as many as they vary in: `least` or more."""
    found = principal_components(features, most, least, seed)
    # In the order of rows, as a state brings them back: the order in memory decides the last digits of products.
    axes = (found.axes / found.variance.sqrt()).contiguous()
    return Whitening(found.mean, found.std, axes, found.variance)


def set_pixel_axes(axes: PixelAxes, images: Tensor, seed: int) -> None:
    """Fill in mean and first principal axes of images on the grid (N, Chh), by a randomised decomposition."""
    mean = images.mean(0)
    found = low_rank(images - mean, axes.count + OVERSAMPLED, seed, "pixel-axes")[2]
    axes.mean.copy_(mean)
    axes.axes.copy_(found[:, : axes.count])
