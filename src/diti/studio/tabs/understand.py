"""What the frozen model loses as noise grows, what the code gives back, and which part tells what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr
import torch

from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, to_float
from diti.core.rng import torch_generator
from diti.diffusion.schedule import gather, q_sample, w_eps, x0_from_eps
from diti.representation.models.diffusion import DiTi
from diti.representation.models.model import inference
from diti.studio import markup
from diti.studio.parts import Desk, as_picture, clickable, html, lead, picker, sent, then_redraw, whole
from diti.studio.session import Visitor

AT_THE_ENDS = 8
SMALL: dict[str, Any] = {"variant": "primary", "size": "sm", "scale": 0, "min_width": 180}


class Understand:
    """The tab, its work, and what it shows when it is opened."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.world = desk, desk.world
        self.last = self.world.model.partition.timesteps - 1
        lead(
            "Add noise, and ask the diffusion model for the picture underneath: it gives back what it can still "
            "see and guesses the rest. The code is made of what is lost."
        )
        with gr.Row(equal_height=False, elem_classes="bench"):
            with gr.Column(scale=2, min_width=220):
                self.subject = picker(desk, "image", "Your picture", "the same one on the other tabs")
            with gr.Column(scale=5, min_width=300):
                self.time = gr.Slider(
                    0, self.last, self.last * 4 // 10, step=1, label="How much noise", elem_id="time",
                    info=f"The time-step of the diffusion, from 0 (none) to {self.last} (nothing but noise).",
                )  # fmt: skip
                self.seen = html("", elem_classes="seen")
        self._measurements()
        self.inputs, self.outputs = [self.time], [self.subject.shown, self.seen]
        self._connect()

    def _measurements(self) -> None:
        can = self.world.dataset is not None
        hint = (
            "How well one part alone tells each label, from 0 to 100. Click a number to see the pictures in which "
            "this part sees least and most of it."
        )
        html(markup.heading("Which part tells what?", hint))
        with gr.Row(elem_classes="buttons"):
            self.measure = gr.Button("Measure the parts", elem_id="measure", visible=can, **SMALL)
        self.line, self.table = html("", elem_classes="status"), clickable("", "matrix-box")
        self.ends = html("", elem_classes="cell-ends")
        hint = "The error by the amount of noise; a gap between the lines is what the code knows."
        html(markup.heading("Where does the code help?", hint))
        with gr.Row(elem_classes="buttons"):
            self.losses = gr.Button("Measure the error", elem_id="losses", visible=can, **SMALL)
        self.chart = html("", elem_classes=["chart-box", "status"])

    def _connect(self) -> None:
        on = self.desk.on
        then_redraw(self.desk, self.subject, self.draw, [self.time], [self.seen])
        on(self.time.release, self.draw, [self.time], [self.seen])
        on(self.measure.click, self.fill, [], [self.table, self.line])
        on(self.table.select, self.look, [], [self.ends])
        on(self.losses.click, self.chart_losses, [], [self.chart])

    def draw(self, visitor: Visitor, t: float) -> Iterator[str]:
        """The picture at one time-step."""
        yield self._lost(visitor, whole(t, 0, self.last))

    def fill(self, visitor: Visitor) -> Iterator[Any]:
        """The matrix of parts and labels."""
        yield gr.skip(), markup.note("Reading the pictures, and asking each part about each label …", busy=True)
        matrix = self.world.matrix
        left = f" Left out: {', '.join(item.name for item in matrix.left_out)}." if matrix.left_out else ""
        count = len(self.world.held_apart())
        yield markup.matrix_table(matrix), markup.note(f"Measured on {count} pictures kept apart.{left}")

    def look(self, visitor: Visitor, event: gr.EventData) -> Iterator[str]:
        """The images in which a part sees least and most of a label."""
        subset, attribute = self._cell(sent(event, "cell"))
        rows = self.world.ends_of(subset, attribute, AT_THE_ENDS)
        yield "".join(
            markup.heading(f"Part {subset + 1} sees {word} of {attribute}")
            + markup.thumbnails([self.world.pixels(int(row)) for row in side])
            for word, side in zip(("least", "most"), rows, strict=True)
        )

    def chart_losses(self, visitor: Visitor) -> Iterator[str]:
        """The loss by time-step."""
        yield markup.note("Measuring …", busy=True)
        yield markup.loss_chart(self.world.losses)

    def opened(self, visitor: Visitor, t: float) -> Iterator[Any]:
        """The picture, which may have been chosen on another tab."""
        yield self.subject.picture(visitor), gr.skip()
        if "image" in visitor.images and isinstance(self.world.model, DiTi):
            yield gr.skip(), self._lost(visitor, whole(t, 0, self.last))

    def _cell(self, words: Any) -> tuple[int, str]:
        """Subset and attribute of a cell that a page named."""
        matrix = self.world.matrix
        subset, _, place = str(words)[:20].partition(",")
        if not (subset.isdecimal() and place.isdecimal()) or int(subset) >= len(matrix.ends):
            raise InputError("There is no such cell.")
        if int(place) >= len(matrix.names):
            raise InputError("There is no such label.")
        return int(subset), matrix.names[int(place)]

    @torch.no_grad()
    def _lost(self, visitor: Visitor, t: int) -> str:
        """The picture, with noise, and what the frozen model makes of that without and with the code. Eq. 5, 6."""
        model = self.world.frozen
        pixels = to_float(visitor.image("image")[None]).to(model.device)
        noise = torch.randn(pixels.shape, generator=torch_generator(0, "studio-noise")).to(pixels)
        steps = torch.tensor([t], device=model.device)
        abar = gather(model.schedule.alpha_bar, steps, pixels)
        noisy = q_sample(pixels, noise, abar)
        with self.world.lock, inference(model.decoder):
            frozen = model.decoder.frozen(noisy, steps)
            z = model.partition.mask(model.encode(pixels, value_range=MODEL_RANGE), steps)
            guided = model.decoder.respond(frozen, steps, z).eps(gather(w_eps(model.schedule), steps, pixels))
        drawn = {
            "your picture": pixels,
            f"with noise, t = {t}": noisy,
            "what the model still sees": frozen.u,
            "and with the code": x0_from_eps(guided, noisy, abar),
        }
        return markup.figures([(words, as_picture(image[0].cpu())) for words, image in drawn.items()])
