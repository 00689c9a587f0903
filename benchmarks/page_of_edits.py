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
from diti.config import SAMPLING_STEPS
from diti.core.images import to_float
from diti.core.rng import numpy_generator
from diti.edit.compose import step_for, strength_at
from diti.edit.directions import Direction, fit_direction
from diti.edit.invert import Inverted
from diti.edit.places import touch_of, touched
from diti.edit.select import DEFAULT_SELECTION
from diti.edit.strength import PAPER_SCALE
from diti.edit.trials import Trials
from diti.representation.features import encode_dataset
from diti.representation.models.loading import load_with_decoder

EDITS = {  # reading → what stands above its column
    "yaw": "turn",
    "mouth_open": "mouth",
    "mouth_corners": "corners",
    "eyes_open": "eyes",
    "brow_height": "brows",
    "age": "age",
    "female": "sex",
    "skin_light": "skin",
    "hair_light": "hair",
    "background_light": "wall",
}
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
    labels = data.labels(list(EDITS))
    upward = labels[rows] <= labels.mean(0)
    start = Inverted.of(model, to_float(data.pixels(rows)), SAMPLING_STEPS)
    options.out.mkdir(parents=True, exist_ok=True)
    codes = encode_dataset(model, data)
    sparse = [fit_direction(model, data, name, selection=DEFAULT_SELECTION, codes=codes) for name in EDITS]
    far = [strength_at(direction, PAPER_SCALE) for direction in sparse]
    draw_page(start, upward, sparse, far, options.out / "before.png")
    trials = Trials(model, data, lambda: codes)
    tried = [trials.direction(Path(options.model), name)[0] for name in EDITS]
    draw_page(start, upward, tried, [options.scale] * len(tried), options.out / "after.png")


def draw_page(
    start: Inverted,
    upward: np.ndarray,
    directions: list[Direction],
    strengths: list[float],
    out: Path,
) -> None:
    """A row per face: as it is drawn without an edit, and towards the other side of each thing; upward (N, A)."""
    unedited = start.shown(start.z, start.x_T)
    columns = [unedited]
    for rises, direction, strength in zip(upward.T, directions, strengths, strict=True):
        signs = torch.from_numpy(np.where(rises, 1.0, -1.0)).float()
        step = torch.from_numpy(step_for(start.model, [direction], [strength])).float()
        edited = start.shown(start.z + signs[:, None] * step, start.x_T)
        touch = touch_of({direction: strength})
        columns.append(touched(edited, unedited, touch, signs[:, None, None, None]))
    shown = torch.stack(columns, 1).flatten(0, 1)
    heads = ["as it is", *EDITS.values()]
    picture = diti.grid(shown, len(columns), column_labels=heads, scale=1)
    picture.quantize(COLOURS, dither=Image.Dither.FLOYDSTEINBERG).save(out, optimize=True)
    print(f"wrote {out}", flush=True)


if __name__ == "__main__":
    main()
