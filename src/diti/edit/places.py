"""Only where it belongs: the places of the picture in which an attribute lives, and edits that stay there.

Over the training images the pixels are regressed on all labels together. Where the one that is edited explains
more than chance would, an edit may change the picture; elsewhere it stays as it is drawn without the edit.

What the regression knows and the decoder does not draw, because z forgets it, is the rest. Its light is added to
the picture, not its colours: seen with eyes, these made teeth green. Changes as small as the grain of what is
decoded are left out: nobody sees them, yet they move what is read in a face.
Notation: N images, A labels, S side of the picture in px; B what the pixels change with the attribute, D what is
drawn of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
SLIGHT = 0.02  # of the most that the attribute explains anywhere: here an edit is halved
GRAIN = 0.06  # change, in [-1, 1], of which half is kept
GRAIN_BLUR = 1 / 64  # of the side: how far around a pixel its change is averaged
CHUNK = 512


def in_pictures(dataset: Dataset, attribute: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """B float32 (3, S, S), and from 0 to 1 float16 (S, S) how much an edit may change each place of a picture."""
    rows = dataset.rows("train") if len(dataset.rows("train")) else dataset.rows()
    rows = np.sort(numpy_generator(seed, "places").permutation(rows)[:ROWS])
    weights = label_weights(dataset.labels()[rows], dataset.attributes.index(attribute))  # (N,)
    coefficient, total, squares = (np.zeros(dataset.images.shape[1:], np.float64) for _ in range(3))
    for start in range(0, len(rows), CHUNK):
        pixels = dataset.pixels(rows[start : start + CHUNK]) / 127.5
        coefficient += np.tensordot(weights[start : start + CHUNK], pixels, axes=1)
        total, squares = total + pixels.sum(0), squares + np.square(pixels).sum(0)
    variance = squares / len(rows) - np.square(total / len(rows))
    chance = variance * np.square(weights).sum()  # of the coefficient, where the attribute explains nothing
    squared, blur = np.square(coefficient).mean(-1), BLUR * dataset.images.shape[2]
    more = (np.square(coefficient) - chance).clip(0).mean(-1)
    sure = blurred(more, blur) / np.maximum(blurred(squared, blur), 1e-30)  # what of it is not chance
    known = (coefficient * sure[..., None]).transpose(2, 0, 1).astype(np.float32)
    return known, allowed(more).astype(np.float16)


def rest_of(coefficient: np.ndarray, drawn: np.ndarray, place: np.ndarray) -> np.ndarray:
    """The mean over colours (1, S, S) of m (a B - D), in the place m (S, S); a B is nearest to D (3, S, S)."""
    share = float((drawn * coefficient).sum()) / max(float(np.square(coefficient).sum()), 1e-30)
    return np.asarray(place.astype(np.float32) * (share * coefficient - drawn).mean(0, keepdims=True))


def allowed(explained: np.ndarray) -> np.ndarray:
    """m = e (1 + τ) / (e + τ) of the blurred share e (S, S) of what is explained at most; τ is SLIGHT."""
    e = blurred(explained, BLUR * explained.shape[-1])
    e = e / max(float(e.max()), 1e-30)
    return np.asarray(e * (1 + SLIGHT) / (e + SLIGHT))


def blurred(values: np.ndarray, deviation: float) -> np.ndarray:
    """(..., S, S) smoothed by a Gaussian of so many px."""
    reach = int(np.ceil(3 * deviation))
    bell = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / deviation) ** 2)
    bell = bell / bell.sum()
    flat = torch.from_numpy(values).double().reshape(-1, 1, *values.shape[-2:])
    rows = conv2d(pad(flat, (reach,) * 4, mode="replicate"), bell[None, None, :, None])
    return np.asarray(conv2d(rows, bell[None, None, None, :]).numpy().reshape(values.shape))


def without_grain(change: Tensor) -> Tensor:
    """Changes d (..., 3, S, S) of pictures, e / (e + GRAIN²) of each, e being the mean of d² around a pixel."""
    around = blurred(change.square().mean(-3).numpy(), GRAIN_BLUR * change.shape[-1])
    energy = torch.from_numpy(around).to(change).unsqueeze(-3)
    return change * energy / (energy + GRAIN**2)


class Touch(NamedTuple):
    """What an edit may do to a picture."""

    place: Tensor | None  # (S, S) where it may change something; None: everywhere, as axes and examples do
    rest: Tensor  # (1, S, S) that is added, or (): nothing


def touch_of(moves: Mapping[What, float]) -> Touch | None:
    """Of things that are moved by so many strengths; None where nothing is known of any."""
    known = [(what, strength) for what, strength in moves.items() if isinstance(what, Direction)]
    places = [torch.from_numpy(what.place).float() for what, _ in known if what.place is not None]
    rests = [strength * torch.from_numpy(what.rest).float() for what, strength in known if what.rest is not None]
    everywhere = len(places) < len(moves) or not places
    if everywhere and not rests:
        return None
    rest = torch.stack(rests).sum(0) if rests else torch.zeros(())
    return Touch(None if everywhere else torch.stack(places).amax(0), rest)


def touched(edited: Tensor, unedited: Tensor, touch: Touch | None, times: Tensor | float = 1.0) -> Tensor:
    """Images (..., 3, S, S) edited where it belongs, the rest added so many times; elsewhere as unedited."""
    if touch is None:
        return edited
    shown, drawn = unedited.clamp(-1, 1), edited.clamp(-1, 1)
    changed = drawn if touch.place is None else shown + touch.place * (drawn - shown)
    return shown + without_grain((changed + times * touch.rest).clamp(-1, 1) - shown)
