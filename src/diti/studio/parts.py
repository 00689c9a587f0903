"""What the tabs are built from: work in the queue, the picture picker, the strip of subsets, before and after."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from torch import Tensor

from diti.core.errors import InputError, write_crash_report
from diti.core.images import to_uint8
from diti.core.progress import followed
from diti.edit.interpolate import moved_dims
from diti.edit.invert import Inverted
from diti.edit.places import Touch, touched
from diti.representation.models.axis_names import Key
from diti.studio import markup, uploads
from diti.studio.session import Stopped, Visitor
from diti.studio.turns import Turns
from diti.studio.world import World

HERE = Path(__file__).parent
STRIP, UPLOAD, CLICK = ((HERE / f"{name}.js").read_text(encoding="utf-8") for name in ("strip", "upload", "click"))
SORRY = "Sorry, something went wrong on our side. Please try something else."
SOON = 0.7  # seconds: what takes less is not worth a bar
IN_WORDS = {
    "encoding": "reading the pictures",
    "subset matrix": "asking each part",
    "what each axis removes": "weighing the axes",
}
PROGRESS = gr.Progress()  # gradio knows whose request is at work
Work = Callable[..., Iterator[Any]]


@dataclass(frozen=True, eq=False)
class Desk:
    """What every tab needs: the model and its data, who looks at the page, and whose turn it is."""

    world: World
    visitor: Any  # gr.State of a Visitor
    doing: Any  # where the page shows how far long work is
    turns: Turns = field(default_factory=Turns)

    def on(
        self, trigger: Any, work: Work, inputs: Sequence[Any], outputs: Sequence[Any], *, heavy: bool = True
    ) -> Any:
        """Do the work when something happens. Heavy work is done one at a time, visitors taking turns.

        Each control has at most one request waiting besides the one at work, so that nobody can fill the queue.
        """
        return trigger(
            with_complaints(work, outputs, self.turns if heavy else None),
            [self.visitor, *inputs],
            list(outputs),
            concurrency_limit=None,
            trigger_mode="always_last",
            show_progress="full" if heavy else "hidden",
            show_progress_on=self.doing,
            api_visibility="private",
        )


def with_complaints(work: Work, outputs: Sequence[Any] = (), turns: Turns | None = None) -> Work:
    """The same work, whose faults become a friendly line on the page of the one who asked."""

    @functools.wraps(work)
    def run(*given: Any) -> Iterator[Any]:
        visitor = next(item for item in given if isinstance(item, Visitor))
        try:
            yield from in_turns(work(*given), visitor, turns) if turns else work(*given)
        except Stopped:
            yield _only_lines("Stopped.", outputs)
        except InputError as error:
            gr.Warning(escape(str(error)))
            yield _only_lines(str(error), outputs)
        except Exception as error:  # a fault of ours must not end the page; the report says where it was
            tell_fault(error)
            gr.Warning(SORRY)
            yield _only_lines(SORRY, outputs)

    return run


def tell_fault(error: Exception) -> None:
    """One line in the terminal about a fault of ours, and a report."""
    report = write_crash_report(error, ["serve"])
    print(f"diti: {type(error).__name__} while serving; the report {report} says where", file=sys.stderr)


def sent(event: gr.EventData, name: str) -> Any:
    """What a click sent; None where it sent nothing of that name."""
    return event._data.get(name) if isinstance(event._data, dict) else None


def in_turns(steps: Iterator[Any], visitor: Visitor, turns: Turns) -> Iterator[Any]:
    """The same steps, each in a turn of its own, so that others come between a preview and the full picture.

    Long ones tell the page how far they are, and end where the visitor asks to stop.
    """
    asked = visitor.stops
    while True:
        began = time.perf_counter()

        def follow(label: str, share: float, began: float = began) -> None:
            if visitor.stops != asked:
                raise Stopped
            if time.perf_counter() - began > SOON:
                PROGRESS(share, desc=IN_WORDS.get(label, label))

        with turns.turn(visitor), followed(follow):
            if visitor.stops != asked:
                raise Stopped
            try:
                value = next(steps)
            except StopIteration:
                return
        yield value


def _only_lines(text: str, outputs: Sequence[Any]) -> Any:
    """A text for the outputs that report on the work; the others stay as they are."""
    shown = [markup.note(text) if "status" in (output.elem_classes or ()) else gr.skip() for output in outputs]
    return shown[0] if len(shown) == 1 else shown


html = functools.partial(gr.HTML, apply_default_css=False)


def lead(words: str) -> None:
    """What a tab is for, in HTML of our own."""
    html(f"<p class='lead'>{words}</p>")


def titled(words: str) -> Any:
    """A row of pictures with a title."""
    with gr.Column(min_width=280):
        html(markup.heading(words))
        return html(markup.thumbnails([]))


# ---- Choosing a picture -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Picker:
    """A picture to work on: chosen with a click, drawn at random, or uploaded."""

    shown: Any
    slot: str
    label: str
    choices: list[tuple[Any, Work]]  # trigger, and what to do with it

    def picture(self, visitor: Visitor) -> str:
        return markup.chosen(visitor.images.get(self.slot), self.label)


def picker(desk: Desk, slot: str, label: str, about: str) -> Picker:
    """Draw a picker. `then_redraw` connects it."""
    world = desk.world
    html(markup.heading(label, about))
    shown = html(markup.chosen(None, label), elem_classes="chosen-box", elem_id=f"chosen-{slot}")
    with gr.Row(elem_classes="buttons"):
        randomly = gr.Button("Surprise me", size="sm", min_width=90, visible=world.dataset is not None)
        upload = html(
            "",
            html_template='<label class="upload"><input type="file" accept="image/*">Upload yours</label>',
            js_on_load=UPLOAD,
            most=uploads.MOST_BYTES,
            elem_classes="upload-box",
        )

    def by_row(visitor: Visitor, event: gr.EventData) -> Iterator[str]:
        visitor.images[slot] = world.pixels(sent(event, "row"))
        yield markup.chosen(visitor.images[slot], label)

    def by_chance(visitor: Visitor) -> Iterator[str]:
        visitor.images[slot] = world.pixels(world.random_row())
        yield markup.chosen(visitor.images[slot], label)

    def by_upload(visitor: Visitor, event: gr.EventData) -> Iterator[str]:
        visitor.images[slot] = uploads.read_upload(event._data, world.model.size, world.framing)
        yield markup.chosen(visitor.images[slot], label)

    choices: list[tuple[Any, Work]] = [(randomly.click, by_chance), (upload.upload, by_upload)]
    if world.dataset is not None:
        faces = gallery(world)
        choices.append((faces.select, by_row))
    return Picker(shown, slot, label, choices)


def gallery(world: World) -> Any:
    """Pictures of the data to click on."""
    rows = world.offered.tolist()
    pictures = [world.pixels(row) for row in rows]
    return clickable(markup.thumbnails(pictures, rows), "offered")


def clickable(value: str = "", kind: str = "") -> Any:
    """HTML whose buttons report their row or cell."""
    return html(value, js_on_load=CLICK, elem_classes=["clickable", kind])


def axis_buttons(world: World, visitor: Visitor, offered: Sequence[Key], chosen: Collection[Key]) -> str:
    """A button for each axis, the chosen ones pressed; `World.key_of` understands its row."""
    named = [(world.label(key, visitor.names), world.row_of(key)) for key in offered]
    return str(markup.choices(named, {world.row_of(key) for key in chosen}))


def then_redraw(desk: Desk, chosen: Picker, work: Work, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Draw the tab again whenever a picture is chosen."""
    for trigger, choose in chosen.choices:
        event = desk.on(trigger, choose, [], [chosen.shown], heavy=False)
        desk.on(event.success, work, inputs, outputs)


# ---- Subsets ------------------------------------------------------------------------------------------------


def span_of(world: World, words: Any) -> str:
    """A range of subsets that a page sent; InputError for anything else, or a range that owns nothing."""
    moved_dims(world.partition, str(words)[:40])
    return str(words)[:40]


def strip(world: World, label: str, about: str, *, single: bool = False) -> Any:
    """The subsets from fine to coarse, of which a range, or one, can be picked; its value is I:J."""
    return html(
        f"0:{1 if single else world.partition.subsets}",
        html_template=markup.strip(world.partition, label, about, single),
        js_on_load=STRIP,
        elem_classes="strip-box",
    )


# ---- Before and after ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Result:
    """A picture before and after, and a line about how it was made."""

    slider: Any
    line: Any

    @property
    def parts(self) -> list[Any]:
        return [self.slider, self.line]


def result() -> Result:
    """Where a result is shown."""
    slider = gr.ImageSlider(
        label="Before | after: drag the line", format="png", type="numpy", interactive=False,
        buttons=["download", "fullscreen"], elem_classes="before-after", max_height=300,
    )  # fmt: skip
    return Result(slider, html(markup.note("Choose a picture to begin."), elem_classes="status"))


def drawn(
    world: World,
    visitor: Visitor,
    slots: Sequence[str],
    edit: Callable[[Inverted], tuple[Tensor, Tensor]],
    touch: Touch | None = None,
) -> Iterator[tuple[Any, str]]:
    """The picture of the first slot before and after: a preview in few steps first, then the full result.

    edit: from the inverted images of the slots to the code (1, D) and the noise of the wanted one. touch: what the
    edit may do to the picture; None: all.
    """
    began = time.perf_counter()
    with world.lock:
        start = visitor.inverted(world.model, slots)
    codes, noise = edit(start)
    before = markup.enlarged(visitor.image(slots[0]))
    for steps in world.steps:
        with world.lock:
            image = visitor.decoded(start, codes, noise, steps)
            if touch is not None:
                image = touched(image, visitor.unedited(start, slots[0], steps), touch)
        after, last = markup.enlarged(to_uint8(image)[0]), steps == world.steps[-1]
        said = f"{'Done' if last else 'Preview'}: {steps} steps, {time.perf_counter() - began:.1f} s"
        line = said if last else f"{said}; the full picture follows …"
        yield (before, after), markup.note(line, busy=not last)


def subset_shares(world: World, heading: np.ndarray) -> np.ndarray:
    """(K,) share of the squared length of a direction (D,) in each subset."""
    squares = np.square(heading)
    parts = [squares[list(world.partition.dims_of(k))].sum() for k in range(world.partition.subsets)]
    return np.array(parts) / max(float(squares.sum()), 1e-12)


def as_picture(image: Tensor) -> np.ndarray:
    """uint8 (H, W, 3) of (3, H, W), shown in [-1, 1]."""
    return to_uint8(image[None].clamp(-1, 1))[0]


def whole(number: Any, low: int, high: int) -> int:
    """A number that a page sent, inside its range."""
    try:
        return int(min(max(int(number), low), high))
    except (TypeError, ValueError, OverflowError):
        raise InputError("Please give a number.") from None


def real(number: Any, low: float, high: float) -> float:
    """The same for numbers with a fraction."""
    try:
        return float(np.clip(np.nan_to_num(float(number)), low, high))
    except (TypeError, ValueError):
        raise InputError("Please give a number.") from None
