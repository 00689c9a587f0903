import dataclasses
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import average_precision_score, mean_squared_error, roc_auc_score

from diti.core.errors import InputError
from diti.core.rng import numpy_generator
from diti.probes import fit, linear
from diti.probes.few_shot import draw_labels
from diti.probes.linear import L2_GRID, Splits, few_shot, probe
from diti.probes.task import group_folds, label_folds


def three_splits(n):
    return Splits(np.arange(n // 2), np.arange(n // 2, 3 * n // 4), np.arange(3 * n // 4, n))


def planted(n=1600, dims=12, seed=0):
    """Codes of odd means and scales; binary attributes of dim 0, of nothing, of dim 1 (rare); a value of dim 2."""
    rng = numpy_generator(seed, "planted")
    z = rng.normal(size=(n, dims))
    binary = np.stack(
        [z[:, 0] + 0.3 * rng.normal(size=n) > 0, rng.random(n) < 0.4, z[:, 1] + rng.normal(size=n) > 2.2], axis=1
    )
    value = 3 + 2 * z[:, 2] + rng.normal(size=n)
    labels = np.column_stack([binary, value])
    features = z * np.linspace(0.1, 30, dims) + np.linspace(-50, 50, dims)
    return features, labels, ["first", "noise", "rare", "value"], np.array([True, True, True, False])


def standardised(features, train):
    return (features - features[train].mean(0)) / features[train].std(0)


def scikit_learn(x, y, train, valid, binary):
    """The fit of scikit-learn whose penalty, of those of the probe, is best on valid; of equals the strongest."""
    fits, found = [], []
    for l2 in L2_GRID:
        if binary:
            estimator = LogisticRegression(C=1 / (len(train) * l2), tol=1e-8, max_iter=10_000)
            predicted = estimator.fit(x[train], y[train]).decision_function(x[valid])
            found.append(average_precision_score(y[valid], predicted))
        else:
            estimator = Ridge(alpha=len(train) * l2).fit(x[train], y[train])
            found.append(-mean_squared_error(y[valid], estimator.predict(x[valid])))
        fits.append(estimator)
    best = int(np.argmax(found))
    return fits[best], L2_GRID[best]


# ---- probe ----


def test_weights_penalties_and_scores_are_those_of_scikit_learn():
    features, labels, names, binary = planted()
    splits = three_splits(1600)
    result = probe(features, labels, names, binary, splits, resamples=2)
    x = standardised(features, splits.train)
    for a, row in enumerate(result.rows):
        oracle, l2 = scikit_learn(x, labels[:, a], splits.train, splits.valid, binary[a])
        assert row.l2 == l2, row.name
        np.testing.assert_allclose(result.weights[a], oracle.coef_.ravel(), atol=2e-3)
        assert result.bias[a] == pytest.approx(float(np.ravel(oracle.intercept_)[0]), abs=2e-3)
        truth, tested = labels[splits.test, a], x[splits.test]
        if binary[a]:
            predicted = oracle.decision_function(tested)
            assert row.ap == pytest.approx(average_precision_score(truth, predicted), abs=1e-3)
            assert row.auroc == pytest.approx(roc_auc_score(truth, predicted), abs=1e-3)
        else:
            assert row.mse == pytest.approx(mean_squared_error(truth, oracle.predict(tested)), rel=1e-4)
            assert row.r == pytest.approx(np.corrcoef(truth, oracle.predict(tested))[0, 1], abs=1e-4)


def test_planted_dims_are_found_and_noise_stays_at_chance():
    features, labels, names, binary = planted()
    result = probe(features, labels, names, binary, three_splits(1600), resamples=200)
    rows = {row.name: row for row in result.rows}
    assert rows["first"].ap > 0.95
    assert rows["first"].auroc > 0.95
    assert rows["noise"].ap_interval[0] < rows["noise"].chance < rows["noise"].ap_interval[1]
    assert rows["rare"].ap > 3 * rows["rare"].chance
    assert rows["value"].r == pytest.approx(2 / np.sqrt(5), abs=0.03)  # signal 2, noise 1
    assert rows["value"].mse == pytest.approx(1, abs=0.15)  # raw units: the noise that was planted
    assert np.abs(result.weights).argmax(1)[[0, 2, 3]].tolist() == [0, 1, 2]
    assert result.weights.shape == (4, 12)
    assert rows["first"].positives == labels[1200:, 0].sum()
    assert result.mean_ap == pytest.approx(np.mean([rows[n].ap for n in ("first", "noise", "rare")]))
    assert result.mean_ap_interval[0] < result.mean_ap < result.mean_ap_interval[1]
    assert (result.mean_r, result.mean_mse) == (rows["value"].r, rows["value"].mse)
    assert all(row.gradient < fit.TOLERANCE for row in result.rows)


def test_weights_reproduce_the_scores():
    features, labels, names, binary = planted()
    splits = three_splits(1600)
    for protocol in ("converged", "paper"):
        result = probe(features, labels, names, binary, splits, resamples=2, protocol=protocol)
        x = (features[splits.test] - result.mean) / result.std
        predicted = x @ result.weights.T + result.bias
        assert result.rows[3].mse == pytest.approx(
            ((predicted[:, 3] - labels[splits.test, 3]) ** 2).mean(), rel=1e-4
        )


def test_record_is_json_and_results_are_deterministic():
    features, labels, names, binary = planted(n=400)
    for protocol in ("converged", "paper"):
        first, second, other = (
            probe(features, labels, names, binary, three_splits(400), seed=seed, resamples=20, protocol=protocol)
            for seed in (0, 0, 1)
        )
        assert json.dumps(first.record(), allow_nan=False) == json.dumps(second.record(), allow_nan=False)
        np.testing.assert_array_equal(first.weights, second.weights)
        assert first.record() != other.record()
        assert first.protocol.startswith(protocol)


def test_attributes_without_both_classes_are_reported_and_left_out():
    features, labels, names, binary = planted(n=400)
    labels[:200, 1] = 0
    labels[200:300, 3] = 7
    result = probe(features, labels, names, binary, three_splits(400), resamples=2)
    assert [(item.name, item.reason) for item in result.left_out] == [
        ("noise", "no positive in train"),
        ("value", "constant in valid"),
    ]
    assert [row.name for row in result.rows] == ["first", "rare"]
    assert result.mean_r is None
    assert result.record()["left_out"][0] == {"name": "noise", "reason": "no positive in train"}


def test_rows_without_a_label_are_left_out_of_its_fit_and_of_its_score():
    """Oracle: scikit-learn on the other rows, with the codes standardised by all of them."""
    features, labels, names, binary = planted(n=800)
    splits = three_splits(800)
    labels[::5, 3] = np.nan
    train, valid, test = (rows[rows % 5 > 0] for rows in dataclasses.astuple(splits))
    got = probe(features, labels, names, binary, splits, resamples=2).rows[3]
    x = standardised(features, splits.train)
    oracle, l2 = scikit_learn(x, labels[:, 3], train, valid, binary=False)
    predicted = oracle.predict(x[test])
    assert got.l2 == l2
    assert got.r == pytest.approx(np.corrcoef(labels[test, 3], predicted)[0, 1], abs=1e-4)
    assert got.mse == pytest.approx(mean_squared_error(labels[test, 3], predicted), rel=1e-4)


@pytest.mark.parametrize("valid", [True, False], ids=["chosen on valid", "cross-validated"])
def test_very_many_dims_are_not_fitted_with_the_weakest_penalties(monkeypatch, valid):
    features, labels, names, binary = planted()
    splits = three_splits(1600)
    splits = splits if valid else Splits(splits.train, splits.valid[:0], splits.test)
    task = features, labels[:, :1], names[:1], binary[:1], splits
    plain = probe(*task, resamples=2)
    monkeypatch.setattr(linear, "MANY_DIMS", 11)
    monkeypatch.setattr(linear, "WEAKEST_OF_MANY", 10.0)
    many = probe(*task, resamples=2)
    assert plain.rows[0].l2 < 10 and "from 10 to 1e-06" in plain.protocol
    assert many.rows[0].l2 == 10 and "from 10 to 10 by" in many.protocol


def test_fewer_images_than_dims_may_have_every_penalty(monkeypatch):
    monkeypatch.setattr(linear, "MANY_DIMS", 11)
    assert linear.affordable_penalties(images=11, dims=50).tolist() == L2_GRID.tolist()
    assert linear.affordable_penalties(images=12, dims=50).min() == linear.WEAKEST_OF_MANY


def test_without_validation_images_the_penalty_comes_from_cross_validation():
    features, labels, names, binary = planted()
    rows = np.arange(1600)
    result = probe(features, labels, names, binary, Splits(rows[:1200], rows[:0], rows[1200:]), resamples=2)
    assert "cross-validation inside the training images" in result.protocol
    assert result.rows[0].ap > 0.95
    assert result.rows[1].l2 > result.rows[0].l2  # noise wants shrinking


# ---- k-fold ----


def test_folds_keep_persons_whole_and_even():
    groups = numpy_generator(0, "groups").integers(0, 40, 500)
    folds = group_folds(groups, 5, numpy_generator(0, "folds"))
    assert all(len(np.unique(folds[groups == g])) == 1 for g in np.unique(groups))
    assert np.bincount(folds).min() > 80


def test_label_folds_deal_each_class_out():
    labels = np.zeros((50, 2))
    labels[:5, 0], labels[25:, 1] = 1, 1
    folds = label_folds(labels, True, 5, numpy_generator(0, "folds"))
    assert sorted(folds[:5, 0]) == [0, 1, 2, 3, 4]
    assert (np.bincount(folds[25:, 1]) == 5).all()


def test_k_fold_over_persons_does_not_learn_persons():
    """Codes name the person and labels belong to persons: known persons are read at once, new ones not at all."""
    rng = numpy_generator(0, "persons")
    groups = np.repeat(np.arange(60), 5)
    codes = rng.normal(size=(60, 40))[groups] + 0.01 * rng.normal(size=(300, 40))
    labels = rng.normal(size=60)[groups][:, None]
    rows = np.arange(300)
    everyone = Splits(rows, rows[:0], rows[:0])
    result = probe(codes, labels, ["score"], [False], everyone, groups=groups, resamples=100)
    mixed = probe(codes, labels, ["score"], [False], Splits(rows[::2], rows[:0], rows[1::2]), resamples=2)
    assert mixed.rows[0].r > 0.6
    assert abs(result.rows[0].r) < 0.35
    assert "each of 5 folds of whole groups" in result.protocol
    assert "resamples of the groups" in result.protocol


def test_k_fold_scores_planted_values_and_binary_attributes():
    features, labels, names, binary = planted(n=600)
    labels, names, binary = labels[:, [0, 3]], ["first", "value"], binary[[0, 3]]
    rows = np.arange(600)
    groups = rows // 3
    result = probe(features, labels, names, binary, Splits(rows, rows[:0], rows[:0]), groups=groups, resamples=50)
    found = {row.name: row for row in result.rows}
    assert found["value"].r == pytest.approx(2 / np.sqrt(5), abs=0.04)
    assert found["first"].ap > 0.93
    assert found["first"].positives == labels[:, 0].sum()
    assert result.weights.shape == (2, 12)


# ---- the authors' protocol ----


def test_paper_protocol_comes_near_scikit_learn_and_says_what_it_did():
    rng = numpy_generator(0, "paper")
    z = rng.normal(size=(10_000, 8))
    labels = (z[:, :2] + 0.5 * rng.normal(size=(10_000, 2)) > 0).astype(float)
    splits = three_splits(10_000)
    result = probe(z, labels, ["a", "b"], [True, True], splits, protocol="paper", resamples=5)
    tested = splits.test
    converged = [
        average_precision_score(
            y[tested], LogisticRegression().fit(z[:5000], y[:5000]).decision_function(z[tested])
        )
        for y in labels.T
    ]
    assert np.mean(converged) - 0.05 < result.mean_ap < np.mean(converged) + 0.005
    assert "batch 128" in result.protocol and "no flips" in result.protocol
    assert result.rows[0].l2 is None


def test_mirrored_codes_reach_the_layer():
    """Mirrored codes equal to the codes change nothing, others do."""
    rng = numpy_generator(0, "mirrored")
    z = rng.normal(size=(400, 4)).astype(np.float32)
    labels = (z[:, :1] > 0).astype(float)
    plain, same, other = (
        probe(z, labels, ["a"], [True], three_splits(400), protocol="paper", mirrored=m, resamples=2)
        for m in (None, z[:200], -z[:200])
    )
    np.testing.assert_array_equal(plain.weights, same.weights)
    assert np.abs(plain.weights - other.weights).max() > 0.01
    assert "random flips" in other.protocol


# ---- few labels ----


def test_few_shot_improves_with_labels():
    features, labels, names, binary = planted(n=2000, dims=30)
    result = few_shot(features, labels, names, binary, three_splits(2000), (10, 100, 1000), seed=0, repeats=2)
    ap, r = result.mean_ap[:, 0], result.mean_r[:, 0]
    assert ap[0] < ap[1] < ap[2] and r[0] < r[1] < r[2]
    assert result.value[2, 0] > 0.95
    assert result.scores == ("ap", "ap", "ap", "r")


def test_few_labels_read_more_where_the_metric_says_which_dims_matter():
    """Three dims of thirty tell the attribute; with few labels a fit finds them only when their lengths say so."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(1200, 30))
    labels = (features[:, :3].sum(1, keepdims=True) + 0.3 * rng.normal(size=(1200, 1)) > 0).astype(float)
    metric = np.diag(np.r_[np.full(3, 9.0), np.full(27, 1 / 9)])
    task = (features, labels, ["a"], [True], three_splits(1200), (10, 40))
    plain, measured, misled = (
        few_shot(*task, seed=0, repeats=3, metric=m).mean_ap[:, 0] for m in (None, metric, metric[::-1, ::-1])
    )
    assert (measured > plain + 0.05).all()
    assert misled[1] > plain[1] - 0.1, "a metric that misleads is left out by cross-validation, mostly"


def test_few_shot_is_deterministic_and_json():
    features, labels, names, binary = planted(n=400)
    first, again, other = (
        few_shot(features, labels[:, :1], names[:1], binary[:1], three_splits(400), (10,), seed=seed, repeats=2)
        for seed in (0, 0, 1)
    )
    assert json.dumps(first.record(), allow_nan=False) == json.dumps(again.record(), allow_nan=False)
    assert first.spread[0, 0] == pytest.approx(first.mean_ap[0, 1])
    assert first.spread[0, 0] > 0
    assert (first.value != other.value).all()


def test_draws_show_both_classes_and_the_asked_number_of_labels():
    y = np.zeros((1000, 3))
    y[:5, 0], y[:995, 1], y[::2, 2] = 1, 1, 1
    for repeat in range(10):
        rows, few = draw_labels(y, np.arange(1000), 10, True, numpy_generator(0, "draw", repeat))
        assert (np.isfinite(few).sum(0) == 10).all()
        assert (np.nanmax(few, 0) == 1).all() and (np.nanmin(few, 0) == 0).all()
        seen = np.isfinite(few)
        np.testing.assert_array_equal(few[seen], y[rows][seen])


# ---- bad input ----


def test_bad_input_is_one_line():
    features, labels, names, binary = planted(n=400)
    splits = three_splits(400)
    none = splits.train[:0]

    def refused(line, *, f=features, y=labels, n=names, b=binary, s=splits, **options):
        with pytest.raises(InputError, match=line) as caught:
            probe(f, y, n, b, s, **options)
        assert "\n" not in str(caught.value)

    broken = features.copy()
    broken[3, 1] = np.nan
    broken[4, 1] = np.inf
    refused(r"NaN or infinite in 2 of 400 rows and 1 of 12 dims", f=broken)
    refused(r"shape \(4800,\)", f=features.ravel())
    refused(r"labels \(400, 3\) .* do not fit", y=labels[:, :3])
    refused(r"'value' must be 0, 1, or NaN", b=[True] * 4)
    refused(r"'value' must be finite numbers", y=np.where(labels == labels[0, 3], np.inf, labels))
    refused(r"train split has no image", s=Splits(none, splits.valid, splits.test))
    refused(r"rows 0 to 399; the features have rows 0 to 398", f=features[:-1], y=labels[:-1])
    refused(r"splits share images", s=Splits(splits.train, splits.train, splits.test))
    refused(r"Did you mean 'paper'", protocol="papr")
    refused(r"there is no test image", s=Splits(splits.train, splits.valid, none))
    refused(r"groups has shape \(3,\)", groups=np.arange(3))
    refused(r"one group", s=Splits(splits.train, none, none), groups=np.zeros(400))
    refused(r"protocol 'paper' with a test split only", mirrored=features[:200])
    refused(r"mirrored has shape", mirrored=features[:10], protocol="paper")
    refused(r"no attribute can be probed \(first: no negative in train", y=np.ones((400, 4)))
    with pytest.raises(InputError, match=r"--few-shot 10,1000 cannot be drawn: .* from 4 to 200"):
        few_shot(features, labels, names, binary, splits, counts=(10, 1000))
