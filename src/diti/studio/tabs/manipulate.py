"""One picture, and sliders for what people can name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.edit.compose import What, step_for
from diti.edit.directions import Direction
from diti.edit.invert import Inverted
from diti.edit.places import touch_of
from diti.edit.reach import FAR, ends_of
from diti.studio import markup
from diti.studio.parts import Desk, drawn, html, lead, picker, real, result, subset_shares, then_redraw, whole
from diti.studio.session import Visitor

AT_ONCE = 4  # attributes
STEP = 0.1  # of a slider
FEW = 24  # names that are shown at once
FARTHEST = 4.0  # strength that a page may ask for


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
        self.inputs = [self.wanted, self.kept, self.dims, *self.sliders]
        self.outputs = [self.subject.shown, *self.sliders, *self.shown.parts, self.where]
        self._connect()

    def _controls(self) -> None:
        self.wanted = gr.Dropdown(
            self.names, value=self.names[:1], multiselect=True, max_choices=AT_ONCE, label="What to change",
            info=f"Up to {AT_ONCE} at once; each goes where its slider is.", elem_id="wanted", interactive=True,
        )  # fmt: skip
        labels = [*(_label(name) for name in self.names[:1]), *[""] * AT_ONCE][:AT_ONCE]
        self.sliders = [
            gr.Slider(-FAR, FAR, 0, step=STEP, label=label, visible=bool(label), elem_id=f"strength-{place}")
            for place, label in enumerate(labels)
        ]
        html(
            "<p class='hint'>1 is the step from the usual picture without it to the usual one with it. A slider "
            "ends where pictures would no longer be like those that the model knows.</p>"
        )
        with gr.Accordion("What should stay", open=len(self.names) <= FEW):
            self.kept = gr.CheckboxGroup(self.names, value=[], show_label=False, elem_id="kept")
        dims = self.world.model.dims
        self.dims = gr.Slider(
            1, dims, dims, step=1, elem_id="dims", label="How many numbers may move",
            info="All: what was asked and little else. Few: the paper's way, only the clearest ones.",
        )  # fmt: skip

    def _connect(self) -> None:
        on, inputs, outputs = self.desk.on, self.inputs, self.outputs[1 + AT_ONCE :]
        then_redraw(self.desk, self.subject, self.draw, inputs, outputs)
        changed = on(self.wanted.input, self.relabel, [self.wanted, self.dims], [*self.sliders, self.shown.line])
        on(changed.success, self.draw, inputs, outputs)
        on(self.kept.input, self.draw, inputs, outputs)
        for slider in (*self.sliders, self.dims):
            on(slider.release, self.draw, inputs, outputs)

    def relabel(self, visitor: Visitor, chosen: list[str], count: float) -> Iterator[Any]:
        """A slider for each attribute that was chosen, as soon as it is; then each with its safe range."""
        names = self._known(chosen)
        hidden = [gr.Slider(value=0, visible=False)] * (AT_ONCE - len(names))
        note = markup.note("Finding out how far it can go …", busy=True)
        yield *(gr.Slider(label=_label(name), visible=True) for name in names), *hidden, note
        yield *(_slider(name, self._direction(name, count)) for name in names), *hidden, gr.skip()

    def draw(
        self, visitor: Visitor, chosen: list[str], kept: list[str], count: float, *strengths: float
    ) -> Iterator[Any]:
        """Where the directions live, then before and after."""
        visitor.image("image")
        picked = self._known(chosen)
        if not picked:
            raise InputError("Please choose what to change.")
        yield gr.skip(), markup.note("Finding the direction …", busy=True), gr.skip()
        found = [self._direction(name, count) for name in picked]
        shares = [(d.attribute, subset_shares(self.world, d.heading)) for d in found]
        yield gr.skip(), gr.skip(), markup.bars(shares, self.world.partition)
        asked = [real(strength, -FARTHEST, FARTHEST) for strength in strengths]
        moves: dict[What, float] = {d: strength for d, strength in zip(found, asked, strict=False) if strength}
        keep = [self.world.learned(name) for name in self._known(kept, len(self.names)) if name not in picked]

        def edit(start: Inverted) -> tuple[Tensor, Tensor]:
            if not moves:
                return start.z, start.x_T
            step = step_for(self.world.model, list(moves), list(moves.values()), keep)
            return start.z + torch.from_numpy(step).to(start.z), start.x_T

        for value, line in drawn(self.world, visitor, ("image",), edit, touch_of(moves)):
            yield value, line, gr.skip()

    def opened(self, visitor: Visitor, *inputs: Any) -> Iterator[Any]:
        """The picture, which may have been chosen on another tab."""
        yield self.subject.picture(visitor), *[gr.skip()] * (AT_ONCE + 3)
        if "image" in visitor.images and self.names:
            for *sliders, line in self.relabel(visitor, inputs[0], inputs[2]):
                yield gr.skip(), *sliders, gr.skip(), line, gr.skip()
            for value in self.draw(visitor, *inputs):
                yield *[gr.skip()] * (1 + AT_ONCE), *value

    def _known(self, chosen: Any, most: int = AT_ONCE) -> list[str]:
        """What a page sent as far as it exists."""
        return [name for name in chosen if name in self.names][:most] if isinstance(chosen, list) else []

    def _direction(self, name: str, count: Any) -> Direction:
        return self.world.direction(name, whole(count, 1, self.world.model.dims))


def _label(name: str) -> str:
    """What a slider is called."""
    return f"{name}: less to more"


def _slider(name: str, direction: Direction) -> Any:
    """Of a direction, from one end of its safe range to the other."""
    low, high = ends_of(direction.reach) or (-FAR, FAR)
    return gr.Slider(low, high, label=_label(name), visible=True)
