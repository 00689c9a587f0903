"""What turns an image into features, before the encoder's last layer. Each is (B,3,H,W) in [-1,1] -> (B,F).

authors: the convolutions of the authors' 64 px and 128 px encoders.  residual: a small residual network for any
size.  backbone: the diffusion U-Net's own down path, pooled.  Letters: B images, F features, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.attention_processor import Attention
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.diffusion.backbone import Wrapping, assemble_unet
from diti.representation.unet_paths import embed_time, run_down

AUTHORS_WIDTHS = {64: (64, 128, 128, 128), 128: (64, 128, 256, 256, 256)}  # image side, px -> their convolutions
GRID = 4  # side of the grid that the convolutional trunks end in
FOLD = 2  # pixel-unshuffle factor of the residual trunk's input: a quarter of the positions to convolve


class AuthorsTrunk(nn.Module):
    """3x3 stride-2 convolutions with group norm and SiLU down to 4x4, and 4-head attention at 16 px."""

    def __init__(self, size: int) -> None:
        super().__init__()
        if size not in AUTHORS_WIDTHS:
            sizes = " and ".join(f"{side} px" for side in AUTHORS_WIDTHS)
            raise InputError(f"the authors' encoders are for {sizes}, got {size} px; use encoder 'residual'")
        widths = AUTHORS_WIDTHS[size]
        self.convs = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1)
            for before, after in zip((3, *widths), widths, strict=False)
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
            raise InputError(f"encoder_channels are {list(channels)}; give at least one positive width")
        grid = size // FOLD
        self.conv_in = nn.Conv2d(3 * FOLD**2, channels[0], 3, padding=1)
        self.blocks = nn.ModuleList()
        width = channels[0]
        for level, wider in enumerate(channels):
            halves = level > 0 and grid >= 2 * GRID
            self.blocks.append(ResidualBlock(width, wider, halves))
            width, grid = wider, grid // 2 if halves else grid
        self.norm_out = _group_norm(width)
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
        self.norm1, self.conv1 = _group_norm(before), nn.Conv2d(before, after, 3, padding=1)
        self.norm2, self.conv2 = _group_norm(after), nn.Conv2d(after, after, 3, padding=1)
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


def _group_norm(width: int) -> nn.GroupNorm:
    """Up to 32 groups of 4 channels or more."""
    groups = max((g for g in (1, 2, 4, 8, 16, 32) if width % g == 0 and width >= 4 * g), default=1)
    return nn.GroupNorm(groups, width)


class BackboneTrunk(nn.Module):
    """Time embedding, down path and middle block of a U-Net, fed the clean image as if it were x_t at `time`.

    Features: of each level's output and of the middle's, the mean of each quarter of the grid and the standard
    deviation over the whole.
    """

    def __init__(self, unet: Mapping[str, Any], wrapping: Mapping[str, Any], time: int) -> None:
        super().__init__()
        self.wrapping = Wrapping(**wrapping)
        whole = assemble_unet(unet, self.wrapping)
        self.time_proj, self.time_embedding = whole.time_proj, whole.time_embedding
        self.conv_in, self.down_blocks, self.mid_block = whole.conv_in, whole.down_blocks, whole.mid_block
        self.time = time
        widths = list(whole.config["block_out_channels"])
        side = whole.config["sample_size"]
        sides = [(side if isinstance(side, int) else side[0]) >> level for level in range(len(widths))]
        maps = zip([*widths, widths[-1]], [*sides, sides[-1]], strict=True)
        self.features = sum(width * (min(2, side) ** 2 + 1) for width, side in maps)

    def forward(self, x: Tensor) -> Tensor:
        """(B,3,H,W) -> (B,F)."""
        return torch.cat([pool(h) for h in self.maps(x)], dim=1)

    def maps(self, x: Tensor) -> list[Tensor]:
        """(B,Ci,Hi,Wi) of each level before its downsampling, finest first, and of the middle block."""
        t = torch.full((len(x),), self.time, dtype=torch.int64, device=x.device)
        emb = embed_time(self, t)
        fold = self.wrapping.unshuffle
        h, skips = run_down(self, F.pixel_unshuffle(x, fold) if fold > 1 else x, emb)
        levels = [
            outputs[-1] if block.downsamplers is None else outputs[-2]
            for block, outputs in zip(self.down_blocks, skips[1:], strict=True)
        ]
        return [*levels, self.mid_block(h, emb)]


def pool(h: Tensor) -> Tensor:
    """(B,C,H,W) -> (B,5C): the mean of each quarter of the grid, and the standard deviation over the grid."""
    quarters = F.adaptive_avg_pool2d(h, min(2, h.shape[-1])).flatten(1)
    # Not std(): its gradient is infinite where a map is constant.
    spread = (h.var(dim=(2, 3), correction=0) + 1e-6).sqrt()
    return torch.cat([quarters, spread], dim=1)
