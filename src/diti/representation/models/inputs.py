"""Images as people hold them (uint8 arrays, PIL, float tensors, files, one or many) → one float batch."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, ValueRange, check_value_range, in_model_range, to_float
from diti.core.runs import described
from diti.data.decode import decode, decode_file, picture_size, to_rgb

Picture: TypeAlias = np.ndarray | Tensor | Image.Image | str | Path
Images: TypeAlias = Picture | Sequence[Picture]

FORMS = "floats (N, 3, H, W) in [-1, 1], uint8 (N, H, W, 3), PIL images, or paths of image files"
SLACK = 0.005  # of a range: floats may leave it by this much, since resizing overshoots

log = logging.getLogger(__name__)


Sides = list[tuple[int, int]]  # width and height of images that had to be resized, px


@dataclass
class _Batch:
    """How images are to be read, and what was seen in them."""

    size: int
    value_range: ValueRange | None
    others: Sides = field(default_factory=list)
    lowest: float = math.inf  # of the floats
    highest: float = -math.inf


def as_batch(images: Images, size: int, value_range: ValueRange | None = None) -> Tensor:
    """(N, 3, size, size) in [-1, 1]. Other sizes are cropped to their central square and resized, with a note.

    value_range: of float images, the lowest and highest value of a pixel: (-1, 1), (0, 1) or (0, 255). Without it
    floats are taken as [-1, 1], whatever they are, so that a code never depends on the other images of a batch; a
    batch in which nothing is negative is most likely [0, 1], and a warning says so once. Floats outside the
    range are an InputError. uint8 arrays, PIL images and files are 0..255.
    """
    reading = _Batch(size, None if value_range is None else check_value_range(value_range))
    batch = _as_batch(images, reading)
    if value_range is None and 0 <= reading.lowest < reading.highest:
        _warn_of_range()
    if reading.others:
        log.warning(resized(reading.others, len(batch), size))
    return batch


@cache  # once in a process; where warnings are errors, each time
def _warn_of_range() -> None:
    warnings.warn(
        "float images without a negative value were taken as [-1, 1], where 0 is grey: say value_range=(0, 1) if "
        "0 is black, or value_range=(-1, 1) if this is right",
        stacklevel=3,
    )


def read_images(files: Sequence[str | Path], size: int) -> tuple[list[np.ndarray], list[str]]:
    """uint8 (size, size, 3) of image files, upright, and a line to print where some had another size."""
    paths = [Path(file) for file in files]
    pixels = [decode_file(path, size) for path in paths]
    others = [side for side in map(picture_size, paths) if side != (size, size)]
    return pixels, [resized(others, len(paths), size)] if others else []


def resized(others: Sides, count: int, size: int) -> str:
    """What was done to images of other sizes, in one line however many they are."""
    shown = sorted(set(others))
    sides = ", ".join(f"{width}×{height}" for width, height in shown[:3]) + (", ..." if len(shown) > 3 else "")
    which = "the image was" if count == 1 else f"{len(others)} of {count} images were"
    return f"{which} cropped to the centre and resized to the model's {size} px (from {sides} px)"


def _as_batch(images: Images, reading: _Batch) -> Tensor:
    if isinstance(images, str | Path):
        return _from_file(Path(images), reading)
    if isinstance(images, np.ndarray) and images.dtype.kind in "OUT":  # a column of paths or of images
        images = images.tolist()
    if isinstance(images, Sequence) and not isinstance(images, bytes):
        if len(images) == 0:
            raise InputError("no images were given; give at least one")
        return torch.cat([_as_batch(image, reading) for image in images])
    if isinstance(images, Image.Image):
        return _from_bytes(np.asarray(to_rgb(images)), reading)
    if isinstance(images, np.ndarray) and images.dtype == np.uint8:
        if reading.value_range not in (None, MODEL_RANGE, (0, 255)):
            raise InputError(
                f"value_range is {reading.value_range}, and the images are uint8, which are 0..255; leave it out, "
                "or give floats"
            )
        return _from_bytes(images, reading)
    if isinstance(images, np.ndarray) and images.dtype.kind == "f":
        images = torch.from_numpy(np.array(images, np.float32))  # a copy: torch has no read-only tensors
    if isinstance(images, np.ndarray | Tensor):
        return _from_floats(images, reading)
    raise InputError(f"an image is {described(images)}; give {FORMS}")


def _from_file(path: Path, reading: _Batch) -> Tensor:
    """An image file, upright, as the command line reads it."""
    path = path.expanduser()
    if path.is_dir():
        raise InputError(f"{path} is a folder; name image files, or encode a folder with diti.encode")
    pixels = decode_file(path, reading.size)
    if (side := picture_size(path)) != (reading.size, reading.size):
        reading.others.append(side)
    return to_float(pixels[None])


def as_features(given: object) -> Tensor:
    """Features (N, F) of another network as float32; the encoder checks their shape."""
    try:
        array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
        if array.ndim == 0:  # None, too, which numpy takes for nan
            raise ValueError
        return torch.from_numpy(array.astype(np.float32))  # a copy: torch has no read-only tensors
    except (TypeError, ValueError):
        raise InputError(
            f"this model encodes features of another network, numbers (N, F), and got {type(given).__name__}; "
            "give the features of the images"
        ) from None


def _from_bytes(pixels: np.ndarray, reading: _Batch) -> Tensor:
    """uint8 (H, W, 3) or (N, H, W, 3)."""
    size = reading.size
    batch = pixels[None] if pixels.ndim == 3 else pixels
    if batch.ndim != 4 or batch.shape[3] != 3 or len(batch) == 0:
        raise InputError(f"uint8 images have shape {pixels.shape}; give (H, W, 3) or (N, H, W, 3)")
    if batch.shape[1:3] != (size, size):
        reading.others += [(batch.shape[2], batch.shape[1])] * len(batch)
        batch = np.stack([decode(image, size, "centre") for image in batch])
    return to_float(np.ascontiguousarray(batch))


def _from_floats(images: np.ndarray | Tensor, reading: _Batch) -> Tensor:
    """Float (3, H, W) or (N, 3, H, W) in the range of the reading; an array here has another type."""
    size = reading.size
    batch = images[None] if images.ndim == 3 else images
    floats = batch if isinstance(batch, Tensor) and batch.is_floating_point() else None
    if floats is None or floats.ndim != 4 or floats.shape[1] != 3 or len(floats) == 0:
        raise InputError(f"images are {images.dtype} of shape {tuple(images.shape)}; give {FORMS}")
    batch = _in_range(floats, reading)
    if batch.shape[2:] != (size, size):
        reading.others += [(batch.shape[3], batch.shape[2])] * len(batch)
        batch = F.interpolate(_central_square(batch), (size, size), mode="bicubic", antialias=True).clamp(-1, 1)
    return batch.float()


def _in_range(batch: Tensor, reading: _Batch) -> Tensor:
    """The floats brought to [-1, 1]; InputError for what is outside their range."""
    low, high = reading.value_range or MODEL_RANGE
    lowest, highest = batch.min().item(), batch.max().item()
    slack = SLACK * (high - low)
    if not torch.isfinite(batch).all() or lowest < low - slack or highest > high + slack:
        said = f"float images range from {lowest:.3g} to {highest:.3g}"
        if reading.value_range is not None:
            raise InputError(f"{said}, outside value_range=({low:g}, {high:g}); give the range they have")
        range_is = "value_range=(0, 255)" if lowest >= 0 and highest <= 255 else "value_range=(lowest, highest)"
        raise InputError(f"{said}; scale them to [-1, 1], give uint8, or say what they are: {range_is}")
    reading.lowest, reading.highest = min(reading.lowest, lowest), max(reading.highest, highest)
    return in_model_range(batch, (low, high))


def _central_square(batch: Tensor) -> Tensor:
    height, width = batch.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return batch[:, :, top : top + side, left : left + side]
