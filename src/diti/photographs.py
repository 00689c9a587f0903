"""What the demo and the README open with: photograph-like faces, edited by the model in the box.

Nothing is chosen by hand: the faces are test faces, drawn by a seed, which no model in the box has learned from.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from diti.core.images import grid, save_picture
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.files import locate
from diti.edit.compose import What
from diti.edit.direction_files import kept_direction
from diti.edit.editor import Editor
from diti.edit.interpolate import DIRECTIONS, interpolate
from diti.pages.blocks import Figure, Section
from diti.representation.found_axes import axes_of
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.loading import load_with_decoder
from diti.representation.partition import THIRDS

MODEL, DATA = "faces64-diti", "faces"
EDITS = {  # reading → what less and more of it is called, and how far it goes, as a strength
    "mouth_open": ("mouth shut", "mouth open", 2),
    "brow_height": ("brows lowered", "brows raised", 2),
    "age": ("younger", "older", 1.5),
    "female": ("male", "female", 1),
    "skin_light": ("darker skin", "lighter skin", 2),
    "background_light": ("darker wall", "lighter wall", 2),
}
PICTURES = {  # file → its caption, and what it shows, for those who cannot see it
    "edits.png": ("A face, and six things about it changed, one at a time.", "A face with six things changed"),
    "axes.png": ("What was found without labels: the axes that are seen best.", "A face turned along axes"),
    "swapped.png": ("Parts of B's code in A: the fine, the middle, the coarse one.", "Faces with parts swapped"),
}
PLACES = (-2.0, -1.0, 0.0, 1.0, 2.0)  # on an axis
AXES, PAIRS = 6, 4
STEPS = 20  # of sampling
SHOWN = 2  # times the model's size


def photographs(out: Path, seed: int = 0) -> Section:
    """Three pictures of what the model in the box does to photographs, and two faces to edit, in a folder."""
    model, data = load_with_decoder(MODEL), open_data(DATA)
    rows = numpy_generator(seed, "photographs").permutation(data.rows("test"))
    drawings = {
        "edits.png": (edited, rows[:1]),
        "axes.png": (turned, rows[1:2]),
        "swapped.png": (swapped, rows[2 : 2 + 2 * PAIRS]),
    }
    for name, row in zip("ab", rows[2:4], strict=True):
        save_picture(Image.fromarray(np.asarray(data.images[row])), out / f"{name}.png")
    with progress_bar("editing photographs", len(drawings), unit="pictures") as advance:
        for name, (draw, chosen) in drawings.items():
            if not (out / name).is_file():  # else drawn before the demo was stopped
                save_picture(draw(model, data, chosen), out / name)
            advance()
    return Section(
        "Photographs",
        f"Faces of people who do not exist, new to the model {MODEL}. Its code was found without labels; the "
        "directions in the first picture were then learned from what a judge reads in other faces.",
        [Figure(out / name, caption, words) for name, (caption, words) in PICTURES.items()],
    )


def edited(model: DecodingModel, data: Dataset, rows: np.ndarray) -> Image.Image:
    """A face, and below and above each reading, the same face with less and with more of it."""
    kept = locate(MODEL)
    each = [(kept_direction(kept, reading), far) for reading, (_, _, far) in EDITS.items()]
    face = Editor(model, data.images[rows], STEPS)
    ways: list[dict[What, float]] = [{direction: sign * far} for sign in (-1, 1) for direction, far in each]
    drawn = face.draw_each([{}, *ways])[:, 0]
    again, less, more = drawn[:1], drawn[1 : 1 + len(EDITS)], drawn[1 + len(EDITS) :]
    captions = [
        "this face",
        *(low for low, _, _ in EDITS.values()),
        "from its code",
        *(high for _, high, _ in EDITS.values()),
    ]
    faces = enlarged(torch.cat([face.images, less, again, more]))
    return grid(faces, 1 + len(EDITS), captions=captions, scale=1)


def turned(model: DecodingModel, data: Dataset, rows: np.ndarray) -> Image.Image:
    """A face at several places of the axes that are seen best, an axis per row."""
    names = [f"a{axis:02d}" for axis in range(min(AXES, len(axes_of(model, data))))]
    drawn = Editor(model, data.images[rows], STEPS).draw_each([{n: place} for n in names for place in PLACES])
    heads = [f"{place:+g} sd" if place else "as it is" for place in PLACES]
    return grid(enlarged(drawn[:, 0]), len(PLACES), row_labels=names, column_labels=heads, scale=1)


def swapped(model: DecodingModel, data: Dataset, rows: np.ndarray) -> Image.Image:
    """Pairs of faces: A, A with the fine, the middle and the coarse part of B's code, and B."""
    pictures = []
    for a, b in zip(rows[::2], rows[1::2], strict=True):
        mixed = interpolate(
            model,
            data.images[a],
            data.images[b],
            THIRDS,
            (1.0,),
            directions=DIRECTIONS[:1],
            x_t="keep",
            sampling_steps=STEPS,
        )
        pictures += [mixed.ends[:1], mixed.images, mixed.ends[1:]]
    heads = ["A", "fine of B", "middle of B", "coarse of B", "B"]
    return grid(enlarged(torch.cat(pictures)), len(heads), column_labels=heads, scale=1)


def enlarged(images: Tensor) -> Tensor:
    """Images (N, 3, H, W) enlarged smoothly, as photographs are."""
    return F.interpolate(images, scale_factor=SHOWN, mode="bicubic").clamp(-1, 1)
