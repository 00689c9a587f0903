"""Models whose decoder draws an image in one go, from a code and, where it takes some, a vector of noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from diti.core.device import fitted
from diti.core.rng import torch_generator
from diti.core.runs import as_path
from diti.diffusion.files import complaints_about, load_strictly
from diti.diffusion.sampler import OnStep
from diti.representation.models.decoding import DecodingModel, in_parts
from diti.representation.models.guidance import Guidance
from diti.representation.models.model import (
    COMMON_PARTS,
    inference,
    read_common,
    require_dims,
    require_parts,
    require_side,
)
from diti.representation.networks.image_decoder import OneStepDecoder
from diti.representation.networks.network_files import read_network, write_network


@dataclass(frozen=True)
class Prior:
    """The standard normal that these methods bring their codes to."""

    dims: int

    def sample(self, count: int, seed: int) -> Tensor:
        """(count, D); the first of a larger count are those of a smaller one."""
        drawn = (torch_generator(seed, "prior", index) for index in range(count))
        return torch.stack([torch.randn(self.dims, generator=generator) for generator in drawn])


@dataclass(eq=False, repr=False, kw_only=True)
class DirectModel(DecodingModel):
    """Encoder, one-step decoder, and the statistics of z, whose prior is the standard normal.

    `sampling_steps`, `clamp` and `masked` mean nothing to a decoder without time-steps: any value gives the same.
    """

    decoder: OneStepDecoder

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return (self.decoder.noise_dims,)

    def _networks(self) -> list[nn.Module]:
        return [self.decoder, *super()._networks()]

    def validate_sampling_steps(self, sampling_steps: int) -> None:
        """Any number of steps will do: there is one."""

    def steps_of(self, count: int, sampling_steps: int) -> int:
        """Once for each batch."""
        return super().steps_of(count, sampling_steps=1)

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
        how.check_without_frozen_model(self.method)
        images = []
        with inference(self.decoder):
            for part in in_parts(self.at_once, z.to(self.device), noise.to(self.device)):
                images.append(fitted(self.decoder, *part))
                if on_step is not None:
                    on_step(len(images) - 1, self.steps_of(len(z), sampling_steps), images[-1])
        return torch.cat(images)

    def _infer_noise(
        self, pixels: Tensor, z: Tensor | None, sampling_steps: int, how: Guidance, *, on_step: OnStep | None
    ) -> Tensor:
        """Zeros (N, noise_dims), the likeliest noise: what these images say is in z."""
        how.check_without_frozen_model(self.method)
        for index, part in enumerate(pixels.split(self.at_once)):
            if on_step is not None:
                on_step(index, self.steps_of(len(pixels), sampling_steps), part)
        return torch.zeros(len(pixels), *self.noise_shape, device=self.device)

    @property
    def prior(self) -> Prior:
        """Where codes of new images are drawn from."""
        return Prior(self.dims)

    def save(self, folder: str | Path) -> None:
        """Write everything that `load` needs; each part whole, model.json last."""
        folder = as_path(folder, "the folder to save in")
        write_network(folder / "decoder", self.decoder.description, self.decoder.state_dict())
        super().save(folder)


def load_direct(folder: Path, build: Callable[..., OneStepDecoder]) -> DirectModel:
    """What `DirectModel.save` wrote; `build` makes the decoder that a description describes."""
    require_parts(folder, ("decoder", *COMMON_PARTS))
    encoder, partition, mean, std, method = read_common(folder)
    description, state = read_network(folder / "decoder")
    with complaints_about(folder / "decoder" / "config.json"):
        decoder = build(description)
    load_strictly(decoder, state, str(folder / "decoder"))
    require_dims(folder, "decoder", decoder.dims, partition)
    require_side(folder, int(description.get("size", encoder.size)), encoder)
    return DirectModel(encoder, partition, mean, std, method, decoder=decoder.eval())
