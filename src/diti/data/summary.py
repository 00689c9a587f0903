"""A dataset in a glance: a table for the terminal, a sheet of pictures for the eye."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from diti.core.images import grid, save_picture
from diti.data.prepare import SKIPPED
from diti.data.prepared import Dataset

MOST_ATTRIBUTES = 12  # more are counted, not listed


def print_summary(dataset: Dataset, notes: Sequence[str] = ()) -> None:
    """What the folder holds: images, splits, attributes, and what was left out."""
    info = dataset.info
    splits = ", ".join(f"{name} {count:,}" for name, count in info["splits"].items() if count)
    print(f"{dataset.path}: {len(dataset):,} images of {dataset.size} px ({dataset.name}); {splits}")
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


def save_sheet(dataset: Dataset, path: Path, columns: int = 8, rows: int = 6) -> Path:
    """A picture of images spread evenly over the set."""
    wanted = np.linspace(0, len(dataset) - 1, min(columns * rows, len(dataset))).astype(int)
    title = f"{dataset.name}: {len(dataset):,} images of {dataset.size} px"
    return save_picture(grid(dataset.pixels(wanted), columns, title=title), path)
