"""Kinds of U-Net that a decoder is made from, one that none can be made from, and what a decoder is given."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import DDPMScheduler
from diffusers.models.unets.unet_2d import UNet2DModel
from small_unet import RESNET_BLOCKS
from torch import Tensor

from diti.diffusion.backbone import Backbone
from diti.diffusion.unet import UNetBackbone

KINDS: dict[str, dict[str, Any]] = {
    "scale and shift": {},
    "time added": {"resnet_time_scale_shift": "default"},
    "resampling blocks": RESNET_BLOCKS,
    "resampling blocks, time added": {**RESNET_BLOCKS, "resnet_time_scale_shift": "default"},
    "blocks scaled down": {"mid_block_scale_factor": 2.0},
}


def batch(size: int = 16, dims: int = 6, count: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(count, 3, size, size, generator=rng)
    return x, torch.tensor([0, 400, 999])[:count], torch.randn(count, dims, generator=rng)


def with_skip_blocks() -> Backbone:
    """Any decoder but one without g refuses its blocks."""
    down, up = ("SkipDownBlock2D",) * 2, ("SkipUpBlock2D",) * 2
    unet = UNet2DModel(16, 3, 3, block_out_channels=(32, 32), down_block_types=down, up_block_types=up)
    return UNetBackbone(unet, DDPMScheduler())
