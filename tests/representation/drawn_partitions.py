"""Partitions of every kind for hypothesis, and what they are in slow loops."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from diti.representation.partition import KINDS, Partition, make_partition

curves = st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(any)
brisk = settings(deadline=None, max_examples=80)


@st.composite
def matched(draw: st.DrawFn) -> Partition:
    timesteps, dims = draw(st.integers(1, 80) | st.just(1000)), draw(st.integers(1, 90))
    subsets = draw(st.integers(1, min(timesteps, dims)))
    starts = sorted(draw(st.lists(st.integers(0, timesteps - 1), min_size=subsets, max_size=subsets)))
    return make_partition("matched", timesteps, subsets, dims, starts=starts)


@st.composite
def segmented(draw: st.DrawFn) -> Partition:
    """Of every kind whose time-steps are cut in equal segments."""
    kind = draw(st.sampled_from([kind for kind in KINDS if kind != "matched"]))
    if kind == "staged":
        return Partition.staged(1000, draw(st.integers(1, 300)), 512)
    timesteps, dims = draw(st.integers(1, 80) | st.just(1000)), draw(st.integers(1, 90))
    subsets = draw(st.integers(1, min(timesteps, dims)))
    parameters: dict[str, Any] = {}
    if kind == "adaptive":
        parameters = {"loss_by_time": draw(curves)}
    elif kind == "custom" and draw(st.booleans()):
        ends = sorted(draw(st.lists(st.integers(0, dims), min_size=subsets - 1, max_size=subsets - 1)))
        parameters = {"ends": [*ends, dims]}
    elif kind == "custom":
        stages = sorted(draw(st.sets(st.integers(1, timesteps), max_size=5)) | {timesteps})
        marks = sorted(draw(st.lists(st.integers(0, dims), min_size=len(stages) - 1, max_size=len(stages) - 1)))
        widths = [b - a for a, b in zip([0, *marks], [*marks, dims], strict=True)]
        parameters = {"stages": stages, "dims_per_stage": widths}
    return make_partition(kind, timesteps, subsets, dims, **parameters)


partitions = segmented() | matched()


def widths_of(partition: Partition) -> list[int]:
    return [len(partition.dims_of(subset)) for subset in range(partition.subsets)]


def slow_subset(t: int, timesteps: int, subsets: int) -> int:
    """The segment [i T / K, (i + 1) T / K) that holds t, by search."""
    length = Fraction(timesteps, subsets)
    return next(i for i in range(subsets) if i * length <= t < (i + 1) * length)


def slow_owners(partition: Partition) -> list[int]:
    """(D,) the subset of each dim, by search."""
    return [next(i for i, end in enumerate(partition.ends) if dim < end) for dim in range(partition.dims)]
