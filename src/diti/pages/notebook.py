"""How a notebook shows an object: small HTML that needs nothing else, in the notebook's own colours."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from diti.pages.templates import data_url, template

LARGEST = 64  # px of the side of an embedded picture


def card(
    title: str,
    facts: Mapping[str, str],
    *,
    pictures: np.ndarray | None = None,
    strip: Sequence[tuple[int, str, str]] = (),
    folded: str = "",
    lines: Sequence[str] = (),
) -> str:
    """A framed box: title, a line per fact that is not empty, and the rest as given. Long texts are cut.

    pictures: uint8 (N, H, W, 3), side by side. strip: width, label and note (shown on hover) of parts from fine
    to coarse. lines: open with a click on what `folded` says.
    """
    row = None if pictures is None else {"source": _row_url(pictures), "width": LARGEST * len(pictures)}
    found = template("pages/notebook.html.jinja")
    return found.render(title=title, facts=facts, row=row, strip=strip, folded=folded, lines=lines)


def shortened(words: Sequence[str], most: int) -> list[str]:
    """The first `most`, and how many more there are."""
    rest = len(words) - most
    return [*words[:most], f"and {rest:,} more"] if rest > 0 else list(words)


def _row_url(pixels: np.ndarray) -> str:
    """One PNG of all; large images are made smaller."""
    side = min(LARGEST, pixels.shape[1])
    row = Image.new("RGB", (side * len(pixels), side))
    for place, image in enumerate(pixels):
        small = Image.fromarray(image)
        row.paste(small if small.width == side else small.resize((side, side)), (place * side, 0))
    content = io.BytesIO()
    row.save(content, "PNG", optimize=True)
    return data_url(content.getvalue())
