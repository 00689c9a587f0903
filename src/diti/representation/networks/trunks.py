"""What turns an image into features, before the encoder's last layer. Each is (B,3,H,W) in [-1,1] -> (B,F).

authors: the convolutions of the authors' 64 px and 128 px encoders.  residual: a small residual network for any
size.  backbone: a copy of the diffusion U-Net's down path, pooled.  blocks: named blocks of any other frozen
model, pooled, from its x0 (B,C,h,h).  given: features from elsewhere, (B,F) -> (B,F).
Notation: B images, F features, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.attention_processor import Attention
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.diffusion.kinds.watched import WatchedBackbone
from diti.diffusion.unet import Wrapping, assemble_unet
from diti.representation.networks.unet_paths import embed_time, run_down, run_levels_up

AUTHORS_WIDTHS = {64: (64, 128, 128, 128), 128: (64, 128, 256, 256, 256)}  # image side, px -> their convolutions
GRID = 4  # side of the grid that the convolutional trunks end in
MOST_FEATURES = 1024  # of a level of a backbone's down path
PIXEL_GRID = 16  # side of the grid of the pixels beside a backbone's features
FOLD = 2  # pixel-unshuffle factor of the residual trunk's input: a quarter of the positions to convolve


class AuthorsTrunk(nn.Module):
    """3x3 stride-2 convolutions with group norm and SiLU down to 4x4, and 4-head attention at 16 px."""

    def __init__(self, size: int) -> None:
        super().__init__()
        if size not in AUTHORS_WIDTHS:
            sizes = " and ".join(f"{side} px" for side in AUTHORS_WIDTHS)
            raise InputError(f"the authors' encoders are for {sizes}, got {size} px; use --encoder residual")
        widths = AUTHORS_WIDTHS[size]
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1) for before, after in pairwise((3, *widths))
        )
        self.norms = nn.ModuleList(nn.GroupNorm(32, width) for width in widths)
        self.attended = (size // 16).bit_length() - 2  # index of the convolution whose output is 16 px
        width = widths[self.attended]
        self.attention = Attention(
            width, heads=4, dim_head=width // 4, bias=True, norm_num_groups=32, residual_connection=True
        )
        self.features = GRID * GRID * widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        """(B,3,H,W) -> (B,F)."""
        for level, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = conv(x)
            if level == self.attended:
                x = self.attention(x)
            x = F.silu(norm(x))
        return x.flatten(1)


class ResidualTrunk(nn.Module):
    """One residual block per level, each at half the grid of the one before while it stays 4 or more, then 4x4."""

    def __init__(self, size: int, channels: Sequence[int]) -> None:
        super().__init__()
        if size % FOLD or size < FOLD * GRID:
            raise InputError(
                f"the image is {size} px; the residual encoder takes an even size of {FOLD * GRID} px or more"
            )
        if not channels or min(channels) < 1:
            raise InputError(f"--encoder-channels are {list(channels)}; give at least one positive width")
        grid = size // FOLD
        self.conv_in = nn.Conv2d(3 * FOLD**2, channels[0], 3, padding=1)
        self.blocks = nn.ModuleList()
        width = channels[0]
        for level, wider in enumerate(channels):
            halves = level > 0 and grid >= 2 * GRID
            self.blocks.append(ResidualBlock(width, wider, halves))
            width, grid = wider, grid // 2 if halves else grid
        self.norm_out = group_norm(width)
        self.features = GRID * GRID * width

    def forward(self, x: Tensor) -> Tensor:
        """(B,3,H,W) -> (B,F)."""
        h = self.conv_in(F.pixel_unshuffle(x, FOLD))
        for block in self.blocks:
            h = block(h)
        h = F.silu(self.norm_out(h))
        return F.adaptive_avg_pool2d(h, GRID).flatten(1)


class ResidualBlock(nn.Module):
    """x + conv(conv(x)), each convolution after group norm and SiLU; starts as the identity, or as its average."""

    def __init__(self, before: int, after: int, halves: bool) -> None:
        super().__init__()
        self.norm1, self.conv1 = group_norm(before), nn.Conv2d(before, after, 3, padding=1)
        self.norm2, self.conv2 = group_norm(after), nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.halves = halves
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(B,Ci,H,W) -> (B,C,H,W), or half that grid."""
        h = F.silu(self.norm1(x))
        if self.halves:  # before the convolutions: they then cost a quarter
            x, h = F.avg_pool2d(x, 2), F.avg_pool2d(h, 2)
        h = self.conv2(F.silu(self.norm2(self.conv1(h))))
        return self.shortcut(x) + h


def group_norm(width: int) -> nn.GroupNorm:
    """Up to 32 groups of 4 channels or more."""
    groups = max((g for g in (1, 2, 4, 8, 16, 32) if width % g == 0 and width >= 4 * g), default=1)
    return nn.GroupNorm(groups, width)


class BackboneTrunk(nn.Module):
    """A U-Net or its down path, fed the clean image as if it were x_t at each of `times`.

    Features: each level's output before its downsampling, averaged over the cells of a coarse grid, for one time
    after the other; with the `whole` U-Net then those of the middle and of each level of the up path; with
    `pixels` also the image itself on a coarse grid. `mirrored`: averaged over the image and its mirror image.
    """

    def __init__(
        self,
        unet: Mapping[str, Any],
        wrapping: Mapping[str, Any],
        times: Sequence[int],
        pixels: bool = False,
        whole: bool = False,
        mirrored: bool = False,
    ) -> None:
        super().__init__()
        self.wrapping = Wrapping(**wrapping)
        full = assemble_unet(unet, self.wrapping)
        self.time_proj, self.time_embedding = full.time_proj, full.time_embedding
        self.conv_in, self.down_blocks = full.conv_in, full.down_blocks
        if whole:
            self.mid_block, self.up_blocks = full.mid_block, full.up_blocks
        self.times, self.pixels, self.whole, self.mirrored = list(times), pixels, whole, mirrored
        side = full.config["sample_size"]
        side = side if isinstance(side, int) else side[0]
        shapes = level_shapes(full.config["block_out_channels"], side, whole)
        self.grids = [pooled_side(width, grid, whole) for width, grid in shapes]
        at_one_time = sum(width * grid**2 for (width, _), grid in zip(shapes, self.grids, strict=True))
        self.pixel_grid = min(PIXEL_GRID, side * self.wrapping.unshuffle)
        self.features = len(self.times) * at_one_time + (3 * self.pixel_grid**2 if pixels else 0)

    def forward(self, x: Tensor) -> Tensor:
        """(B,3,H,W) -> (B,F)."""
        seen = self.pooled(x, self.maps(x))
        if not self.mirrored:
            return seen
        mirror = x.flip(-1)
        return (seen + self.pooled(mirror, self.maps(mirror))) / 2

    def pooled(self, x: Tensor, maps: Sequence[Tensor]) -> Tensor:
        """(B,F) of images (B,3,H,W) and their maps."""
        grids = self.grids * len(self.times)
        parts = [F.adaptive_avg_pool2d(h, grid).flatten(1) for h, grid in zip(maps, grids, strict=True)]
        if self.pixels:
            parts.append(F.adaptive_avg_pool2d(x, self.pixel_grid).flatten(1))
        return torch.cat(parts, dim=1)

    def maps(self, x: Tensor) -> list[Tensor]:
        """(B,Ci,Hi,Wi) of each level on the way down, and where it is taken on the way up, for each time."""
        fold = self.wrapping.unshuffle
        grid = F.pixel_unshuffle(x, fold) if fold > 1 else x
        return [h for time in self.times for h in self._maps_at(grid, time)]

    def _maps_at(self, grid: Tensor, time: int) -> list[Tensor]:
        t = torch.full((len(grid),), time, dtype=torch.int64, device=grid.device)
        emb = embed_time(self, t)
        h, skips = run_down(self, grid, emb)
        down = [
            outputs[-1] if block.downsamplers is None else outputs[-2]
            for block, outputs in zip(self.down_blocks, skips[1:], strict=True)
        ]
        return [*down, *run_levels_up(self, h, skips, emb)] if self.whole else down


class BlocksTrunk(nn.Module):
    """Named blocks of a frozen diffusion model, fed the clean x0 as if it were x_t at each of `times`.

    Features: each block's output averaged over the cells of a coarse grid, one time after the other; with `pixels`
    also x0 itself. `mirrored`: averaged over x0 and its mirror image, in which an autoencoder's latents are those
    of the mirrored picture only nearly. The model belongs to the decoder: it is no part of this module, and is
    stored once.
    """

    def __init__(
        self,
        backbone: WatchedBackbone,
        blocks: Sequence[str],
        times: Sequence[int],
        features: int | None = None,
        pixels: bool = False,
        mirrored: bool = False,
    ) -> None:
        super().__init__()
        self.held = (backbone,)  # in a tuple, in which no module looks for its parts
        self.blocks, self.times, self.pixels, self.mirrored = list(blocks), list(times), pixels, mirrored
        self.features = features if features is not None else self._count()

    @property
    def backbone(self) -> WatchedBackbone:
        """The frozen model."""
        return self.held[0]

    def encode(self, pixels: Tensor) -> Tensor:
        """(B,3,H,H) -> x0 (B,C,h,h)."""
        return self.backbone.encode(pixels)

    def forward(self, x0: Tensor) -> Tensor:
        """(B,C,h,h) -> (B,F)."""
        seen = self.seen(x0)
        return (seen + self.seen(x0.flip(-1))) / 2 if self.mirrored else seen

    def seen(self, x0: Tensor) -> Tensor:
        """(B,F) of x0 as it is."""
        parts = [pooled(h) for time in self.times for h in self.backbone.maps(x0, time, self.blocks)]
        if self.pixels:
            parts.append(F.adaptive_avg_pool2d(x0, min(PIXEL_GRID, x0.shape[-1])).flatten(1))
        return torch.cat([part.to(x0.dtype) for part in parts], dim=1)

    def _count(self) -> int:
        """How many features there are."""
        channels, side, _ = self.backbone.shape
        cells = min(PIXEL_GRID, side) ** 2
        at_one_time = sum(
            width * pooled_side(width, min(rows, columns)) ** 2
            for width, rows, columns in self.backbone.map_shapes(self.blocks)
        )
        return len(self.times) * at_one_time + (channels * cells if self.pixels else 0)


def pooled(h: Tensor) -> Tensor:
    """(B,C,h,w) averaged to a grid of up to 4×4 cells and so many features -> (B,F)."""
    side = pooled_side(h.shape[1], min(h.shape[2:]))
    return F.adaptive_avg_pool2d(h, side).flatten(1)


def level_shapes(widths: Sequence[int], side: int, whole: bool) -> list[tuple[int, int]]:
    """Width and grid side of each level on the way down, and of the `whole` U-Net: the middle, each level up."""
    down = [(width, side >> level) for level, width in enumerate(widths)]
    up = [(width, side >> max(level - 1, 0)) for level, width in enumerate(widths)][::-1]  # after its upsampling
    return [*down, down[-1], *up] if whole else down


class GivenFeatures(nn.Module):
    """Features (B,F) that another network found, passed on unchanged."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features

    def forward(self, x: Tensor) -> Tensor:
        """(B,F) -> (B,F)."""
        return x


def pooled_side(width: int, side: int, whole: bool = False) -> int:
    """Side of the grid that a level is averaged to: up to 4x4, and up to 1,024 features of a level.

    4x4 cells keep where on the picture something is; the bound, twice that with the `whole` U-Net, keeps the
    principal axes of wide U-Nets cheap.
    """
    most = MOST_FEATURES * (2 if whole else 1)
    return max(grid for grid in range(1, min(GRID, side) + 1) if grid == 1 or width * grid**2 <= most)
