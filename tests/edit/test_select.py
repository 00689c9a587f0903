"""Fits against scipy and scikit-learn, and the three selections on planted data."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import average_precision_score

from diti.core.errors import InputError
from diti.core.rng import numpy_generator
from diti.edit.select import (
    SELECTORS,
    compare_selections,
    fit_l1,
    fit_linear,
    largest,
    select,
)


@pytest.fixture
def planted():
    """2,000 codes of 10 dims, label by dims 2 (strong), 5 and 8 (weaker); dim 3 is like 2."""
    rng = numpy_generator(0, "planted")
    z = rng.standard_normal((2000, 10)).astype(np.float32)
    z[:, 3] = 0.6 * z[:, 2] + 0.8 * z[:, 3]
    logit = 3 * z[:, 2] - 2 * z[:, 5] + 2 * z[:, 8] - 1
    return z, (rng.random(2000) < 1 / (1 + np.exp(-logit))).astype(np.float32)


def test_logistic_fit_is_the_minimum_that_scipy_finds(planted):
    z, y = planted
    kept, l2 = np.array([2, 5, 9]), 0.01

    def objective(theta):
        logit = z[:, kept] @ theta[:-1] + theta[-1]
        return (np.logaddexp(0, logit) - y * logit).mean() + l2 / 2 * (theta[:-1] ** 2).sum()

    oracle = minimize(objective, np.zeros(4), options={"gtol": 1e-8}).x
    fit = fit_linear(z, y, True, kept, l2)
    np.testing.assert_allclose([*fit.weight[kept], fit.bias], oracle, atol=2e-4)
    assert set(np.flatnonzero(fit.weight)) == set(kept)
    np.testing.assert_allclose(fit.scores(z[:5]), z[:5, kept] @ oracle[:-1] + oracle[-1], atol=1e-3)


def test_logistic_fit_of_separable_labels_and_dead_dims_ends(planted):
    z, _ = planted
    z[:, 0] = 0
    fit = fit_linear(z, (z[:, 2] > 0).astype(np.float32), binary=True)
    oracle = LogisticRegression(C=1 / (1e-3 * len(z)), tol=1e-8, max_iter=1000).fit(
        z.astype(np.float64), z[:, 2] > 0
    )
    np.testing.assert_allclose(fit.weight, oracle.coef_[0], atol=5e-3)
    assert fit.weight[0] == 0


def test_ridge_fit_is_that_of_scikit_learn(planted):
    z, _ = planted
    y = z[:, 1] - 2 * z[:, 4] + 0.5
    kept = np.array([1, 4, 6])
    fit, oracle = fit_linear(z, y, False, kept, 0.1), Ridge(alpha=0.1 * len(z)).fit(z[:, kept], y)
    np.testing.assert_allclose(fit.weight[kept], oracle.coef_, atol=1e-5)
    assert fit.bias == pytest.approx(float(oracle.intercept_), abs=1e-5)
    assert set(np.flatnonzero(fit.weight)) == set(kept)


def test_l1_fit_is_that_of_scikit_learn(planted):
    z, y = planted
    penalty = 0.05
    oracle = LogisticRegression(
        C=1 / (penalty * len(z)), l1_ratio=1, solver="saga", tol=1e-5, max_iter=2000, random_state=0
    ).fit(z, y > 0.5)
    codes = torch.from_numpy(np.concatenate([z, np.ones((len(z), 1), np.float32)], axis=1))
    found = fit_l1(codes, torch.from_numpy(y), penalty, torch.zeros(11, dtype=torch.float64), rounds=20).numpy()
    np.testing.assert_allclose(found[:-1], oracle.coef_[0], atol=1e-3)
    assert found[-1] == pytest.approx(float(oracle.intercept_[0]), abs=1e-3)
    assert ((found[:-1] == 0) == (oracle.coef_[0] == 0)).all()
    assert 0 < (found[:-1] == 0).sum() < 10


def test_largest_are_ascending_places_and_the_first_of_equals():
    assert largest(np.array([1.0, 5, 3, 5, 3]), 3).tolist() == [1, 2, 3]


@pytest.mark.parametrize("method", SELECTORS)
def test_every_selection_keeps_exactly_as_many_dims_and_finds_the_planted_ones(planted, method):
    z, y = planted
    kept = select(z, y, 3, method, seed=1)
    assert kept.tolist() == [2, 5, 8]


@pytest.mark.parametrize("method", ["l1", "weight"])
def test_any_number_of_dims_is_met_exactly(planted, method):
    kept = [select(*planted, dims, method) for dims in range(1, 11)]
    assert [len(set(k)) for k in kept] == list(range(1, 11))
    assert kept[0].tolist() == [2] and kept[-1].tolist() == list(range(10))


def test_comparison_scores_every_method_on_the_validation_rows(planted):
    z, y = planted
    rows = compare_selections(z[:1500], y[:1500], z[1500:], y[1500:], 3, seed=0)
    assert {row.method for row in rows} == set(SELECTORS)
    assert [row.ap for row in rows] == sorted((row.ap for row in rows), reverse=True)
    assert all(row.dims == (2, 5, 8) and row.ap > 0.9 for row in rows)
    oracle = fit_linear(z[:1500], y[:1500], True, np.array([2, 5, 8])).scores(z[1500:])
    assert rows[0].ap == pytest.approx(average_precision_score(y[1500:], oracle))


@pytest.mark.parametrize("dims", [0, 11])
def test_impossible_numbers_of_dims_are_refused(planted, dims):
    with pytest.raises(InputError, match=rf"dims is {dims}; the codes have 10 dims: use 1 to 10"):
        select(*planted, dims)


def test_unknown_selection_names_the_known_ones(planted):
    with pytest.raises(InputError, match=r"'probmsk'; allowed: .*probmask.*Did you mean 'probmask'"):
        select(*planted, 3, "probmsk")


def test_l1_looks_at_some_of_many_images_and_never_loses_the_rare_ones(planted, monkeypatch):
    z, y = planted
    whole = SELECTORS["l1"](z, y, 3, 0)
    monkeypatch.setattr("diti.edit.select.L1_ROWS", 400)
    assert SELECTORS["l1"](z, y, 3, 0).tolist() == whole.tolist() == [2, 5, 8]
    rare = np.zeros(len(z), np.float32)
    rare[np.argsort(-z[:, 4])[:6]] = 1  # about one of them in 400
    assert SELECTORS["l1"](z, rare, 1, 0).tolist() == [4]
