"""The axes that a model found without labels, alive: turn one on a picture, see who lies at its ends, name it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr
import numpy as np
from torch import Tensor

from diti.core.errors import InputError
from diti.edit.axes import push_axes
from diti.edit.invert import Inverted
from diti.edit.manipulate import push
from diti.explore.axes import extremes
from diti.studio import markup
from diti.studio.parts import Desk, drawn, lead, picker, real, result, strip, then_redraw, titled, whole
from diti.studio.session import Visitor
from diti.studio.tabs.examples import FARTHEST, Examples

AT_THE_ENDS = 8  # pictures lowest and highest on an axis
REACH = 4.0  # standard deviations


class Axes:
    """The tab, its work, and what it shows when it is opened."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.world = desk, desk.world
        lead(
            "Nobody told the model what to look for. Pick a part, pick one of its axes, pull the slider, and "
            "see what it found. When you know what it is, give it a name."
        )
        self.part = strip(self.world, "Which part?", "From fine to coarse; the arrow keys work too.", single=True)
        with gr.Row(equal_height=False, elem_classes="bench"):
            with gr.Column(scale=2, min_width=240):
                self.subject = picker(desk, "image", "Your picture", "the same one on the other tabs")
            with gr.Column(scale=3, min_width=300):
                self.shown = result()
            with gr.Column(scale=2, min_width=260):
                self._controls()
        with gr.Row(elem_classes="ends"):
            self.low, self.high = titled("Lowest on this axis"), titled("Highest on this axis")
        self.own = Examples(desk)
        self.outputs = [self.subject.shown]
        self._connect()

    def _controls(self) -> None:
        dims = list(self.world.partition.dims_of(0))
        self.axis = gr.Dropdown(
            self._choices(Visitor(), dims), value=dims[0] if dims else None, label="Which axis?", elem_id="axis",
            info="One number of the code; those that matter most stand first.", interactive=True,
        )  # fmt: skip
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
        on, inputs = self.desk.on, [self.axis, self.place, self.own.strength]
        outputs = [*self.shown.parts, self.low, self.high]
        then_redraw(self.desk, self.subject, self.draw, inputs, outputs)
        listed = on(self.part.release, self.list_axes, [self.part], [self.axis, self.place])
        on(listed.success, self.look, inputs, outputs)
        on(self.axis.input, self.look, inputs, outputs)
        for slider in (self.place, self.own.strength):
            on(slider.release, self.draw, inputs, outputs)
        naming = [self.part, self.axis, self.name, self.other]
        on(self.keep.click, self.give_name, naming, [self.axis, self.name, self.other])
        on(self.own.made.success, self.draw, inputs, outputs)

    def draw(self, visitor: Visitor, axis: Any, moved: float, own_moved: float) -> Iterator[Any]:
        """The visitor's picture with one axis turned, and moved along the slider of one's own."""
        number, std = whole(axis, 0, self.world.model.dims - 1), self.world.statistics()[1]

        def edit(start: Inverted) -> tuple[Tensor, Tensor]:
            code = push_axes(start.z[0], std, [{number: 1.0}], [real(moved, -REACH, REACH)])[0]
            if visitor.own is not None:
                code = push(code, visitor.own, FARTHEST * real(own_moved, -1, 1))
            return code, start.x_T

        for value, line in drawn(self.world, visitor, ("image",), edit):
            yield value, line, gr.skip(), gr.skip()

    def look(self, visitor: Visitor, axis: Any, moved: float, own_moved: float) -> Iterator[Any]:
        """The images at the two ends of an axis, then the same."""
        if self.world.dataset is not None:
            yield gr.skip(), markup.note("Reading the pictures once …", busy=True), gr.skip(), gr.skip()
            values = self.world.codes[:, whole(axis, 0, self.world.model.dims - 1)]
            ends = extremes(values, self.world.dataset, AT_THE_ENDS)
            yield gr.skip(), gr.skip(), *(self._faces(rows) for rows in ends)
        yield from self.draw(visitor, axis, moved, own_moved)

    def list_axes(self, visitor: Visitor, span: str) -> Iterator[Any]:
        """The axes of a part, those that matter most first."""
        found = self.world.axes(self._subset(span))
        if not found:
            raise InputError("This part of the code is empty.")
        yield gr.Dropdown(self._choices(visitor, found), value=found[0]), gr.Slider(value=0)

    def give_name(self, visitor: Visitor, span: str, axis: Any, grows: str, end: str) -> Iterator[Any]:
        """Keep a name, in the model folder where it may be changed."""
        number = whole(axis, 0, self.world.model.dims - 1)
        kept = self.world.name(visitor.names, number, str(grows or "").strip(), str(end or "").strip())
        gr.Info("The name is kept with the model." if kept else "The name is kept while this page is open.")
        axes = self.world.axes(self._subset(span))
        yield gr.Dropdown(self._choices(visitor, axes), value=number), "", ""

    def opened(self, visitor: Visitor) -> Iterator[Any]:
        """The picture that was chosen on another tab."""
        yield self.subject.picture(visitor)

    def _subset(self, span: Any) -> int:
        return whole(str(span).partition(":")[0], 0, self.world.partition.subsets - 1)

    def _choices(self, visitor: Visitor, axes: list[int]) -> list[tuple[str, int]]:
        names = self.world.names(visitor.names)
        return [(names[axis], axis) for axis in axes]

    def _faces(self, rows: np.ndarray) -> str:
        return markup.thumbnails([self.world.pixels(int(row)) for row in rows])
