"""The pictures nearest to one, in the whole code or in a part of it: alike in one thing, whatever the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr
import numpy as np

from diti.edit.interpolate import moved_dims
from diti.exploring.search import nearest, root_inside
from diti.representation.features import metric_of
from diti.studio import markup
from diti.studio.parts import Desk, clickable, html, lead, picker, sent, span_of, strip, then_redraw, whole
from diti.studio.session import Visitor

FOUND, MOST = 16, 60


class Search:
    """The tab, its work, and what it shows when it is opened."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.world = desk, desk.world
        lead(
            "Find pictures that resemble yours, in everything or only in the part you pick: then they are "
            "alike in one thing and may differ in all others."
        )
        span = strip(self.world, "Alike in what?", "Click one part, drag over several, or use the buttons.")
        with gr.Row(equal_height=False, elem_classes="bench"):
            with gr.Column(scale=2, min_width=220):
                self.subject = picker(desk, "image", "Your picture", "the same one on the other tabs")
            with gr.Column(scale=5, min_width=300):
                count = gr.Slider(4, MOST, FOUND, step=4, label="How many", elem_id="count")
                line = html(markup.note("Choose a picture to begin."), elem_classes="status")
                found = clickable("", "found")
        inputs, outputs = [span, count], [line, found]
        self.subject.choices.append((found.select, self.go_on))
        then_redraw(desk, self.subject, self.draw, inputs, outputs)
        desk.on(span.release, self.draw, inputs, outputs)
        desk.on(count.release, self.draw, inputs, outputs)
        self.inputs, self.outputs = inputs, [self.subject.shown, *outputs]

    def draw(self, visitor: Visitor, words: str, number: float) -> Iterator[Any]:
        """The nearest pictures; the whole set is read once."""
        image, world = visitor.image("image"), self.world
        world.data()
        kept = np.flatnonzero(moved_dims(world.partition, span_of(world, words)).numpy())
        yield markup.note(self.world.first_look, busy=True), gr.skip()
        with world.lock:
            root = root_inside(metric_of(world.model, world.data()), kept)
            wanted = world.standard(world.model.encode(image).numpy())[0, kept] @ root
        found = nearest(world.standard(world.codes)[:, kept] @ root, wanted, whole(number, 1, MOST))
        rows = [int(row) for row in found.rows]
        faces = markup.thumbnails([world.pixels(row) for row in rows], rows, [f"{v:.1f}" for v in found.values])
        told = f"Nearest first, in {len(kept)} of {world.model.dims} numbers; below each its distance."
        yield markup.note(f"{told} Click one to search from it."), faces

    def go_on(self, visitor: Visitor, event: gr.EventData) -> Iterator[Any]:
        """Search from a picture that was found."""
        visitor.images["image"] = self.world.pixels(sent(event, "row"))
        yield self.subject.picture(visitor)

    def opened(self, visitor: Visitor, *inputs: Any) -> Iterator[Any]:
        """The picture, which may have been chosen on another tab, and what is like it."""
        yield self.subject.picture(visitor), gr.skip(), gr.skip()
        if "image" in visitor.images and self.world.dataset is not None:
            for value in self.draw(visitor, *inputs):
                yield gr.skip(), *value
