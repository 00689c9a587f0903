"""What a notebook shows of an object: small HTML that needs nothing else, in the notebook's own colours.

All text comes in as it is and goes out escaped; pictures are embedded. There is no script and no style sheet:
notebooks drop or mix these.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np
from PIL import Image

LINE = "1px solid rgba(128,128,128,.45)"  # seen on white and on black
LARGEST = 64  # px of the side of an embedded picture
LABELLED = 20  # parts of a strip that have room for a label
LONGEST = 2_000  # characters of one text: names in files may be of any length


def safe(text: str, longest: int = LONGEST) -> str:
    """Text as HTML that shows it: markup in it stays text, and what is too long is cut."""
    return escape(text if len(text) <= longest else f"{text[:longest]}…")


def card(title: str, facts: Mapping[str, str], *parts: str) -> str:
    """A framed box: title, a line per fact, and parts that are HTML already. Empty facts are left out."""
    lines = "".join(
        f'<div><span style="opacity:.65">{safe(name)}</span> {safe(fact)}</div>'
        for name, fact in facts.items()
        if fact
    )
    return (
        f'<div style="border:{LINE};border-radius:6px;padding:.6em .9em;max-width:46em;line-height:1.5">'
        f"<div><b>{safe(title)}</b></div>{lines}{''.join(parts)}</div>"
    )


def folded(title: str, lines: Sequence[str]) -> str:
    """Lines of text that open with a click."""
    text = "\n".join(safe(line, 100) for line in lines)
    return (
        f'<details><summary style="cursor:pointer">{safe(title)}</summary>'
        f'<pre style="margin:.3em 0;max-height:18em;overflow:auto;background:none;font-size:90%">{text}</pre>'
        "</details>"
    )


def shortened(words: Sequence[str], most: int) -> list[str]:
    """The first so many, and how many more there are."""
    rest = len(words) - most
    return [*words[:most], f"and {rest:,} more"] if rest > 0 else list(words)


def coloured_strip(
    widths: Sequence[int], labels: Sequence[str], notes: Sequence[str], ends: tuple[str, str]
) -> str:
    """Parts side by side, from blue to orange, with the words of both ends below.

    Each is as wide as its share, has its label below it where there is room, and its note under the pointer.
    """
    few = len(widths) <= LABELLED
    parts = []
    for place, (width, label, note) in enumerate(zip(widths, labels, notes, strict=True)):
        hue = round(215 - 185 * place / max(1, len(widths) - 1))
        least = "min-width:2.4em;" if few else ""
        below = f'<div style="overflow:hidden">{safe(label)}</div>' if few else ""
        parts.append(
            f'<div title="{safe(note)}" style="flex:{width} 0 0;{least}">'
            f'<div style="height:14px;background:hsl({hue},62%,52%)"></div>{below}</div>'
        )
    first, last = map(safe, ends)
    return (
        '<div style="display:flex;gap:1px;margin-top:.5em;font-size:75%;white-space:nowrap">'
        f"{''.join(parts)}</div>"
        f'<div style="display:flex;justify-content:space-between"><span>{first}</span><span>{last}</span></div>'
    )


def picture_row(pixels: np.ndarray, alt: str) -> str:
    """uint8 (N, H, W, 3) side by side as one embedded PNG; large images are made smaller."""
    side = min(LARGEST, pixels.shape[1])
    row = Image.new("RGB", (side * len(pixels), side))
    for place, image in enumerate(pixels):
        small = Image.fromarray(image)
        row.paste(small if small.width == side else small.resize((side, side)), (place * side, 0))
    content = io.BytesIO()
    row.save(content, "PNG", optimize=True)
    source = base64.b64encode(content.getvalue()).decode()
    return (
        f'<img src="data:image/png;base64,{source}" alt="{safe(alt)}" '
        f'style="width:{LARGEST * len(pixels)}px;max-width:100%;margin-top:.5em;image-rendering:pixelated">'
    )
