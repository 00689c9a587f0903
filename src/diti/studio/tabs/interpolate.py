"""Two pictures, and a part of the code that goes from one to the other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diti.core.images import to_float, to_uint8
from diti.edit.interpolate import Interpolation, Variant, mix_variants
from diti.edit.invert import Inverted
from diti.edit.pictures import interpolation_grid, save_animation
from diti.studio import markup
from diti.studio.parts import (
    Desk,
    as_picture,
    drawn,
    html,
    lead,
    picker,
    real,
    result,
    span_of,
    strip,
    then_redraw,
)
from diti.studio.session import FULL_STEPS, Visitor

FRAMES = 13  # of the animation
NEAREST, BEYOND = -0.5, 1.5  # ends of the slider: past the first picture, and past the second
BOTH = ("a", "b")


class Interpolate:
    """The tab, its work, and what it shows when the page is opened."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.world = desk, desk.world
        lead(
            "Take a part of what describes the <b>first</b> picture and move it towards the <b>second</b>. Fine "
            "parts carry small things, coarse parts light, background and colour."
        )
        self.span = strip(
            self.world, "Which part moves?", "Click one part, drag over several, or use the buttons."
        )
        with gr.Row(equal_height=False, elem_classes="bench"):
            with gr.Column(scale=2, min_width=220):
                self.first = picker(desk, "a", "From", "the picture that is changed")
            with gr.Column(scale=3, min_width=300):
                self.shown = result()
                self.scale = gr.Slider(
                    NEAREST, BEYOND, 1.0, step=0.05, label="How far", elem_id="scale",
                    info="0: the first picture. 1: this part is all the second's. Beyond 1: more than that.",
                )  # fmt: skip
                self.ends = html("", elem_classes="recons")
            with gr.Column(scale=2, min_width=220):
                self.second = picker(desk, "b", "Towards", "the picture that lends its part")
        self.play = gr.Button("▶ Play the way there", variant="primary", elem_id="play")
        self.film = html("", elem_classes=["film", "status"])
        self.outputs = [self.first.shown, self.second.shown, *self.shown.parts, self.ends]
        self._connect()

    def _connect(self) -> None:
        on, inputs, outputs = self.desk.on, [self.span, self.scale], [*self.shown.parts, self.ends]
        for chosen in (self.first, self.second):
            then_redraw(self.desk, chosen, self.draw, inputs, outputs)
        on(self.span.release, self.draw, inputs, outputs)
        on(self.scale.release, self.draw, inputs, outputs)
        on(self.play.click, self.animate, [self.span], [self.film])

    def draw(self, visitor: Visitor, words: str, how_far: float) -> Iterator[Any]:
        """Before and after, then what the model makes of the two ends."""
        variant = Variant(span_of(self.world, words), "a_to_b", real(how_far, NEAREST, BEYOND))

        def edit(start: Inverted) -> tuple[Tensor, Tensor]:
            return mix_variants(start.z, start.x_T, [variant], self.world.partition, "slerp")

        for value, line in drawn(self.world, visitor, BOTH, edit):
            yield value, line, gr.skip()
        yield gr.skip(), gr.skip(), self._reconstructions(visitor)

    def animate(self, visitor: Visitor, words: str) -> Iterator[Any]:
        """All pictures from the first to the second in one batch, as an animation."""
        span = span_of(self.world, words)
        yield markup.note(f"Drawing {FRAMES} pictures …", busy=True)
        way = self._way(visitor, span)
        yield markup.film(_animation(way), interpolation_grid(way))

    def opened(self, visitor: Visitor) -> Iterator[Any]:
        """Two faces, and the one made of both."""
        if self.world.dataset is None:
            return
        for place, slot in enumerate((*BOTH, "image")):
            row = int(self.world.offered[place % len(self.world.offered)])
            visitor.images.setdefault(slot, self.world.pixels(row))
        yield self.first.picture(visitor), self.second.picture(visitor), *[gr.skip()] * 3
        for value in self.draw(visitor, "all", 1.0):
            yield gr.skip(), gr.skip(), *value

    def _reconstructions(self, visitor: Visitor) -> str:
        """What the model makes of the two pictures themselves: the two ends of every path."""
        with self.world.lock:
            start = visitor.inverted(self.world.model, BOTH)
            again = visitor.decoded(start, start.z, start.x_T, FULL_STEPS)
        captions = ("from", "from, rebuilt", "towards, rebuilt", "towards")
        pictures = (visitor.image("a"), as_picture(again[0]), as_picture(again[1]), visitor.image("b"))
        return markup.figures(list(zip(captions, pictures, strict=True)))

    def _way(self, visitor: Visitor, span: str) -> Interpolation:
        variants = [Variant(span, "a_to_b", round(place / (FRAMES - 1), 3)) for place in range(FRAMES)]
        with self.world.lock:
            start = visitor.inverted(self.world.model, BOTH)
            codes, noise = mix_variants(start.z, start.x_T, variants, self.world.partition, "slerp")
            codes, noise = torch.cat([start.z, codes]), torch.cat([start.x_T, noise])
            images = visitor.decoded(start, codes, noise, FULL_STEPS)
        ends = to_float(np.stack([visitor.image(slot) for slot in BOTH]))
        return Interpolation(images[2:], tuple(variants), ends, images[:2], self.world.partition)


def _animation(found: Interpolation) -> bytes:
    """As GIF."""
    with tempfile.TemporaryDirectory(prefix="diti-film-") as folder:
        frames = [Image.fromarray(markup.enlarged(pixels, 256)) for pixels in to_uint8(found.images)]
        return save_animation(frames, Path(folder) / "way.gif").read_bytes()
