"""A small random U-Net of any kind of block, for the tests of the networks that are made from one."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import DDPMScheduler

from diti.config import BackboneConfig
from diti.diffusion.backbone import Backbone
from diti.diffusion.unet import UNetBackbone, Wrapping, assemble_unet, unet_config

SMALL = BackboneConfig(size=16, unshuffle=2, channels=(16, 32), layers=1, attention=(4,), head_channels=8)
RESNET_BLOCKS = {  # the up- and downsampling of ADM networks
    "down_block_types": ["ResnetDownsampleBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "ResnetUpsampleBlock2D"],
    "downsample_type": "resnet",
    "upsample_type": "resnet",
}


def randomise(module: torch.nn.Module, seed: int) -> None:
    """No layer may be zero, as they are before training: a wrong one must show."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=rng)


def backbone(prediction: str = "epsilon", config: BackboneConfig = SMALL, **unet: Any) -> Backbone:
    wrapping = Wrapping(unshuffle=config.unshuffle)
    net = assemble_unet({**unet_config(config), **unet}, wrapping, seed=1)
    randomise(net, seed=2)
    return UNetBackbone(net, DDPMScheduler(prediction_type=prediction), wrapping).eval()
