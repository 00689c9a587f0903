"""The page: a heading, the tabs, and what happens when it is opened."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from diti.studio import markup
from diti.studio.guard import NOT_UNDERSTOOD
from diti.studio.parts import SORRY, Desk, html, tell_fault
from diti.studio.session import Visitor
from diti.studio.tabs.axes import Axes
from diti.studio.tabs.interpolate import Interpolate
from diti.studio.tabs.manipulate import Manipulate
from diti.studio.tabs.search import Search
from diti.studio.tabs.understand import Understand
from diti.studio.world import NO_DATA, World

HERE = Path(__file__).parent
FONTS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
OTHERS: dict[str, Any] = {"Manipulate": Manipulate, "Axes": Axes, "Understand": Understand, "Search": Search}
# gradio's sliders tell of a release by pointer only; with the keyboard they would do nothing.
# gradio keeps our style to what is inside the page's frame; the frame itself is too wide for a phone.
HEAD = """<style>
@media (max-width: 640px) {
  .gradio-container .main { padding: 0 !important; }
  .gradio-container .main > .wrap { padding: 8px 4px !important; }
}
</style><script>
document.addEventListener('keyup', event => {
  const slider = event.target;
  if (slider.type === 'range' && /^(Arrow|Page|Home|End)/.test(event.key))
    slider.dispatchEvent(new PointerEvent('pointerup', { bubbles: true }));
});
</script>"""


def theme() -> Any:
    """Quiet, with the fonts of the visitor's own machine."""
    base = gr.themes.Base(
        primary_hue="indigo", neutral_hue="slate", radius_size="md", spacing_size="sm", font=list(FONTS),
        font_mono=["ui-monospace", "monospace"],
    )  # fmt: skip
    return base.set(  # quiet words must be readable too
        body_text_color_subdued="*neutral_600", body_text_color_subdued_dark="*neutral_300",
        block_info_text_color="*neutral_600", block_info_text_color_dark="*neutral_300",
    )  # fmt: skip


def style() -> str:
    return (HERE / "style.css").read_text(encoding="utf-8")


class Page(gr.Blocks):
    """gradio's Blocks, whose faults while serving are one line in the terminal instead of a traceback."""

    async def preprocess_data(self, *given: Any, **more: Any) -> Any:
        """What a page sent, as its controls understand it; what they do not understand is refused."""
        try:
            return await super().preprocess_data(*given, **more)
        except Exception as error:
            print(f"diti: a request was not understood ({type(error).__name__})", file=sys.stderr)
            raise gr.Error(NOT_UNDERSTOOD, print_exception=False) from None

    async def process_api(self, *given: Any, **more: Any) -> Any:
        try:
            return await super().process_api(*given, **more)
        except Exception as error:
            if isinstance(error, gr.Error) and not error.print_exception:  # shown already
                raise
            tell_fault(error)
            raise gr.Error(SORRY, print_exception=False) from None


def build_page(world: World) -> Any:
    """The page, ready to be launched."""
    with Page(title="diti studio", analytics_enabled=False, delete_cache=(600, 3600)) as page:
        visitor = gr.State(Visitor())
        html(markup.header(world, NO_DATA), elem_classes="heading")
        with gr.Row(elem_classes="at-work"):
            doing = html("", elem_id="doing")
            stop = gr.Button("Stop", size="sm", elem_id="stop", scale=0, min_width=70)
        desk = Desk(world, visitor, doing)
        desk.on(stop.click, ask_to_stop, [], [], heavy=False)
        with gr.Tabs():
            with gr.Tab("Interpolate", id="interpolate"):
                first = Interpolate(desk)
            for name, kind in OTHERS.items():
                with gr.Tab(name, id=name.lower()) as tab:
                    shown = kind(desk)
                desk.on(tab.select, shown.opened, shown.inputs, shown.outputs)
        desk.on(page.load, first.opened, [], first.outputs)
    return page


def ask_to_stop(visitor: Visitor) -> Iterator[None]:
    """Everything the visitor has started ends at its next step."""
    visitor.stops += 1
    yield
