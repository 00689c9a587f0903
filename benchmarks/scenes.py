"""`python -m benchmarks.scenes OUT`: pictures of a thing in a room with eleven known factors, and labels.csv.

A second set beside toy faces on which axes can be judged: colours, light, places, sizes and small details.
Notation: N pictures, S side in px.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from diti.core.rng import numpy_generator

COUNT, SIDE, FINER, SEED = 6_000, 32, 3, 0  # FINER: drawn so much larger, then averaged
NUMBERS = ("wall", "floor", "colour", "light", "horizon", "size", "place", "tilt")  # in [0, 1]
KINDS = ("ball", "window", "stripe")  # 0 or 1
RAMPS = {  # the two ends of a colour
    "wall": ((0.85, 0.80, 0.55), (0.35, 0.50, 0.75)),
    "floor": ((0.45, 0.30, 0.20), (0.55, 0.65, 0.45)),
    "colour": ((0.85, 0.25, 0.20), (0.20, 0.35, 0.85)),
}
SKY, WHITE = (0.75, 0.90, 1.0), (0.95, 0.95, 0.90)


def sample(count: int, seed: int) -> dict[str, np.ndarray]:
    """(N,) of each factor, all independent."""
    rng = numpy_generator(seed, "scenes")
    drawn = {name: rng.random(count) for name in NUMBERS}
    return drawn | {name: rng.integers(0, 2, count).astype(float) for name in KINDS}


def render(factors: dict[str, np.ndarray], side: int = SIDE) -> np.ndarray:
    """uint8 (N, S, S, 3)."""
    f = {name: values[:, None, None] for name, values in factors.items()}
    places = (np.arange(side * FINER) + 0.5) / (side * FINER)
    y, x = places[None, :, None], places[None, None, :]
    ramp = {name: low + (high - np.array(low)) * f[name][..., None] for name, (low, high) in RAMPS.items()}
    horizon, radius = 0.45 + 0.2 * f["horizon"], 0.12 + 0.10 * f["size"]
    picture = np.where((y > horizon)[..., None], ramp["floor"], ramp["wall"])
    pane = (np.abs(x - 0.78) < 0.11) & (np.abs(y - 0.20) < 0.11) & (f["window"] > 0)
    picture = np.where(pane[..., None], SKY, picture)
    turn = (f["tilt"] - 0.5) * np.pi / 2
    right, down = x - (0.3 + 0.4 * f["place"]), y - (horizon + 0.06)
    u, v = right * np.cos(turn) + down * np.sin(turn), down * np.cos(turn) - right * np.sin(turn)
    box = np.maximum(np.abs(u), np.abs(v) * 1.4) < radius
    thing = np.where(f["ball"] > 0, u**2 + (v * 1.4) ** 2 < radius**2, box)
    picture = np.where(thing[..., None], ramp["colour"], picture)
    stripe = thing & (np.abs(u) < 0.25 * radius) & (f["stripe"] > 0)
    picture = np.where(stripe[..., None], WHITE, picture) * (0.55 + 0.45 * f["light"][..., None])
    small = picture.reshape(len(picture), side, FINER, side, FINER, 3).mean((2, 4))
    return np.round(small * 255).astype(np.uint8)


def main(out: Path) -> None:
    factors = sample(COUNT, SEED)
    out.mkdir(parents=True)
    for start in range(0, COUNT, 500):
        part = render({name: values[start : start + 500] for name, values in factors.items()})
        for row, pixels in enumerate(part, start):
            Image.fromarray(pixels).save(out / f"{row:05d}.png")
    with (out / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file", *factors])
        for row, values in enumerate(zip(*factors.values(), strict=True)):
            table.writerow([f"{row:05d}.png", *values])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
