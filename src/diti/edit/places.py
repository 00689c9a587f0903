"""Only where it belongs: the places of the picture in which an attribute lives, and edits that stay there.

Over the training images the pixels are regressed on all labels together. Where the one that is edited explains
something, an edit may change the picture; elsewhere the picture stays as it is drawn without the edit.
Notation: N images, A labels, S side of the picture, px.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.edit.compose import What
from diti.edit.directions import Direction, label_weights

ROWS = 4_096  # training images that are looked at
BLUR = 1.5 / 64  # of the side
SLIGHT = 0.01  # of the most that the attribute explains anywhere: here an edit is halved
CHUNK = 512


def place_of(dataset: Dataset, attribute: str, seed: int = 0) -> np.ndarray:
    """float32 (S, S) from 0 to 1: by how much an edit of the attribute may change each place of a picture."""
    rows = dataset.rows("train") if len(dataset.rows("train")) else dataset.rows()
    rows = np.sort(numpy_generator(seed, "places").permutation(rows)[:ROWS])
    weights = label_weights(dataset.labels()[rows], dataset.attributes.index(attribute))  # (N,)
    total = np.zeros(dataset.images.shape[1:], np.float64)
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        pixels = dataset.pixels(rows[part]).reshape(len(rows[part]), -1) / 255.0
        total += (weights[part] @ pixels).reshape(total.shape)
    return allowed(np.square(total).mean(-1))


def allowed(explained: np.ndarray) -> np.ndarray:
    """m = e (1 + τ) / (e + τ) of the blurred share e (S, S) of what is explained at most; τ is SLIGHT."""
    e = blurred(explained, BLUR * explained.shape[-1])
    e = e / max(float(e.max()), 1e-30)
    return (e * (1 + SLIGHT) / (e + SLIGHT)).astype(np.float32)


def blurred(values: np.ndarray, deviation: float) -> np.ndarray:
    """(S, S) smoothed by a Gaussian of so many px."""
    reach = int(np.ceil(3 * deviation))
    bell = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / deviation) ** 2)
    bell = bell / bell.sum()
    padded = pad(torch.from_numpy(values).double()[None, None], (reach,) * 4, mode="replicate")
    rows = conv2d(padded, bell[None, None, :, None])
    return np.asarray(conv2d(rows, bell[None, None, None, :])[0, 0].numpy())


def place_for(moved: Iterable[What]) -> Tensor | None:
    """(S, S) where any of these may change a picture; None: everywhere, as axes and examples do."""
    places = [what.place if isinstance(what, Direction) else None for what in moved]
    known = [torch.from_numpy(place) for place in places if place is not None]
    return torch.stack(known).amax(0) if known and len(known) == len(places) else None


def in_place(edited: Tensor, unedited: Tensor, place: Tensor | None) -> Tensor:
    """Images (..., 3, S, S) edited where it belongs, and elsewhere as they are shown without the edit."""
    if place is None:
        return edited
    shown = unedited.clamp(-1, 1)
    return shown + place.to(edited) * (edited.clamp(-1, 1) - shown)
