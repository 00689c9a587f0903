import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from diti.edit.mix import angle_between, lerp, slerp

values = arrays(np.float32, (3, 5), elements=st.floats(-8, 8, width=32))
scales = st.floats(-1, 2)
quick = settings(max_examples=40, deadline=None)


def full(scale: float) -> torch.Tensor:
    return torch.full((3,), scale, dtype=torch.float64)


@quick
@given(values, values, scales)
def test_lerp_moves_the_chosen_dims_only(a, b, scale):
    moved = torch.tensor([True, False, True, False, False])
    mixed = lerp(torch.from_numpy(a), torch.from_numpy(b), full(scale), moved).numpy()
    assert np.array_equal(mixed[:, ~moved.numpy()], a[:, ~moved.numpy()])
    expected = (a.astype(np.float64) + scale * (b.astype(np.float64) - a))[:, moved.numpy()]
    assert np.allclose(mixed[:, moved.numpy()], expected, atol=1e-5)


def test_lerp_takes_a_scale_and_a_choice_per_row():
    moved = torch.tensor([[True, False], [False, True], [True, True]])
    mixed = lerp(torch.zeros(3, 2), torch.ones(3, 2), torch.tensor([0.5, 2.0, -1.0]), moved)
    assert mixed.tolist() == [[0.5, 0.0], [0.0, 2.0], [-1.0, -1.0]]


@quick
@given(values, values)
def test_both_ends_are_exact(a, b):
    a, b = torch.from_numpy(a), torch.from_numpy(b)
    everything = torch.ones(5, dtype=torch.bool)
    assert torch.equal(lerp(a, b, full(0), everything), a) and torch.equal(lerp(a, b, full(1), everything), b)
    assert torch.equal(slerp(a, b, full(0)), a) and torch.equal(slerp(a, b, full(1)), b)


@quick
@given(values, scales)
def test_equal_rows_stay_as_they_are(a, scale):
    a = torch.from_numpy(a)
    assert torch.equal(slerp(a, a, full(scale)), a)
    assert torch.equal(lerp(a, a, full(scale), torch.ones(5, dtype=torch.bool)), a)


@quick
@given(values, values, scales)
def test_slerp_is_finite_everywhere(a, b, scale):
    assert torch.isfinite(slerp(torch.from_numpy(a), torch.from_numpy(b), full(scale))).all()


@quick
@given(values, values, scales)
def test_slerp_keeps_the_norm_of_equally_long_rows(a, b, scale):
    lengths = [np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b)]
    assume(min(length.min() for length in lengths) > 1e-2)
    a, b = (torch.from_numpy(x / length).double() for x, length in zip((a, b), lengths, strict=True))
    assume(bool((angle_between(a, b) < 3.1).all()))  # opposite rows have no arc
    assert torch.allclose(slerp(a, b, full(scale)).norm(dim=1), torch.ones(3).double(), atol=1e-6)


@quick
@given(st.floats(0.01, 3.1), scales)
def test_slerp_turns_by_its_share_of_the_angle(angle, scale):
    a = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    expected = torch.tensor([[math.cos(scale * angle), math.sin(scale * angle)]], dtype=torch.float64)
    assert torch.allclose(slerp(a, b, torch.tensor([scale], dtype=torch.float64)), expected)


def test_slerp_flattens_each_row():
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 4, 3, 2, 2, generator=rng)
    scale = torch.tensor([0.0, 0.3, 0.6, 1.5])
    for row in range(4):  # the definition with the arc cosine, in NumPy, one row at a time
        x, y = a[row].double().numpy().ravel(), b[row].double().numpy().ravel()
        theta = np.arccos(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
        s = float(scale[row])
        expected = (np.sin((1 - s) * theta) * x + np.sin(s * theta) * y) / np.sin(theta)
        assert np.allclose(slerp(a, b, scale)[row].numpy().ravel(), expected, atol=1e-6)


@pytest.mark.parametrize("factor", [1.0, 2.5, -1.0, -2.5, 0.0])
def test_rows_on_one_line_are_mixed_along_it(factor):
    a = torch.tensor([[3.0, -4.0]])
    expected = a * (0.7 + 0.3 * factor) if factor else a * math.cos(0.3 * math.pi / 2)
    assert torch.allclose(slerp(a, factor * a, torch.tensor([0.3])), expected)


def test_angles_near_zero_and_near_a_half_turn_are_precise():
    a = torch.tensor([[1.0, 0.0]] * 4, dtype=torch.float64)
    b = torch.tensor([[1.0, 1e-9], [-1.0, 1e-9], [0.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    expected = torch.tensor([1e-9, math.pi - 1e-9, math.pi / 2, math.pi / 2], dtype=torch.float64)
    assert torch.allclose(angle_between(a, b), expected, rtol=1e-9, atol=0)
