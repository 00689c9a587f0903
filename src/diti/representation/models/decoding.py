"""What the models share that turn a code into an image: decode, find the noise of an image, reconstruct, edit.

A code says what a method learned; `noise` is the rest of the image: x_T of a diffusion decoder, a vector, or
nothing (width 0). Editing knows no more of a model than this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from diti.core.rng import torch_generator
from diti.diffusion.sampler import OnStep
from diti.representation.models.guidance import Guidance
from diti.representation.models.model import Model, images_at_once


class DecodingModel(Model, ABC):
    """A model with a decoder. `sampling_steps`, `masked` and the like are for decoders that take many steps."""

    @property
    @abstractmethod
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the noise of one image."""

    @abstractmethod
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
        """What `decode` does; refuses what `how` asks for where it matters and cannot be done."""

    @abstractmethod
    def _infer_noise(
        self, pixels: Tensor, z: Tensor | None, sampling_steps: int, how: Guidance, *, on_step: OnStep | None
    ) -> Tensor:
        """What `infer_noise` does, for pixels (N, 3, H, W)."""

    @abstractmethod
    def validate_sampling_steps(self, sampling_steps: int) -> None:
        """InputError for a number of steps that this decoder cannot take."""

    def steps_of(self, count: int, sampling_steps: int) -> int:
        """How often `on_step` is called while that many images are decoded, or their noise is inferred."""
        return sampling_steps * -(-count // self.at_once)

    @property
    def at_once(self) -> int:
        """Images decoded in one batch."""
        return images_at_once(self.size)

    @property
    def has_noise(self) -> bool:
        """Whether one code has more than one image."""
        return 0 not in self.noise_shape

    def new_noise(self, count: int, seed: int, purpose: str = "new-x_T") -> Tensor:
        """(count, *noise_shape); the first of a larger count are those of a smaller one."""
        drawn = (torch_generator(seed, purpose, index) for index in range(count))
        return torch.stack([torch.randn(self.noise_shape, generator=generator) for generator in drawn])

    def with_decoder(self) -> DecodingModel:
        return self


def in_parts(at_once: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of several tensors together, that many at a time."""
    return zip(*(tensor.split(at_once) for tensor in tensors), strict=True)
