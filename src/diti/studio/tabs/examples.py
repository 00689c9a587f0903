"""A slider of one's own: pick pictures that have something and pictures that lack it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr
import torch

from diti.core.errors import InputError
from diti.edit.examples import codes_of, example_direction, pair_direction
from diti.studio import markup
from diti.studio.parts import Desk, gallery, html, sent, titled
from diti.studio.session import SIDES, Visitor

FARTHEST = 2.0  # strength at the end of the slider


class Examples:
    """A part of the tab about axes. `made` happens when there is a new slider."""

    def __init__(self, desk: Desk) -> None:
        self.world = desk.world
        with gr.Accordion("Make a slider of your own from examples", open=False):
            html(
                "<p class='hint'>Click pictures that <b>have</b> what you mean, then some that <b>lack</b> it; "
                "without those, the average picture takes their place. Eight of each are a good start.</p>"
            )
            side = gr.Radio(
                [("have it (like)", "like"), ("lack it (unlike)", "unlike")], value="like",
                label="The pictures I click now", elem_id="side",
            )  # fmt: skip
            faces = gallery(self.world) if self.world.dataset is not None else None
            with gr.Row(elem_classes="buttons"):
                mine = gr.Button("Add my picture", size="sm")
                make = gr.Button("Make the slider", variant="primary", size="sm", elem_id="make")
                clear = gr.Button("Clear", size="sm")
            with gr.Row():
                shown = [titled("Like"), titled("Unlike")]
            paired = gr.Checkbox(
                label="They are pairs, in this order: the same thing with and without it", elem_id="paired"
            )
            self.strength = gr.Slider(
                -FARTHEST,
                FARTHEST,
                0,
                step=0.1,
                label="My slider: less to more",
                visible=False,
                elem_id="own-strength",
            )
        if faces is not None:
            desk.on(faces.select, self.add_row, [side], shown, heavy=False)
        desk.on(mine.click, self.add_mine, [side], shown, heavy=False)
        desk.on(clear.click, self.forget, [], [*shown, self.strength], heavy=False)
        self.made = desk.on(make.click, self.learn, [paired], [self.strength])

    def add_row(self, visitor: Visitor, side: str, event: gr.EventData) -> Iterator[Any]:
        """A picture of the data."""
        visitor.add_example(side, self.world.pixels(sent(event, "row")))
        yield _both(visitor)

    def add_mine(self, visitor: Visitor, side: str) -> Iterator[Any]:
        """The picture that the visitor works on."""
        visitor.add_example(side, visitor.image("image"))
        yield _both(visitor)

    def forget(self, visitor: Visitor) -> Iterator[Any]:
        """Start again."""
        visitor.forget_examples()
        yield *_both(visitor), gr.Slider(value=0, visible=False)

    def learn(self, visitor: Visitor, paired: bool) -> Iterator[Any]:
        """The direction from one side to the other."""
        have, lack = (len(visitor.examples[side]) for side in SIDES)
        if not have:
            raise InputError("Please click at least one picture that has what you mean.")
        if paired and have != lack:
            raise InputError(f"Pairs need as many pictures that have it as lack it; here are {have} and {lack}.")
        model = self.world.model
        known = model.mean is not None or self.world.dataset is None
        make = pair_direction if paired else example_direction
        with self.world.lock:
            like, unlike = (codes_of(model, visitor.examples[side]) for side in SIDES)
            visitor.own = make(
                model, "my slider", like, unlike, codes=None if known else torch.from_numpy(self.world.codes)
            )
        yield gr.Slider(value=1, visible=True)


def _both(visitor: Visitor) -> list[str]:
    return [markup.thumbnails(visitor.examples[side]) for side in SIDES]
