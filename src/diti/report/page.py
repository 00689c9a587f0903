"""A report as one HTML file that needs nothing else: pictures and style inside, no script, no outside request."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from PIL import Image, UnidentifiedImageError

from diti.core.errors import InputError
from diti.core.outputs import PAGE
from diti.core.runs import write_text
from diti.report.blocks import Cell, Figure, Page, Section, Table

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_LEGEND = "grey: the paper's own number, not measured here"
_FACTS = "Facts"
_NARROW, _WIDE = 240, 480  # px: a picture no wider than the first is enlarged, to at most the second


def save_page(page: Page, path: Path) -> Path:
    """Write the report as one HTML file, whole or not at all."""
    write_text(path, render(page))
    return path


def render(page: Page) -> str:
    """The whole report as HTML; every picture is read from disk and embedded."""
    titles = [section.title for section in page.sections] + [_FACTS] * bool(page.facts)
    anchors = _anchors(titles)
    folds = any(section.folded for section in page.sections)  # closed parts are a list of contents by themselves
    parts = [
        "<!doctype html>",
        '<html lang="en">',
        _head(page.title),
        "<body>",
        f"<header>\n<h1>{escape(page.title)}</h1>\n{_paragraphs(page.lead)}\n</header>",
        "" if folds else _contents(titles, anchors),
        "<main>",
        *map(_section, page.sections, anchors),
        "</main>",
        _facts(page.facts, anchors[-1]) if page.facts else "",
        "</body>",
        "</html>",
    ]
    return _lines(parts)


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part) + "\n"


def _head(title: str) -> str:
    # The policy comes first: it holds only for what follows it. The empty icon keeps browsers from asking for one.
    style = resources.files("diti.report").joinpath("page.css").read_text(encoding="utf-8")
    return f"""<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
{PAGE.decode()}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>"""


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


def _contents(titles: Sequence[str], anchors: Sequence[str]) -> str:
    if len(titles) < 2:
        return ""
    items = "\n".join(
        f'<li><a href="#{quote(anchor)}">{escape(title)}</a></li>'
        for title, anchor in zip(titles, anchors, strict=True)
    )
    return f'<nav aria-label="Contents">\n<ol>\n{items}\n</ol>\n</nav>'


def _section(section: Section, anchor: str) -> str:
    heading = f"<h2>{escape(section.title)}</h2>"
    body = _lines([_paragraphs(section.text), *map(_block, section.blocks), _commands(section.commands)])
    if section.folded:  # a browser opens it on the way to an id inside
        return f"<section>\n{_folded(heading, body, anchor)}\n</section>"
    return f'<section id="{escape(anchor)}">\n{heading}\n{body}</section>'


def _folded(heading: str, body: str, anchor: str) -> str:
    return f'<details>\n<summary>{heading}</summary>\n<div id="{escape(anchor)}">\n{body}</div>\n</details>'


def _paragraphs(text: str) -> str:
    """Text between empty lines becomes a paragraph; nothing else is marked up."""
    pieces = [piece.strip() for piece in re.split(r"\n\s*\n", text)]
    return "\n".join(f"<p>{escape(piece)}</p>" for piece in pieces if piece)


def _commands(commands: Sequence[str]) -> str:
    if not commands:
        return ""
    text = escape("\n".join(commands))
    return f'<pre tabindex="0" aria-label="Commands"><code>{text}</code></pre>'


def _block(block: Table | Figure) -> str:
    return _table(block) if isinstance(block, Table) else _figure(block)


def _table(table: Table) -> str:
    """The table in a box that scrolls by itself; its title above, its note and the link to its CSV below."""
    numeric = [any(row[column].value is not None for row in table.rows) for column in range(len(table.columns))]
    sides = ["number" if number else "" for number in numeric]
    headings = [_cell("th", name, side, scope="col") for name, side in zip(table.columns, sides, strict=True)]
    rows = "\n".join(_row(row, sides) for row in table.rows)
    return f"""<figure class="table">
<figcaption>{escape(table.title)}</figcaption>
<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">
<table>
<thead><tr>{"".join(headings)}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
<div class="below">
{_below(table)}</div>
</figure>"""


def _row(row: Sequence[Cell], sides: Sequence[str]) -> str:
    """One row; its first cell is its heading and stands left even if it is a number."""
    cells = [_cell("th", row[0].text, row[0].tone, scope="row")]
    cells += [_cell("td", cell.text, side, cell.tone) for cell, side in zip(row[1:], sides[1:], strict=True)]
    return f"<tr>{''.join(cells)}</tr>"


def _cell(tag: str, text: str, *classes: str, scope: str = "") -> str:
    heading = f' scope="{scope}"' if scope else ""
    return f"<{tag}{_class(*classes)}{heading}>{escape(text)}</{tag}>"


def _below(table: Table) -> str:
    greyed = any(cell.tone == "paper" for row in table.rows for cell in row)
    legend = f'<p class="paper">{escape(_LEGEND)}</p>' if greyed else ""
    link = f'<a href="{quote(table.key, safe="")}.csv">CSV: {escape(table.key)}.csv</a>'
    return _lines([_paragraphs(table.note), legend, f"<p>{link}</p>"])


def _class(*names: str) -> str:
    given = " ".join(name for name in names if name)
    return f' class="{given}"' if given else ""


def _figure(figure: Figure) -> str:
    """The picture as it is on disk; a small one is enlarged by a whole number, with its pixels kept sharp."""
    content = _read(figure.path)
    width, height = _size(content, figure.path)
    factor = _WIDE // width if width <= _NARROW else 1
    sharp = _class("sharp" if factor > 1 else "")
    source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>\n" if figure.caption else ""
    return (
        f'<figure>\n<img{sharp} src="{source}" width="{width * factor}" height="{height * factor}" '
        f'alt="{escape(figure.alt)}">\n{caption}</figure>'
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"the figure {path} is missing; measure again to draw it") from None


def _size(content: bytes, path: Path) -> tuple[int, int]:
    """Width and height of a PNG in pixels."""
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            return image.size
    except UnidentifiedImageError:
        raise InputError(f"the figure {path} is not a PNG; only PNG files can be embedded") from None


def _facts(facts: dict[str, str], anchor: str) -> str:
    items = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    folded = _folded(f"<h2>{_FACTS}</h2>", f"<dl>\n{items}\n</dl>\n", anchor)
    return f"<footer>\n{folded}\n</footer>"
