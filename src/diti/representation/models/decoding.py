"""What the models share that turn a code into an image: decode, find the noise of an image, reconstruct, edit.

A code says what a method learned; `noise` is the rest of the image: x_T of a diffusion decoder, a vector, or
nothing (width 0). Editing knows no more of a model than this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, ValueRange
from diti.core.rng import torch_generator
from diti.diffusion.generate import SAMPLING_STEPS
from diti.diffusion.sampler import OnStep
from diti.representation.models.guidance import Guidance, Weight
from diti.representation.models.inputs import Images, as_batch
from diti.representation.models.model import Model, images_at_once
from diti.representation.partition import Partition

if TYPE_CHECKING:
    from diti.edit.compose import What
    from diti.edit.directions import Direction
    from diti.edit.editor import Editor


class DecodingModel(Model, ABC):
    """A model with a decoder. `sampling_steps`, `masked` and the like are for decoders that take many steps.

    again = model.reconstruct(images)  # (N, 3, H, W)
    """

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
        return images_at_once(self.size, self.device)

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

    def at_best(self, pixels: Tensor) -> Tensor:
        """(N, 3, H, W) what no code and no noise can improve: pictures as the decoder could give them at best."""
        return pixels

    @torch.no_grad()
    def decode(
        self,
        z: Tensor,
        noise: Tensor,
        sampling_steps: int = SAMPLING_STEPS,
        *,
        clamp: bool = True,
        masked: bool = True,
        guidance: Weight = "trained",
        stop_below: int = 0,
        on_step: OnStep | None = None,
    ) -> Tensor:
        """(N, 3, H, W) images from codes (N, D) and noise (N, *noise_shape), in parts that fit in memory.

        clamp keeps each step's x0 in [-1, 1]: right for random noise, while noise that was inferred without it
        comes back exactly only without it. masked, guidance and stop_below: see `Guidance`.
        """
        how = Guidance(masked=masked, weight=guidance, stop_below=stop_below)
        return self._decode(z, noise, sampling_steps, how, clamp=clamp, on_step=on_step)

    @torch.no_grad()
    def infer_noise(
        self,
        images: Images,
        z: Tensor | None = None,
        sampling_steps: int = SAMPLING_STEPS,
        *,
        masked: bool = True,
        guidance: Weight = "trained",
        stop_below: int = 0,
        on_step: OnStep | None = None,
        value_range: ValueRange | None = None,
    ) -> Tensor:
        """Noise (N, *noise_shape) from which z gives these images back; z is encoded from them unless given.

        value_range: of float images, as in `encode`.
        """
        how = Guidance(masked=masked, weight=guidance, stop_below=stop_below)
        pixels = as_batch(images, self.size, value_range)
        return self._infer_noise(pixels, z, sampling_steps, how, on_step=on_step)

    @torch.no_grad()
    def reconstruct(
        self,
        images: Images,
        noise: Literal["inferred", "random"] = "inferred",
        sampling_steps: int = SAMPLING_STEPS,
        seed: int = 0,
        *,
        masked: bool = True,
        guidance: Weight = "trained",
        stop_below: int = 0,
        value_range: ValueRange | None = None,
        z: Tensor | None = None,
    ) -> Tensor:
        """Images in [-1, 1] from their own z, with the noise inferred from them or drawn anew.

        value_range: of float images, as in `encode`. z: codes (N, D), encoded from the images unless given.
        """
        if noise not in ("inferred", "random"):
            raise InputError(f"noise is {noise!r}; allowed: inferred, random")
        how = Guidance(masked=masked, weight=guidance, stop_below=stop_below)
        pixels = as_batch(images, self.size, value_range)
        z = self.encode(pixels, value_range=MODEL_RANGE) if z is None else z
        if noise == "inferred":
            start = self._infer_noise(pixels, z, sampling_steps, how, on_step=None)
        else:
            start = self.new_noise(len(pixels), seed, "reconstruct")
        return self._decode(z, start, sampling_steps, how, clamp=noise == "random", on_step=None)

    def edit(
        self,
        images: Images,
        sampling_steps: int = SAMPLING_STEPS,
        *,
        masked: bool = True,
        value_range: ValueRange | None = None,
    ) -> Editor:
        """The images inverted once, to be drawn again and again with axes or directions moved: see `Editor`.

        value_range: of float images, as in `encode`.

        face = model.edit(image)
        face.draw({"a07": 2.0})  # axis 7 moved by two standard deviations, (N, 3, H, W); 12 would be a dim of z
        """
        from diti.edit.editor import Editor

        return Editor(self, images, sampling_steps, masked=masked, value_range=value_range)

    def interpolate(
        self,
        first: Images,
        second: Images,
        subset: str = "all",
        scale: float = 0.5,
        *,
        x_t: str = "slerp",
        masked: bool = True,
        partition: Partition | None = None,
        sampling_steps: int = SAMPLING_STEPS,
        seed: int = 0,
        progress: bool = False,
        value_range: ValueRange | None = None,
    ) -> Tensor:
        """(1, 3, H, W): the first image with a subset of z moved towards the second's. Algorithm 2.

        value_range: of float images, as in `encode`.
        For several subsets, scales and both directions at once see `diti.edit.interpolate.interpolate`.
        """
        from diti.edit.interpolate import interpolate

        return interpolate(
            self,
            first,
            second,
            [subset],
            [scale],
            directions=("a_to_b",),
            x_t=x_t,
            masked=masked,
            partition=partition,
            sampling_steps=sampling_steps,
            seed=seed,
            progress=progress,
            value_range=value_range,
        ).images

    def manipulate(
        self,
        images: Images,
        direction: Direction | Mapping[What, float],
        scale: float = 1.0,
        *,
        keep: Sequence[What] = (),
        paper_scale: float | None = None,
        local: bool = True,
        masked: bool = True,
        stop_guidance: float = 0.0,
        sampling_steps: int = SAMPLING_STEPS,
        on_step: OnStep | None = None,
        value_range: ValueRange | None = None,
    ) -> Tensor:
        """(N, 3, H, W): the images moved by `scale` along an attribute's direction. Algorithm 3.

        Directions come from `diti.learn_direction`. scale: strength, 1 is the usual difference between images
        without and with it, or one standard deviation. direction: also several things, with a strength each. keep:
        directions, axes (a07) or dims that stay as they are read. paper_scale: the paper's s instead of `scale`.
        local: the picture changes only where the attribute lives in pictures, where that was learned from labels.
        value_range: of float images, as in `Model.encode`.

        older = model.manipulate(images, age, 2, keep=[smile])
        both = model.manipulate(images, {age: 1, "a07": -1})
        """
        from diti.edit.manipulate import manipulate, one_scale

        return manipulate(
            self,
            images,
            direction,
            [one_scale(direction, scale, paper_scale)],
            keep=keep,
            local=local,
            masked=masked,
            stop_guidance=stop_guidance,
            sampling_steps=sampling_steps,
            on_step=on_step,
            value_range=value_range,
        ).images[0]


def in_parts(at_once: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows of several tensors together, that many at a time."""
    return zip(*(tensor.split(at_once) for tensor in tensors), strict=True)
