"""The partition whose starts were measured, against slow loops and numbers by hand."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from drawn_partitions import brisk, matched, slow_owners
from hypothesis import given
from hypothesis import strategies as st

from diti.core.errors import InputError
from diti.representation.partition import THIRDS, Partition, make_partition
from diti.representation.partition_widths import segment_bounds


def slow_matched_masks(partition: Partition, t: int) -> tuple[list[bool], list[bool], list[bool]]:
    """visible, own and preceding dim by dim, from the starts of the record."""
    starts = partition.to_json()["parameters"]["starts"]
    latest = max((start for start in starts if start <= t), default=None)
    of_dims = [starts[owner] for owner in slow_owners(partition)]
    visible, own = [start <= t for start in of_dims], [start == latest for start in of_dims]
    return visible, own, [seen and not mine for seen, mine in zip(visible, own, strict=True)]


@given(matched(), st.data())
@brisk
def test_matched_masks_equal_the_slow_loop(partition: Partition, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, partition.timesteps - 1), min_size=1, max_size=6))
    starts = partition.to_json()["parameters"]["starts"]
    current = [max((i for i, start in enumerate(starts) if start <= t), default=-1) for t in steps]
    assert partition.subset_of(torch.tensor(steps)).tolist() == current
    assert [partition.subset_of(t) for t in steps] == current
    expected = [slow_matched_masks(partition, t) for t in steps]
    for which, masks in enumerate((partition.visible, partition.own, partition.preceding)):
        assert masks(torch.tensor(steps)).tolist() == [row[which] for row in expected]
        assert masks(steps[0]).tolist() == expected[0][which]


@given(matched())
@brisk
def test_matched_widths_are_equal_and_a_range_ends_where_the_next_subset_starts(partition: Partition) -> None:
    starts, last = partition.to_json()["parameters"]["starts"], partition.timesteps
    assert partition.ends == Partition.balanced(last, partition.subsets, partition.dims).ends
    for subset, start in enumerate(starts):
        assert partition.time_range(subset) == (start, min([later for later in starts if later > start] + [last]))


def test_matched_by_hand() -> None:
    partition = Partition.matched(10, 4, 5, [2, 5, 5, 9])
    assert partition.ends == (1, 2, 3, 5)
    assert [partition.subset_of(t) for t in range(10)] == [-1, -1, 0, 0, 0, 2, 2, 2, 2, 3]
    assert [partition.time_range(subset) for subset in range(4)] == [(2, 5), (5, 9), (5, 9), (9, 10)]
    assert partition.visible(torch.tensor([1, 2, 5, 9])).int().tolist() == [
        [0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]
    ]  # fmt: skip
    assert partition.own(5).tolist() == [False, True, True, False, False]
    assert partition.preceding(5).tolist() == [True, False, False, False, False]
    assert partition.feature_names() == ["z000_t0002", "z001_t0005", "z002_t0005", "z003_t0009", "z004_t0009"]


def test_before_the_first_start_the_code_is_hidden_and_learns_nothing() -> None:
    z = torch.ones(1, 4, requires_grad=True)
    for detach in (False, True):
        masked = Partition.matched(10, 2, 4, [3, 8]).mask(z, torch.tensor([2]), detach=detach)
        assert masked.tolist() == [[0.0] * 4]
        assert torch.autograd.grad(masked.sum(), z)[0].tolist() == [[0.0] * 4]


def test_matched_where_all_start_at_once_is_never_masked_like_single() -> None:
    together, single = Partition.matched(10, 3, 7, [0, 0, 0]), Partition.single(10, 7)
    t = torch.arange(10)
    for name in ("visible", "own", "preceding"):
        assert torch.equal(getattr(together, name)(t), getattr(single, name)(t))
    assert together.subset_of(0) == 2


def test_matched_with_equal_segments_masks_like_balanced() -> None:
    balanced, t = Partition.balanced(1000, 30, 64), torch.arange(1000)
    partition = Partition.matched(1000, 30, 64, segment_bounds(1000, 30)[:-1])
    assert torch.equal(partition.visible(t), balanced.visible(t))
    assert torch.equal(partition.own(t), balanced.own(t))


@pytest.mark.parametrize(
    ("subsets", "thirds"),
    [
        (6, [[0, 1], [2, 3], [4, 5]]),
        (7, [[0, 1, 2], [3, 4], [5, 6]]),
        (4, [[0, 1], [2], [3]]),
        (2, [[0], [1], []]),
    ],
)
def test_matched_thirds_count_subsets_whatever_their_starts(subsets: int, thirds: list[list[int]]) -> None:
    partition = Partition.matched(1000, subsets, 8, [900] * subsets)
    for name, members in zip(THIRDS, thirds, strict=True):
        with nullcontext() if members else pytest.raises(InputError, match="names no subset"):
            assert partition.group(name) == set(members)
        assert [i for i in range(subsets) if partition.third(i) == name] == members


def test_matched_description() -> None:
    assert Partition.matched(1000, 2, 8, [300, 300]).describe().splitlines() == [
        "matched: 8 dims in 2 subsets over 1000 time-steps",
        "  subset   0  dims       0-3 (4)  visible from t 300",
        "  subset   1  dims       4-7 (4)  visible from t 300",
    ]


def test_matched_record_holds_the_starts() -> None:
    record = make_partition("matched", 10, 2, 4, starts=(np.int64(3), 8)).to_json()
    assert json.loads(json.dumps(record)) == {
        "kind": "matched", "timesteps": 10, "subsets": 2, "dims": 4, "ends": [2, 4],
        "parameters": {"starts": [3, 8]},
    }  # fmt: skip


def test_matched_needs_a_dim_for_each_subset() -> None:
    with pytest.raises(InputError, match="matched gives every subset a dim, 5 subsets do not fit in 4 dims"):
        Partition.matched(10, 5, 4, [0, 1, 2, 3, 4])
