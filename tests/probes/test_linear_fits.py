"""Fits against scikit-learn, closed forms, finite differences and slow loops."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import average_precision_score, log_loss, mean_squared_error

from diti.core.errors import InputError
from diti.core.rng import numpy_generator, torch_generator
from diti.probes import choose, fit, layer


def standardised(features):
    return (features - features.mean(0)) / features.std(0)


def tensor(x):
    return torch.from_numpy(x).float()


def planted(name, n=600, dims=10, attributes=4):
    """Codes (n, dims) that depend on one another, and labels 0/1 that each follow a direction of them."""
    rng = numpy_generator(0, name)
    x = standardised(rng.normal(size=(n, dims)) @ rng.normal(size=(dims, dims)))
    y = x @ rng.normal(size=(dims, attributes)) + rng.logistic(size=(n, attributes)) > np.arange(attributes)
    return x, y.astype(float)


def scikit_learn(x, y, l2, binary):
    if binary:
        return LogisticRegression(C=1 / (len(y) * l2), tol=1e-10, max_iter=10_000).fit(x, y)
    return Ridge(alpha=len(y) * l2).fit(x, y)


def log_loss_with_penalty(x, y, theta, l2):
    logits = x @ theta[:-1] + theta[-1]
    return (np.logaddexp(0, logits) - y * logits).mean() + l2 / 2 * (theta[:-1] ** 2).sum()


# ---- features ----


def test_standardisation_is_safe_for_constant_dims_and_large_means():
    features = np.column_stack([np.full(50, 0.1), 1e4 + np.arange(50.0)]).astype(np.float32)
    x = fit.Standard.of(features, np.arange(50)).apply(features, np.arange(50)).numpy()
    np.testing.assert_allclose(x[:, 0], 0, atol=1e-6)
    np.testing.assert_allclose([x[:, 1].mean(), x[:, 1].std()], [0, 1], atol=1e-5)


def test_broken_features_are_told_with_their_number():
    features = np.zeros((5, 3))
    features[1, 2], features[4, 2], features[4, 0] = np.nan, np.inf, np.nan
    with pytest.raises(InputError, match=r"NaN or infinite in 2 of 5 rows and 2 of 3 dims"):
        fit.check_features(features)


def test_attributes_are_grouped_by_the_images_that_have_their_label():
    labels = np.array([[0, 1, np.nan], [1, 0, 1], [1, 1, np.nan]])
    groups = {tuple(columns.tolist()): rows.tolist() for rows, columns in fit.label_patterns(labels)}
    assert groups == {(0, 1): [0, 1, 2], (2,): [1]}


# ---- logistic regression ----


def test_logistic_path_equals_scikit_learn_also_with_missing_labels():
    rng = numpy_generator(0, "logistic")
    x = standardised(rng.normal(size=(600, 10)) @ rng.normal(size=(10, 10)))
    y = (x @ rng.normal(size=(10, 4)) + rng.logistic(size=(600, 4)) > [0, 1, 3, 0]).astype(float)
    y[::4, 3] = np.nan
    grid = np.array([1.0, 1e-2, 1e-4])
    path = fit.fit_logistic(torch.from_numpy(x).float(), y, grid)
    assert path.gradient.max() < fit.TOLERANCE
    for i, l2 in enumerate(grid):
        for a in range(4):
            seen = np.isfinite(y[:, a])
            oracle = LogisticRegression(C=1 / (seen.sum() * l2), tol=1e-10, max_iter=10_000)
            oracle.fit(x[seen], y[seen, a])
            np.testing.assert_allclose(path.weights[i, :, a], oracle.coef_[0], atol=1e-3)
            assert path.bias[i, a] == pytest.approx(oracle.intercept_[0], abs=1e-3)


def test_logistic_converges_on_separable_data_with_more_dims_than_images():
    rng = numpy_generator(0, "separable")
    x = rng.normal(size=(30, 50))
    y = (x[:, :2] > 0).astype(float)
    path = fit.fit_logistic(torch.from_numpy(x).float(), y, np.array([1.0, 1e-3]))
    assert path.gradient.max() < fit.TOLERANCE
    oracle = LogisticRegression(C=1 / (30 * 1e-3), tol=1e-10, max_iter=10_000).fit(x, y[:, 0])
    np.testing.assert_allclose(path.weights[1, :, 0], oracle.coef_[0], atol=1e-3)


def test_logistic_fit_has_no_slope_in_any_direction():
    """Oracle: central differences of the objective as the module's head states it, in float64."""
    x, y = planted("slope", attributes=2)
    found = fit.fit_logistic(tensor(x), y, np.array([1e-2]), tolerance=1e-7).at(0)
    for a in range(2):
        theta = np.append(found.weights[:, a], found.bias[a])
        for i in range(len(theta)):
            step = 1e-4 * np.eye(len(theta))[i]
            up, down = (log_loss_with_penalty(x, y[:, a], theta + sign * step, 1e-2) for sign in (1, -1))
            assert abs(up - down) / 2e-4 < 2e-6
            assert min(up, down) > log_loss_with_penalty(x, y[:, a], theta, 1e-2)


def test_a_basis_of_some_dims_fits_these_and_leaves_the_others():
    """What a matrix of subsets does: only the dims of the basis move, from a start in which the others are 0."""
    x, y = planted("some dims", attributes=1)
    dims = torch.tensor([1, 4, 7])
    basis = fit.Basis.of(fit.gram_matrix(tensor(x)), dims)
    found = fit.fit_logistic(tensor(x), y, np.array([1e-2]), basis).at(0)
    oracle = scikit_learn(x[:, dims], y[:, 0], 1e-2, binary=True)
    np.testing.assert_allclose(found.weights[dims, 0], oracle.coef_[0], atol=1e-3)
    assert set(np.flatnonzero(found.weights[:, 0])) == set(dims.tolist())


def test_very_many_dims_are_fitted_from_their_first_axes_to_the_same_place(monkeypatch):
    """The basis makes a fit fast and decides nothing: the first 4 axes of some images end where all 40 do."""
    rng = numpy_generator(0, "many dims")
    x = standardised(rng.normal(size=(500, 40)) * 0.9 ** np.arange(40) @ rng.normal(size=(40, 40)))
    y = (x @ rng.normal(size=(40, 3)) + 3 * rng.logistic(size=(500, 3)) > 0).astype(float)
    grid = np.array([1.0, 1e-2, 1e-3])
    whole = fit.fit_logistic(tensor(x), y, grid)
    for name, value in {"MANY_DIMS": 39, "LOOKED_AT": 200, "FIRST": 4}.items():
        monkeypatch.setattr(fit, name, value)
    basis = fit.Basis.first(tensor(x))
    assert basis.vectors.shape == (40, 4) and basis.others > 0
    spread = float(basis.values.sum()) + 36 * basis.others
    assert spread == pytest.approx((x[::3] ** 2).sum(1).mean(), rel=1e-3), "all variance is in it"
    found = fit.fit_logistic(tensor(x), y, grid)
    np.testing.assert_allclose(found.weights, whole.weights, atol=2e-3)


def test_a_start_elsewhere_ends_in_the_same_place():
    x, y = planted("start")
    start = torch.randn(11, 4, generator=torch_generator(0, "start"), dtype=torch.float64)
    plain, moved = (fit.fit_logistic(tensor(x), y, np.array([1e-2]), start=s).at(0) for s in (None, start))
    np.testing.assert_allclose(moved.weights, plain.weights, atol=1e-3)


def test_an_attribute_of_one_class_gets_a_constant_fit_and_disturbs_no_other():
    x, y = planted("one class", attributes=3)
    y[:, 0], y[:, 1] = 0, 1
    found = fit.fit_logistic(tensor(x), y, np.array([1e-2])).at(0)
    assert np.abs(found.weights[:, :2]).max() < 1e-6
    assert found.bias[0] < -20 and found.bias[1] > 20 and np.isfinite(found.bias).all()
    np.testing.assert_allclose(found.weights[:, 2], scikit_learn(x, y[:, 2], 1e-2, True).coef_[0], atol=1e-3)


def test_enough_ends_the_path():
    x, y = planted("enough")
    seen = []
    path = fit.fit_logistic(
        tensor(x), y, np.array([1.0, 0.1, 0.01]), enough=lambda f: seen.append(f.l2[0]) or len(seen) == 2
    )
    assert seen == path.l2.tolist() == [1.0, 0.1]


# ---- ridge ----


def test_ridge_equals_the_normal_equations_also_with_missing_labels():
    rng = numpy_generator(0, "ridge")
    x, y = rng.normal(size=(80, 6)) + 1, rng.normal(size=(80, 3)) + 5
    y[:30, 2] = np.nan
    path = fit.fit_ridge(torch.from_numpy(x).float(), y, np.array([10.0, 1e-3]))
    for i, l2 in enumerate(path.l2):
        for a in range(3):
            seen = np.isfinite(y[:, a])
            design, n = np.column_stack([x[seen], np.ones(seen.sum())]), seen.sum()
            penalty = n * l2 * np.diag([1.0] * 6 + [0.0])
            expected = np.linalg.solve(design.T @ design + penalty, design.T @ y[seen, a])
            np.testing.assert_allclose([*path.weights[i, :, a], path.bias[i, a]], expected, atol=1e-5)


def test_ridge_on_some_dims_is_that_of_scikit_learn():
    rng = numpy_generator(0, "ridge dims")
    x, y = rng.normal(size=(90, 6)) + 2, rng.normal(size=(90, 2)) - 3
    dims = torch.tensor([0, 3, 5])
    weights, bias = fit.RidgeMoments.of(tensor(x), torch.from_numpy(y)).ridge(0.1, dims)
    oracle = scikit_learn(x[:, dims], y, 0.1, binary=False)
    np.testing.assert_allclose(weights[dims].T, oracle.coef_, atol=1e-5)
    np.testing.assert_allclose(bias, oracle.intercept_, atol=1e-5)
    assert (weights[[1, 2, 4]] == 0).all()


def test_sums_in_chunks_are_those_of_numpy(monkeypatch):
    monkeypatch.setattr(fit, "CHUNK", 7)
    x = numpy_generator(0, "chunks").normal(size=(40, 3))
    y = x[:, :2] ** 2
    moments = fit.RidgeMoments.of(tensor(x), torch.from_numpy(y))
    np.testing.assert_allclose(moments.cov, np.cov(x.T, ddof=0), atol=1e-6)
    np.testing.assert_allclose(moments.cross, np.cov(x.T, y.T, ddof=0)[:3, 3:], atol=1e-6)
    np.testing.assert_allclose(fit.gram_matrix(tensor(x)), x.T @ x / 40, atol=1e-6)


# ---- choice of the penalty ----


GRID = 10.0 ** np.arange(1, -5, -1)


@pytest.mark.parametrize("dims", [40, 90], ids=["more images", "more dims"])
@pytest.mark.parametrize("binary", [True, False])
def test_chosen_penalty_is_the_one_that_scikit_learn_finds_best_on_valid(binary, dims):
    rng = numpy_generator(0, "choice")
    x, xv = (rng.normal(size=(n, dims)) for n in (60, 500))
    y, yv = (v[:, 0] + rng.normal(size=len(v)) for v in (x, xv))
    if binary:
        y, yv = ((v > 0).astype(float) for v in (y, yv))
    chosen = choose.fit_chosen_on(tensor(x), y[:, None], binary, (tensor(xv), yv[:, None]), GRID)
    found = []
    for l2 in GRID:
        oracle = scikit_learn(x, y, l2, binary)
        if binary:
            found.append(average_precision_score(yv, oracle.decision_function(xv)))
        else:
            found.append(-mean_squared_error(yv, oracle.predict(xv)))
    assert chosen.l2[0] == GRID[np.argmax(found)] not in (GRID[0], GRID[-1])
    oracle = scikit_learn(x, y, chosen.l2[0], binary)
    np.testing.assert_allclose(chosen.weights[:, 0], oracle.coef_.ravel(), atol=1e-3)


@pytest.mark.parametrize("binary", [True, False])
def test_cross_validated_penalty_is_that_of_a_loop_over_folds(binary):
    rng = numpy_generator(0, "cross")
    x = rng.normal(size=(120, 15))
    y = x[:, :2] + rng.normal(size=(120, 2))
    if binary:
        y = (y > 0).astype(float)
    folds = np.arange(120)[:, None] % [4, 3]  # an attribute has its own
    loss = np.zeros((len(GRID), 2))
    for i, l2 in enumerate(GRID):
        for a in range(2):
            for fold in range(folds[:, a].max() + 1):
                held = folds[:, a] == fold
                oracle = scikit_learn(x[~held], y[~held, a], l2, binary)
                if binary:
                    loss[i, a] += log_loss(y[held, a], oracle.predict_proba(x[held]), normalize=False)
                else:
                    loss[i, a] += ((oracle.predict(x[held]) - y[held, a]) ** 2).sum()
    got = choose.held_out_loss(tensor(x), y, binary, folds, GRID, None)
    np.testing.assert_allclose(got, loss, rtol=1e-3)
    chosen = choose.fit_cross_validated(tensor(x), y, binary, folds, GRID)
    assert chosen.l2.tolist() == GRID[loss.argmin(0)].tolist()


@pytest.mark.parametrize("binary", [True, False])
def test_the_best_multiple_counts_so_that_shrinking_costs_nothing(binary):
    """Penalties of 1,000 and 10,000 give one direction in two lengths. Oracle: scikit-learn's fits, multiplied."""
    rng = numpy_generator(0, "multiples")
    x = rng.normal(size=(90, 6))
    y = x[:, :1] + rng.normal(size=(90, 1))
    y = (y > 0).astype(float) if binary else y
    folds, grid, multiples = np.arange(90)[:, None] % 3, np.array([1e4, 1e3]), 10.0 ** np.arange(6)
    plain = choose.held_out_loss(tensor(x), y, binary, folds, grid, None)[:, 0]
    best = choose.held_out_loss(tensor(x), y, binary, folds, grid, None, multiples)[:, 0]
    assert best[0] == pytest.approx(best[1], rel=5e-3) and (best < 0.9 * plain).all()
    by_hand = np.zeros(len(multiples))
    for fold in range(3):
        held = folds[:, 0] == fold
        oracle = scikit_learn(x[~held], y[~held, 0], 1e3, binary)
        f = np.outer(multiples, x[held] @ oracle.coef_.ravel()) + oracle.intercept_
        truth = y[held, 0]
        by_hand += (np.logaddexp(0, f) - truth * f if binary else (f - truth) ** 2).sum(1)
    assert best[1] == pytest.approx(by_hand.min(), rel=1e-3)


def test_penalties_of_attributes_are_the_more_alike_the_more_they_borrow():
    """One attribute follows a dim, one is noise: alone they want weak and strong penalties."""
    rng = numpy_generator(0, "borrowed")
    x = rng.normal(size=(80, 5))
    y = np.stack([x[:, 0] + 0.1 * rng.normal(size=80), rng.normal(size=80)], axis=1)
    folds = np.arange(80)[:, None] % [4, 4]
    loss = choose.held_out_loss(tensor(x), y, False, folds, GRID, None)
    alone, some, all_of_it = (
        choose.fit_best_scaled([tensor(x)], y, False, folds, GRID, borrowed=share)[1].l2.tolist()
        for share in (0, 1, 1e6)
    )
    assert alone == GRID[loss.argmin(0)].tolist() and alone[0] < alone[1]
    assert some == GRID[(loss + loss.mean(1, keepdims=True)).argmin(0)].tolist()
    assert all_of_it == [GRID[loss.sum(1).argmin()]] * 2


@pytest.mark.parametrize("binary", [True, False])
def test_fewer_images_than_dims_are_fitted_in_their_span_to_the_same_model(binary):
    """Oracle: the same choice in all dims, without a span, also with missing labels."""
    rng = numpy_generator(0, "span")
    x = rng.normal(size=(50, 80)) + 0.5
    y = x[:, :2] + rng.normal(size=(50, 2))
    y = (y > 0.5).astype(float) if binary else y
    y[:20, 1] = np.nan
    folds, grid = np.arange(50)[:, None] % [4, 3], GRID[:4]
    chosen = choose.fit_cross_validated(tensor(x), y, binary, folds, grid)
    loss = choose.held_out_loss(tensor(x), y, binary, folds, grid, None)
    assert chosen.l2.tolist() == grid[loss.argmin(0)].tolist()
    whole = choose.fit_path(tensor(x), y, binary, grid).at(loss.argmin(0))
    np.testing.assert_allclose(chosen.weights, whole.weights, atol=1e-3)
    np.testing.assert_allclose(chosen.bias, whole.bias, atol=1e-3)


def test_a_span_holds_its_images_and_is_for_fewer_images_than_dims_only():
    x = tensor(numpy_generator(0, "axes").normal(size=(5, 9)))
    span = choose.Span.of(x)
    assert span.inside(x).shape == (5, 5)
    np.testing.assert_allclose(span.inside(x) @ span.axes.float().T, x, atol=1e-5)
    assert choose.Span.of(x.T) is None and choose.Span.of(x[:, :5]) is None


# ---- the authors' probe ----


def test_layer_equals_a_hand_written_adam():
    """Oracle: BCE gradient and Adam's formulas in numpy, the same start, order and flips."""
    rng = numpy_generator(0, "layer")
    x, turned = rng.normal(size=(2, 200, 3))
    y = (x[:, :2] > 0).astype(float)
    none = (torch.zeros(0, 3), y[:0])
    got = layer.fit_layer(torch.from_numpy(x).float(), y, True, none, torch.from_numpy(turned).float(), seed=5)
    draw = torch_generator(5, "probe layer")
    bound = 3**-0.5
    theta = torch.cat([torch.empty(n, 2).uniform_(-bound, bound, generator=draw) for n in (3, 1)]).double().numpy()
    first, second, step = np.zeros_like(theta), np.zeros_like(theta), 0
    for epoch in range(15):
        draws = numpy_generator(5, "probe epoch", epoch)
        order, flips = draws.permutation(200), draws.random(200) < 0.5
        for rows in (order[:128], order[128:]):
            codes = np.column_stack([np.where(flips[rows, None], turned[rows], x[rows]), np.ones(len(rows))])
            gradient = codes.T @ (1 / (1 + np.exp(-codes @ theta)) - y[rows]) / (2 * len(rows))
            step += 1
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            theta = theta - 1e-3 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    np.testing.assert_allclose(got.weights, theta[:-1], atol=1e-5)
    np.testing.assert_allclose(got.bias, theta[-1], atol=1e-5)
