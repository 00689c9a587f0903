"""What the models share that turn a code into an image: decode, find the noise of an image, reconstruct, edit.

A code says what a method learned; `noise` is the rest of the image: x_T of a diffusion decoder, a vector, or
nothing (width 0). Editing knows no more of a model than this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.rng import torch_generator
from diti.diffusion.generate import SAMPLING_STEPS
from diti.diffusion.sampler import OnStep
from diti.representation.models.inputs import Images, as_batch
from diti.representation.models.model import Model

if TYPE_CHECKING:
    from diti.edit.directions import Direction

PIXELS_AT_ONCE = 2**17  # decoded in one batch: 128 images of 32 px, 32 of 64 px


class DecodingModel(Model, ABC):
    """A model with a decoder. `sampling_steps`, `masked` and the like are for decoders that take many steps."""

    @property
    @abstractmethod
    def noise_shape(self) -> tuple[int, ...]:
        """Of the noise of one image."""

    @abstractmethod
    def decode(
        self,
        z: Tensor,
        noise: Tensor,
        sampling_steps: int = SAMPLING_STEPS,
        *,
        clamp: bool = True,
        on_step: OnStep | None = None,
        **field: Any,
    ) -> Tensor:
        """(N, 3, H, W) images from codes (N, D) and noise (N, *noise_shape), in parts that fit in memory."""

    @abstractmethod
    def infer_noise(
        self,
        images: Images,
        z: Tensor | None = None,
        sampling_steps: int = SAMPLING_STEPS,
        *,
        on_step: OnStep | None = None,
        **field: Any,
    ) -> Tensor:
        """Noise (N, *noise_shape) from which z gives these images back; z is encoded from them unless given."""

    @abstractmethod
    def validate_sampling_steps(self, sampling_steps: int) -> None:
        """InputError for a number of steps that this decoder cannot take."""

    def steps_of(self, count: int, sampling_steps: int) -> int:
        """How often `on_step` is called while that many images are decoded, or their noise is inferred."""
        return sampling_steps * -(-count // self.at_once)

    @property
    def at_once(self) -> int:
        """Images decoded in one batch."""
        return max(1, PIXELS_AT_ONCE // self.size**2)

    @property
    def has_noise(self) -> bool:
        """Whether one code has more than one image."""
        return 0 not in self.noise_shape

    def new_noise(self, count: int, seed: int, purpose: str = "new-x_T") -> Tensor:
        """(count, *noise_shape); the first of a larger count are those of a smaller one."""
        drawn = (torch_generator(seed, purpose, index) for index in range(count))
        return torch.stack([torch.randn(self.noise_shape, generator=generator) for generator in drawn])

    def reconstruct(
        self,
        images: Images,
        noise: Literal["inferred", "random"] = "inferred",
        sampling_steps: int = SAMPLING_STEPS,
        seed: int = 0,
        **field: Any,
    ) -> Tensor:
        """Images from their own z, with the noise inferred from them or drawn anew."""
        if noise not in ("inferred", "random"):
            raise InputError(f"noise is {noise!r}; allowed: inferred, random")
        pixels = as_batch(images, self.size)
        z = self.encode(pixels)
        if noise == "inferred":
            start = self.infer_noise(pixels, z, sampling_steps, **field)
        else:
            start = self.new_noise(len(pixels), seed, "reconstruct")
        return self.decode(z, start, sampling_steps, clamp=noise == "random", **field)

    def interpolate(
        self, first: Images, second: Images, subset: str = "all", scale: float = 0.5, **options: Any
    ) -> Tensor:
        """(1, 3, H, W): the first image with a subset of z moved towards the second's. Algorithm 2.

        For several subsets, scales and both directions at once see `diti.edit.interpolate.interpolate`.
        """
        from diti.edit.interpolate import interpolate

        return interpolate(self, first, second, [subset], [scale], directions=("a_to_b",), **options).images

    def manipulate(self, images: Images, direction: Direction, scale: float = 0.3, **options: Any) -> Tensor:
        """(N, 3, H, W): the images moved by `scale` along an attribute's direction. Algorithm 3.

        Directions come from `diti.edit.directions.learn_direction`.
        """
        from diti.edit.manipulate import manipulate

        return manipulate(self, images, direction, [scale], **options).images[0]


def in_parts(at_once: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of several tensors together, so many at a time."""
    return zip(*(tensor.split(at_once) for tensor in tensors), strict=True)
