"""Whether a backbone draws new images or those it was trained on: each sample beside its nearest training image.

Notation: N training images, M samples.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diti.core.images import grid, save_picture, to_float, to_uint8
from diti.data.prepared import Dataset

FEW = 2_000  # training images below which a network soon memorises each one
BATCH = 1_024
COLUMNS = 8


def warning(images: int) -> str:
    """What to expect from a small set of training images; empty where there are many."""
    if images >= FEW:
        return ""
    return (
        f"{images:,} training images are few: the network will memorise them rather than draw new ones; "
        "nearest.png will show each sample beside its nearest training image. Features and edits of these images "
        "work all the same"
    )


def nearest_images(dataset: Dataset, samples: Tensor, mirrored: bool) -> tuple[np.ndarray, np.ndarray]:
    """Row (M,) and pixels uint8 (M, H, W, 3) of the training image nearest to each sample (M, 3, H, W).

    Nearest by squared difference of pixels; mirrored: or its mirror image.
    """
    rows, wanted = dataset.rows("train"), samples.cpu().flatten(1)
    best = torch.full((len(samples),), torch.inf)
    found, pixels = np.zeros(len(samples), np.int64), np.zeros((len(samples), *dataset.images.shape[1:]), np.uint8)
    for flip in (False, True) if mirrored else (False,):
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            known = dataset.pixels(part, np.full(len(part), flip))
            distance, place = torch.cdist(wanted, to_float(known).flatten(1)).min(1)  # (M,)
            for index in torch.nonzero(distance < best).flatten().tolist():
                found[index], pixels[index] = part[place[index]], known[place[index]]
            best = torch.minimum(best, distance)
    return found, pixels


def save_nearest(dataset: Dataset, samples: Tensor, mirrored: bool, path: Path) -> Path:
    """Rows of samples in [-1, 1], each with a row of their nearest training images below."""
    drawn, (_, known) = to_uint8(samples), nearest_images(dataset, samples, mirrored)
    rows, labels = [], []
    for start in range(0, len(drawn), COLUMNS):
        rows += [drawn[start : start + COLUMNS], known[start : start + COLUMNS]]
        labels += ["samples", "nearest"]
    title = "samples, and below each the nearest training image"
    return save_picture(grid(np.concatenate(rows), COLUMNS, row_labels=labels, title=title), path)
