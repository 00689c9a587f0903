"""Images to be edited many times, as with sliders: inverted once, then drawn with whatever is moved.

Notation: N images, M variants, D dims of z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import ValueRange
from diti.diffusion.generate import SAMPLING_STEPS
from diti.edit.axes import deviation
from diti.edit.directions import Direction
from diti.edit.interpolate import check_scales
from diti.edit.invert import Inverted
from diti.edit.manipulate import check_fits, push
from diti.representation.found_axes import find_key
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.inputs import Images, as_batch

What: TypeAlias = int | str | Direction  # a dim by number, an axis as a07 or by name, or an attribute's direction
PLACES = (-3.0, -1.5, 0.0, 1.5, 3.0)  # standard deviations


class Editor:
    """Images as a model knows them, code and noise; `model.edit(images)` makes one.

    An axis moves by standard deviations, a direction by the scale s of algorithm 3 (0.3 is the authors').

        face = model.edit(image)
        face.draw({"a07": 2.0, "beard": -1.0, 12: 1.0})  # (N, 3, H, W): an axis, a named one and dim 12 moved
        face.draw({diti.learn_direction(model, data, "Smiling"): 0.3})
        face.strip("a07")  # (5, N, 3, H, W), from -3 to +3
    """

    def __init__(
        self,
        model: DecodingModel,
        images: Images,
        sampling_steps: int = SAMPLING_STEPS,
        *,
        masked: bool = True,
        value_range: ValueRange | None = None,
    ) -> None:
        model.validate_sampling_steps(sampling_steps)
        self.model = model
        self.images = as_batch(images, model.size, value_range)  # (N, 3, H, W)
        self._start = Inverted.of(model, self.images, sampling_steps, masked=masked)

    def __repr__(self) -> str:
        return f"<Editor of {len(self.images)} images, {self._start.sampling_steps} steps each: {self.model!r}>"

    @property
    def z(self) -> Tensor:
        """(N, D) codes of the images as they are."""
        return self._start.z

    def moved(self, moves: Mapping[What, float]) -> Tensor:
        """(N, D) codes with all of these moved together."""
        z, scales = self.z, check_scales(list(moves.values())) if moves else []
        for what, scale in zip(moves, scales, strict=True):
            if isinstance(what, Direction):
                check_fits(self.model, what)
                z = push(z, what, scale)
            else:
                key, sign = find_key(self.model, str(what))
                z = z + sign * scale * deviation(key, self.model.statistics()[1], self.model.axes).to(z)
        return z

    def draw(self, moves: Mapping[What, float]) -> Tensor:
        """(N, 3, H, W) in [-1, 1]: the images with all of these moved; nothing moved is the reconstruction."""
        return self.draw_each([moves])[0]

    def draw_each(self, variants: Sequence[Mapping[What, float]]) -> Tensor:
        """(M, N, 3, H, W): each variant as `draw` does it, decoded together, which is quicker."""
        if not variants:
            raise InputError("no variant was given; give at least one")
        codes = torch.stack([self.moved(moves) for moves in variants])  # (M, N, D)
        noise = self._start.x_T.expand(len(codes), *self._start.x_T.shape)
        return self._start.shown(codes.flatten(0, 1), noise.flatten(0, 1)).unflatten(0, codes.shape[:2])

    def strip(self, what: What, places: Sequence[float] = PLACES) -> Tensor:
        """(M, N, 3, H, W): one axis or direction at several places, counted from where each image is."""
        return self.draw_each([{what: place} for place in places])
