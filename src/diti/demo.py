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


def save_changes(path: Path, seed: int = 19741) -> Path:
    """One face, and the same face with exactly one attribute changed, for each attribute."""
    face = toyfaces.sample(1, seed)
    faces = [face] + [toyfaces.change(face, a.name, values=_far_end(face, a)) for a in toyfaces.ATTRIBUTES]
    images = toyfaces.render(np.concatenate(faces), SIZE)
    captions = ["this face", *(name.replace("_", " ") for name in toyfaces.NAMES)]
    title = "the same face with exactly one attribute changed"
    return save_picture(grid(images, 8, captions=captions, title=title), path)


def _far_end(face: np.ndarray, attribute: toyfaces.Attribute) -> float:
    """The end of the attribute's range that is farther from the face, so that the change shows."""
    middle = (attribute.low + attribute.high) / 2
    return attribute.low if face[attribute.name][0] > middle else attribute.high
