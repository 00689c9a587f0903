"""The arithmetic of partitions against exact fractions."""

from __future__ import annotations

from fractions import Fraction

from drawn_partitions import brisk, curves, slow_subset
from hypothesis import given, settings
from hypothesis import strategies as st

from diti.representation.partition_widths import apportion, loss_per_segment


def slow_adaptive_shares(curve: list[float], timesteps: int, subsets: int) -> list[Fraction]:
    """Overlap of every bin with every segment, summed."""
    shares = [Fraction(0)] * subsets
    for t in range(timesteps):
        subset = slow_subset(t, timesteps, subsets)
        for i, value in enumerate(curve):
            low, high = Fraction(i * timesteps, len(curve)), Fraction((i + 1) * timesteps, len(curve))
            shares[subset] += Fraction(value) * max(0, min(high, t + 1) - max(low, t))
    return [share / sum(shares) for share in shares]


@given(curves, st.integers(1, 30), st.data())
@settings(deadline=None, max_examples=25)
def test_loss_of_a_segment_is_its_overlap(curve: list[float], timesteps: int, data: st.DataObject) -> None:
    subsets = data.draw(st.integers(1, timesteps))
    exact = loss_per_segment(curve, timesteps, subsets)
    assert [Fraction(part, sum(exact)) for part in exact] == slow_adaptive_shares(curve, timesteps, subsets)


def fair_level(total: int, weights: list[int], minimum: list[int]) -> Fraction:
    """The λ at which Σ max(minimum, λ weight) = total, trying every number of parts held at their minimum."""
    order = sorted((Fraction(m, w) if w else Fraction(10**9), m, w) for w, m in zip(weights, minimum, strict=True))
    for free in range(len(order), 0, -1):
        held = sum(m for _, m, _ in order[free:])
        level = Fraction(total - held, max(1, sum(w for _, _, w in order[:free])))
        if level >= order[free - 1][0]:
            return level
    raise AssertionError("the minimum parts exceed the total")


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 5)), min_size=1, max_size=8), st.integers(0, 60))
@brisk
def test_apportion_is_proportional_above_the_minimum(parts: list[tuple[int, int]], spare: int) -> None:
    weights, minimum = [w for w, _ in parts], [m for _, m in parts]
    weights[0] += 1  # not all zero
    total = sum(minimum) + spare
    found = apportion(total, weights, minimum)
    assert sum(found) == total
    level = fair_level(total, weights, minimum)
    for part, weight, least in zip(found, weights, minimum, strict=True):
        assert part >= least
        assert abs(part - max(Fraction(least), level * weight)) < 1


def test_apportion_gives_what_is_left_to_the_largest_remainders() -> None:
    assert apportion(10, [15, 35, 50], [1, 1, 1]) == [2, 3, 5]  # 1.5 3.5 5: a tie goes to the first
    assert apportion(10, [13, 37, 50], [1, 1, 1]) == [1, 4, 5]  # 1.3 3.7 5
