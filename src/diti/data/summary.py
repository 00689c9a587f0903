"""A dataset at a glance: a table for the terminal, a box for a notebook, a sheet of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from diti.core.images import grid, save_picture
from diti.data.attributes import SPLITS
from diti.data.predicted import predicted_columns
from diti.data.prepare import SKIPPED
from diti.data.prepared import Dataset
from diti.pages.notebook import card, shortened

MOST_ATTRIBUTES = 12  # more are counted, not listed
MOST_FOLDED = 200  # the same, where they are folded and take no room
PICTURES = 8  # in a notebook


def print_summary(dataset: Dataset, notes: Sequence[str] = ()) -> None:
    """What the folder holds: images, splits, attributes, and what was left out."""
    info = dataset.info
    splits = ", ".join(f"{name} {count:,}" for name, count in info["splits"].items() if count)
    print(f"{dataset.path}: {len(dataset):,} images of {dataset.size} px ({dataset.title}); {splits}")
    if info["skipped"]:
        print(f"{info['skipped']:,} unreadable images were skipped; {dataset.path / SKIPPED} names them")
    for note in notes:
        print(f"note: {note}")
    if dataset.attributes:
        Console().print(_attribute_table(dataset))


def _attribute_table(dataset: Dataset) -> Table:
    shown = dataset.attributes[:MOST_ATTRIBUTES]
    rest = len(dataset.attributes) - len(shown)
    table = Table("attribute", "kind", "mean", "range", caption=f"and {rest} more" if rest else None)
    values = dataset.labels(shown)
    for name, column in zip(shown, values.T, strict=True):
        if dataset.is_binary(name):
            table.add_row(escape(name), "binary", f"{column.mean():.1%} positive", "0, 1")
        else:
            table.add_row(
                escape(name), "continuous", f"{column.mean():.3g}", f"{column.min():.3g} .. {column.max():.3g}"
            )
    return table


def save_sheet(dataset: Dataset, path: Path) -> Path:
    """A picture of 6 × 8 images spread evenly over the set."""
    title = f"{dataset.title}: {len(dataset):,} images of {dataset.size} px"
    return save_picture(grid(_spread(dataset, 48), 8, title=title), path)


def dataset_html(dataset: Dataset) -> str:
    """What a notebook shows: counts, attributes, and a few pictures; no other pixels are read."""
    counts = {split: len(dataset.rows(split)) for split in SPLITS}
    facts = {
        "images": f"{len(dataset):,} of {dataset.size} px: "
        + ", ".join(f"{split} {count:,}" for split, count in counts.items() if count),
        "skipped": f"{dataset.info['skipped']:,} unreadable" if dataset.info["skipped"] else "",
        "folder": str(dataset.path),
    }
    predicted = predicted_columns(dataset)
    attributes = [
        f"{name} ({'binary' if dataset.is_binary(name) else 'continuous'}{', predicted' * (name in predicted)})"
        for name in dataset.attributes
    ]
    lines = shortened(attributes, MOST_FOLDED)
    counted = f"{len(dataset.attributes)} attributes"
    return card(dataset.title, facts, pictures=_spread(dataset, PICTURES), folded=counted, lines=lines)


def _spread(dataset: Dataset, count: int) -> np.ndarray:
    """uint8 (count or N, H, W, 3) of images spread evenly over the set."""
    rows = np.linspace(0, len(dataset) - 1, min(count, len(dataset))).astype(int)
    return dataset.pixels(rows)
