"""`diti demo`: what exists so far, on the built-in faces."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from diti.core.images import grid, save_picture
from diti.data import toyfaces
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.data.summary import print_summary, save_sheet

SIZE = 64


def run_demo(out: Path, faces: int) -> None:
    """Draw toy faces into a dataset folder, show them, and show single attributes changed."""
    source = find_source(f"toyfaces:{faces}", ReadOptions(size=SIZE))
    dataset = prepare(source, out / "data", SIZE)
    print_summary(dataset)
    for picture in (save_sheet(dataset, out / "toyfaces.png"), save_changes(out / "changes.png")):
        print(f"wrote {picture}")


def save_changes(path: Path, seed: int = 7, people: int = 3) -> Path:
    """Rows of faces in which exactly one attribute changes from column to column."""
    factors = toyfaces.sample(people, seed)
    columns = [factors] + [toyfaces.change(factors, name, seed=seed) for name in toyfaces.NAMES]
    images = np.stack([toyfaces.render(column, SIZE) for column in columns], axis=1)
    labels = ["face", *(name.replace("_", " ") for name in toyfaces.NAMES)]
    title = "the same faces with exactly one attribute changed"
    flat = images.reshape(-1, SIZE, SIZE, 3)
    return save_picture(grid(flat, len(columns), column_labels=labels, title=title), path)
