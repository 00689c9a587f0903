"""Toy faces: cartoon portraits from independent attributes, coarse and fine, with exact counterfactuals.

A picture is a function of its factors and nothing else. So the same face with exactly one attribute
changed, the pair (x0, g_i . x0) of the paper's theory, can actually be drawn.

    factors = sample(64, seed=0)                 # 64 faces; face i depends on (seed, i) only
    images = render(factors, size=32)            # (64, 32, 32, 3) uint8
    hats = render(change(factors, "hat"), 32)    # the same 64 faces, the hat put on or taken off
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diti.core.errors import InputError, nearest
from diti.core.rng import numpy_generator
from diti.data.toyfaces_render import paint_faces

SMALLEST, LARGEST = 16, 256  # picture size in pixels
BLOCK = 1024  # faces that share one random stream, per attribute
CHUNK_PIXELS = 2**19  # painted at once: vectors are long, yet most shapes fit in the processor's cache


@dataclass(frozen=True)
class Attribute:
    """One independent factor: 0 or 1 with equal chance when binary, else uniform between low and high."""

    name: str
    about: str  # what it changes in the picture
    low: float = 0
    high: float = 1
    binary: bool = False


ATTRIBUTES: tuple[Attribute, ...] = (  # coarse to fine: by the mean squared pixel change at 32 px
    Attribute("background", "colour of the wall: coral, yellow, green, blue, lilac"),
    Attribute("position", "where the person stands, left to right", low=-1),
    Attribute("brightness", "the whole picture, dusk to daylight"),
    Attribute("hat", "woollen hat with a bobble, in the colour of the clothes", binary=True),
    Attribute("hair_colour", "black, brown, ginger, blond, pink, violet, teal; also brows and beard"),
    Attribute("clothes", "colour of pullover and hat: red, yellow, green, blue, purple"),
    Attribute("head_size", "small to large head"),
    Attribute("turn", "where the head is turned, left to right", low=-1),
    Attribute("light", "light from the left to light from the right", low=-1),
    Attribute("hair_length", "short to shoulder-length hair"),
    Attribute("skin", "light to dark skin"),
    Attribute("beard", "beard in the colour of the hair", binary=True),
    Attribute("glasses", "round glasses", binary=True),
    Attribute("mouth_open", "open mouth with teeth and tongue", binary=True),
    Attribute("gaze", "where the eyes look, left to right", low=-1),
    Attribute("eye_size", "small to large eyes"),
    Attribute("earrings", "golden earrings", binary=True),
    Attribute("smile", "corners of the mouth down to up", low=-1),
    Attribute("eye_colour", "iris brown, hazel, green, blue, violet"),
    Attribute("brow_angle", "worried to fierce eyebrows", low=-1),
    Attribute("blush", "red cheeks", binary=True),
    Attribute("freckles", "freckles beside the nose", binary=True),
)
NAMES = tuple(attribute.name for attribute in ATTRIBUTES)
FACTORS = np.dtype([(a.name, np.int8 if a.binary else np.float32) for a in ATTRIBUTES])

Factors = NDArray[np.void]  # (N,) of dtype FACTORS: factors["hat"] is a column, factors[3:5] are two faces


def sample(count: int, seed: int, start: int = 0) -> Factors:
    """Factors of the faces start .. start + count - 1 of the endless set given by `seed`."""
    _check_range(count, start)
    factors = np.empty(count, FACTORS)
    for attribute in ATTRIBUTES:
        factors[attribute.name] = _draw(attribute, count, seed, start, "toyfaces")
    return factors


def change(
    factors: Factors, attribute: str, *, seed: int | None = None, values: ArrayLike | None = None, start: int = 0
) -> Factors:
    """The same faces with exactly one attribute changed: g_i . x0 in the paper.

    `values`, one for all faces or one per face, are set as given. Without them a binary attribute is flipped
    and a continuous one is drawn again from `seed`, independently of `sample` with the same seed; `start` is
    then the index of the first face.
    """
    chosen = find(attribute)
    changed = factors.copy()
    if values is not None:
        changed[attribute] = _given(values, chosen, len(factors))
    elif chosen.binary:
        changed[attribute] = 1 - factors[attribute]
    elif seed is None:
        raise InputError(f"{attribute!r} is continuous: give the seed to draw it from, or its new values")
    else:
        _check_range(len(factors), start)
        changed[attribute] = _draw(chosen, len(factors), seed, start, "toyfaces-change")
    return changed


def render(factors: Factors, size: int) -> NDArray[np.uint8]:
    """Pictures (N, size, size, 3) of N faces. Picture i has the same bytes alone and in any batch."""
    check_size(size)
    for attribute in ATTRIBUTES:
        _check_values(factors[attribute.name], attribute)
    images = np.empty((len(factors), size, size, 3), np.uint8)
    step = max(1, CHUNK_PIXELS // size**2)
    for first in range(0, len(factors), step):
        chunk = factors[first : first + step]
        columns = {name: chunk[name].astype(np.float32) for name in NAMES}
        images[first : first + step] = paint_faces(columns, size)
    return images


def pairs(
    attribute: str, count: int, size: int, seed: int, start: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pictures (x0, y0), each (count, size, size, 3): y0 is x0 with `attribute` changed and nothing else."""
    factors = sample(count, seed, start)
    return render(factors, size), render(change(factors, attribute, seed=seed, start=start), size)


def find(attribute: str) -> Attribute:
    """The attribute of this name."""
    if attribute not in NAMES:
        hint = nearest(attribute, NAMES)
        raise InputError(f"toyfaces have no attribute {attribute!r}; choose one of {', '.join(NAMES)}.{hint}")
    return ATTRIBUTES[NAMES.index(attribute)]


def check_size(size: int) -> None:
    """Refuse a picture size that faces cannot be drawn at."""
    if not SMALLEST <= size <= LARGEST:
        raise InputError(f"toyfaces cannot be {size} px large; choose a size from {SMALLEST} to {LARGEST}")


def _draw(attribute: Attribute, count: int, seed: int, start: int, purpose: str) -> NDArray[np.float64]:
    """Values (count,) of one attribute. Each block has its own stream, so slices of any two draws agree."""
    first, last = start // BLOCK, (start + count - 1) // BLOCK
    stream = f"{purpose}/{attribute.name}"
    blocks = [numpy_generator(seed, stream, block).random(BLOCK) for block in range(first, last + 1)]
    uniform = np.concatenate(blocks)[start - first * BLOCK :][:count]
    if attribute.binary:
        return (uniform < 0.5).astype(np.float64)
    return attribute.low + (attribute.high - attribute.low) * uniform


def _check_range(count: int, start: int) -> None:
    if count < 1 or start < 0:
        raise InputError(f"{count} toyfaces from index {start}; ask for at least 1, from index 0 or later")


def _given(values: ArrayLike, attribute: Attribute, count: int) -> NDArray[np.float64]:
    given = np.asarray(values, np.float64)
    if given.shape not in ((), (count,)):
        raise InputError(
            f"{attribute.name!r} of shape {given.shape} for {count} faces; give one value, or one per face"
        )
    _check_values(given, attribute)
    return given


def _check_values(values: NDArray[Any], attribute: Attribute) -> None:
    low, high = attribute.low, attribute.high
    good = (values == low) | (values == high) if attribute.binary else (values >= low) & (values <= high)
    if not good.all():  # nan is not good either
        allowed = f"{low:g} or {high:g}" if attribute.binary else f"{low:g} to {high:g}"
        raise InputError(f"{attribute.name!r} of {values[~good].flat[0]:g}; choose {allowed}")
