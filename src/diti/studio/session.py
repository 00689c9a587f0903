"""What one visitor has chosen, and the inversions that are kept for it; nothing of it is shared with others."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.progress import progress_bar
from diti.edit.directions import Direction
from diti.edit.invert import Inverted
from diti.representation.models.axis_names import AxisName, Key
from diti.representation.models.decoding import DecodingModel

SIDES = ("like", "unlike")  # of examples
KEPT = 24  # inverted images of a visitor; the least recently used makes room
MOST_EXAMPLES = 24  # of each side
PREVIEW_STEPS, FULL_STEPS = 6, 25  # decoding; an image is inverted once, with the latter


class Stopped(Exception):
    """The visitor asked to stop."""


@dataclass(eq=False)
class Visitor:
    """One open page."""

    images: dict[str, np.ndarray] = field(default_factory=dict)  # slot → uint8 (H, W, 3)
    examples: dict[str, list[np.ndarray]] = field(default_factory=lambda: {side: [] for side in SIDES})
    own: Direction | None = None  # from the examples
    names: dict[Key, AxisName] = field(default_factory=dict)  # of axes, where the model folder keeps none
    part: int | None = None  # whose axes are looked at; at first those that are seen best, of whatever part
    axis: Key | None = None  # that is turned
    alike: set[Key] = field(default_factory=set)  # axes on which pictures are searched; none: in the chosen part
    stops: int = 0  # how often the visitor asked to stop
    kept: OrderedDict[str, Inverted] = field(default_factory=OrderedDict)
    rebuilt: OrderedDict[tuple[str, int], Tensor] = field(default_factory=OrderedDict)  # by image and steps

    def image(self, slot: str) -> np.ndarray:
        """uint8 (H, W, 3); a friendly line where none was chosen."""
        if slot not in self.images:
            raise InputError("Please choose a picture first: click one, or upload your own.")
        return self.images[slot]

    def add_example(self, side: str, pixels: np.ndarray) -> None:
        """Keep an image as like or unlike."""
        if side not in self.examples:
            raise InputError("Please choose whether this picture is like it or unlike it.")
        if len(self.examples[side]) >= MOST_EXAMPLES:
            raise InputError(f"{MOST_EXAMPLES} examples on each side are enough; clear them to start again.")
        self.examples[side].append(pixels)

    def forget_examples(self) -> None:
        self.examples, self.own = {side: [] for side in SIDES}, None

    def inverted(self, model: DecodingModel, slots: Sequence[str]) -> Inverted:
        """The chosen images of some slots with their noise, in one batch; each image is inverted only once."""
        found = [self._inverted(model, self.image(slot)) for slot in slots]
        return replace(found[0], z=torch.cat([f.z for f in found]), x_T=torch.cat([f.x_T for f in found]))

    def _inverted(self, model: DecodingModel, pixels: np.ndarray) -> Inverted:
        key = hashlib.sha256(pixels.tobytes()).hexdigest()
        if key not in self.kept:
            with progress_bar("looking at the picture", FULL_STEPS, unit="steps", shown=False) as advance:
                self.kept[key] = Inverted.of(
                    model, to_float(pixels[None]), FULL_STEPS, on_step=lambda *step: advance()
                )
        self.kept.move_to_end(key)
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return self.kept[key]

    def unedited(self, start: Inverted, slot: str, steps: int) -> Tensor:
        """(1, 3, H, W) the image of a slot, the first of those inverted, as it is drawn without an edit."""
        key = hashlib.sha256(self.image(slot).tobytes()).hexdigest(), steps
        if key not in self.rebuilt:
            self.rebuilt[key] = self.decoded(start, start.z[:1], start.x_T[:1], steps)
        self.rebuilt.move_to_end(key)
        while len(self.rebuilt) > KEPT:
            self.rebuilt.popitem(last=False)
        return self.rebuilt[key]

    def decoded(self, start: Inverted, codes: Tensor, noise: Tensor, steps: int) -> Tensor:
        """Images (N, 3, H, W) in [-1, 1] of codes (N, D) and noise, in that many steps."""
        with progress_bar("drawing", steps, unit="steps", shown=False) as advance:
            return replace(start, sampling_steps=steps).shown(codes, noise, lambda *step: advance())
