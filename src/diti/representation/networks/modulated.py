"""Residual blocks of a diffusers U-Net that z modulates too: t first and z second (section 4.2; AdaGN of Diff-AE).

Notation: B images, E width of the time embedding, Z width of what is told about z, C channels of a block.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.unets.unet_2d import UNet2DModel
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.core.rng import stream_seed
from diti.diffusion.backbone import Backbone
from diti.diffusion.unet import assemble_unet, check_unet_config, require_unet

STARTS = ("copy", "random")


def check_decoder(backbone: Backbone, dims: int, start: str, starts: Sequence[str] = STARTS) -> None:
    """InputError for a code or a start that no decoder has, or a backbone that none can be made from.

    With start "none" no block of the backbone is taken over, so that any backbone will do.
    """
    if not isinstance(dims, int) or dims < 1:
        raise InputError(f"the code has {dims!r} dims; a decoder needs a whole number of at least 1")
    if start not in starts:
        raise InputError(f"start is {start!r}; allowed: {', '.join(starts)}")
    if start != "none":
        backbone = require_unet(backbone)
        check_unet_config(backbone.unet.config, backbone.wrapping)


class ModulatedResnet(nn.Module):
    """A diffusers residual block with a second modulation: after norm2 and t come a scale, maybe a shift, by z.

    Takes over the block's layers under their names. Time acts as in the block ("default": added before norm2;
    "scale_shift": scale and shift after it). shifts: whether z shifts as well as scales.
    """

    def __init__(self, block: ResnetBlock2D, time_width: int, z_width: int, *, shifts: bool) -> None:
        super().__init__()
        self.norm1, self.conv1 = block.norm1, block.conv1
        self.norm2, self.conv2 = block.norm2, block.conv2
        self.time_emb_proj, self.conv_shortcut = block.time_emb_proj, block.conv_shortcut
        self.dropout, self.nonlinearity = block.dropout, block.nonlinearity
        self.resample = block.upsample or block.downsample
        self.output_scale_factor = block.output_scale_factor
        self.scales_by_time = block.time_embedding_norm == "scale_shift"
        self.widths, self.shifts = [time_width, z_width], shifts  # E, Z
        self.z_proj = nn.Linear(z_width, (1 + shifts) * block.out_channels)

    def forward(self, x: Tensor, temb: Tensor) -> Tensor:
        """(B,Ci,Hi,Wi) and (B,E+Z), what is told about t and about z side by side -> (B,C,H,W)."""
        emb_t, emb_z = temb.split(self.widths, dim=1)
        time = self.time_emb_proj(self.nonlinearity(emb_t))[:, :, None, None]  # (B,C,1,1) or (B,2C,1,1)
        by_z = self.z_proj(emb_z)[:, :, None, None]  # the same
        z_scale, shift = by_z.chunk(2, dim=1) if self.shifts else (by_z, torch.zeros_like(by_z))
        scale = 1 + z_scale
        h = self.nonlinearity(self.norm1(x))
        if self.resample is not None:
            x, h = self.resample(x), self.resample(h)
        h = self.conv1(h)
        if self.scales_by_time:
            # z over t: (1 + z_scale) ((1 + t_scale) h + t_shift) + z_shift, multiplied out on small tensors.
            t_scale, t_shift = time.chunk(2, dim=1)
            shift = torch.addcmul(shift, scale, t_shift)
            scale = scale * (1 + t_scale)
        else:
            h = h + time
        h = torch.addcmul(shift, scale, self.norm2(h))
        h = self.conv2(self.dropout(self.nonlinearity(h)))
        x = x if self.conv_shortcut is None else self.conv_shortcut(x)
        return (x + h) / self.output_scale_factor


def modulate_residual_blocks(module: nn.Module, time_width: int, z_width: int, *, shifts: bool) -> None:
    """Put a modulated block in the place of each residual block below `module`."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, ResnetBlock2D):
                parent.add_module(name, ModulatedResnet(child, time_width, z_width, shifts=shifts))


def starting_unet(backbone: Backbone, start: str, seed: int) -> UNet2DModel:
    """What a decoder is made from: a copy of the backbone's U-Net, or one of its shape with random weights."""
    backbone = require_unet(backbone)
    if start == "copy":
        return copy.deepcopy(backbone.unet)
    return assemble_unet(backbone.unet.config, backbone.wrapping, stream_seed(seed, "decoder-weights"))
