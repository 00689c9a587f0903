"""Images to be edited many times, as with sliders: inverted once, then drawn with whatever is moved.

Notation: N images, M variants, D dims of z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import ValueRange
from diti.diffusion.generate import SAMPLING_STEPS
from diti.edit.compose import What, step_for
from diti.edit.interpolate import check_scales
from diti.edit.invert import Inverted
from diti.edit.places import touch_of, touched
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.inputs import Images, as_batch

PLACES = (-2.0, -1.0, 0.0, 1.0, 2.0)  # strengths


class Editor:
    """Images as a model knows them, code and noise; `model.edit(images)` makes one.

    A strength of 1 is the usual difference: the step from the mean of the images without an attribute to the mean
    of those with it, one standard deviation of a continuous attribute, of an axis or a dim. Of several things each
    lands where it is asked to. keep: things that stay as they are read, whatever goes with the others in the data.

        face = model.edit(image)
        face.draw({"a07": 2.0, "beard": -1.0, 12: 1.0})  # (N, 3, H, W): an axis, a named one and dim 12 moved
        smile, age = (diti.learn_direction(model, data, name) for name in ("Smiling", "Young"))
        face.draw({smile: 1, "a07": -1}, keep=[age])
        face.strip("a07")  # (5, N, 3, H, W), from -2 to +2
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

    @cached_property
    def rebuilt(self) -> Tensor:
        """(N, 3, H, W) in [-1, 1]: the images as they are drawn without an edit."""
        return self._start.shown(self.z, self._start.x_T)

    def moved(self, moves: Mapping[What, float], *, keep: Sequence[What] = ()) -> Tensor:
        """(N, D) codes with all of these moved together."""
        if not moves:
            return self.z
        step = step_for(self.model, list(moves), check_scales(list(moves.values())), keep)
        return self.z + torch.from_numpy(step).to(self.z)

    def draw(self, moves: Mapping[What, float], *, keep: Sequence[What] = (), local: bool = True) -> Tensor:
        """(N, 3, H, W) in [-1, 1]: the images with all of these moved; nothing moved is the reconstruction.

        local: a picture changes only where the attributes live that were learned from labels, see `places.py`.
        """
        return self.draw_each([moves], keep=keep, local=local)[0]

    def draw_each(
        self, variants: Sequence[Mapping[What, float]], *, keep: Sequence[What] = (), local: bool = True
    ) -> Tensor:
        """(M, N, 3, H, W): each variant as `draw` does it, decoded together, which is quicker."""
        if not variants:
            raise InputError("no variant was given; give at least one")
        codes = torch.stack([self.moved(moves, keep=keep) for moves in variants])  # (M, N, D)
        noise = self._start.x_T.expand(len(codes), *self._start.x_T.shape)
        drawn = self._start.shown(codes.flatten(0, 1), noise.flatten(0, 1)).unflatten(0, codes.shape[:2])
        touches = [touch_of(moves) if local else None for moves in variants]
        if not any(touches):
            return drawn
        return torch.stack([touched(d, self.rebuilt, touch) for d, touch in zip(drawn, touches, strict=True)])

    def strip(self, what: What, places: Sequence[float] = PLACES, *, keep: Sequence[What] = ()) -> Tensor:
        """(M, N, 3, H, W): one thing at several places, counted from where each image is."""
        return self.draw_each([{what: place} for place in places], keep=keep)
