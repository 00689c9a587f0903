"""The linear decoder's regressions against least squares on explicit data, and losses against residuals."""

import dataclasses

import numpy as np
import pytest
import torch
from problems import explicit, normal

from diti.representation.solve.fit import PENALTIES, STRONGER, best_ridge, normal_equations, ridge_weights

H = normal(7, 3, seed=9)  # directions: z = Hᵀφ
VISIBLE = {
    "all": [1] * 8,
    "no z": [1] * 5 + [0] * 3,
    "some z": [1] * 5 + [1, 0, 1],
}
every_visible = pytest.mark.parametrize("visible", VISIBLE.values(), ids=VISIBLE.keys())


def regressors(data, stretch: int) -> np.ndarray:
    """(N, R) rows b = (1, p, z)."""
    return np.concatenate([data.a(stretch), data.phi.numpy() @ H.numpy()], 1)


def lstsq_ridge(b: np.ndarray, rho: np.ndarray, visible: list[int], penalty: float) -> np.ndarray:
    """(R, P): the penalty as more rows of a plain least-squares problem; the constant has none."""
    seen = np.flatnonzero(visible)
    rows = b[:, seen]
    size = np.sqrt(penalty * (rows**2).mean(0)[1:].mean() * len(rows))
    more = size * np.eye(len(seen))[1:]
    targets = np.concatenate([rho, np.zeros((len(more), rho.shape[1]))])
    weights = np.zeros((b.shape[1], rho.shape[1]))
    weights[seen] = np.linalg.lstsq(np.concatenate([rows, more]), targets, rcond=None)[0]
    return weights


def of(data, stretch: int = 1):
    return normal_equations(data.sums().means(stretch), H)


def test_normal_equations_are_products_of_explicit_rows():
    data = explicit()
    for s in range(3):
        b, rho, found = regressors(data, s), data.rho[s].numpy(), of(data, s)
        np.testing.assert_allclose(found.b_b, b.T @ b / 300, atol=1e-10)
        np.testing.assert_allclose(found.b_rho, b.T @ rho / 300, atol=1e-10)
        np.testing.assert_allclose(found.lost, data.lost[s].mean())
        np.testing.assert_allclose(found.rho_square, (rho**2).sum(1).mean())


@every_visible
@pytest.mark.parametrize("penalty", [0.0, 1e-3, 0.3])
def test_ridge_weights_are_least_squares_with_more_rows(visible, penalty):
    data = explicit()
    found = ridge_weights(of(data), torch.tensor(visible, dtype=torch.bool), penalty)
    expected = lstsq_ridge(regressors(data, 1), data.rho[1].numpy(), visible, penalty)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert (found[~torch.tensor(visible, dtype=torch.bool)] == 0).all(), "what is not visible gets exactly 0"


@every_visible
def test_losses_are_those_of_explicit_residuals(visible):
    """Also outside of the pixel axes, where nothing is predicted: |x0 - û|² holds more than |ρ|²."""
    data = explicit()
    weights = ridge_weights(of(data), torch.tensor(visible, dtype=torch.bool), 0.01)
    rho, outside = data.rho[1].numpy(), (data.lost[1] - data.rho[1].square().sum(1)).numpy()
    left = ((rho - regressors(data, 1) @ weights.numpy()) ** 2).sum(1) + outside
    assert float(of(data).loss(weights)) == pytest.approx(left.mean(), rel=1e-10)
    assert outside.mean() > 0.5


def test_no_weights_leave_the_frozen_loss():
    normal_of = of(explicit())
    assert float(normal_of.loss(torch.zeros_like(normal_of.b_rho))) == float(normal_of.lost)


def test_the_penalty_is_the_best_of_the_list_on_validation_images():
    train, valid = explicit(images=30, seed=5), explicit(images=400, seed=5)
    visible = [1] * 8
    losses = {}
    for penalty in (*PENALTIES, 1.0, 10.0):
        weights = lstsq_ridge(regressors(train, 1), train.rho[1].numpy(), visible, penalty)
        losses[penalty] = ((valid.rho[1].numpy() - regressors(valid, 1) @ weights) ** 2).sum(1).mean()
    best = min(losses, key=losses.get)
    weights, penalty = best_ridge(of(train), of(valid), torch.ones(8, dtype=torch.bool), tuple(losses))
    assert penalty == best
    assert torch.equal(weights, ridge_weights(of(train), torch.ones(8, dtype=torch.bool), best))
    same, chosen = best_ridge(of(train), of(train), torch.ones(8, dtype=torch.bool))
    assert chosen == min(PENALTIES), "on its own images less penalty is always better"
    assert torch.equal(same, ridge_weights(of(train), torch.ones(8, dtype=torch.bool), chosen))


def test_few_images_and_many_want_different_penalties():
    """What the list is for."""
    valid = explicit(images=2000, seed=5)
    chosen = []
    for images in (12, 2000):
        data = explicit(images=images, seed=5)
        chosen.append(best_ridge(of(data), of(valid), torch.ones(8, dtype=torch.bool), (*PENALTIES, 1.0))[1])
    assert chosen[0] > chosen[1]


def test_penalties_grow_beyond_the_list_while_that_helps():
    """Where the regressors tell nothing of validation images, as far outliers make them, less and less is used."""
    train, valid = explicit(images=30, seed=5), of(explicit(images=400, seed=6))
    valid = dataclasses.replace(valid, b_rho=torch.zeros_like(valid.b_rho))
    seen = torch.ones(8, dtype=torch.bool)
    losses = [float(valid.loss(ridge_weights(of(train), seen, penalty))) for penalty in (*PENALTIES, *STRONGER)]
    weights, penalty = best_ridge(of(train), valid, seen)
    assert losses == sorted(losses, reverse=True) and penalty == STRONGER[-1]
    assert float(valid.loss(weights)) == losses[-1] < losses[len(PENALTIES) - 1]
