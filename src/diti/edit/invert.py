"""Invert once, decode many: the code and the noise of images, from which all their variants are decoded alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from diti.core.images import MODEL_RANGE
from diti.diffusion.sampler import OnStep
from diti.representation.models.decoding import DecodingModel


@dataclass(frozen=True, eq=False)
class Inverted:
    """Images as a model knows them, on the CPU wherever the model is. Notation: N images, D dims of z."""

    model: DecodingModel
    z: Tensor  # (N, D)
    x_T: Tensor  # (N, ...) noise: (3, H, W) of a diffusion decoder
    sampling_steps: int
    masked: bool
    stop_below: int
    clamp: bool

    @classmethod
    def of(
        cls,
        model: DecodingModel,
        pixels: Tensor,
        sampling_steps: int,
        *,
        masked: bool = True,
        stop_below: int = 0,
        noise: Tensor | None = None,
        on_step: OnStep | None = None,
    ) -> Self:
        """Of images (N, 3, H, W), all in one batch. noise: drawn, to be used in place of the images' own."""
        z = model.encode(pixels, value_range=MODEL_RANGE).cpu()
        x_T = noise
        if x_T is None:
            x_T = model.infer_noise(
                pixels, z, sampling_steps,
                masked=masked, stop_below=stop_below, on_step=on_step, value_range=MODEL_RANGE,
            )  # fmt: skip
        clamp = noise is not None  # inferred noise comes back exactly only without
        return cls(model, z, x_T.cpu(), sampling_steps, masked, stop_below, clamp)

    def decode(self, z: Tensor, x_T: Tensor, on_step: OnStep | None = None) -> Tensor:
        """Images (M, 3, H, W) of codes (M, D) and noise (M, ...); from inferred noise they may leave [-1, 1]."""
        return self.model.decode(
            z,
            x_T,
            self.sampling_steps,
            clamp=self.clamp,
            masked=self.masked,
            stop_below=self.stop_below,
            on_step=on_step,
        ).cpu()

    def shown(self, z: Tensor, x_T: Tensor, on_step: OnStep | None = None) -> Tensor:
        """The same as a picture shows them, in [-1, 1]."""
        return self.decode(z, x_T, on_step).clamp(-1, 1)
