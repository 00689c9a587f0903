"""Pieces of the page as HTML: pictures, rows of thumbnails, the strip of subsets, the matrix, a chart.

Every word from outside is escaped. Pictures stand in the page itself, so that none lies in a file.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from diti.core.images import signature
from diti.core.loop import TIME_BINS, loss_by_time
from diti.probe.matrix import SubsetMatrix
from diti.representation.methods.checks import LossCurves
from diti.representation.partition import THIRDS, Partition

THUMBNAIL = 64  # px of a side at most
HUES = (205.0, 385.0)  # of the finest and the coarsest subset: blue over violet to orange
WORDS = {"early": "Fine", "middle": "Middle", "late": "Coarse"}


def picture_url(picture: Image.Image, kind: str = "PNG") -> str:
    """A picture as an address that holds it."""
    buffer = io.BytesIO()
    picture.save(buffer, format=kind, exif=signature())
    return data_url(buffer.getvalue(), f"image/{kind.lower()}")


def data_url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def enlarged(pixels: np.ndarray, least: int = 320) -> np.ndarray:
    """uint8 (H, W, 3) with every pixel as a square, at least so many px wide."""
    scale = max(1, math.ceil(least / pixels.shape[1]))
    return pixels.repeat(scale, 0).repeat(scale, 1)


def colour(place: float) -> str:
    """Of a place from 0, fine, to 1, coarse."""
    return f"hsl({HUES[0] + (HUES[1] - HUES[0]) * place:.0f} 75% 55%)"


def chosen(pixels: np.ndarray | None, label: str) -> str:
    """The picture that a visitor has chosen."""
    if pixels is None:
        return f'<div class="chosen empty"><span>{html.escape(label)}: none yet</span></div>'
    url = picture_url(Image.fromarray(pixels))
    return f'<figure class="chosen"><img src="{url}" alt="{html.escape(label)}"></figure>'


def thumbnails(
    pictures: Sequence[np.ndarray], rows: Sequence[int] = (), captions: Sequence[str] = (), say: str = "picture"
) -> str:
    """Small pictures; those with a row number can be clicked."""
    cells = []
    for place, pixels in enumerate(pictures):
        picture = Image.fromarray(pixels)
        if picture.width > THUMBNAIL:
            picture = picture.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BICUBIC)
        image = f'<img src="{picture_url(picture)}" alt="{html.escape(say)} {place + 1}" loading="lazy">'
        below = f"<span>{html.escape(captions[place])}</span>" if captions else ""
        if place < len(rows):
            cells.append(f'<button type="button" data-row="{int(rows[place])}">{image}{below}</button>')
        else:
            cells.append(f"<figure>{image}{below}</figure>")
    return f'<div class="thumbs">{"".join(cells)}</div>' if cells else '<div class="thumbs none">nothing yet</div>'


def figures(pictures: Sequence[tuple[str, np.ndarray]]) -> str:
    """Pictures side by side with a line below each."""
    cells = "".join(
        f'<figure><img src="{picture_url(Image.fromarray(pixels))}" alt="{html.escape(words)}">'
        f"<figcaption>{html.escape(words)}</figcaption></figure>"
        for words, pixels in pictures
    )
    return f'<div class="figures">{cells}</div>'


def heading(text: str) -> str:
    return f"<h3>{html.escape(text)}</h3>"


def note(text: str, busy: bool = False) -> str:
    """One quiet line, read out by screen readers when it changes."""
    kind = "note busy" if busy else "note"
    return f'<p class="{kind}" role="status">{html.escape(text)}</p>'


# ---- Subsets ------------------------------------------------------------------------------------------------


def strip_cells(partition: Partition) -> str:
    """The subsets from fine to coarse, a coloured cell each, and buttons for the usual ranges."""
    last = max(1, partition.subsets - 1)
    cells = []
    for subset in range(partition.subsets):
        dims = len(partition.dims_of(subset))
        words = (
            f"part {subset + 1} of {partition.subsets}, {WORDS[partition.third(subset)].lower()}, {dims} numbers"
        )
        cells.append(
            f'<div role="option" class="cell" data-at="{subset}" tabindex="-1" aria-selected="false" '
            f'aria-label="{words}" title="{words}" style="--hue:{colour(subset / last)}"></div>'
        )
    return "".join(cells)


def strip_ranges(partition: Partition) -> str:
    """Buttons that pick a range: everything, fine, middle, coarse, as far as they own anything."""
    buttons = [("All", 0, partition.subsets)]
    for third in THIRDS:
        inside = [k for k in range(partition.subsets) if partition.third(k) == third and partition.dims_of(k)]
        if inside:
            words = WORDS[third] if WORDS[third].lower() == third else f"{WORDS[third]} ({third})"
            buttons.append((words, inside[0], inside[-1] + 1))
    return "".join(
        f'<button type="button" data-span="{low}:{high}">{html.escape(words)}</button>'
        for words, low, high in buttons
    )


def choices(options: Sequence[tuple[str, int]], chosen: int | None) -> str:
    """Buttons of which one is pressed."""
    buttons = "".join(
        f'<button type="button" data-row="{number}" aria-pressed="{str(number == chosen).lower()}">'
        f"{html.escape(words)}</button>"
        for words, number in options
    )
    return f'<div class="choices" role="group">{buttons}</div>'


def bars(shares: Sequence[tuple[str, np.ndarray]], partition: Partition) -> str:
    """Where directions live: for each a bar per subset, as high as its share of the squared length."""
    last = max(1, partition.subsets - 1)
    rows = []
    for name, share in shares:
        tallest = max(float(share.max()), 1e-9)
        most = int(share.argmax())
        cells = "".join(
            f'<i style="height:{100 * float(part) / tallest:.0f}%;background:{colour(k / last)}" '
            f'title="part {k + 1}: {part:.0%}"></i>'
            for k, part in enumerate(share)
        )
        words = f"{name}: most in part {most + 1} of {partition.subsets} ({WORDS[partition.third(most)].lower()})"
        rows.append(
            f'<div class="bars" role="img" aria-label="{html.escape(words)}"><b>{html.escape(words)}</b>'
            f"<div>{cells}</div></div>"
        )
    return "".join(rows)


def matrix_table(matrix: SubsetMatrix) -> str:
    """Subset × attribute: the darker, the more of the attribute this part alone can tell; each cell a button."""
    last = max(1, len(matrix.ends) - 1)
    heads = "".join(
        f'<th scope="col" title="{html.escape(kind.upper())}">{html.escape(name)}</th>'
        for name, kind in zip(matrix.names, matrix.scores, strict=True)
    )
    rows = []
    for subset, scores in enumerate(matrix.alone):
        cells = []
        for place, score in enumerate(scores):
            above = max(0.0, float((score - matrix.chance[place]) / max(1e-9, 1 - matrix.chance[place])))
            known = f"{score:.2f}, chance {matrix.chance[place]:.2f}"
            words = f"part {subset + 1} alone tells {matrix.names[place]}: {known}"
            cells.append(
                f'<td><button type="button" data-cell="{subset},{place}" style="--strong:{above:.2f}" '
                f'title="{html.escape(words)}" aria-label="{html.escape(words)}">{100 * max(score, 0):.0f}'
                "</button></td>"
            )
        rows.append(
            f'<tr><th scope="row"><i style="background:{colour(subset / last)}"></i>{subset + 1}</th>'
            f"{''.join(cells)}</tr>"
        )
    return (
        '<div class="matrix" tabindex="0"><table><thead><tr><th scope="col">part</th>'
        f"{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


# ---- The loss by time-step ----------------------------------------------------------------------------------

WIDE, HIGH, EDGE = 640, 240, 34  # of the chart


def loss_chart(curves: LossCurves) -> str:
    """Figure A9 as a drawing that follows the page's colours."""
    lines = {
        "without the code": ("frozen", loss_by_time(curves.frozen, curves.time_share)),
        "with the code of another picture": ("other", loss_by_time(curves.shuffled, curves.time_share)),
        "with the code": ("own", loss_by_time(curves.with_z, curves.time_share)),
    }
    values = [v for _, heights in lines.values() for v in heights if v]
    low, high = math.log(min(values)), math.log(max(values) * 1.05)
    drawn, legend = [], []
    for words, (kind, heights) in lines.items():
        points = " ".join(
            f"{EDGE + (i + 0.5) / TIME_BINS * (WIDE - EDGE):.1f},"
            f"{(high - math.log(v)) / max(high - low, 1e-9) * (HIGH - EDGE):.1f}"
            for i, v in enumerate(heights)
            if v
        )
        drawn.append(f'<polyline class="{kind}" points="{points}"/>')
        legend.append(f'<span class="{kind}">{words}</span>')
    other = curves.removed_shuffled()
    worse = f"removes {other:.0%}" if other > 0 else "makes it worse"
    told = (
        f"The code removes {curves.removed():.0%} of what the frozen model gets wrong; the code of another "
        f"picture {worse}."
    )
    return (
        f'<figure class="chart"><div class="legend">{"".join(legend)}</div>'
        f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{told}">'
        f'<line x1="{EDGE}" y1="{HIGH - EDGE}" x2="{WIDE}" y2="{HIGH - EDGE}"/>{"".join(drawn)}'
        f'<text x="{EDGE}" y="{HIGH - 10}">little noise</text>'
        f'<text x="{WIDE}" y="{HIGH - 10}" text-anchor="end">only noise</text>'
        f'<text x="12" y="{(HIGH - EDGE) / 2}" transform="rotate(-90 12 {(HIGH - EDGE) / 2})" '
        f'text-anchor="middle">error</text></svg><figcaption>{told}</figcaption></figure>'
    )
