"""Several things moved at once, and others held: one step of the code, after which each lands where it is asked.

Each thing is a handle: a reading, linear in z, that rises by 1 with a strength of 1; a heading, the way the code
goes to change it; and the response, Σ times the reading, the way codes vary with it. Notation: D dims of z; E
things are moved, with headings H, readings V (D, E) and strengths s; K are kept, with W and P.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.edit.directions import Direction, code_space_hash
from diti.edit.strength import paper_strength, step_of
from diti.representation.found_axes import find_key
from diti.representation.models.axis_names import axis_of
from diti.representation.models.model import Model

What: TypeAlias = int | str | Direction  # a dim by number, an axis as a07 or by name, or an attribute's direction
LEAST = 0.02  # of what a heading changes its reading by, that must be left when other things are kept
MOST = 8.0  # times the largest strength that is asked for: pushes beyond it only work against each other
LONGEST = 2.0  # times the step without anything kept or composed: a longer one would leave the data

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Handle:
    """One thing of a picture that can be moved, or held."""

    name: str
    reading: np.ndarray  # float64 (D,) of z
    heading: np.ndarray  # float64 (D,) in z
    response: np.ndarray  # float64 (D,) in z


def handle_of(model: Model, what: What) -> Handle:
    """Of a direction, an axis or a dim of this model."""
    if isinstance(what, Direction):
        check_fits(model, what)
        std = what.std.astype(np.float64)
        reading, response = what.told
        if step_of(reading, what.heading) is None:
            raise InputError(
                f"the direction of {what.attribute!r} does not change its own reading; it cannot be followed"
            )
        return Handle(what.attribute, reading / std, what.heading * std, response * std)
    key, sign = find_key(model, str(what))
    if (axis := axis_of(key)) is not None and model.axes is not None:
        direction, reading = (
            sign * a[axis].double().numpy() for a in (model.axes.directions, model.axes.readings)
        )
        return Handle(str(what), reading, direction, direction)
    one = np.zeros(model.dims)
    one[int(key)] = sign
    std = model.statistics()[1].double().numpy()
    return Handle(str(what), one / std, one * std, one * std)


def check_fits(model: Model, direction: Direction) -> None:
    """InputError for a direction of another model's codes."""
    if len(direction.weight) != model.dims or direction.encoder != code_space_hash(model):
        raise InputError(
            f"the direction of {direction.attribute!r} ({len(direction.weight)} dims) was learned from an "
            f"encoder other than this model's ({model.dims} dims); learn it again for this model"
        )


def held(headings: np.ndarray, kept: Sequence[Handle]) -> np.ndarray:
    """(D, E) the nearest to the headings (D, E) along which no kept reading changes: H - P (WᵀP)⁻¹ WᵀH.

    Nearest in the Mahalanobis distance of the codes: the difference goes the way in which codes themselves vary
    with what is kept. Readings that say the same count once.
    """
    if not kept:
        return headings
    w, p = (np.stack([getattr(handle, part) for handle in kept], axis=1) for part in ("reading", "response"))
    scale = np.maximum(np.abs(np.einsum("dk,dk->k", w, p)), 1e-300) ** -0.5
    w, p = w * scale, p * scale
    return np.asarray(headings - p @ np.linalg.lstsq(w.T @ p, w.T @ headings, rcond=1e-9)[0])


def composed(wanted: Sequence[Handle], strengths: Sequence[float], kept: Sequence[Handle] = ()) -> np.ndarray:
    """(D,) the step of z along the held headings H that moves each reading by its strength: (VᵀH) t = s."""
    if not wanted:
        return np.zeros(0)
    v, h = (np.stack([getattr(handle, part) for handle in wanted], axis=1) for part in ("reading", "heading"))
    free = held(h, kept)
    gains, before = v.T @ free, np.einsum("de,de->e", v, h)
    for handle, gain, unhindered in zip(wanted, gains.diagonal(), before, strict=True):
        if gain < LEAST * unhindered:
            names = ", ".join(other.name for other in kept)
            raise InputError(
                f"{handle.name} cannot be changed while {names} stays: in this code they are nearly the same; "
                "keep less"
            )
    asked, alone = np.asarray(strengths, np.float64), gains.diagonal()
    pushes = np.linalg.lstsq(gains / alone, asked, rcond=None)[0]
    if np.abs(pushes).max() > MOST * max(np.abs(asked).max(), 1e-9):
        names = ", ".join(handle.name for handle in wanted)
        raise InputError(f"{names} are too much alike in this code to be moved at once; move fewer of them")
    return np.asarray(free / alone @ pushes)


def step_for(
    model: Model, what: Sequence[What], strengths: Sequence[float], keep: Sequence[What] = ()
) -> np.ndarray:
    """(D,) the same for things of a model; what is too long by holding and composing is cut, as a line says."""
    wanted, kept = ([handle_of(model, w) for w in things] for things in (what, keep))
    step = composed(wanted, strengths, kept)
    if not step.any() or (not kept and len(wanted) < 2):
        return step
    std = deviations(model, [*what, *keep])
    alone = np.stack([composed([h], [s]) for h, s in zip(wanted, strengths, strict=True)]) / std
    share = LONGEST * float(np.linalg.norm(alone, axis=1).sum()) / float(np.linalg.norm(step / std))
    if share < 1:
        names = ", ".join(handle.name for handle in wanted)
        log.warning(
            "%s: only %.0f %% of what was asked; going all the way while the rest stays would leave the data",
            names,
            100 * share,
        )
    return min(share, 1.0) * step


def deviations(model: Model, things: Sequence[What]) -> np.ndarray:
    """(D,) of z: the model's, or where it does not know them those of a direction."""
    if model.std is None:
        known = [what.std.astype(np.float64) for what in things if isinstance(what, Direction)]
        return known[0] if known else np.ones(model.dims)
    return model.std.double().numpy()


def push(z: Tensor, direction: Direction, strength: float) -> Tensor:
    """Codes z (N, D) moved along a direction, its reading by so many usual differences: see `strength.py`."""
    step = step_of(direction.told[0], direction.heading)
    if step is None:
        raise InputError(
            f"the direction of {direction.attribute!r} does not change its own reading; it cannot be followed"
        )
    return z + torch.from_numpy(strength * step * direction.std).to(z)


def strength_at(direction: Direction, paper_scale: float) -> float:
    """The strength at which `push` is line 3 of algorithm 3, z' = z + λ σ w / ‖w‖ with λ = s √D, for a scale s."""
    return paper_strength(direction.told[0], direction.heading, paper_scale)
