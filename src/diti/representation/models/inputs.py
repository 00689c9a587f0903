"""Images as people hold them (uint8 arrays, PIL, float tensors, files, one or many) → one float batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import to_float
from diti.data.decode import decode, decode_file, picture_size, to_rgb

Images: TypeAlias = np.ndarray | Tensor | Image.Image | Sequence[np.ndarray | Tensor | Image.Image]

log = logging.getLogger(__name__)


Sides = list[tuple[int, int]]  # width and height of images that had to be resized, px


def as_batch(images: Images, size: int) -> Tensor:
    """(N, 3, size, size) in [-1, 1]. Other sizes are cropped to their central square and resized, with a note."""
    others: Sides = []
    batch = _as_batch(images, size, others)
    if others:
        log.warning(resized(others, len(batch), size))
    return batch


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


def _as_batch(images: Images, size: int, others: Sides) -> Tensor:
    if isinstance(images, Sequence):
        if len(images) == 0:
            raise InputError("no images were given; give at least one")
        return torch.cat([_as_batch(image, size, others) for image in images])
    if isinstance(images, Image.Image):
        return _from_bytes(np.asarray(to_rgb(images)), size, others)
    if isinstance(images, np.ndarray) and images.dtype == np.uint8:
        return _from_bytes(images, size, others)
    if isinstance(images, np.ndarray):
        images = torch.from_numpy(images)
    return _from_floats(images, size, others)


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


def _from_bytes(pixels: np.ndarray, size: int, others: Sides) -> Tensor:
    """uint8 (H, W, 3) or (N, H, W, 3)."""
    batch = pixels[None] if pixels.ndim == 3 else pixels
    if batch.ndim != 4 or batch.shape[3] != 3 or len(batch) == 0:
        raise InputError(f"uint8 images have shape {pixels.shape}; give (H, W, 3) or (N, H, W, 3)")
    if batch.shape[1:3] != (size, size):
        others += [(batch.shape[2], batch.shape[1])] * len(batch)
        batch = np.stack([decode(image, size, "centre") for image in batch])
    return to_float(np.ascontiguousarray(batch))


def _from_floats(images: Tensor, size: int, others: Sides) -> Tensor:
    """Float (3, H, W) or (N, 3, H, W) in [-1, 1]."""
    batch = images[None] if images.ndim == 3 else images
    if not batch.is_floating_point() or batch.ndim != 4 or batch.shape[1] != 3 or len(batch) == 0:
        raise InputError(
            f"images are {images.dtype} of shape {tuple(images.shape)}; give floats (N, 3, H, W) in [-1, 1], "
            "uint8 (N, H, W, 3), or PIL images"
        )
    if not torch.isfinite(batch).all() or batch.abs().max() > 1.01:
        low, high = batch.min().item(), batch.max().item()
        raise InputError(f"float images range from {low:.3g} to {high:.3g}; scale them to [-1, 1], or give uint8")
    if batch.shape[2:] != (size, size):
        others += [(batch.shape[3], batch.shape[2])] * len(batch)
        batch = F.interpolate(_central_square(batch), (size, size), mode="bicubic", antialias=True).clamp(-1, 1)
    return batch.float()


def _central_square(batch: Tensor) -> Tensor:
    height, width = batch.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return batch[:, :, top : top + side, left : left + side]
