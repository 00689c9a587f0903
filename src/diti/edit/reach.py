"""How far a direction may be followed: its safe range, and steps that are even in what is seen.

Without anybody's labels: a few training images are drawn at rising strengths and encoded again, until

    the reading of what was drawn rises by less than GROWTH of what it rose by at first, per unit of strength,
    the code of what was drawn lies farther out than all but a hundredth of the training images,
    or more than CLIPPED of the pixels are newly burnt, beyond black or white.

What lies before is the safe range. Notation: N images, D dims of z, S strengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from diti.core.images import MODEL_RANGE, to_float
from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.edit.compose import Handle, composed, handle_of
from diti.edit.directions import Direction
from diti.edit.invert import Inverted
from diti.representation.models.decoding import DecodingModel

GRID = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)  # strengths tried to each side
IMAGES, STEPS = 16, 8
RANGED = 6  # of the images, to each side of the safe range
GROWTH = 0.3
USUAL = 0.99  # of the training images
CLIPPED = 0.05
FAR = 2.0  # strength at the ends of a default row, where the safe range allows
EVEN = (-1.0, -0.5, 0.5, 1.0)  # what is seen in a default row, as shares of its ends


@dataclass(frozen=True, eq=False)
class Drawn:
    """What some images became at one strength."""

    reading: float  # mean over the images
    distance: float  # of their codes, the median
    clipped: float  # share of pixels beyond black or white
    seen: float  # root mean square change of the pixels from what they are without an edit


@dataclass(frozen=True, eq=False)
class Trial:
    """A few images, inverted, on which directions are tried."""

    start: Inverted
    rows: np.ndarray  # (N,) of the data
    limit: float  # distance of a code beyond which USUAL of the training images do not lie
    mean: Tensor  # (D,) of z
    std: Tensor  # (D,)

    @classmethod
    def of(cls, model: DecodingModel, dataset: Dataset, codes: np.ndarray, seed: int = 0) -> Trial:
        """On training images, codes (N, D) being those of all images of the data."""
        rows = dataset.rows("train") if len(dataset.rows("train")) else dataset.rows()
        mean, std = model.statistics(torch.from_numpy(codes[rows]))
        chosen = np.sort(numpy_generator(seed, "reach").permutation(rows)[:IMAGES])
        limit = float(np.quantile(distances(torch.from_numpy(codes[rows]), mean, std), USUAL))
        return cls(Inverted.of(model, to_float(dataset.pixels(chosen)), STEPS), chosen, limit, mean, std)

    def few(self, kept: Tensor) -> Trial:
        """The same with RANGED of the images that are kept, bool (N,), or of all where none is."""
        places = torch.nonzero(kept if kept.any() else torch.ones_like(kept))[:RANGED, 0]
        return replace(self, start=replace(self.start, z=self.start.z[places], x_T=self.start.x_T[places]))

    def drawn(
        self, handle: Handle, step: np.ndarray, strength: float, unchanged: Tensor | None
    ) -> tuple[Drawn, Tensor]:
        """The images with a step (D,) so many times, and their pictures."""
        start = self.start
        raw = start.decode(start.z + torch.from_numpy(strength * step).to(start.z), start.x_T)
        shown = raw.clamp(-1, 1)
        z = start.model.encode(shown, value_range=MODEL_RANGE).cpu()
        change = 0.0 if unchanged is None else float((shown - unchanged).square().mean().sqrt())
        burnt = float((raw.abs() > 1).float().mean())
        reading = float((z.double().numpy() @ handle.reading).mean())
        return Drawn(reading, float(np.median(distances(z, self.mean, self.std))), burnt, change), shown


def distances(z: Tensor, mean: Tensor, std: Tensor) -> np.ndarray:
    """(N,) root mean square of codes z (N, D) in their standard deviations."""
    return np.asarray(((z - mean) / std).double().square().mean(1).sqrt().numpy())


def sides_of(labels: np.ndarray, binary: bool) -> Tensor:
    """(N,) 1 where an attribute can rise, -1 where it can fall: towards the other side of labels (N,)."""
    middle = 0.5 if binary else np.nanmean(labels)
    return torch.from_numpy(np.where(np.nan_to_num(labels, nan=middle) <= middle, 1.0, -1.0)).float()


def reach_of(trial: Trial, handle: Handle, sides: Tensor | None = None) -> np.ndarray:
    """float64 (S, 2): strengths from the low to the high end of the safe range, and how much is seen of each.

    What is seen is the root mean square change of the pixels, negative for negative strengths; it only grows.
    sides (N,): as `sides_of` gives them; each end is looked for on images that can go there.
    """
    step = composed([handle], [1.0])

    def side(sign: int) -> list[tuple[float, float]]:
        few = trial.few(torch.ones(len(trial.start.z), dtype=torch.bool) if sides is None else sides == sign)
        still, unchanged = few.drawn(handle, step, 0.0, None)
        tried = (few.drawn(handle, step, sign * strength, unchanged)[0] for strength in GRID)
        return within(still, tried, sign, trial.limit)

    return np.array([*((-s, -seen) for s, seen in reversed(side(-1))), (0.0, 0.0), *side(1)])


def within(still: Drawn, tried: Iterable[Drawn], sign: int, limit: float) -> list[tuple[float, float]]:
    """Strengths of GRID before one is out of the safe range, the first at least, and what is seen of each."""
    found: list[tuple[float, float]] = []
    before, at, first, most = still.reading, 0.0, None, 0.0
    for strength, drawn in zip(GRID, tried, strict=False):
        growth = sign * (drawn.reading - before) / (strength - at)
        first = growth if first is None else first
        out = (
            growth < GROWTH * first
            or drawn.distance > max(limit, still.distance)
            or drawn.clipped > still.clipped + CLIPPED
        )
        if out and found:
            break
        most = max(most, drawn.seen)
        found.append((strength, most))
        if out:
            break
        before, at = drawn.reading, strength
    return found


def with_reach(direction: Direction, trial: Trial, sides: Tensor | None = None) -> Direction:
    """The direction, which now knows its safe range."""
    return replace(direction, reach=reach_of(trial, handle_of(trial.start.model, direction), sides))


def ends_of(reach: np.ndarray | None) -> tuple[float, float] | None:
    """The lowest and the highest safe strength; None where they were not looked for."""
    return None if reach is None else (float(reach[0, 0]), float(reach[-1, 0]))


def even_strengths(reach: np.ndarray | None, shares: Sequence[float] = EVEN, far: float = FAR) -> list[float]:
    """Strengths at which these shares are seen of what is seen at the ends, ± far or those of the safe range.

    Without a known range, the shares of far themselves.
    """
    if reach is None:
        return [share * far for share in shares]
    strengths, seen = reach.T
    climbing = seen + 1e-9 * strengths  # so that what is not seen at all has a place, too
    ends = np.interp((-far, far), strengths, climbing)
    return [float(np.interp(abs(s) * ends[int(s > 0)], climbing, strengths)) for s in shares]


def beyond(direction: Direction, strengths: Sequence[float]) -> str:
    """What to say of strengths outside the safe range; nothing where all are inside, or it is not known."""
    ends = ends_of(direction.reach)
    if ends is None or not any(strength < ends[0] - 1e-9 or strength > ends[1] + 1e-9 for strength in strengths):
        return ""
    return (
        f"{direction.attribute}: from {ends[0]:+g} to {ends[1]:+g} pictures stay like those of the data; "
        "beyond it they may not"
    )
