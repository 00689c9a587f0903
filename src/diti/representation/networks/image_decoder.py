"""Networks that draw an image from a vector in one go: decoder of a VAE, generator of a GAN.

The convolutional one mirrors the residual encoder: from a 4x4 grid up, the last step by pixel-shuffle.
Notation: B images, C channels, D length of z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.representation.networks.network_files import drawn_from
from diti.representation.networks.trunks import FOLD, GRID, group_norm

CHANNELS = (128, 128, 64, 32)  # width of each level, coarsest first


class OneStepDecoder(nn.Module):
    """(B, D) code and (B, noise_dims) noise -> (B, 3, H, W) in [-1, 1]."""

    dims: int  # D
    noise_dims: int  # 0: a code has one image
    description: dict[str, Any]  # what config.json must say to build it again


class ImageDecoder(nn.Module):
    """(B, inputs) -> (B, 3, size, size) in [-1, 1]: a grid of 4x4, doubled by residual blocks, then unfolded."""

    def __init__(self, size: int, inputs: int, channels: Sequence[int] = CHANNELS) -> None:
        super().__init__()
        doublings = (size // (FOLD * GRID)).bit_length() - 1
        if size != FOLD * GRID << max(0, doublings):
            raise InputError(f"the image is {size} px; a one-step decoder draws 8, 16, 32, 64, 128, ... px")
        if not channels or min(channels) < 1:
            raise InputError(f"the decoder's channels are {list(channels)}; give at least one positive width")
        widths = [channels[min(level, len(channels) - 1)] for level in range(doublings + 1)]
        self.size, self.inputs, self.width = size, inputs, widths[0]
        self.linear = nn.Linear(inputs, GRID * GRID * widths[0])
        before = [widths[0], *widths[:-1]]
        self.blocks = nn.ModuleList(
            UpBlock(*pair, doubles=level > 0) for level, pair in enumerate(zip(before, widths, strict=True))
        )
        self.norm_out = group_norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], 3 * FOLD**2, 3, padding=1)

    def forward(self, vector: Tensor) -> Tensor:
        """(B, inputs) -> (B, 3, size, size)."""
        h = self.linear(vector).unflatten(1, (self.width, GRID, GRID))
        for block in self.blocks:
            h = block(h)
        return F.pixel_shuffle(self.conv_out(F.silu(self.norm_out(h))), FOLD).tanh()


class UpBlock(nn.Module):
    """x + conv(conv(x)), each convolution after group norm and SiLU, on twice the grid where it doubles."""

    def __init__(self, before: int, after: int, doubles: bool) -> None:
        super().__init__()
        self.norm1, self.conv1 = group_norm(before), nn.Conv2d(before, after, 3, padding=1)
        self.norm2, self.conv2 = group_norm(after), nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.doubles = doubles

    def forward(self, x: Tensor) -> Tensor:
        """(B,Ci,H,W) -> (B,C,H,W), or twice that grid."""
        h, x = F.silu(self.norm1(x)), self.shortcut(x)
        if self.doubles:
            x, h = (F.interpolate(grid, scale_factor=2, mode="nearest") for grid in (x, h))
        return x + self.conv2(F.silu(self.norm2(self.conv1(h))))


class VAEDecoder(OneStepDecoder):
    """p(x|z): the mean of the pixels, (B, D) -> (B, 3, H, W); new weights depend on the arguments only."""

    noise_dims = 0

    def __init__(self, size: int, dims: int, channels: Sequence[int] = CHANNELS, seed: int = 0) -> None:
        super().__init__()
        self.dims = dims
        self.description = {"kind": "vae", "dims": dims, "size": size, "channels": list(channels)}
        with drawn_from(seed, "vae-decoder"):
            self.network = ImageDecoder(size, dims, channels)

    def forward(self, z: Tensor, noise: Tensor | None = None) -> Tensor:
        """(B, D) -> (B, 3, H, W) in [-1, 1]; noise (B, 0) may be left out."""
        image: Tensor = self.network(z)
        return image


def vae_decoder_from_description(description: Mapping[str, Any]) -> VAEDecoder:
    """A new decoder of that shape. Unknown and missing keys are errors."""
    wanted = {"kind", "dims", "size", "channels"}
    if description.get("kind") != "vae" or description.keys() != wanted:
        raise InputError(
            f"the description of the decoder has kind {description.get('kind')!r} and the keys "
            f"{', '.join(sorted(description))}; a tcvae model has kind 'vae' and {', '.join(sorted(wanted))}"
        )
    return VAEDecoder(description["size"], description["dims"], description["channels"])
