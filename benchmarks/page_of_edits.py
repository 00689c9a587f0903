"""A page of edits to look at: test faces drawn by a seed, each with ten things changed towards their other side.

    python -m benchmarks.page_of_edits runs/faces64-diti --data data/faces64 --out page

writes page/before.png, the pattern of 32 dims at the paper's s of 0.3, and page/after.png, as directions are
followed now. Nothing is chosen by hand.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import diti
from diti.core.rng import numpy_generator
from diti.edit.compose import strength_at
from diti.edit.direction_files import find_or_learn_direction
from diti.edit.directions import fit_direction
from diti.edit.editor import Editor
from diti.edit.select import DEFAULT_SELECTION
from diti.edit.strength import PAPER_SCALE
from diti.representation.features import encode_dataset
from diti.representation.models.loading import load_with_decoder

EDITS = (
    "yaw",
    "mouth_open",
    "mouth_corners",
    "eyes_open",
    "brow_height",
    "age",
    "female",
    "skin_light",
    "hair_light",
    "background_light",
)
COLOURS = 256  # of the saved picture, which makes it a third as large


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="model folder, which keeps the directions")
    parser.add_argument("--data", required=True, help="images with these attributes: " + ", ".join(EDITS))
    parser.add_argument("--out", type=Path, default=Path("page"))
    parser.add_argument("--faces", type=int, default=12)
    parser.add_argument("--scale", type=float, default=2.0, help="strength")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = load_with_decoder(options.model)
    data = diti.open_data(options.data, model.size)
    rows = numpy_generator(options.seed, "page of edits").permutation(data.rows("test"))[: options.faces]
    face = Editor(model, data.pixels(rows))
    options.out.mkdir(parents=True, exist_ok=True)
    codes = encode_dataset(model, data)
    sparse = [fit_direction(model, data, name, selection=DEFAULT_SELECTION, codes=codes) for name in EDITS]
    draw_page(face, data, rows, sparse, [strength_at(d, PAPER_SCALE) for d in sparse], options.out / "before.png")
    tried = [find_or_learn_direction(model, Path(options.model), data, name)[0] for name in EDITS]
    draw_page(face, data, rows, tried, [options.scale] * len(tried), options.out / "after.png")


def draw_page(
    face: Editor,
    data: diti.Dataset,
    rows: np.ndarray,
    directions: list[diti.Direction],
    strengths: list[float],
    out: Path,
) -> None:
    """A row per face: as it is drawn without an edit, and towards the other side of each thing."""
    labels = data.labels(EDITS)
    lower = torch.from_numpy(labels[rows] <= labels.mean(0))  # (N, A) these rise
    columns = [face.rebuilt]
    for place, (direction, strength) in enumerate(zip(directions, strengths, strict=True)):
        less, more = face.draw_each([{direction: -strength}, {direction: strength}])
        columns.append(torch.where(lower[:, place, None, None, None], more, less))
    shown = torch.stack(columns, 1).flatten(0, 1)
    heads = ["as it is", *(name.replace("_", " ") for name in EDITS)]
    picture = diti.grid(shown, len(columns), column_labels=heads, scale=1)
    picture.quantize(COLOURS, dither=Image.Dither.FLOYDSTEINBERG).save(out, optimize=True)
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
