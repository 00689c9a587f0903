"""Partitions against slow loops, exact fractions, the authors' table and the authors' numbers."""

from __future__ import annotations

import json
from contextlib import nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drawn_partitions import brisk, partitions, segmented, slow_owners, slow_subset, widths_of
from hypothesis import given, settings
from hypothesis import strategies as st

from diti.core.errors import InputError
from diti.representation import partition as module
from diti.representation.partition import Partition, make_partition

AUTHORS_K = (16, 32, 64, 128)


def slow_masks(partition: Partition, t: int) -> tuple[list[bool], list[bool], list[bool]]:
    """visible, own and preceding dim by dim."""
    current = slow_subset(t, partition.timesteps, partition.subsets)
    owners = slow_owners(partition)
    return [o <= current for o in owners], [o == current for o in owners], [o < current for o in owners]


@given(segmented())
@brisk
def test_every_dim_is_owned_once_and_every_step_has_one_subset(partition: Partition) -> None:
    owned = [dim for subset in range(partition.subsets) for dim in partition.dims_of(subset)]
    assert owned == list(range(partition.dims))
    assert list(partition.ends) == sorted(partition.ends)
    assert partition.ends[-1] == partition.dims
    if partition.kind in ("balanced", "staged-even", "adaptive"):
        assert min(widths_of(partition)) >= 1
    steps = []
    for subset in range(partition.subsets):
        start, stop = partition.time_range(subset)
        assert start < stop
        assert {partition.subset_of(start), partition.subset_of(stop - 1)} == {subset}
        steps += range(start, stop)
    assert steps == list(range(partition.timesteps))


@given(segmented(), st.data())
@brisk
def test_masks_equal_the_slow_loop(partition: Partition, data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.integers(0, partition.timesteps - 1), min_size=1, max_size=6))
    t = torch.tensor(steps)
    expected = [slow_masks(partition, step) for step in steps]
    assert partition.subset_of(t).tolist() == [partition.subset_of(step) for step in steps]
    for which, masks in enumerate((partition.visible, partition.own, partition.preceding)):
        assert masks(t).dtype == torch.bool
        assert masks(t).tolist() == [row[which] for row in expected]
        assert masks(steps[0]).tolist() == expected[0][which]


@given(partitions)
@brisk
def test_masks_grow_with_time_and_end_full(partition: Partition) -> None:
    t = torch.arange(partition.timesteps)
    visible, own, preceding = partition.visible(t), partition.own(t), partition.preceding(t)  # (T, D)
    assert (visible[:-1] <= visible[1:]).all()
    assert visible[-1].all()
    assert torch.equal(own | preceding, visible)
    assert not (own & preceding).any()


@pytest.mark.parametrize("kind", ["balanced", "staged-even", "adaptive"])
def test_every_number_of_subsets_up_to_the_dims_works(kind: str) -> None:
    parameters = {"loss_by_time": [0.0, 1.0, 1e-9]} if kind == "adaptive" else {}
    for subsets in range(1, 49):
        partition = make_partition(kind, 1000, subsets, 48, **parameters)
        assert (sum(widths_of(partition)), min(widths_of(partition)) >= 1) == (48, True)


@given(partitions)
@brisk
def test_json_round_trip(partition: Partition) -> None:
    again = Partition.from_json(json.loads(json.dumps(partition.to_json())))
    assert again == partition
    assert hash(again) == hash(partition)


@pytest.mark.parametrize("subsets", AUTHORS_K)
def test_staged_is_the_authors_table(subsets: int, parity: Path) -> None:
    table = json.loads((parity / "staged_ends.json").read_text())
    partition = Partition.staged(1000, subsets, 512)
    assert list(partition.ends) == table[str(subsets)]
    assert widths_of(partition).count(0) == (63 if subsets == 128 else 0)


@pytest.mark.parametrize(
    ("subsets", "ends"),
    [(1, [512]), (2, [10, 512]), (4, [10, 362, 487, 512]), (8, [10, 198, 362, 462, 474, 486, 498, 512])],
)
def test_staged_where_no_segment_starts_in_a_stage(subsets: int, ends: list[int]) -> None:
    # By hand from the rule. K = 4 starts at 0, 250, 500, 750: nothing starts in 50-100 and 300-500.
    assert list(Partition.staged(1000, subsets, 512).ends) == ends


@pytest.mark.parametrize("subsets", AUTHORS_K)
def test_the_map_from_time_to_subset_is_the_authors_at_their_sizes(subsets: int) -> None:
    partition = Partition.balanced(1000, subsets, 512)
    assert partition.subset_of(torch.arange(1000)).tolist() == [int(t / (1000 / subsets)) for t in range(1000)]


def test_masked_codes_of_the_authors(parity: Path) -> None:
    expected = torch.load(parity / "pdae_tiny" / "expected.pt", weights_only=True)
    partition = Partition.balanced(1000, expected["k"], expected["z"].shape[1])
    starts = torch.tensor([partition.time_range(subset)[0] for subset in range(partition.subsets)])
    assert torch.equal(partition.visible(starts), expected["masks"].bool())
    for detach in (False, True):
        assert torch.equal(partition.mask(expected["z"], expected["t"], detach=detach), expected["z_masked"])


def test_single_masks_nothing_and_balanced_keeps_every_dim_where_floats_lose_one() -> None:
    assert Partition.single(1000, 5) == Partition.balanced(1000, 1, 5)
    assert Partition.single(1000, 5).visible(torch.tensor([0, 999])).all()
    assert int(float(512) / 49 * 49) == 511
    assert Partition.balanced(1000, 49, 512).ends == tuple(512 * (i + 1) // 49 for i in range(49))


@pytest.mark.parametrize("subsets", [16, 32, 64])
def test_staged_even_keeps_the_papers_dims_per_stage(subsets: int) -> None:
    partition = Partition.staged_even(1000, subsets, 512)
    by_stage: list[list[int]] = [[] for _ in module.STAGE_ENDS]
    for subset, width in enumerate(widths_of(partition)):
        start = partition.time_range(subset)[0]
        by_stage[next(i for i, end in enumerate(module.STAGE_ENDS) if start < end)].append(width)
    assert [sum(widths) for widths in by_stage] == list(module.STAGE_DIMS)
    assert all(max(widths) - min(widths) <= 1 for widths in by_stage)


def test_staged_even_by_hand() -> None:
    # 10 steps: starts 0 1 .. 9, stages of .5, .5, 2, 2, 5 steps, so nothing starts in the second stage: its 25
    # go to the third. 512 dims: 10, 352, 100, 50 over 1, 2, 2, 5 subsets.
    assert widths_of(Partition.staged_even(10, 10, 512)) == [10, 176, 176, 50, 50, 10, 10, 10, 10, 10]
    # 10 dims for 10 subsets: one each; 12: the two spare ones go to the heaviest stage.
    assert widths_of(Partition.staged_even(10, 10, 10)) == [1] * 10
    assert widths_of(Partition.staged_even(10, 10, 12)) == [1, 2, 2, *[1] * 7]
    assert Partition.staged_even(4000, 64, 512).ends == Partition.staged_even(1000, 64, 512).ends


def test_custom_by_hand() -> None:
    # Starts 0 10 20 | none in 25-26 | 30 .. 90: the 3 dims go on to the last seven subsets.
    assert widths_of(Partition.custom(100, 10, 12, [25, 26, 100], [4, 3, 5])) == [1, 1, 2, 1, 1, 1, 1, 1, 1, 2]
    assert Partition.custom(100, 2, 12, [60, 100], [9, 3]).ends == (6, 12)  # nothing starts in 60-100
    assert Partition.custom(100, 3, 12, ends=[0, 5, 12]).ends == (0, 5, 12)
    assert Partition.custom(100, 4, 9, [50, 100], [9, 0]).ends == (4, 9, 9, 9)


def test_adaptive_by_hand() -> None:
    assert widths_of(Partition.adaptive(8, 4, 20, [1, 1, 2, 2, 0, 0, 1, 3])) == [4, 8, 1, 7]
    assert widths_of(Partition.adaptive(1000, 4, 20, torch.ones(50))) == [5, 5, 5, 5]
    assert Partition.adaptive(1000, 64, 512, np.ones(7)).ends == Partition.adaptive(1000, 64, 512, [1.0]).ends


@given(partitions, st.integers(0, 2**31))
@settings(deadline=None, max_examples=40)
def test_detach_keeps_values_and_stops_the_gradient_of_preceding_dims(partition: Partition, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    t = torch.randint(partition.timesteps, (5,), generator=rng)
    z = torch.randn(5, partition.dims, generator=rng).requires_grad_()
    weight = torch.rand(5, partition.dims, generator=rng) + 1
    plain, detached = partition.mask(z, t), partition.mask(z, t, detach=True)
    assert torch.equal(plain, detached)
    assert torch.equal(plain, z * partition.visible(t))
    (through_all,) = torch.autograd.grad((plain * weight).sum(), z)
    assert torch.equal(through_all, weight * partition.visible(t))
    (through_own,) = torch.autograd.grad((detached * weight).sum(), z)
    assert torch.equal(through_own, weight * partition.own(t))


def test_one_time_step_serves_a_whole_batch() -> None:
    partition = Partition.balanced(10, 5, 10)
    z = torch.ones(3, 10, dtype=torch.float16)
    for t in (4, np.int64(4), torch.tensor(4)):
        masked = partition.mask(z, t)
        assert masked.dtype == torch.float16
        assert masked.tolist() == [[1.0] * 6 + [0.0] * 4] * 3
    assert partition.mask(z[0], 4).shape == (10,)
    assert partition.mask(z[:0], torch.zeros(0, dtype=torch.int64)).shape == (0, 10)


def test_what_a_caller_does_to_a_subset_leaves_the_partition_alone() -> None:
    partition = Partition.balanced(10, 5, 10)
    partition.subset_of(torch.tensor(4)).add_(1)
    assert partition.subset_of(torch.tensor(4)) == 2


def test_hidden_dims_are_zero_whatever_they_held_and_on_the_device_of_the_code() -> None:
    z = torch.tensor([[1.0, torch.nan, torch.inf]])
    partition = Partition.balanced(3, 3, 3)
    assert partition.mask(z, 0).tolist() == [[1.0, 0.0, 0.0]]
    assert partition.mask(z.to("meta"), 0, detach=True).device.type == "meta"
    assert partition.visible(0).device.type == "cpu"


def test_masks_first_used_without_gradients_serve_training_too() -> None:
    partition = Partition.balanced(10, 5, 10)
    with torch.inference_mode():
        partition.mask(torch.ones(2, 10), torch.tensor([1, 9]))
    z = torch.ones(2, 10, requires_grad=True)
    partition.mask(z, torch.tensor([1, 9]), detach=True).square().sum().backward()
    assert z.grad is not None and z.grad.sum(1).tolist() == [4.0, 4.0]


@given(segmented())
@brisk
def test_thirds_hold_each_subset_by_the_start_of_its_segment(partition: Partition) -> None:
    thirds: dict[str, set[int]] = {"early": set(), "middle": set(), "late": set()}
    third = Fraction(partition.timesteps, 3)
    for subset in range(partition.subsets):
        t = partition.time_range(subset)[0] + 1  # as the paper counts
        thirds["early" if t <= third else "middle" if t <= 2 * third else "late"].add(subset)
    for name, subsets in thirds.items():
        with nullcontext() if subsets else pytest.raises(InputError, match="names no subset"):
            assert partition.group(name) == subsets
        assert all(partition.third(subset) == name for subset in subsets)


def test_groups_at_the_authors_size() -> None:
    partition = Partition.staged(1000, 64, 512)
    groups: dict[Any, Any] = {"all": range(64), ":": range(64), "0:64": range(64), "63": [63], "5": [5], 5: [5]}
    groups |= {"early": range(22), "middle": range(22, 43), "late": range(43, 64)}  # 21 starts at 329, 22 at 344
    groups |= {"3:7": range(3, 7), ":4": range(4), "12:": range(12, 64), "late,0": [0, *range(43, 64)]}
    groups |= {"5, 3:7,60:": [3, 4, 5, 6, 60, 61, 62, 63]}
    for spec, subsets in groups.items():
        assert partition.group(spec) == set(subsets)
        dims = [dim for subset in subsets for dim in partition.dims_of(subset)]
        assert partition.subset_mask(spec).nonzero().flatten().tolist() == dims


@pytest.mark.parametrize(
    "spec", ["", "64", "3:3", "7:3", "0:65", "-1", "3:-1", "1,", "3-7", "1.5", "²", "late:", "a:b"]
)
def test_groups_that_name_nothing_list_what_is_allowed(spec: str) -> None:
    with pytest.raises(InputError, match=r"early, middle, late, all, I, I:J \(0 <= I < J <= 64\)"):
        Partition.balanced(1000, 64, 512).group(spec)
    with pytest.raises(InputError, match="Did you mean 'middle'"):
        Partition.balanced(1000, 64, 512).group("midle")


def test_a_group_without_dims_is_refused() -> None:
    partition = Partition.staged(1000, 128, 512)
    assert partition.group("70:80") == set(range(70, 80))
    with pytest.raises(InputError, match="own no dims"):
        partition.subset_mask("70:80")


def test_feature_names() -> None:
    names = Partition.staged(1000, 64, 512).feature_names()
    assert (names[0], names[12], names[511]) == ("z000_t0000", "z012_t0063", "z511_t0985")
    assert Partition.balanced(20000, 2, 1001).feature_names()[::1000] == ["z0000_t00000", "z1000_t10000"]


def test_description() -> None:
    assert Partition.custom(9, 2, 4, ends=[0, 4]).describe().splitlines() == [
        "custom: 4 dims in 2 subsets over 9 time-steps",
        "  subset   0  dims      none (0)  t 0-4",
        "  subset   1  dims       0-3 (4)  t 5-8",
    ]


# ---- Errors -------------------------------------------------------------------------------------------------

BALANCED = Partition.balanced(10, 5, 10)


@pytest.mark.parametrize(
    ("kind", "timesteps", "subsets", "dims", "message"),
    [
        ("stagd", 1000, 16, 512, "unknown; use balanced, staged, .* Did you mean 'staged'"),
        ("balanced", 10, 11, 64, "11 subsets do not fit in 10 time-steps"),
        ("balanced", 100, 65, 64, "65 subsets do not fit in 64 dims"),
        ("balanced", 10, 0, 64, "subsets must be a whole number of at least 1, got 0"),
        ("balanced", 10, 2, 6.5, "dims must be a whole number of at least 1, got 6.5"),
        ("balanced", True, 1, 1, "timesteps must be a whole number"),
        ("staged", 1000, 16, 128, "staged is defined for 1000 time-steps and 512 dims, got 1000 and 128"),
        ("staged", 500, 16, 512, "use staged-even"),
        ("adaptive", 10, 2, 4, "needs loss_by_time"),
        ("custom", 10, 2, 4, "needs stages and dims_per_stage, or ends alone"),
        ("matched", 10, 2, 4, "a matched partition needs starts, the time-step from which each subset is visible"),
    ],
)
def test_bad_sizes(kind: str, timesteps: Any, subsets: Any, dims: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_partition(kind, timesteps, subsets, dims)


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("balanced", {"stages": [5]}, "a balanced partition has no parameter 'stages'; valid: none"),
        ("custom", {"stage": [10]}, "Did you mean 'stages'"),
        ("custom", {"ends": [2, 4], "stages": [10]}, "or ends alone"),
        ("custom", {"ends": [4]}, "ends has 1 numbers for 2 subsets"),
        ("custom", {"ends": [5, 4]}, "must not decrease"),
        ("custom", {"ends": [2, 3]}, "the last subset ends at 3, the code at 4"),
        ("custom", {"ends": [2, 4.0]}, "each number of ends must be a whole number of at least 0, got 4.0"),
        ("custom", {"ends": "24"}, "ends must be a list of whole numbers"),
        ("custom", {"stages": [5, 10], "dims_per_stage": [4]}, "2 stages but 1 dims_per_stage"),
        ("custom", {"stages": [5, 9], "dims_per_stage": [2, 2]}, "stages must rise from above 0 to the 10"),
        ("custom", {"stages": [0, 10], "dims_per_stage": [2, 2]}, "stages must rise from above 0 to the 10"),
        ("custom", {"stages": [], "dims_per_stage": []}, "stages must rise from above 0 to the 10"),
        ("custom", {"stages": [5, 10], "dims_per_stage": [2, 3]}, "sums to 5, the code has 4 dims"),
        *(("adaptive", {"loss_by_time": x}, "finite numbers >= 0") for x in ([1, -0.1], [1, float("nan")], [[1]])),
        *(("adaptive", {"loss_by_time": x}, "not all 0") for x in ([0.0, 0.0], [])),
        *(("adaptive", {"loss_by_time": x}, "must be a list of numbers, got") for x in ("abc", None)),
        ("matched", {"start": [0, 1]}, "a matched partition has no parameter 'start'; .* Did you mean 'starts'"),
        ("matched", {"starts": None}, "starts must be a list of whole numbers, got None"),
        ("matched", {"starts": [0, 1, 2]}, "starts has 3 numbers for 2 subsets; give one per subset"),
        ("matched", {"starts": [3, 2]}, r"starts must not decrease, got \[3, 2\]; order the subsets"),
        ("matched", {"starts": [0, 10]}, "starts must be a whole number of at least 0 and below 10, got 10"),
        *(("matched", {"starts": [x, 5]}, "each number of starts must be a whole number") for x in (-1, 0.5, "0")),
    ],
)
def test_bad_parameters(kind: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_partition(kind, 10, 2, 4, **parameters)


@pytest.mark.parametrize("t", [-1, 10, 2.0, True, torch.tensor([0, 10]), torch.tensor([-1]), torch.tensor([1.0])])
def test_time_steps_outside_the_schedule(t: Any) -> None:
    with pytest.raises(InputError, match="time-step"):
        BALANCED.visible(t)


@pytest.mark.parametrize("subset", [-1, 5])
def test_subsets_outside_the_partition(subset: int) -> None:
    for query in (BALANCED.dims_of, BALANCED.time_range, BALANCED.third):
        with pytest.raises(InputError, match="subset must be a whole number of at least 0 and below 5"):
            query(subset)


@pytest.mark.parametrize(
    ("z", "t"), [(torch.ones(2, 9), 0), (torch.ones(2, 10), torch.zeros(3).long()), (torch.tensor(1.0), 0)]
)
def test_codes_that_do_not_fit(z: torch.Tensor, t: Any) -> None:
    with pytest.raises(InputError, match="code"):
        BALANCED.mask(z, t)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end": [4]}, "no key 'end'; .* Did you mean 'ends'"),
        ({"ends": None}, "lacks ends"),
        ({"kind": "random"}, "partition 'random' is unknown"),
        ({"subsets": 4}, "says 4 subsets but has 5 ends"),
        ({"dims": 11}, "the last subset ends at 10, the code at 11"),
        ({"ends": [2, 6, 4, 8, 10]}, "must not decrease"),
        ({"ends": [2, 4, 6, 8, "10"]}, "each number of ends"),
        ({"timesteps": 4}, "5 subsets do not fit in 4 time-steps"),
        ({"timesteps": "10"}, "timesteps must be a whole number"),
        ({"parameters": {"stages": [10]}}, "no parameter 'stages'"),
        ({"parameters": [1]}, "must be a mapping, got list"),
        ({"kind": "custom", "parameters": {"ends": [10]}}, "no parameter 'ends'"),
        ({"kind": "adaptive", "parameters": {"loss_by_time": [-1]}}, "finite numbers >= 0"),
        ({"kind": "matched"}, "starts has 0 numbers for 5 subsets"),
        ({"kind": "matched", "parameters": {"starts": [0, 1, 2, 3, 10]}}, "below 10, got 10"),
        ({"kind": "matched", "parameters": {"starts": [0, 1, 2, 4, 3]}}, "starts must not decrease"),
    ],
)
def test_bad_json(changes: dict[str, Any], message: str) -> None:
    values = {key: value for key, value in {**BALANCED.to_json(), **changes}.items() if value is not None}
    with pytest.raises(InputError, match=message):
        Partition.from_json(values)
    with pytest.raises(InputError, match="must be a mapping, got list"):
        Partition.from_json([values])
