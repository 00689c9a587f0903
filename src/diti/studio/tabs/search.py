"""The pictures nearest to one, in the code, a part of it or on axes: alike in one thing, whatever the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr
import numpy as np

from diti.edit.interpolate import moved_dims
from diti.exploring.search import in_deviations, nearest, root_inside
from diti.representation.features import metric_of
from diti.representation.models.axis_names import Key, in_order
from diti.studio import markup
from diti.studio.parts import (
    Desk,
    axis_buttons,
    clickable,
    html,
    lead,
    picker,
    sent,
    span_of,
    strip,
    then_redraw,
    whole,
)
from diti.studio.session import Visitor

FOUND, MOST = 16, 60


class Search:
    """The tab, its work, and what it shows when it is opened."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.world = desk, desk.world
        lead(
            "Find pictures that resemble yours, in everything, only in the part you pick or only on an axis: then "
            "they are alike in one thing and may differ in all others."
        )
        span = strip(self.world, "Alike in what?", "Click one part, drag over several, or use the buttons.")
        with gr.Row(equal_height=False, elem_classes="bench"):
            with gr.Column(scale=2, min_width=220):
                self.subject = picker(desk, "image", "Your picture", "the same one on the other tabs")
            with gr.Column(scale=5, min_width=300):
                html(markup.heading("Or on which axes?", "Alike only on those you press, until you pick a part."))
                self.axes = clickable("", "axes-box")
                count = gr.Slider(4, MOST, FOUND, step=4, label="How many", elem_id="count")
                line = html(markup.note("Choose a picture to begin."), elem_classes="status")
                found = clickable("", "found")
        inputs, outputs = [span, count], [line, found]
        self.subject.choices.append((found.select, self.go_on))
        then_redraw(desk, self.subject, self.draw, inputs, outputs)
        for trigger, choose in ((span.release, self.choose_part), (self.axes.select, self.press)):
            desk.on(desk.on(trigger, choose, [], [self.axes]).success, self.draw, inputs, outputs)
        desk.on(count.release, self.draw, inputs, outputs)
        self.inputs, self.outputs = inputs, [self.subject.shown, self.axes, *outputs]

    def draw(self, visitor: Visitor, words: str, number: float) -> Iterator[Any]:
        """The nearest pictures; the whole set is read once."""
        image, world = visitor.image("image"), self.world
        world.data()
        kept = np.flatnonzero(moved_dims(world.partition, span_of(world, words)).numpy())
        keys = in_order(visitor.alike or kept.tolist())
        yield markup.note(self.world.first_look, busy=True), gr.skip()
        with world.lock:
            codes = np.concatenate([world.model.encode(image).cpu().numpy(), world.codes])
            placed = in_deviations(world.model, codes, keys, world.codes)
            if not visitor.alike:  # an axis has its own length already
                placed = placed @ root_inside(metric_of(world.model, world.data()), kept)
        found = nearest(placed[1:], placed[0], whole(number, 1, MOST))
        rows = [int(row) for row in found.rows]
        faces = markup.thumbnails([world.pixels(row) for row in rows], rows, [f"{v:.1f}" for v in found.values])
        yield markup.note(f"Nearest first, {self._where(visitor, keys)}. Click one to search from it."), faces

    def _where(self, visitor: Visitor, keys: list[Key]) -> str:
        if not visitor.alike:
            return f"in {len(keys)} of {self.world.model.dims} numbers; below each its distance"
        named = ", ".join(self.world.label(key, visitor.names) for key in keys)
        return f"on {named} alone; below each its distance in standard deviations"

    def choose_part(self, visitor: Visitor) -> Iterator[Any]:
        """Search in a part, no longer on axes."""
        visitor.alike = set()
        yield self._listed(visitor)

    def press(self, visitor: Visitor, event: gr.EventData) -> Iterator[Any]:
        """One more axis, or one less."""
        visitor.alike = visitor.alike ^ {self.world.key_of(sent(event, "row"), self._offered(visitor))}
        yield self._listed(visitor)

    def _offered(self, visitor: Visitor) -> list[Key]:
        """The axes that have a name, then those that are seen best."""
        named = in_order({**self.world.model.axis_names, **visitor.names})
        return list(dict.fromkeys([*named, *self.world.axes(None)]))

    def _listed(self, visitor: Visitor) -> str:
        return axis_buttons(self.world, visitor, self._offered(visitor), visitor.alike)

    def go_on(self, visitor: Visitor, event: gr.EventData) -> Iterator[Any]:
        """Search from a picture that was found."""
        visitor.images["image"] = self.world.pixels(sent(event, "row"))
        yield self.subject.picture(visitor)

    def opened(self, visitor: Visitor, *inputs: Any) -> Iterator[Any]:
        """The picture, which may have been chosen on another tab, and the pictures nearest to it."""
        yield self.subject.picture(visitor), *[gr.skip()] * 3
        yield gr.skip(), self._listed(visitor), gr.skip(), gr.skip()
        if "image" in visitor.images and self.world.dataset is not None:
            for value in self.draw(visitor, *inputs):
                yield gr.skip(), gr.skip(), *value
