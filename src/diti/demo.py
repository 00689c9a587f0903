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
    """Toy faces as a dataset folder, single attributes changed, and what the shipped diffusion model draws."""
    source = find_source(f"toyfaces:{faces}", ReadOptions(size=SIZE))
    dataset = prepare(source, out / "data", SIZE)
    print_summary(dataset)
    for picture in (save_sheet(dataset, out / "toyfaces.png"), save_changes(out / "changes.png")):
        print(f"wrote {picture}")
    show_backbone(out)


def show_backbone(out: Path) -> None:
    """New faces from noise, and faces that went to noise and back."""
    from diti.core.images import to_float, to_uint8
    from diti.diffusion.backbone import load_backbone
    from diti.diffusion.generate import CALLS, round_trip, save_samples

    backbone = load_backbone("toyfaces32")
    print(
        f"wrote {save_samples(backbone, 32, 0, CALLS, out / 'samples.png')}: drawn by the shipped diffusion model"
    )
    images = to_float(toyfaces.render(toyfaces.sample(8, seed=1), backbone.size))
    again = round_trip(backbone, images)
    error = (again - images).square().mean().item()
    rows = np.concatenate([to_uint8(images), to_uint8(again)])
    path = save_picture(grid(rows, 8, row_labels=["face", "to noise and back"]), out / "round_trip.png")
    print(f"wrote {path}: {CALLS} + {CALLS} network calls, mean squared error {error:.1e} (pixels in -1..1)")


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
