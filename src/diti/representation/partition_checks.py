"""Checks of what a partition is made from; each names what was given, and what is allowed."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch

from diti.core.errors import InputError, nearest


def check_names(what: str, given: Any, allowed: Sequence[str], where: str) -> None:
    """InputError for a mapping with a name that is not allowed. what: key or parameter; where: of what."""
    if not isinstance(given, dict):
        raise InputError(f"the {what}s of {where} must be a mapping, got {type(given).__name__}")
    for name in given:
        if name not in allowed:
            valid = ", ".join(allowed) or "none"
            raise InputError(f"{where} has no {what} {name!r}; valid: {valid}.{nearest(str(name), allowed)}")


def check_count(name: str, values: Sequence[float], subsets: int) -> None:
    """InputError for more or fewer numbers than subsets."""
    if len(values) != subsets:
        raise InputError(f"{name} has {len(values)} numbers for {subsets} subsets; give one per subset")


def check_ends(ends: Sequence[int], dims: int) -> None:
    """InputError for subsets whose dims run backwards, or do not end with the code."""
    if any(a > b for a, b in itertools.pairwise((0, *ends))):
        raise InputError(f"the ends of the subsets must not decrease, got {list(ends)}; sort them")
    if ends[-1] != dims:
        raise InputError(f"the last subset ends at {ends[-1]}, the code at {dims}; make them equal")


def check_starts(starts: Sequence[float], timesteps: int, subsets: int) -> None:
    """InputError for starts that are not one time-step per subset, in order."""
    check_count("starts", starts, subsets)
    for start in starts:
        whole_number("each number of starts", start, 0, timesteps)
    if any(a > b for a, b in itertools.pairwise(starts)):
        raise InputError(f"starts must not decrease, got {list(starts)}; order the subsets by them")


def check_stages(stage_ends: tuple[int, ...], widths: tuple[int, ...], timesteps: int, dims: int) -> None:
    """InputError for stages that do not fill the time-steps, or whose dims are not those of the code."""
    if len(stage_ends) != len(widths):
        raise InputError(f"{len(stage_ends)} stages but {len(widths)} dims_per_stage; give one each")
    if any(a >= b for a, b in itertools.pairwise((0, *stage_ends))) or stage_ends[-1:] != (timesteps,):
        raise InputError(f"stages must rise from above 0 to the {timesteps} time-steps, got {list(stage_ends)}")
    if sum(widths) != dims:
        raise InputError(f"dims_per_stage sums to {sum(widths)}, the code has {dims} dims; change one of the two")


def check_sizes(timesteps: Any, subsets: Any, dims: Any, fill: str = "") -> tuple[int, int, int]:
    """T, K, D as Python numbers; `fill` names a kind that leaves no subset empty."""
    steps, count = whole_number("timesteps", timesteps), whole_number("subsets", subsets)
    width = whole_number("dims", dims)
    if count > steps:
        raise InputError(f"{count} subsets do not fit in {steps} time-steps; use at most one per time-step")
    if fill and count > width:
        raise InputError(f"{fill} gives every subset a dim, {count} subsets do not fit in {width} dims; use fewer")
    return steps, count, width


def whole_number(name: str, value: Any, lowest: int = 1, stop: int | None = None) -> int:
    """A whole number of any type, lowest <= value < stop, as an int."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < lowest or (stop and value >= stop):
        upper = f" and below {stop}" if stop else ""
        raise InputError(f"{name} must be a whole number of at least {lowest}{upper}, got {value!r}")
    return operator.index(value)


def whole_numbers(name: str, values: Any) -> tuple[int, ...]:
    """A list of whole numbers, 0 or more, as ints."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{name} must be a list of whole numbers, got {values!r}")
    return tuple(whole_number(f"each number of {name}", value, 0) for value in values)


def loss_curve(name: str, values: Any) -> tuple[float, ...]:
    """A curve from a list, array or tensor: finite, nowhere negative, and not 0 throughout."""
    try:
        curve = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be a list of numbers, got {type(values).__name__}") from None
    if curve.ndim != 1 or not curve.isfinite().all() or (curve < 0).any() or not (curve > 0).any():
        raise InputError(f"{name} {tuple(curve.shape)} must be a list of finite numbers >= 0, not all 0; clip it")
    return tuple(curve.tolist())
