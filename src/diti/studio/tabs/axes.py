"""The axes that a model found without labels, alive: turn one on a picture, see who lies at its ends, name it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr
import numpy as np
from torch import Tensor

from diti.core.errors import InputError
from diti.edit.axes import deviation
from diti.edit.compose import push
from diti.edit.invert import Inverted
from diti.exploring.axes import extremes
from diti.representation.models.axis_names import Key
from diti.studio import markup
from diti.studio.parts import (
    Desk,
    axis_buttons,
    clickable,
    drawn,
    html,
    lead,
    picker,
    real,
    result,
    sent,
    strip,
    then_redraw,
    titled,
    whole,
)
from diti.studio.session import Visitor
from diti.studio.tabs.examples import FARTHEST, Examples

AT_THE_ENDS = 8  # pictures lowest and highest on an axis
REACH = 3.0  # standard deviations: farther out are few pictures


class Axes:
    """The tab, its work, and what it shows when it is opened."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.world = desk, desk.world
        lead(
            "Nobody told the model what to look for. Pick an axis, pull the slider, and see what it found; or "
            "pick a part, and see what lives there. When you know what it is, give it a name."
        )
        self.part = strip(self.world, "Which part?", "From fine to coarse; the arrow keys work too.", single=True)
        with gr.Row(equal_height=False, elem_classes="bench"):
            with gr.Column(scale=2, min_width=220):
                self.subject = picker(desk, "image", "Your picture", "the same one on the other tabs")
            with gr.Column(scale=3, min_width=300):
                self.shown = result()
            with gr.Column(scale=2, min_width=260):
                self._controls()
        with gr.Row(elem_classes="ends"):
            self.low, self.high = titled("Lowest on this axis"), titled("Highest on this axis")
        self.own = Examples(desk)
        self.inputs = [self.place, self.own.strength]
        self.outputs = [self.subject.shown, self.axes, *self.shown.parts, self.low, self.high]
        self._connect()

    def _controls(self) -> None:
        html(
            markup.heading(
                "Which axis?", "Those that change a picture most first; of a part also its single numbers."
            )
        )
        self.axes = clickable("", "axes-box")
        self.place = gr.Slider(
            -REACH, REACH, 0, step=0.25, label="Turn it", elem_id="turn",
            info="0: as in your picture. 1: the usual difference between two pictures.",
        )  # fmt: skip
        with gr.Group(elem_classes="naming"):
            self.name = gr.Textbox(
                label="Name what grows along it", placeholder="smile", max_length=40, elem_id="axis-name"
            )
            self.other = gr.Textbox(label="and its other end, if that has a word", max_length=40)
            self.keep = gr.Button("Keep the name", size="sm", elem_id="keep")

    def _connect(self) -> None:
        on, inputs, outputs = self.desk.on, self.inputs, self.outputs[2:]
        then_redraw(self.desk, self.subject, self.draw, inputs, outputs)
        for trigger, choose, given in (
            (self.part.release, self.choose_part, [self.part]),
            (self.axes.select, self.choose_axis, []),
        ):
            chosen = on(trigger, choose, given, [self.axes, self.place])
            on(chosen.success, self.look, inputs, outputs)
        for slider in (self.place, self.own.strength):
            on(slider.release, self.draw, inputs, outputs)
        on(self.keep.click, self.give_name, [self.name, self.other], [self.axes, self.name, self.other])
        on(self.own.made.success, self.draw, inputs, outputs)

    def draw(self, visitor: Visitor, moved: float, own_moved: float) -> Iterator[Any]:
        """The visitor's picture with one axis turned, and moved along the visitor's own slider."""
        axis, std = self._axis(visitor), self.world.statistics()[1]

        def edit(start: Inverted) -> tuple[Tensor, Tensor]:
            code = start.z + real(moved, -REACH, REACH) * deviation(axis, std, self.world.found)
            if visitor.own is not None:
                code = push(code, visitor.own, real(own_moved, -FARTHEST, FARTHEST))
            return code, start.x_T

        for value, line in drawn(self.world, visitor, ("image",), edit):
            yield value, line, gr.skip(), gr.skip()

    def look(self, visitor: Visitor, moved: float, own_moved: float) -> Iterator[Any]:
        """The images at the two ends of an axis, then the same."""
        if self.world.dataset is not None:
            yield gr.skip(), markup.note(self.world.first_look, busy=True), gr.skip(), gr.skip()
            ends = extremes(self.world.places(self._axis(visitor)), self.world.dataset, AT_THE_ENDS)
            yield gr.skip(), gr.skip(), *(self._faces(rows) for rows in ends)
        yield from self.draw(visitor, moved, own_moved)

    def choose_part(self, visitor: Visitor, span: str) -> Iterator[Any]:
        """The axes of a part; the one that matters most is chosen."""
        part = whole(str(span).partition(":")[0], 0, self.world.partition.subsets - 1)
        if not (found := self.world.axes(part)):
            raise InputError("This part of the code is empty.")
        visitor.part, visitor.axis = part, found[0]
        yield self._listed(visitor), gr.Slider(value=0)

    def choose_axis(self, visitor: Visitor, event: gr.EventData) -> Iterator[Any]:
        """One of them."""
        visitor.axis = self.world.key_of(sent(event, "row"), self.world.axes(visitor.part))
        yield self._listed(visitor), gr.Slider(value=0)

    def give_name(self, visitor: Visitor, grows: str, end: str) -> Iterator[Any]:
        """Keep a name, in the model folder where it may be changed."""
        words = (str(word or "").strip() for word in (grows, end))
        kept = self.world.name(visitor.names, self._axis(visitor), *words)
        gr.Info("The name is kept with the model." if kept else "The name is kept while this page is open.")
        yield self._listed(visitor), "", ""

    def opened(self, visitor: Visitor, *inputs: Any) -> Iterator[Any]:
        """The picture, which may have been chosen on another tab."""
        yield self.subject.picture(visitor), *[gr.skip()] * 5
        yield gr.skip(), self._listed(visitor), *[gr.skip()] * 4
        if "image" in visitor.images:
            for value in self.look(visitor, *inputs):
                yield gr.skip(), gr.skip(), *value

    def _axis(self, visitor: Visitor) -> Key:
        if visitor.axis is None:
            visitor.axis = next(iter(self.world.axes(visitor.part)), 0)
        return visitor.axis

    def _listed(self, visitor: Visitor) -> str:
        return axis_buttons(self.world, visitor, self.world.axes(visitor.part), {self._axis(visitor)})

    def _faces(self, rows: np.ndarray) -> str:
        return markup.thumbnails([self.world.pixels(int(row)) for row in rows])
