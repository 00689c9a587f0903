"""Models whose decoder is a diffusion model: an image is a code and the noise x_T, joined by a field ε(x, t)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from diti.core.device import HOST, fitted
from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE
from diti.core.runs import as_path
from diti.diffusion.backbone import Backbone, is_of_code, load_backbone
from diti.diffusion.sampler import EpsFn, OnStep, dpm_solver_2m, timesteps
from diti.diffusion.schedule import Schedule, gather, guidance_authors, w_eps
from diti.representation.models.decoding import DecodingModel, in_parts
from diti.representation.models.guidance import AS_TRAINED, Guidance
from diti.representation.models.model import (
    COMMON_PARTS,
    inference,
    read_common,
    require_dims,
    require_parts,
    require_side,
)
from diti.representation.networks.shift import ShiftDecoder, load_decoder

Map = Callable[[Tensor], Tensor]


class DiffusionModel(DecodingModel):
    """Decoding and inversion along the field ε(x, t) that a code defines."""

    decoder: nn.Module

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """The noise schedule."""

    @abstractmethod
    def guided_eps(self, z: Tensor, how: Guidance = AS_TRAINED) -> EpsFn:
        """ε(x, t) for the codes (N, D): the field that sampling and inversion follow."""

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return (3, self.size, self.size)

    def into(self, pixels: Tensor) -> Tensor:
        """Pictures (N, 3, H, W) as the diffusion model has them."""
        return pixels

    def out_of(self, x0: Tensor) -> Tensor:
        """What the diffusion model has, as pictures (N, 3, H, W)."""
        return x0

    @torch.no_grad()
    def at_best(self, pixels: Tensor) -> Tensor:
        """Of latents what their autoencoder keeps, of a grey model the luminance."""
        return self.out_of(self.into(pixels.to(self.device)))

    @property
    def bounded(self) -> bool:
        """Whether what the diffusion model has stays in [-1, 1], as pixels do."""
        return True

    def _networks(self) -> list[nn.Module]:
        return [self.decoder, *super()._networks()]

    def validate_sampling_steps(self, sampling_steps: int) -> None:
        """InputError for a number of steps that the schedule does not have."""
        timesteps(self.schedule, sampling_steps)

    def _decode(
        self,
        z: Tensor,
        noise: Tensor,
        sampling_steps: int,
        how: Guidance,
        *,
        clamp: bool,
        on_step: OnStep | None,
    ) -> Tensor:
        steps = timesteps(self.schedule, sampling_steps)
        return self._walk(z, noise, steps, how, clamp and self.bounded, on_step, after=self.out_of)

    def _infer_noise(
        self, pixels: Tensor, z: Tensor | None, sampling_steps: int, how: Guidance, *, on_step: OnStep | None
    ) -> Tensor:
        z = self.encode(pixels, value_range=MODEL_RANGE) if z is None else z
        steps = timesteps(self.schedule, sampling_steps)[::-1]
        return self._walk(z, pixels, steps, how, False, on_step, before=self.into)

    def _walk(
        self,
        z: Tensor,
        x: Tensor,
        steps: list[int],
        how: Guidance,
        clamp: bool,
        on_step: OnStep | None,
        before: Map = lambda x: x,
        after: Map = lambda x: x,
    ) -> Tensor:
        """x (N, ...) taken along the steps, down to decode and up to invert, as `before` and `after` have it."""

        def walked(codes: Tensor, start: Tensor) -> Tensor:
            eps = self.guided_eps(codes, how)
            return after(dpm_solver_2m(eps, before(start), steps, self.schedule, clamp=clamp, on_step=on_step))

        with inference(self.decoder):
            parts = in_parts(self.at_once, z.to(self.device), x.to(self.device))
            return torch.cat([fitted(walked, *part) for part in parts])


@dataclass(eq=False, repr=False, kw_only=True)
class DiTi(DiffusionModel):
    """Encoder f, decoder g over the frozen backbone, partition of z, and the statistics of z."""

    decoder: ShiftDecoder

    def with_backbone(self) -> DiTi:
        return self

    @property
    def backbone(self) -> Backbone:
        return self.decoder.backbone

    @property
    def schedule(self) -> Schedule:
        return self.backbone.schedule

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return self.backbone.shape

    @property
    def bounded(self) -> bool:
        return self.backbone.bounded

    def into(self, pixels: Tensor) -> Tensor:
        return self.backbone.encode(pixels)

    def out_of(self, x0: Tensor) -> Tensor:
        return self.backbone.decode(x0)

    def guided_eps(self, z: Tensor, how: Guidance = AS_TRAINED) -> EpsFn:
        """ε(x, t) = ε_θ - w_t g(z_t, t, x), and the decoder's linear part where it has one.

        The two weights w_t of `how` differ at the lowest t only.
        """
        table = {"trained": w_eps, "authors": guidance_authors}[how.weight](self.schedule)
        z = z.to(self.device)

        def eps(x: Tensor, t: Tensor) -> Tensor:
            if how.stop_below and int(t[0]) < how.stop_below:  # a batch shares one t
                return self.backbone.eps(x, t)
            return self.decoder(x, t, self.partition.mask(z, t) if how.masked else z).eps(gather(table, t, x))

        return eps

    def save(self, folder: str | Path) -> None:
        """Write everything that `load` needs; each part whole, model.json last."""
        folder = as_path(folder, "the folder to save in")
        self.backbone.save(folder)
        self.decoder.save(folder / "decoder")
        super().save(folder)


def load_diti(folder: Path, backbone: Backbone | None = None) -> DiTi:
    """What `DiTi.save` wrote. backbone: the one it was made with, where that is code that no folder holds."""
    network = "transformer" if (folder / "transformer").is_dir() else "unet"
    of_code = backbone is not None or is_of_code(folder)
    require_parts(folder, (*(() if of_code else (network, "scheduler")), "decoder", *COMMON_PARTS))
    given, backbone = backbone, backbone or load_backbone(folder, HOST)
    encoder, partition, mean, std, method = read_common(folder, backbone)
    if given is not None and encoder.description.get("backbone", given.digest()) != given.digest():
        raise InputError(f"{folder} was made with another diffusion model than the one given; give that one")
    decoder = load_decoder(folder / "decoder", backbone)
    require_dims(folder, "decoder", decoder.dims, partition)
    require_side(folder, backbone.size, encoder)
    if partition.timesteps != backbone.timesteps:
        raise InputError(
            f"{folder}: the partition is for T = {partition.timesteps}, the backbone has T = {backbone.timesteps}"
        )
    return DiTi(encoder, partition, mean, std, method, decoder=decoder)
