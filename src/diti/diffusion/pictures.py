"""From pictures to the x0 of a diffusion model and back: pixels, grey pixels, or the latents of an autoencoder.

Notation: B images, H side of a picture, px; C channels and h side of x0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, ValueRange, check_value_range
from diti.diffusion.files import complaints_about, read_network_of, read_settings

LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R BT.601, as PIL's mode L
PIXELS_AT_ONCE = 2**17  # in one batch of an autoencoder
AUTOENCODERS = ("AutoencoderKL", "VQModel", "AutoencoderTiny")


class Pictures(nn.Module, ABC):
    """How a model holds pictures (B,3,H,H) in [-1,1]: as x0 (B,C,h,h)."""

    bounded = True  # whether x0 stays in [-1, 1]
    channels: int  # C

    @abstractmethod
    def encode(self, pixels: Tensor) -> Tensor:
        """(B,3,H,H) -> (B,C,h,h)."""

    @abstractmethod
    def decode(self, x0: Tensor) -> Tensor:
        """(B,C,h,h) -> (B,3,H,H)."""

    def side(self, grid: int) -> int:
        """H, for an x0 of that side."""
        return grid


class Pixels(Pictures):
    """Pixels in a model's own value range; of a grey model their luminance, given back as grey RGB."""

    def __init__(self, channels: int = 3, value_range: ValueRange = MODEL_RANGE) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise InputError(f"the model has {channels} channels; pictures are RGB (3) or grey (1)")
        self.channels = channels
        low, high = check_value_range(value_range)
        self.middle, self.reach = (low + high) / 2, (high - low) / 2
        self.bounded = (low, high) == MODEL_RANGE

    def encode(self, pixels: Tensor) -> Tensor:
        """The same, or their luminance."""
        if self.channels == 1:
            weights = torch.tensor(LUMINANCE, dtype=pixels.dtype, device=pixels.device)
            pixels = (pixels * weights[:, None, None]).sum(1, keepdim=True)
        return pixels if self.bounded else pixels * self.reach + self.middle

    def decode(self, x0: Tensor) -> Tensor:
        """The same, or grey RGB."""
        pixels = x0 if self.bounded else (x0 - self.middle) / self.reach
        return pixels if self.channels == 3 else pixels.expand(-1, 3, -1, -1)


class Latents(Pictures):
    """A frozen autoencoder of diffusers; x0 are its latents, as the diffusion model scales them."""

    bounded = False
    mean: Tensor
    std: Tensor

    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.autoencoder = autoencoder
        config = autoencoder.config
        self.channels = int(config.get("vq_embed_dim") or config["latent_channels"])
        mean, std = config.get("latents_mean"), config.get("latents_std")
        if mean is None or std is None:
            mean, std = [config.get("shift_factor") or 0.0], [1.0]
        scale = config.get("scaling_factor") or 1.0
        if not {len(mean), len(std)} <= {1, self.channels}:
            said = f"latents_mean and latents_std have {len(mean)} and {len(std)} numbers"
            raise InputError(f"{said}, and latents {self.channels} channels")
        self.register_buffer("mean", torch.tensor(mean).reshape(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).reshape(1, -1, 1, 1) / scale, persistent=False)
        self.factor = 2 ** (len(config.get("block_out_channels") or config["encoder_block_out_channels"]) - 1)
        if hasattr(autoencoder, "use_tiling"):
            autoencoder.use_tiling = True  # of pictures larger than those it was trained on

    def encode(self, pixels: Tensor) -> Tensor:
        """The most likely latents of each picture: an autoencoder with a posterior draws none."""
        return (_in_turn(self._latents, pixels, pixels.shape[-1]) - self.mean) / self.std

    def decode(self, x0: Tensor) -> Tensor:
        """What the autoencoder draws from them."""
        return _in_turn(self._drawn, x0 * self.std + self.mean, self.side(x0.shape[-1]))

    def side(self, grid: int) -> int:
        """H, for latents of that side."""
        return grid * self.factor

    def _latents(self, pixels: Tensor) -> Tensor:
        found = self.autoencoder.encode(pixels.to(self.autoencoder.dtype))
        latents = found.latent_dist.mode() if hasattr(found, "latent_dist") else found.latents
        return latents.float()

    def _drawn(self, latents: Tensor) -> Tensor:
        return self.autoencoder.decode(latents.to(self.autoencoder.dtype)).sample.float()


def _in_turn(work: Callable[[Tensor], Tensor], images: Tensor, side: int) -> Tensor:
    """work(images), large ones one by one: an autoencoder needs many times the memory of its pictures."""
    together = max(1, PIXELS_AT_ONCE // side**2)
    return torch.cat([work(part) for part in images.split(together)])


def read_autoencoder(folder: Path) -> Latents:
    """The autoencoder of a pipeline, strictly."""
    name = read_settings(folder / "config.json").get("_class_name")
    if name not in AUTOENCODERS:
        raise InputError(f"{folder} holds a {name}; a backbone's autoencoder is one of {', '.join(AUTOENCODERS)}")
    with complaints_about(folder / "config.json"):
        return Latents(read_network_of(getattr(diffusers, name), folder).float())
