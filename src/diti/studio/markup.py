"""Pieces of the page as HTML: pictures, rows of thumbnails, the strip of subsets, the matrix, a chart.

Every word from outside is escaped. Pictures stand in the page itself, so that none lies in a file.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from diti.core.images import signature
from diti.core.loop import TIME_BINS, loss_by_time
from diti.pages.templates import data_url, macros
from diti.probes.matrix import SubsetMatrix
from diti.representation.checks import LossCurves
from diti.representation.partition import THIRDS, Partition

THUMBNAIL = 64  # px of a side at most
HUES = (205.0, 385.0)  # of the finest and the coarsest subset: blue over violet to orange
WORDS = {"early": "Fine", "middle": "Middle", "late": "Coarse"}


def picture_url(picture: Image.Image | np.ndarray) -> str:
    """A picture as an address that holds it."""
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(picture)).save(buffer, format="PNG", exif=signature())
    return data_url(buffer.getvalue())


def thumbnail_url(pixels: np.ndarray) -> str:
    small = Image.fromarray(pixels)
    small.thumbnail((THUMBNAIL, THUMBNAIL), reducing_gap=None)
    return picture_url(small)


PIECES = macros("studio/markup.html.jinja", picture=picture_url, thumbnail=thumbnail_url, data_url=data_url)
# What needs no more than its template, which says what each is.
header, heading, note = PIECES.header, PIECES.heading, PIECES.note
chosen, thumbnails, figures = PIECES.chosen, PIECES.thumbnails, PIECES.figures
film, choices = PIECES.film, PIECES.choices


def enlarged(pixels: np.ndarray, least: int = 320) -> np.ndarray:
    """uint8 (H, W, 3) with every pixel as a square, at least that many px wide."""
    scale = max(1, math.ceil(least / pixels.shape[1]))
    return pixels.repeat(scale, 0).repeat(scale, 1)


def colours(subsets: int) -> list[str]:
    """Of the subsets from fine to coarse."""
    places = [subset / max(1, subsets - 1) for subset in range(subsets)]
    return [f"hsl({HUES[0] + (HUES[1] - HUES[0]) * place:.0f} 75% 55%)" for place in places]


# ---- Subsets ------------------------------------------------------------------------------------------------


def strip(partition: Partition, label: str, about: str, single: bool) -> str:
    """The subsets from fine to coarse, a coloured cell each, and buttons for the usual ranges unless single."""
    count = partition.subsets
    words = [
        f"part {k + 1} of {count}, {WORDS[partition.third(k)].lower()}, {len(partition.dims_of(k))} numbers"
        for k in range(count)
    ]
    cells = list(zip(words, colours(count), strict=True))
    return PIECES.strip(label, about, cells, strip_ranges(partition), single)


def strip_ranges(partition: Partition) -> list[tuple[str, int, int]]:
    """Words, first and last + 1 of ranges: all, fine, middle, coarse, as far as they own anything."""
    ranges = [("All", 0, partition.subsets)]
    for third in THIRDS:
        inside = [k for k in range(partition.subsets) if partition.third(k) == third and partition.dims_of(k)]
        if inside:
            words = WORDS[third] if WORDS[third].lower() == third else f"{WORDS[third]} ({third})"
            ranges.append((words, inside[0], inside[-1] + 1))
    return ranges


def bars(shares: Sequence[tuple[str, np.ndarray]], partition: Partition) -> str:
    """Where directions live: for each a bar per subset, as high as its share of the squared length."""
    rows = []
    for name, share in shares:
        tallest, most = max(float(share.max()), 1e-9), int(share.argmax())
        words = f"{name}: most in part {most + 1} of {partition.subsets} ({WORDS[partition.third(most)].lower()})"
        heights = [f"{100 * float(part) / tallest:.0f}%" for part in share]
        parts = zip(heights, [f"{part:.0%}" for part in share], colours(partition.subsets), strict=True)
        rows.append((words, parts))
    return PIECES.bars(rows)


def matrix_table(matrix: SubsetMatrix) -> str:
    """Subset × attribute: the darker, the more of the attribute this part alone can tell; each cell a button."""
    rows = []
    for subset, (hue, scores) in enumerate(zip(colours(len(matrix.ends)), matrix.alone, strict=True)):
        cells = []
        for name, score, chance in zip(matrix.names, scores, matrix.chance, strict=True):
            above = max(0.0, float((score - chance) / max(1e-9, 1 - chance)))
            words = f"part {subset + 1} alone tells {name}: {score:.2f}, chance {chance:.2f}"
            cells.append((f"{100 * max(score, 0):.0f}", f"{above:.2f}", words))
        rows.append((hue, cells))
    return PIECES.matrix(zip(matrix.names, matrix.scores, strict=True), rows)


# ---- The loss by time-step ----------------------------------------------------------------------------------

WIDE, HIGH, EDGE = 640, 240, 34  # of the chart


def loss_chart(curves: LossCurves) -> str:
    """Figure A9 as a drawing that follows the page's colours."""
    lines = [
        ("frozen", "without the code", loss_by_time(curves.frozen, curves.time_share)),
        ("other", "with the code of another picture", loss_by_time(curves.shuffled, curves.time_share)),
        ("own", "with the code", loss_by_time(curves.with_z, curves.time_share)),
    ]
    values = [v for _, _, heights in lines for v in heights if v]
    low, high = math.log(min(values)), math.log(max(values) * 1.05)

    def points(heights: Sequence[float | None]) -> str:
        return " ".join(
            f"{EDGE + (i + 0.5) / TIME_BINS * (WIDE - EDGE):.1f},"
            f"{(high - math.log(v)) / max(high - low, 1e-9) * (HIGH - EDGE):.1f}"
            for i, v in enumerate(heights)
            if v
        )

    other = curves.removed_shuffled()
    worse = f"removes {other:.0%}" if other > 0 else "makes it worse"
    words = (
        f"The code removes {curves.removed():.0%} of what the frozen model gets wrong; the code of another "
        f"picture {worse}."
    )
    drawn = [(kind, words, points(heights)) for kind, words, heights in lines]
    return PIECES.chart(drawn, words, WIDE, HIGH, EDGE)
