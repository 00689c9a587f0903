"""One picture, and sliders for what people can name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr
from torch import Tensor

from diti.core.errors import InputError
from diti.edit.compose import push
from diti.edit.directions import checked_dims
from diti.edit.invert import Inverted
from diti.studio import markup
from diti.studio.parts import Desk, drawn, html, lead, picker, real, result, subset_shares, then_redraw, whole
from diti.studio.session import Visitor

AT_ONCE = 4  # attributes
FARTHEST = 2.0  # strength at the end of a slider


class Manipulate:
    """The tab, its work, and what it shows when it is opened."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.world, self.names = desk, desk.world, desk.world.attributes
        lead(
            "Choose what to change, then pull the sliders. The model was never told these words: their directions "
            "were found afterwards, from labelled pictures."
        )
        if not self.names:
            html(
                "<p class='missing' role='note'>This model keeps no directions, and its data has no labels. Start "
                "the studio with labelled --data, or make a slider from examples under Axes.</p>"
            )
        with gr.Row(equal_height=False, elem_classes="bench"):
            with gr.Column(scale=2, min_width=220):
                self.subject = picker(desk, "image", "Your picture", "the same one on the other tabs")
            with gr.Column(scale=3, min_width=300):
                self.shown = result()
                self.where = html("", elem_classes="where")
            with gr.Column(scale=2, min_width=260):
                self._controls()
        self.inputs = [self.wanted, self.dims, *self.sliders]
        self.outputs = [self.subject.shown, *self.shown.parts, self.where]
        self._connect()

    def _controls(self) -> None:
        self.wanted = gr.Dropdown(
            self.names, value=self.names[:1], multiselect=True, max_choices=AT_ONCE, label="What to change",
            info=f"Up to {AT_ONCE} at once.", elem_id="wanted", interactive=True,
        )  # fmt: skip
        labels = [*(f"{name}: less to more" for name in self.names[:1]), *[""] * AT_ONCE][:AT_ONCE]
        self.sliders = [
            gr.Slider(-1, 1, 0, step=0.1, label=label, visible=bool(label), elem_id=f"strength-{place}")
            for place, label in enumerate(labels)
        ]
        self.dims = gr.Slider(
            1, self.world.model.dims, checked_dims(self.world.model, None), step=1, elem_id="dims",
            label="How many numbers may move",
            info="Few: only the clearest ones, a cleaner change. Many: a stronger one.",
        )  # fmt: skip

    def _connect(self) -> None:
        on, inputs, outputs = self.desk.on, self.inputs, self.outputs[1:]
        then_redraw(self.desk, self.subject, self.draw, inputs, outputs)
        changed = on(self.wanted.input, self.relabel, [self.wanted], self.sliders, heavy=False)
        on(changed.success, self.draw, inputs, outputs)
        for slider in (*self.sliders, self.dims):
            on(slider.release, self.draw, inputs, outputs)

    def relabel(self, visitor: Visitor, chosen: list[str]) -> Iterator[Any]:
        """A slider for each attribute that was chosen."""
        labels = [f"{name}: less to more" for name in self._known(chosen)]
        shown = [gr.Slider(label=label, visible=True) for label in labels]
        yield [*shown, *[gr.Slider(value=0, visible=False)] * (AT_ONCE - len(shown))]

    def draw(self, visitor: Visitor, chosen: list[str], count: float, *strengths: float) -> Iterator[Any]:
        """Where the directions live, then before and after."""
        visitor.image("image")
        picked = self._known(chosen)
        if not picked:
            raise InputError("Please choose what to change.")
        yield gr.skip(), markup.note("Finding the direction …", busy=True), gr.skip()
        number = whole(count, 1, self.world.model.dims)
        found = [self.world.direction(name, number) for name in picked]
        shares = [(d.attribute, subset_shares(self.world, d.heading)) for d in found]
        yield gr.skip(), gr.skip(), markup.bars(shares, self.world.partition)

        def edit(start: Inverted) -> tuple[Tensor, Tensor]:
            z = start.z
            for direction, strength in zip(found, strengths, strict=False):
                z = push(z, direction, FARTHEST * real(strength, -1, 1))
            return z, start.x_T

        for value, line in drawn(self.world, visitor, ("image",), edit):
            yield value, line, gr.skip()

    def opened(self, visitor: Visitor, *inputs: Any) -> Iterator[Any]:
        """The picture, which may have been chosen on another tab."""
        yield self.subject.picture(visitor), *[gr.skip()] * 3
        if "image" in visitor.images and self.names:
            for value in self.draw(visitor, *inputs):
                yield gr.skip(), *value

    def _known(self, chosen: Any) -> list[str]:
        """What a page sent as far as it exists."""
        return [name for name in chosen if name in self.names][:AT_ONCE] if isinstance(chosen, list) else []
