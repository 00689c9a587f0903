"""The decoder g(z, t, x_t): what the code z adds to the frozen network's prediction (section 4.2, fig. 4).

It shares the frozen U-Net's time embedding and down path, which run once, and owns a second middle and up path in
which each residual block is modulated by t first and by z second. Then eps = eps_theta - w^p_t g.
Letters: B images, D length of z, E width of the time embedding, C channels of a block.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.unets.unet_2d import UNet2DModel
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.core.rng import stream_seed
from diti.diffusion.backbone import Backbone, assemble_unet
from diti.diffusion.files import load_strictly
from diti.diffusion.schedule import eps_from_output, gather
from diti.representation.modulated import (
    ModulatedResnet,
    check_decoder,
    modulate_residual_blocks,
    zero,
    zero_block_ends,
)
from diti.representation.unet_paths import embed_time, run_down, run_up
from diti.representation.weights import drawn_from, read_network, write_network


class ShiftDecoder(nn.Module):
    """The frozen backbone and g in one module: (x_t, t, z) -> (eps_theta, g). g is 0 before training.

    start: "copy" begins with the frozen middle and up path; "random" as the authors do.
    """

    def __init__(
        self, backbone: Backbone, dims: int, start: Literal["copy", "random"] = "copy", seed: int = 0
    ) -> None:
        super().__init__()
        check_decoder(backbone, dims, start)
        self.backbone = backbone.requires_grad_(False)
        self.dims = dims
        self.path = _copied_path(backbone, dims, seed) if start == "copy" else _random_path(backbone, dims, seed)
        self.train(self.training)

    @property
    def description(self) -> dict[str, Any]:
        """What a folder must say besides the backbone to build this decoder again."""
        return {"kind": "shift", "dims": self.dims}

    def train(self, mode: bool = True) -> ShiftDecoder:
        """The backbone stays in inference mode whoever calls this."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x_t: Tensor, t: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """(B,3,H,W), (B,), (B,D) -> the frozen eps_theta and g, both (B,3,H,W). Only g carries gradients."""
        if z.ndim != 2 or z.shape[1] != self.dims:
            raise InputError(f"z has shape {tuple(z.shape)}; this decoder takes (B, {self.dims})")
        unet = self.backbone.unet
        with torch.no_grad():
            emb = embed_time(unet, t)  # (B,E)
            h, skips = run_down(unet, self.backbone.fold(x_t), emb)
            eps = self._eps(run_up(unet, h, skips, emb), x_t, t)
        return eps, self.backbone.unfold(self.path(h, skips, emb, z))

    @torch.no_grad()
    def eps_frozen(self, x_t: Tensor, t: Tensor) -> Tensor:
        """(B,3,H,W) eps_theta alone."""
        return self.backbone.eps(x_t, t)

    def _eps(self, output: Tensor, x_t: Tensor, t: Tensor) -> Tensor:
        """The noise that the frozen U-Net's output grid stands for."""
        abar_t = gather(self.backbone.schedule.alpha_bar, t, x_t)
        return eps_from_output(self.backbone.unfold(output), x_t, abar_t, self.backbone.prediction_type)

    def decoder_state(self) -> dict[str, Tensor]:
        """Weights of g alone; the frozen backbone is saved apart."""
        return self.path.state_dict()

    def load_decoder_state(self, state: Mapping[str, Tensor], source: str) -> None:
        """Fill g from `decoder_state()`, strictly."""
        load_strictly(self.path, state, source)

    def save(self, folder: str | Path) -> None:
        """Write g: config.json and weights, without the backbone."""
        write_network(folder, self.description, self.decoder_state())


def load_decoder(folder: str | Path, backbone: Backbone) -> ShiftDecoder:
    """The decoder that `ShiftDecoder.save` wrote, over its backbone."""
    description, state = read_network(folder)
    if description.keys() != {"kind", "dims"} or description["kind"] != "shift":
        raise InputError(f"{folder} describes {description}; a decoder has kind 'shift' and dims")
    decoder = ShiftDecoder(backbone, description["dims"])
    decoder.load_decoder_state(state, str(folder))
    return decoder.eval()


# ---- The decoder's own half of the U-Net ------------------------------------------------------------------


class ShiftPath(nn.Module):
    """Middle and up path of g, under the names of the UNet2DModel that it was taken from; its output is zero."""

    def __init__(self, unet: UNet2DModel, dims: int) -> None:
        super().__init__()
        width = unet.time_embedding.linear_2.out_features  # E
        self.embed_z = nn.Linear(dims, width)
        self.mid_block = unet.mid_block
        self.up_blocks = unet.up_blocks
        self.conv_norm_out = unet.conv_norm_out
        self.conv_act = unet.conv_act
        # Where the network learns sigma its own last layer is twice as wide; g has no sigma.
        self.conv_out = nn.Conv2d(unet.conv_out.in_channels, unet.config["in_channels"], 3, padding=1)
        zero(self.conv_out)
        modulate_residual_blocks(self, lambda block: ShiftResnet(block, width))

    def forward(self, h: Tensor, skips: list[tuple[Tensor, ...]], emb: Tensor, z: Tensor) -> Tensor:
        """Frozen features, (B,E), (B,D) -> output grid (B,C,H,W)."""
        both = torch.cat([emb, F.silu(self.embed_z(z))], dim=1)  # (B,2E), the place of the time embedding
        # torch 2.13 crashes in the backward pass of a trainable group norm over a channels_last input that needs
        # no gradient, which the frozen features can be. Further on, everything needs a gradient.
        return run_up(self, h.contiguous(), skips, both)


class ShiftResnet(ModulatedResnet):
    """A residual block that z scales and shifts.

    z acts from the start: were its weights zero as well as the last convolution of g, neither would have a
    gradient to begin with.
    """

    def __init__(self, block: ResnetBlock2D, width: int) -> None:
        super().__init__(block, width, width, shifts=True)


def _copied_path(backbone: Backbone, dims: int, seed: int) -> ShiftPath:
    """The frozen middle and up path, free to be trained."""
    with drawn_from(seed, "decoder-weights"):
        path = ShiftPath(copy.deepcopy(backbone.unet), dims)
    return path.to(backbone.unet.device, backbone.unet.dtype).requires_grad_(True)


def _random_path(backbone: Backbone, dims: int, seed: int) -> ShiftPath:
    """As the authors start: random weights, but the last layer of every residual and attention block is zero."""
    unet = assemble_unet(backbone.unet.config, backbone.wrapping, stream_seed(seed, "decoder-weights"))
    with drawn_from(seed, "decoder-weights"):
        path = ShiftPath(unet, dims)
        zero_block_ends(path)
    return path.to(backbone.unet.device, backbone.unet.dtype)
