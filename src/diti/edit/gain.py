"""As much as was asked: how far the code goes for a picture to show the usual difference, and what is added to it.

A picture shows less of a step than its code says. So a few training images are drawn with it and read by all
features of the encoder (`reader.py`), and the direction is followed that much farther: by its gain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from diti.edit.compose import composed, handle_of
from diti.edit.directions import Direction
from diti.edit.places import rest_of, touch_of, touched
from diti.edit.reach import Trial
from diti.representation.models.model import Model

ASKED, ASKED_BINARY = 2.0, 1.0  # strength at which it is found: as far as to the other side
ROUNDS = 2  # how often it is set right
LEAST, MOST = 0.5, 3.0  # gain
LONGEST = 3.0  # standard deviations of the code, to which the gain may make a strength of 1: more is not usual
TRUSTED, TRUSTED_BINARY = 0.7, 0.4  # correlation of what is read with labels from which on it says what was shown

Reads = Callable[[Model, Tensor], np.ndarray]
"""Images (N, 3, S, S) of a model → (N, A), in usual differences: a `Reader`."""


def with_gain(
    direction: Direction,
    trial: Trial,
    reads: Reads,
    column: int,
    sides: Tensor,
    coefficient: np.ndarray,
    trusted: bool = True,
) -> Direction:
    """The direction with gain and rest, so that a strength of 1 is the usual difference of what is read.

    Each image goes towards the other side (N,), see `sides_of`: what has a hat cannot be given one. The response
    grows faster than the step, so it is found at a strength that is used, and once more from there. column: of
    what is read, that tells this attribute; coefficient (3, S, S): what the pixels change with it. Where what is
    read is not to be trusted, as with few labels, the code goes as far as it says.
    """
    model, start = trial.start.model, trial.start
    asked = ASKED_BINARY if direction.metric == "AP" else ASKED
    shown = start.shown(start.z, start.x_T)
    before = reads(model, shown)[:, column]
    direction = replace(direction, gain=1.0, rest=None)
    signs = sides[:, None, None, None]
    alone = np.linalg.norm(composed([handle_of(model, direction)], [1.0]) / direction.std)
    most = min(max(LONGEST / float(alone), 1.0), MOST)
    for _ in range(ROUNDS):
        step = torch.from_numpy(asked * composed([handle_of(model, direction)], [1.0])).to(start.z)
        drawn = start.shown(start.z + sides[:, None] * step, start.x_T)
        if direction.place is not None:
            change = (signs * (drawn - shown)).mean(0).numpy() / asked
            direction = replace(direction, rest=rest_of(coefficient, change, direction.place))
        edited = touched(drawn, shown, touch_of({direction: asked}), signs)
        got = float((sides.numpy() * (reads(model, edited)[:, column] - before)).mean()) / asked
        direction = _scaled(direction, min(direction.gain / max(got, 1e-3), most) if trusted else 1.0)
    return direction if direction.rest is None else replace(direction, rest=direction.rest.astype(np.float16))


def _scaled(direction: Direction, gain: float) -> Direction:
    """The direction with this gain, as far as it is allowed; the rest goes with it."""
    gain = max(gain, LEAST)
    rest = None if direction.rest is None else direction.rest * (gain / direction.gain)
    return replace(direction, gain=gain, rest=rest)
