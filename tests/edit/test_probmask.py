"""ProbMask: schedules, projection, soft masks, and dims planted in made-up data."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from diti.core.rng import numpy_generator, torch_generator
from diti.edit.probmask import (
    ProbMaskSettings,
    clip_each_attribute,
    kept_fraction,
    probmask_probabilities,
    project_to_budget,
    soft_mask,
    temperature,
)

rows = st.lists(st.floats(-2, 3), min_size=2, max_size=12)


def test_budget_goes_from_all_to_the_wanted_share():
    path = [kept_fraction(x, 0.125) for x in np.linspace(0, 1, 101)]
    assert path[0] == path[10] == 1
    assert path[40] == pytest.approx(0.125)
    assert path[100] == 0.125
    assert kept_fraction(0.25, 0.125) == pytest.approx(0.125 + 0.875 / 8)  # half-way: (1/2)³ is left
    assert (np.diff(path) <= 0).all()


def test_temperature_falls_on_a_line():
    assert (temperature(0), temperature(0.5), temperature(1)) == pytest.approx((1, 0.515, 0.03))


@given(rows, st.floats(0, 1))
def test_projection_meets_budget_and_bounds_and_keeps_the_order(values, share):
    p, budget = torch.tensor([values], dtype=torch.float64), share * len(values)
    found = project_to_budget(p, budget).double()
    assert found.sum().item() == pytest.approx(budget, abs=1e-5)
    assert found.min() >= 0 and found.max() <= 1
    assert (found[0, p[0].argsort()].diff() >= -1e-7).all()


@settings(max_examples=25, deadline=None)
@given(rows, st.floats(0.1, 0.9))
def test_projection_is_the_nearest_point(values, share):
    p, budget = np.array(values), share * len(values)
    oracle = minimize(
        lambda q: ((q - p) ** 2).sum(),
        np.full(len(p), share),
        jac=lambda q: 2 * (q - p),
        bounds=[(0, 1)] * len(p),
        constraints={"type": "eq", "fun": lambda q: q.sum() - budget},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    ).x
    np.testing.assert_allclose(project_to_budget(torch.tensor(p[None]), budget)[0].numpy(), oracle, atol=1e-4)


def test_projection_treats_rows_apart_and_leaves_a_fitting_point_alone():
    p = torch.tensor([[0.5, 0.25, 0.25], [3.0, 0.0, -1.0]])
    torch.testing.assert_close(project_to_budget(p, 1.0), torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]))


def test_cold_soft_masks_are_coins_with_the_given_probability():
    p = torch.tensor([0.1, 0.5, 0.9]).expand(20_000, 3)
    mask = soft_mask(p, 1e-3, torch_generator(0, "test"))
    torch.testing.assert_close(mask.round().mean(0), p[0], atol=0.02, rtol=0)
    assert ((mask < 0.01) | (mask > 0.99)).float().mean() > 0.98
    warm = soft_mask(p, 1.0, torch_generator(0, "test"))
    assert ((warm < 0.01) | (warm > 0.99)).float().mean() < 0.2


def test_gradients_are_clipped_for_each_attribute_by_itself():
    weight, bias = torch.zeros(2, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
    weight.grad, bias.grad = torch.tensor([[0.0, 30.0], [1.0, 1.0]]), torch.tensor([40.0, 1.0])
    clip_each_attribute([weight, bias], 3.0)
    torch.testing.assert_close(weight.grad, torch.tensor([[0.0, 1.8], [1.0, 1.0]]))
    torch.testing.assert_close(bias.grad, torch.tensor([2.4, 1.0]))


def planted(informative, n=3000, dims=12, seed=0):
    """Codes of which only some dims tell the label."""
    rng = numpy_generator(seed, "planted")
    z = rng.standard_normal((n, dims)).astype(np.float32)
    logit = 2 * z[:, list(informative)].sum(1)
    return z, (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.float32)


@pytest.mark.parametrize("how", [ProbMaskSettings(), ProbMaskSettings(rate=1e-4, least_steps=3000)])
def test_planted_dims_are_found_with_our_rate_and_with_the_authors(how):
    z, first = planted((1, 4, 7))
    _, second = planted((0, 1, 11))
    p = probmask_probabilities(z, np.stack([first, second], axis=1), 3, 0, how)
    np.testing.assert_allclose(p.sum(1), 3, atol=1e-4)
    assert [set(np.argsort(-row)[:3]) for row in p] == [{1, 4, 7}, {0, 1, 11}]


def test_the_same_seed_gives_the_same_probabilities_and_leaves_the_global_generator_alone():
    z, y = planted((2, 3), n=400)
    how = ProbMaskSettings(rate=1e-2, least_steps=60, epochs=1)
    state = torch.get_rng_state()
    first, again, other = (probmask_probabilities(z, y[:, None], 2, seed, how) for seed in (0, 0, 1))
    assert (first == again).all() and (first != other).any()
    assert torch.equal(torch.get_rng_state(), state)
