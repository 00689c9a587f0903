"""A face in a photograph, cut out and turned as the model's own pictures show theirs.

scikit-image carries a small detector of upright faces. It is asked about the photograph turned by several angles:
a face is where two or more of them show one, and its place, width and roll are means over those. How a model's
pictures show faces is measured with the same detector, so nothing here is made for one way of aligning them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from PIL import Image

from diti.core.errors import InputError

TURNS = range(-36, 37, 12)  # degrees; the detector sees faces that lean by up to about 15
LOOKED_AT = 192  # px of the longer side that the detector looks at
SMALLEST = 24  # px, a face for the detector
SHARED = 0.5  # of the model's pictures in which a face is found, if faces are what it knows
NO_FACE = (
    "No face was found in this picture, and this model only knows faces. Please choose a photograph of a face "
    "that looks towards the camera and is not too small."
)


@dataclass(frozen=True)
class Face:
    """Where a face is in a picture, px; roll: how far it leans, degrees clockwise."""

    x: float
    y: float
    width: float
    roll: float = 0.0


@dataclass(frozen=True)
class Framing:
    """Where a model's pictures have the middle of a face, and how wide it is, in shares of their side."""

    x: float
    y: float
    width: float

    def cut(self, photograph: Image.Image, size: int) -> np.ndarray:
        """uint8 (size, size, 3): the face in the photograph as the model's pictures would show it."""
        face = find_face(photograph)
        if face is None:
            raise InputError(NO_FACE)
        side = face.width / self.width
        near = _around(photograph, face.x, face.y, 2 * side)  # turning it leaves no corner empty
        level = near.rotate(face.roll, Image.Resampling.BICUBIC)
        left, top = near.width / 2 - self.x * side, near.height / 2 - self.y * side
        box = (left, top, left + side, top + side)
        return np.asarray(level.resize((size, size), Image.Resampling.BICUBIC, box))


def framing_of(pictures: Sequence[np.ndarray]) -> Framing | None:
    """How pictures (H, W, 3) show faces; None where most show none, or the detector is not installed."""
    if find_spec("skimage") is None or not pictures:
        return None
    seen = [boxes[0] for pixels in pictures if len(boxes := _upright(Image.fromarray(pixels)))]
    if len(seen) < SHARED * len(pictures):
        return None
    x, y, width = np.median(np.array(seen), 0) / pictures[0].shape[0]
    return Framing(float(x), float(y), float(width))


def find_face(photograph: Image.Image) -> Face | None:
    """The face that is seen at the most angles, the wider one of two; None where none is seen at two of them."""
    shrunk = min(1.0, LOOKED_AT / max(photograph.size))
    small = photograph.resize([max(1, round(side * shrunk)) for side in photograph.size], Image.Resampling.BOX)
    seen = np.array([box for turn in TURNS for box in _turned(small, turn)])
    if not len(seen):
        return None
    alike = max((_alike(seen, box) for box in seen), key=lambda group: (len(group), group[:, 2].sum()))
    x, y, width, roll = alike.mean(0).tolist()
    if len(alike) < 2 and width < min(small.size) / 2:  # of a face that fills the picture, turning loses much
        return None
    return Face(x / shrunk, y / shrunk, width / shrunk, roll)


def _turned(picture: Image.Image, turn: int) -> Iterable[tuple[float, float, float, float]]:
    """Faces (x, y, width, roll) of the picture turned counter-clockwise, in places of the picture itself."""
    middle, angle = np.array(picture.size) / 2, np.radians(turn)
    back = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    for x, y, width in _upright(picture.rotate(turn, Image.Resampling.BILINEAR)):
        place = back @ (np.array([x, y]) - middle) + middle
        yield float(place[0]), float(place[1]), width, float(turn)


def _upright(picture: Image.Image) -> list[tuple[float, float, float]]:
    """Upright faces (x, y, width), the widest first."""
    if (most := min(picture.size)) < SMALLEST:
        return []
    found = _detector().detect_multi_scale(
        img=np.asarray(picture.convert("L")), scale_factor=1.1, step_ratio=1,
        min_size=(SMALLEST, SMALLEST), max_size=(most, most),
    )  # fmt: skip
    boxes = [(box["c"] + box["width"] / 2, box["r"] + box["height"] / 2, float(box["width"])) for box in found]
    return sorted(boxes, key=lambda box: -box[2])


@cache
def _detector() -> Any:
    from skimage.data import lbp_frontal_face_cascade_filename
    from skimage.feature import Cascade

    return Cascade(lbp_frontal_face_cascade_filename())


def _alike(seen: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Of what was seen (N, 4), that which is the same face as one box."""
    near = np.hypot(*(seen[:, :2] - box[:2]).T) < 0.3 * box[2]
    return seen[near & (np.abs(np.log(seen[:, 2] / box[2])) < 0.4)]


def _around(photograph: Image.Image, x: float, y: float, side: float) -> Image.Image:
    """A square around a place; beyond the edges the photograph is mirrored."""
    left, top, side = round(x - side / 2), round(y - side / 2), round(side)
    rows, columns = _mirrored(top, side, photograph.height), _mirrored(left, side, photograph.width)
    return Image.fromarray(np.asarray(photograph)[np.ix_(rows, columns)])


def _mirrored(start: int, count: int, most: int) -> np.ndarray:
    """Places start .. start + count - 1 on a line of that length whose ends are mirrors."""
    places = np.arange(start, start + count) % (2 * most)
    return np.where(places < most, places, 2 * most - 1 - places)
