"""The linear part of the decoder against a slow loop, and its smoothness in t."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.representation.networks.linear import LinearPart, hat_weights

SIZE, COUNT, DIMS = 8, 5, 4
TIMES = (3.0, 40.0, 41.5, 700.0)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(times: tuple[float, ...] = TIMES) -> LinearPart:
    part = LinearPart(SIZE, COUNT, DIMS, len(times))
    part.times.copy_(torch.tensor(times))
    part.weights.copy_(random(*part.weights.shape, seed=1))
    part.axes.mean.copy_(random(len(part.axes.mean), seed=2))
    part.axes.axes.copy_(torch.linalg.qr(random(len(part.axes.mean), COUNT, seed=3))[0])
    return part


def matrix_at(part: LinearPart, t: float) -> Tensor:
    """W_t by explicit interpolation, in float64."""
    times, weights = part.times.tolist(), part.weights.double()
    if t <= times[0]:
        return weights[0]
    for s in range(1, len(times)):
        if t <= times[s]:
            share = (t - times[s - 1]) / (times[s] - times[s - 1])
            return (1 - share) * weights[s - 1] + share * weights[s]
    return weights[-1]


def slow(part: LinearPart, u: Tensor, t: Tensor, z: Tensor) -> Tensor:
    """One image at a time, in float64."""
    mean, axes = part.axes.mean.double(), part.axes.axes.double()
    pictures = []
    for image, step, code in zip(u.double(), t.tolist(), z.double(), strict=True):
        p = axes.T @ (image.flatten() - mean)
        row = torch.cat([torch.ones(1, dtype=torch.float64), p, code])
        pictures.append((axes @ (matrix_at(part, step).T @ row)).reshape(image.shape))
    return torch.stack(pictures)


MIXED = torch.tensor([0, 3, 17, 40, 41, 42, 500, 700, 999])


def batch(count: int = len(MIXED)) -> tuple[Tensor, Tensor]:
    return random(count, 3, SIZE, SIZE, seed=4), random(count, DIMS, seed=5)


@pytest.mark.parametrize("times", [TIMES, (500.0,)], ids=["four stretches", "one stretch"])
def test_mixed_and_equal_time_steps_against_a_slow_loop(times):
    part, (u, z) = filled(times), batch()
    mixed = part(u, MIXED, z)
    torch.testing.assert_close(mixed.double(), slow(part, u, MIXED, z), atol=1e-5, rtol=1e-5)
    for i, step in enumerate(MIXED.tolist()):
        equal = part(u, torch.full_like(MIXED, step), z)
        torch.testing.assert_close(
            equal.double(), slow(part, u, torch.full_like(MIXED, step), z), atol=1e-5, rtol=1e-5
        )
        torch.testing.assert_close(equal[i], mixed[i], atol=1e-5, rtol=1e-5)


def test_hat_weights_by_hand():
    found = hat_weights(torch.tensor([10.0, 20.0, 40.0]), torch.tensor([0, 10, 15, 20, 25, 40, 99]))
    expected = [[1, 0, 0], [1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0.75, 0.25], [0, 0, 1], [0, 0, 1]]
    assert torch.equal(found, torch.tensor(expected))
    shares = hat_weights(torch.tensor(TIMES), 1000 * torch.rand(200, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(shares.sum(1), torch.ones(200))
    assert shares.min() >= 0 and (shares > 0).sum(1).max() == 2


def test_a_centre_has_its_own_matrix_exactly():
    part = filled()
    assert torch.equal(hat_weights(part.times, part.times), torch.eye(4))
    u, z = batch(2)
    rows = torch.cat([torch.ones(2, 1), part.axes.coordinates(u), z], 1)
    for s, time in enumerate(TIMES):
        assert torch.equal(part(u, torch.full((2,), time), z), part.axes.picture(rows @ part.weights[s]))


def test_nothing_jumps_in_t():
    part, (u, z) = filled(), batch(1)
    for time in TIMES:  # the limits from left and right at a centre
        here = part(u, torch.tensor([time]), z)
        gaps = []
        for step in (1e-1, 1e-2, 1e-3):
            sides = [part(u, torch.tensor([time + sign * step]), z) for sign in (-1, 1)]
            gaps.append(max((side - here).abs().max().item() for side in sides))
        assert gaps[2] < 0.02 * gaps[0]
    steps = [part(u, torch.tensor([t]), z) for t in range(42, 700)]  # one long stretch, in steps of one
    jumps = [(b - a).abs().max().item() for a, b in pairwise(steps)]
    assert max(jumps) < 2 * (steps[-1] - steps[0]).abs().max() / len(jumps)


def test_gradients_reach_z_and_nothing_is_trained():
    part, (u, z) = filled(), batch()
    z.requires_grad_()
    part(u, MIXED, z).square().sum().backward()
    assert z.grad is not None and z.grad.abs().min() > 0
    assert not list(part.parameters())


def test_half_precision_around_it_changes_nothing():
    part, (u, z) = filled(), batch()
    with torch.autocast("cpu", torch.bfloat16):
        inside = part(u, MIXED, z)
    assert torch.equal(inside, part(u, MIXED, z))


def test_its_description_builds_it_again():
    part = filled()
    assert part.description == {"pixel_axes": COUNT, "stretches": 4}
    assert part.state_dict().keys() == {"times", "weights", "axes.mean", "axes.axes"}
    assert LinearPart(SIZE, COUNT, DIMS, 4)(*batch()[:1], MIXED, batch()[1]).abs().max() == 0


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="stretches is 0"):
        LinearPart(SIZE, COUNT, DIMS, 0)
    with pytest.raises(InputError, match="dims is 0"):
        LinearPart(SIZE, COUNT, 0, 3)
