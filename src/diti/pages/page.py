"""A page as one HTML file that needs nothing else: pictures and style inside, no external request.

There is no script either, except for the one that moves films with their sliders, which the policy names.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from diti.core.errors import InputError
from diti.core.outputs import PAGE
from diti.core.runs import write_text
from diti.pages.blocks import Figure, Film, Page
from diti.pages.templates import data_url, template

_SLIDERS = (Path(__file__).parent / "film.js").read_text(encoding="utf-8").strip()
_NARROW, _WIDE = 240, 480  # px: a picture no wider than the first is enlarged, to at most the second


def save_page(page: Page, path: Path) -> Path:
    """Write the page as one HTML file, whole or not at all."""
    write_text(path, render(page))
    return path


def render(page: Page) -> str:
    """The whole page as HTML; every picture is read from disk and embedded."""
    titles = [section.title for section in page.sections] + ["Facts"] * bool(page.facts)
    films = any(isinstance(block, Film) for section in page.sections for block in section.blocks)
    return template("pages/page.html.jinja").render(
        script=_SLIDERS if films else "",
        allowed=f"; script-src 'sha256-{_digest(_SLIDERS)}'" if films else "",
        page=page,
        mark=PAGE.decode(),
        contents=list(zip(titles, _anchors(titles), strict=True)),
        split=_paragraphs,
        embedded=_embedded,
    )


def _anchors(titles: Sequence[str]) -> list[str]:
    """An id for each title, made of its letters and digits; titles that read the same are numbered."""
    anchors: list[str] = []
    for title in titles:
        word = "-".join(re.findall(r"\w+", title.lower())) or "section"
        anchor, count = word, 1
        while anchor in anchors:
            count += 1
            anchor = f"{word}-{count}"
        anchors.append(anchor)
    return anchors


def _paragraphs(text: str) -> list[str]:
    """The text between empty lines; there is no other markup."""
    return [piece.strip() for piece in re.split(r"\n\s*\n", text) if piece.strip()]


def _digest(script: str) -> str:
    """By which a content security policy names a script."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _embedded(figure: Figure | Film) -> dict[str, str | int]:
    """The picture as it is on disk; a small one is enlarged by a whole number, its pixels kept sharp."""
    try:
        content = figure.path.read_bytes()
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            width, height = image.size
    except FileNotFoundError:
        raise InputError(f"the figure {figure.path} is missing; measure again to draw it") from None
    except UnidentifiedImageError:
        raise InputError(f"the figure {figure.path} is not a PNG; only PNG files can be embedded") from None
    factor = _WIDE // width if width <= _NARROW else 1
    return {"source": data_url(content), "width": width * factor, "height": height * factor, "sharp": factor > 1}
