"""The two networks of IB-GAN beside the encoder: a generator with a bottleneck, and its discriminator.

Notation: B images, C channels, D length of z, R length of r, which lies between z and the image, L views.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.parametrizations import spectral_norm

from diti.core.errors import InputError
from diti.representation.networks.encoder import Encoder
from diti.representation.networks.image_decoder import ImageDecoder, OneStepDecoder
from diti.representation.networks.network_files import drawn_from
from diti.representation.networks.trunks import FOLD, GRID, BackboneTrunk

KIND = "ibgan"
SETTINGS = ("kind", "size", "dims", "bottleneck", "channels")
HIDDEN = 256  # width of the layer between z and the moments of r
START_LOG_STD = -1.0  # of r: little noise at first, so that z is seen in the image from the start
SLOPE = 0.2  # of the discriminator's leaky ReLU
GROUP = 8  # images whose spread the discriminator sees


class Generator(OneStepDecoder):
    """z (B, D) and noise (B, R) -> image (B, 3, H, W): r ~ e(r | z) = N(μ(z), diag σ(z)²), then x = G(r)."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__()
        self.description = json.loads(json.dumps(description))  # as the file will hold it
        self.dims, self.noise_dims = int(description["dims"]), int(description["bottleneck"])
        self.bottleneck = Bottleneck(self.dims, self.noise_dims)
        self.image = ImageDecoder(int(description["size"]), self.noise_dims, description["channels"])
        start_even(self.image.conv_out)

    def forward(self, z: Tensor, noise: Tensor) -> Tensor:
        """(B, D), (B, R) -> (B, 3, H, W)."""
        mean, log_std = self.bottleneck(z)
        return self.draw(mean, log_std, noise)

    def draw(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """G(μ + σ ε) for moments and noise (B, R)."""
        return self.image(mean + log_std.exp() * noise)


class Bottleneck(nn.Module):
    """z (B, D) -> mean and log standard deviation of r, both (B, R): a linear map plus one hidden layer."""

    def __init__(self, dims: int, bottleneck: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dims, bottleneck)
        self.hidden = nn.Sequential(nn.Linear(dims, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 2 * bottleneck))
        nn.init.orthogonal_(self.linear.weight)  # z of unit variance gives r of about unit variance
        nn.init.zeros_(self.linear.bias)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """(B, D) -> (B, R), (B, R)."""
        mean, log_std = self.hidden(z).chunk(2, dim=1)
        return self.linear(z) + mean, START_LOG_STD + log_std


@torch.no_grad()
def start_even(conv_out: nn.Conv2d) -> None:
    """The pixels that one position unfolds to start alike; else the generator would first have to learn that."""
    weight = conv_out.weight.unflatten(0, (-1, FOLD**2))
    weight.copy_(weight[:, :1].expand_as(weight))
    nn.init.zeros_(conv_out.bias)  # type: ignore[arg-type]


class Discriminator(nn.Module):
    """L views (B, Ci, Hi, Wi) of images -> (B, L) scores, high for images that each view takes for real."""

    def __init__(self, shapes: Sequence[Sequence[int]], width: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(Branch(channels, side, width) for channels, side in shapes)

    def forward(self, views: Sequence[Tensor]) -> Tensor:
        """L of (B, Ci, Hi, Wi) -> (B, L)."""
        return torch.stack([branch(view) for branch, view in zip(self.branches, views, strict=True)], dim=1)

    @torch.no_grad()
    def fit(self, views: Sequence[Tensor]) -> None:
        """Measure the channels of views of real images, so that all weigh alike at the start."""
        for branch, view in zip(self.branches, views, strict=True):
            assert isinstance(branch, Branch)
            std, mean = torch.std_mean(view, (0, 2, 3))
            branch.mean.copy_(mean[:, None, None])
            branch.std.copy_(std.clamp(min=1e-3)[:, None, None])


class Branch(nn.Module):
    """(B, C, H, W) -> (B,): convolutions of spectral norm 1 down to 4×4, and one linear layer.

    There is no norm layer. The last layer also sees how much each feature varies in groups of consecutive images:
    a generator that always draws the same is found out at once.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int, side: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("std", torch.ones(channels, 1, 1))
        halvings = max(0, (side // GRID).bit_length() - 1)
        widths = [channels] + [width] * (halvings + 1)
        self.convs = nn.ModuleList(spectral_norm(nn.Conv2d(before, width, 3, padding=1)) for before in widths[:-1])
        self.score = nn.Linear(2 * width * (side >> halvings) ** 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B,)."""
        h = (x - self.mean) / self.std
        for level, conv in enumerate(self.convs):
            h = F.leaky_relu(conv(F.avg_pool2d(h, 2) if level else h), SLOPE)
        return self.score(torch.cat([h, group_spread(h)], dim=1).flatten(1)).squeeze(1)


def group_spread(h: Tensor) -> Tensor:
    """(B, C, H, W) -> the same shape: standard deviation over each image's group of consecutive images.

    Groups have 8 images, or as many as divide both that and the batch; processes that share a batch compute the
    same as one where each has a multiple of 8.
    """
    groups = h.unflatten(0, (-1, math.gcd(len(h), GROUP)))
    variance = groups.var(1, correction=0, keepdim=True)
    return (variance + 1e-6).sqrt().expand_as(groups).flatten(0, 1)


def score_as_given(discriminator: nn.Module, views: Sequence[Tensor]) -> Tensor:
    """(B, L) scores whose gradient reaches the views, but not the discriminator's weights."""
    fixed = {name: weight.detach() for name, weight in discriminator.named_parameters()}
    return torch.as_tensor(functional_call(discriminator, fixed, (views,)))


def look(encoder: Encoder, images: Tensor) -> tuple[list[Tensor], Tensor]:
    """What the discriminator sees of images (B, 3, H, W), and their codes (B, D) as the encoder reads them.

    A frozen trunk of the diffusion model is what the discriminator looks through, a map per level (projected GAN,
    Sauer et al. 2021); else it sees the pixels. The gradient reaches the images also through a frozen trunk.
    """
    trunk = encoder.trunk
    if encoder.frozen and isinstance(trunk, BackboneTrunk):
        views = trunk.maps(images)
        features = trunk.pooled(images, views)
    else:
        views, features = [F.pixel_unshuffle(images, FOLD)], trunk(images)
    return views, encoder.code(features)


def new_discriminator(encoder: Encoder, images: Tensor, width: int, seed: int) -> Discriminator:
    """A discriminator before the first step, for what it sees of some training images (B, 3, H, W)."""
    with torch.no_grad():
        views, _ = look(encoder, images)
    with drawn_from(seed, "discriminator-weights"):
        discriminator = Discriminator([view.shape[1:3] for view in views], width)
    discriminator.fit(views)
    return discriminator


def generator_from_description(description: Mapping[str, Any], seed: int = 0) -> Generator:
    """A new generator; its weights depend on the arguments only. Unknown and missing keys are errors."""
    if description.get("kind") != KIND or description.keys() != set(SETTINGS):
        raise InputError(
            f"the description of the decoder is {dict(description)}; that of {KIND} has {', '.join(SETTINGS)}"
        )
    with drawn_from(seed, "generator-weights"):
        return Generator(description)
