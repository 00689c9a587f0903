"""Interpolations as pictures: the captioned grid of figure 5, single frames, and an animation back and forth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from diti.core.errors import InputError
from diti.core.images import SIGNATURE, grid, save_picture, signature, to_uint8
from diti.core.runs import atomic_path

if TYPE_CHECKING:
    from diti.edit.interpolate import Interpolation, Variant

ANIMATIONS = {".gif": "GIF", ".webp": "WEBP"}
FRAME_MS, PAUSE_MS = 120, 700  # time of a frame; of the two frames where it turns
ARROWS = {"a_to_b": "A to B", "b_to_a": "B to A"}
PAPER = 255  # empty cells are white
TITLE = "below: scale of the move; rows B to A read from right to left"

Way = tuple[str, str]  # subset and direction: a row of the grid


def ways_of(result: Interpolation) -> dict[Way, list[int]]:
    """For each subset and direction, in their order, the places of its images by rising scale."""
    ways: dict[Way, list[int]] = {}
    for place, variant in enumerate(result.variants):
        ways.setdefault((variant.subset, variant.direction), []).append(place)
    return {way: sorted(places, key=lambda i: result.variants[i].scale) for way, places in ways.items()}


def interpolation_grid(result: Interpolation) -> Image.Image:
    """Figure 5: a row per subset and direction, from A at the left to B at the right, scales below the images.

    Rows that start at B read from right to left. The last row shows how the model reconstructs A and B.
    """
    images, (a, b), (rebuilt_a, rebuilt_b) = (
        to_uint8(part) for part in (result.images, result.ends, result.reconstructions)
    )
    rows: list[list[np.ndarray]] = []
    captions: list[str] = []
    labels: list[str] = []
    for (subset, direction), rising in ways_of(result).items():
        places = rising if direction == "a_to_b" else rising[::-1]
        rows.append([a, *images[places], b])
        captions += ["A", *(f"{result.variants[place].scale:g}" for place in places), "B"]
        labels.append(f"{subset}, {ARROWS[direction]}")
    between = len(rows[0]) - 2
    rows.append([rebuilt_a, *[np.full_like(a, PAPER)] * between, rebuilt_b])
    captions += [f"MSE {result.errors[0]:.2g}", *[""] * between, f"MSE {result.errors[1]:.2g}"]
    labels.append("reconstruction")
    cells = np.stack([cell for row in rows for cell in row])
    title = TITLE if any(direction == "b_to_a" for _, direction in ways_of(result)) else ""
    return grid(cells, between + 2, captions=captions, row_labels=labels, title=title)


def frame_files(variants: Sequence[Variant], folder: Path) -> list[Path]:
    """Where `save_frames` writes: A, B, their reconstructions, then the variants."""
    names = [f"{v.subset.replace(':', '-').replace(',', '+')}_{v.direction}_{v.scale:g}" for v in variants]
    return [folder / f"{name}.png" for name in ("a", "b", "a_reconstruction", "b_reconstruction", *names)]


def save_frames(result: Interpolation, folder: Path) -> int:
    """Every image in its own size as a PNG, with A, B and their reconstructions; returns how many."""
    images = to_uint8(torch.cat([result.ends, result.reconstructions, result.images]))
    for image, path in zip(images, frame_files(result.variants, folder), strict=True):
        save_picture(Image.fromarray(image), path)
    return len(images)


def interpolation_frames(result: Interpolation) -> list[Image.Image]:
    """A picture per scale, rising: A, each subset and direction at that scale, B."""
    ways = ways_of(result)
    images, (a, b) = to_uint8(result.images), to_uint8(result.ends)
    labels = ["A", *(f"{subset}, {ARROWS[direction]}" for subset, direction in ways), "B"]
    frames = []
    for places in zip(*ways.values(), strict=True):
        title = f"scale {result.variants[places[0]].scale:g}"
        cells = np.stack([a, *images[list(places)], b])
        frames.append(grid(cells, len(cells), captions=labels, title=title))
    return frames


def save_animation(frames: Sequence[Image.Image], path: Path) -> Path:
    """Frames back and forth in a loop, as GIF or WebP by the file's ending; it pauses where it turns."""
    kind = animation_kind(path)
    count = len(frames)
    order = [*range(count), *range(count - 2, 0, -1)]
    times = [PAUSE_MS if place in (0, count - 1) else FRAME_MS for place in order]
    first, *others = (frames[place] for place in order)
    with atomic_path(path) as temporary:
        own = {"comment": SIGNATURE} if kind == "GIF" else {"lossless": True, "exif": signature()}
        first.save(temporary, format=kind, save_all=True, append_images=others, duration=times, loop=0, **own)
    return path


def animation_kind(path: Path) -> str:
    """GIF or WEBP by the ending of the name."""
    if path.suffix.lower() not in ANIMATIONS:
        endings = " or ".join(ANIMATIONS)
        raise InputError(f"--animate {path} does not end in {endings}; name an animation such as faces.gif")
    return ANIMATIONS[path.suffix.lower()]
