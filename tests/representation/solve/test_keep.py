"""What is not known yet against explicit regressions, and which directions are kept against planted answers."""

import numpy as np
import pytest
import torch
from problems import explicit, normal, rotation
from scipy.linalg import subspace_angles

from diti.representation.solve.keep import Unknown, keep, not_known_yet, residual, ridge
from diti.representation.solve.sums import Sums

MASS = torch.tensor([0.5, 0.2, 1.3], dtype=torch.float64)


def largest_angle(found, planted) -> float:
    return float(subspace_angles(found.numpy(), planted.numpy()).max())


def left_by(a: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What least squares on the columns of a leaves of y."""
    return y - a @ np.linalg.lstsq(a, y, rcond=None)[0]


def explained(directions, unknown, mass) -> float:
    """The objective of step 2: the weighted variance of ρ⊥ that z = Hᵀφ explains, Σ_s m tr[(HᵀGH)⁻¹ HᵀCCᵀH]."""
    total = 0.0
    for m, u in zip(mass, unknown, strict=True):
        c = directions.T @ u.pixels
        total += float(m * (c * torch.linalg.solve(directions.T @ u.features @ directions, c)).sum())
    return total


def test_what_is_not_known_is_what_a_regression_leaves():
    data = explicit()
    for s, means in enumerate(data.sums()):
        phi, rho = left_by(data.a(s), data.phi.numpy()), left_by(data.a(s), data.rho[s].numpy())
        found = not_known_yet(means, 0.0)
        np.testing.assert_allclose(found.features, phi.T @ phi / 300, atol=1e-10)
        np.testing.assert_allclose(found.pixels, phi.T @ rho / 300, atol=1e-10)
        assert torch.equal(found.features, found.features.T)


def test_a_penalty_shrinks_the_regression_of_y_alone():
    """E x yᵀ less what the ridge regression of y predicts, by augmented least squares."""
    data, penalty = explicit(), 0.2
    means, a = data.sums().means(1), data.a(1)
    x, y = data.phi.numpy(), data.rho[1].numpy()
    added = np.sqrt(300 * penalty * np.diag(a.T @ a / 300)[1:].mean()) * np.eye(a.shape[1])[1:]
    rows, targets = np.concatenate([a, added]), np.concatenate([y, np.zeros((len(added), y.shape[1]))])
    predicted = a @ np.linalg.lstsq(rows, targets, rcond=None)[0]
    found = residual(means.a_a, means.a_phi, means.a_rho, means.phi_rho, penalty)
    np.testing.assert_allclose(found, x.T @ (y - predicted) / 300, atol=1e-10)


def test_the_constant_is_not_penalised():
    products = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
    assert torch.equal(ridge(products, 0.5), torch.diag(torch.tensor([1.0, 3.5, 5.5])))


# ---- Step 2 ------------------------------------------------------------------------------------------------


def correlated(features: int, seed: int = 1) -> torch.Tensor:
    """(F, F) a covariance."""
    mixing = normal(features, features, seed=seed)
    return mixing @ mixing.T


def test_a_planted_subspace_is_found_exactly_where_the_features_are_lost_alike():
    """Of correlated features only Qᵀφ predicts ρ, by another matrix in each stretch."""
    q, covariance = normal(15, 4, seed=2), correlated(15)
    unknown = [Unknown(covariance, covariance @ q @ normal(4, 6, seed=3 + s)) for s in range(3)]
    for variance in (torch.ones(15, dtype=torch.float64), normal(15).exp()):
        found = keep(unknown, MASS, variance, dims=4, features_weight=0.0)
        assert largest_angle(found, q) < 1e-6


@pytest.mark.parametrize("noise", [(2, 2, 2), (1, 2, 3)], ids=["lost alike", "lost by and by"])
def test_a_planted_subspace_is_found_in_drawn_data(noise):
    """φ correlated, part of it told by p; ρ is made of three combinations of φ, of p and of noise.

    Where stretches lose features differently, the decomposition is near the optimum and not at it.
    """
    images, features, axes = 6000, 12, 5
    phi = normal(images, features, seed=1) @ normal(features, features, seed=2)
    q = torch.linalg.qr(normal(features, 3, seed=3))[0]
    sums = Sums(3, axes, features)
    sums.add_images(phi)
    for s, size in enumerate(noise):
        p = phi[:, :axes] + size * normal(images, axes, seed=10 + s)
        rho = phi @ q @ normal(3, axes, seed=20 + s) + 0.3 * p + normal(images, axes, seed=30 + s)
        sums.add_stretch(s, p, phi, rho, rho.square().sum(1))
    unknown = [not_known_yet(means, 0.0) for means in sums]
    found = keep(unknown, MASS, torch.ones(features, dtype=torch.float64), 3, features_weight=0.0)
    assert largest_angle(found, q) < (0.1 if noise == (2, 2, 2) else 0.3)
    assert largest_angle(normal(features, 3, seed=40), q) > 0.5, "chance is far off"
    assert explained(found, unknown, MASS) > 0.99 * explained(q, unknown, MASS)


def test_in_one_stretch_the_answer_is_that_of_reduced_rank_regression():
    """The D largest squared singular values of G^(-1/2) C, and no choice explains more."""
    data = explicit(features=9, axes=6)
    u = not_known_yet(data.sums().means(0), 0.0)
    values, vectors = torch.linalg.eigh(u.features)
    singular = torch.linalg.svdvals(vectors / values.sqrt() @ vectors.T @ u.pixels)
    for dims in (1, 3, 5):
        found = keep([u], MASS[:1], torch.ones(9, dtype=torch.float64), dims, features_weight=0.0)
        best = float(MASS[0] * singular[:dims].square().sum())
        assert explained(found, [u], MASS[:1]) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("dims", [1, 2, 4])
def test_what_is_kept_explains_more_than_random_and_principal_directions(dims):
    data = explicit(images=500, features=10, axes=5)
    unknown = [not_known_yet(means, 1e-3) for means in data.sums()]
    value = explained(keep(unknown, MASS, torch.ones(10).double(), dims, 0.0), unknown, MASS)
    principal = torch.linalg.eigh(data.phi.T @ data.phi)[1].flip(1)[:, :dims]
    assert value > explained(principal, unknown, MASS)
    for seed in range(50):
        assert value > explained(normal(10, dims, seed=100 + seed), unknown, MASS)


def test_the_best_direction_comes_first():
    data = explicit(features=10)
    unknown = [not_known_yet(means, 0.0) for means in data.sums()]
    more, fewer = (keep(unknown, MASS, torch.ones(10).double(), dims, 0.0) for dims in (6, 2))
    assert largest_angle(more[:, :2], fewer) < 1e-6


def test_a_large_weight_of_the_features_keeps_those_of_largest_variance():
    """White features, nothing known: lost in features is Λ, so its largest entries are kept, whatever ρ says."""
    features, dims = 12, 3
    turn = rotation(features, 7)
    variance = torch.linspace(5, 0.1, features, dtype=torch.float64)[torch.arange(features) * 5 % features]
    unknown = [Unknown(torch.eye(features).double(), turn[:, :2] @ normal(2, 4, seed=s)) for s in range(3)]
    kept = keep(unknown, MASS, variance, dims, features_weight=1e3)
    top = torch.eye(features, dtype=torch.float64)[:, variance.topk(dims).indices]
    assert largest_angle(kept, top) < 1e-3
    by_pixels = keep(unknown, MASS, variance, 2, features_weight=0.0)
    assert largest_angle(by_pixels, turn[:, :2]) < 1e-6


def test_at_weight_one_both_parts_weigh_the_same():
    """ρ is made of dim 0 alone, and one other feature varies: their parts then tie, and the weight decides."""
    unknown = [Unknown(torch.eye(3).double(), torch.tensor([[2.0], [0.0], [0.0]]).double())]
    variance = torch.tensor([1e-12, 7.0, 1e-12]).double()
    for weight, kept in ((0.99, 0), (1.01, 1)):
        found = keep(unknown, MASS[:1], variance, 1, weight)
        assert int(found.abs().argmax()) == kept


def test_features_that_x_t_tells_exactly_do_not_break_it():
    half = torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0])).double()
    found = keep([Unknown(half, half @ normal(4, 3))], MASS[:1], torch.ones(4).double(), 2, 0.5)
    assert torch.isfinite(found).all()
    assert largest_angle(found, torch.eye(4, dtype=torch.float64)[:, :2]) < 1e-6
