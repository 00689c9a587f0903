"""The decoder of a diffusion autoencoder: a whole U-Net ε_θ(x_t, t, z).

Preechakul et al., "Diffusion Autoencoders", CVPR 2022: in every residual block of the down, middle and up path
AdaGN(h, t, z) = z_s (t_s GroupNorm(h) + t_b), where z_s is 1 plus a linear layer of SiLU(z).
Notation: B images, D length of z, E width of the time embedding.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from diffusers.models.unets.unet_2d import UNet2DModel
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.core.runs import atomic_path
from diti.diffusion.backbone import Backbone
from diti.diffusion.files import SCHEDULER_FILE, complaints_about, load_strictly, read_scheduler
from diti.diffusion.schedule import Schedule, eps_from_output, gather
from diti.diffusion.unet import UNetBackbone, Wrapping, assemble_unet, require_unet, zero, zero_block_ends
from diti.representation.networks.modulated import (
    ModulatedResnet,
    check_decoder,
    modulate_residual_blocks,
    starting_unet,
)
from diti.representation.networks.network_files import drawn_from, read_network, write_network
from diti.representation.networks.unet_paths import embed_time, run_down, run_up


class ConditionedUNet(nn.Module):
    """ε_θ(x_t, t, z) of the shape of a backbone, whose own weights are left alone.

    start: "copy" begins as the backbone, whatever z; "random" as Diff-AE does.
    """

    def __init__(
        self, backbone: Backbone, dims: int, start: Literal["copy", "random"] = "copy", seed: int = 0
    ) -> None:
        super().__init__()
        check_decoder(backbone, dims, start)
        backbone = require_unet(backbone)
        # A backbone again, for its folding, schedule and prediction type; only its forward pass knows no z.
        self.net = UNetBackbone(_conditioned(backbone, dims, start, seed), backbone.scheduler, backbone.wrapping)
        self.dims = dims
        self.to(backbone.unet.device, backbone.unet.dtype).requires_grad_(True).train()

    @property
    def schedule(self) -> Schedule:
        return self.net.schedule

    @property
    def timesteps(self) -> int:
        """T."""
        return self.net.timesteps

    @property
    def prediction_type(self) -> str:
        """What `forward` gives: epsilon, sample (x0) or v_prediction."""
        return self.net.prediction_type

    @property
    def description(self) -> dict[str, Any]:
        """What a folder must say, besides the scheduler, to build this network again."""
        config = {key: value for key, value in self.net.unet.config.items() if not key.startswith("_")}
        return {"kind": "conditioned", "dims": self.dims, "unet": config, "wrapping": asdict(self.net.wrapping)}

    def forward(self, x_t: Tensor, t: Tensor, z: Tensor) -> Tensor:
        """(B,3,H,W), (B,), (B,D) -> (B,3,H,W): what the network predicts, by `prediction_type`."""
        if z.ndim != 2 or z.shape[1] != self.dims:
            raise InputError(f"z has shape {tuple(z.shape)}; this decoder takes (B, {self.dims})")
        unet = self.net.unet
        both = torch.cat([embed_time(unet, t), F.silu(z)], dim=1)  # (B,E+D), the place of the time embedding
        h, skips = run_down(unet, self.net.fold(x_t), both)
        return self.net.unfold(run_up(unet, h, skips, both))

    def eps(self, x_t: Tensor, t: Tensor, z: Tensor) -> Tensor:
        """(B,3,H,W) the noise that the network sees in x_t, knowing z."""
        abar_t = gather(self.schedule.alpha_bar, t, x_t)
        return eps_from_output(self(x_t, t, z), x_t, abar_t, self.prediction_type)

    def save(self, folder: str | Path) -> None:
        """Write decoder/ and scheduler/ into a model folder, each whole."""
        folder = Path(folder)
        write_network(folder / "decoder", self.description, self.net.unet.state_dict())
        with atomic_path(folder / "scheduler") as temporary:
            self.net.scheduler.save_pretrained(temporary)


def load_conditioned(folder: str | Path) -> ConditionedUNet:
    """The network that `ConditionedUNet.save` wrote, strictly every weight."""
    folder = Path(folder)
    description, state = read_network(folder / "decoder")
    if description.keys() != {"kind", "dims", "unet", "wrapping"} or description["kind"] != "conditioned":
        raise InputError(
            f"{folder / 'decoder'} describes {', '.join(description)} of kind {description.get('kind')!r}; "
            "this decoder has kind 'conditioned', dims, unet and wrapping"
        )
    if not (folder / "scheduler" / SCHEDULER_FILE).is_file():
        raise InputError(f"{folder / 'scheduler' / SCHEDULER_FILE} is missing; copy the whole model folder")
    scheduler = read_scheduler(folder, folder / "decoder")
    with complaints_about(folder / "decoder" / "config.json"):
        wrapping = Wrapping(**description["wrapping"])
        shape = UNetBackbone(assemble_unet(description["unet"], wrapping), scheduler, wrapping)
        network = ConditionedUNet(shape, description["dims"])
    load_strictly(network.net.unet, state, str(folder / "decoder"))
    return network.eval()


def _conditioned(backbone: Backbone, dims: int, start: str, seed: int) -> UNet2DModel:
    """A U-Net with z in each of its residual blocks; z scales and does not shift, and comes as SiLU(z).

    "copy": every scale by z is 1; their layers have a gradient from the first step on. "random", as Diff-AE
    starts: random weights, but the end of each block and of the network is zero.
    """
    unet = starting_unet(backbone, start, seed)
    with drawn_from(seed, "decoder-weights"):
        modulate_residual_blocks(unet, unet.time_embedding.linear_2.out_features, dims, shifts=False)
    if start == "random":
        zero_block_ends(unet)
        zero(unet.conv_out)
        return unet
    for module in unet.modules():
        if isinstance(module, ModulatedResnet):
            zero(module.z_proj)
    return unet
