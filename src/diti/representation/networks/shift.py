"""The decoder (z, t, x_t): what the code z adds to the frozen network's prediction (section 4.2, fig. 4).

Two parts, alone or together. g shares the frozen U-Net's time embedding and down path, which run once, and owns a
second middle and up path in which each residual block is modulated by t first and by z second. The linear part is
found in closed form. Then eps = eps_theta - sqrt(SNR_t) linear - w^p_t g.
Notation: B images, D length of z, E width of the time embedding, C channels of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from diffusers.models.unets.unet_2d import UNet2DModel
from torch import Tensor, nn

from diti.core.device import fitted
from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone
from diti.diffusion.files import complaints_about, load_strictly
from diti.diffusion.schedule import (
    gather,
    lambda_eps,
    q_sample,
    reconstruction_loss_eps,
    root_snr,
    w_eps,
)
from diti.diffusion.unet import require_unet, zero, zero_block_ends
from diti.representation.networks.linear import LinearPart
from diti.representation.networks.modulated import STARTS, check_decoder, modulate_residual_blocks, starting_unet
from diti.representation.networks.network_files import drawn_from, read_network, write_network
from diti.representation.networks.unet_paths import embed_time, run_down, run_up

Start = Literal["copy", "random", "none"]
DESCRIBED = {  # kind of decoder -> what its config.json says
    "shift": {"kind", "dims"},
    "linear": {"kind", "dims", "pixel_axes", "stretches", "path"},
}


class Features(NamedTuple):
    """What g takes from the frozen U-Net."""

    h: Tensor  # into the middle block
    skips: list[tuple[Tensor, ...]]
    emb: Tensor  # (B,E) of t


class Frozen(NamedTuple):
    """What the frozen network says of x_t, whatever z: run once, good for many z."""

    eps: Tensor  # (B,3,H,W) eps_theta
    u: Tensor  # (B,3,H,W) u_theta, from the same output
    features: Features | None  # None where the decoder has no g


class Prediction(NamedTuple):
    """The parts of the noise prediction, each (B,3,H,W). Without linear and g: the frozen model alone."""

    eps_theta: Tensor
    linear: Tensor | None = None  # sqrt(SNR_t) times the linear part; not in w_t g: w_t is 0 at the first step
    g: Tensor | None = None

    def eps(self, w_t: Tensor) -> Tensor:
        """(B,3,H,W) eps = eps_theta - linear - w^p_t g. Eq. A4."""
        return self.without_g if self.g is None else self.without_g - w_t * self.g

    @property
    def without_g(self) -> Tensor:
        """(B,3,H,W) what g improves: it takes the place of eps_theta in eq. A4."""
        return self.eps_theta if self.linear is None else self.eps_theta - self.linear


def weighted_loss(noise: Tensor, prediction: Prediction, w_t: Tensor, lam_t: Tensor) -> Tensor:
    """(B,) eq. A4 of a prediction, whichever parts it has."""
    base = prediction.without_g
    g = torch.zeros_like(base) if prediction.g is None else prediction.g
    return reconstruction_loss_eps(noise, base, g, w_t, lam_t)


class ShiftDecoder(nn.Module):
    """The frozen backbone, g and the linear part in one module: (x_t, t, z) -> Prediction.

    start: "copy" begins g with the frozen middle and up path, "random" as the authors do; both are 0 before
    training. "none": no g, only the linear part, at the cost of the frozen model.
    """

    def __init__(
        self, backbone: Backbone, dims: int, start: Start = "copy", seed: int = 0, linear: LinearPart | None = None
    ) -> None:
        super().__init__()
        check_decoder(backbone, dims, start, (*STARTS, "none"))
        _check_linear(backbone, dims, start, linear)
        self.backbone = backbone.requires_grad_(False)
        self.dims = dims
        self.linear = None if linear is None else linear.to(backbone.device)
        self.path = _new_path(backbone, dims, start, seed)
        self.train(self.training)

    @property
    def description(self) -> dict[str, Any]:
        """What a folder must say besides the backbone to build this decoder again."""
        if self.linear is None:
            return {"kind": "shift", "dims": self.dims}
        has_path = self.path is not None
        return {"kind": "linear", "dims": self.dims, **self.linear.description, "path": has_path}

    def train(self, mode: bool = True) -> ShiftDecoder:
        """The backbone stays in inference mode whoever calls this."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x_t: Tensor, t: Tensor, z: Tensor) -> Prediction:
        """(B,3,H,W), (B,), (B,D) masked z -> eps_theta, linear part and g. eps_theta carries no gradients."""
        return self.respond(self.frozen(x_t, t), t, z)

    @torch.no_grad()
    def frozen(self, x_t: Tensor, t: Tensor) -> Frozen:
        """(B,3,H,W), (B,) -> all that does not depend on z."""
        backbone, features = self.backbone, None
        if self.path is None:
            output = backbone(x_t, t)
        else:
            backbone = require_unet(backbone)
            emb = embed_time(backbone.unet, t)
            features = Features(*run_down(backbone.unet, backbone.fold(x_t), emb), emb)
            output = backbone.unfold(run_up(backbone.unet, *features))
        return Frozen(*backbone.read(output, x_t, t), features)

    def respond(self, frozen: Frozen, t: Tensor, z: Tensor) -> Prediction:
        """What z (B,D) adds to what the frozen network said at the same t (B,)."""
        if z.ndim != 2 or z.shape[1] != self.dims:
            raise InputError(f"z has shape {tuple(z.shape)}; this decoder takes (B, {self.dims})")
        linear = g = None
        if self.linear is not None:
            # By sqrt(SNR_t) a change of x0 becomes one of eps. Eq. A3.
            linear = gather(root_snr(self.backbone.schedule), t, frozen.u) * self.linear(frozen.u, t, z)
        if self.path is not None and frozen.features is not None:
            g = require_unet(self.backbone).unfold(self.path(*frozen.features, z))
        return Prediction(frozen.eps, linear, g)

    @property
    def own(self) -> nn.Module:
        """All but the frozen backbone, which is saved apart: the bare path, or `linear` with maybe `path`."""
        parts = {"linear": self.linear, "path": self.path}
        given = {name: part for name, part in parts.items() if part is not None}
        return given["path"] if self.linear is None else nn.ModuleDict(given)

    def decoder_state(self) -> dict[str, Tensor]:
        """Weights of the decoder's own parts."""
        return self.own.state_dict()

    def load_decoder_state(self, state: Mapping[str, Tensor], source: str) -> None:
        """Fill the decoder's own parts from `decoder_state()`, strictly."""
        load_strictly(self.own, state, source)

    def save(self, folder: str | Path) -> None:
        """Write the decoder's own parts: config.json and weights, without the backbone."""
        write_network(folder, self.description, self.decoder_state())


def losses_with(decoder: ShiftDecoder, x0: Tensor, t: Tensor, noise: Tensor, codes: Iterable[Tensor]) -> Tensor:
    """(1 + L, B): eq. 6 of the frozen model alone, then with each of L codes (B, D), which are masked already.

    x0 (B,C,h,h): images as the frozen model has them.
    """

    def losses(x0: Tensor, t: Tensor, noise: Tensor, *codes: Tensor) -> Tensor:
        schedule = decoder.backbone.schedule
        w_t, lam_t = gather(w_eps(schedule), t, x0), gather(lambda_eps(schedule), t, x0)
        frozen = decoder.frozen(q_sample(x0, noise, gather(schedule.alpha_bar, t, x0)), t)
        given = (decoder.respond(frozen, t, code) for code in codes)
        found = [weighted_loss(noise, one, w_t, lam_t) for one in chain([Prediction(frozen.eps)], given)]
        return torch.stack(found, dim=1)

    return fitted(losses, x0, t, noise, *codes).T


def load_decoder(folder: str | Path, backbone: Backbone) -> ShiftDecoder:
    """The decoder that `ShiftDecoder.save` wrote, over its backbone."""
    description, state = read_network(folder)
    if description.keys() != DESCRIBED.get(str(description.get("kind"))):
        raise InputError(
            f"{folder} describes {description}; a decoder has kind 'shift' and dims, or kind 'linear', dims, "
            "pixel_axes, stretches and path"
        )
    with complaints_about(Path(folder) / "config.json"):
        dims, linear = description["dims"], None
        start: Start = "copy"
        if description["kind"] == "linear":
            linear = LinearPart(
                backbone.shape[1], description["pixel_axes"], dims, description["stretches"], backbone.shape[0]
            )
            start = "copy" if description["path"] else "none"
        decoder = ShiftDecoder(backbone, dims, start, linear=linear)
    decoder.load_decoder_state(state, str(folder))
    return decoder.eval()


def _check_linear(backbone: Backbone, dims: int, start: str, linear: LinearPart | None) -> None:
    """InputError for a decoder without any part, or a linear part that was made for other codes or images."""
    if linear is None and start == "none":
        raise InputError(
            "start is 'none', which leaves a decoder without parts; give a linear part, or start 'copy'"
        )
    if linear is None:
        return
    axes, shape = linear.axes, backbone.shape
    if (linear.dims, axes.channels, axes.size) != (dims, *shape[:2]):
        raise InputError(
            f"the linear part is for {linear.dims} dims and {axes.channels} channels of {axes.size} px, the "
            f"decoder for {dims} dims and {shape[0]} of {shape[1]} px; solve it again with this backbone"
        )


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
        # z acts from the start: were its weights zero as well as conv_out's, neither would have a gradient.
        modulate_residual_blocks(self, width, width, shifts=True)

    def forward(self, h: Tensor, skips: list[tuple[Tensor, ...]], emb: Tensor, z: Tensor) -> Tensor:
        """Frozen features, (B,E), (B,D) -> output grid (B,C,H,W)."""
        both = torch.cat([emb, F.silu(self.embed_z(z))], dim=1)  # (B,2E), the place of the time embedding
        # torch 2.13 crashes in the backward pass of a trainable group norm over a channels_last input that needs
        # no gradient, which the frozen features can be. Further on, everything needs a gradient.
        return run_up(self, h.contiguous(), skips, both)


def _new_path(backbone: Backbone, dims: int, start: str, seed: int) -> ShiftPath | None:
    """g before training: "copy" is the frozen middle and up path, free to be trained.

    "random", as the authors start: random, but the last layer of every residual and attention block is zero.
    """
    if start == "none":
        return None
    unet = starting_unet(backbone, start, seed)
    with drawn_from(seed, "decoder-weights"):
        path = ShiftPath(unet, dims)
    if start == "random":
        zero_block_ends(path)
    return path.to(backbone.device, unet.dtype).requires_grad_(True)
