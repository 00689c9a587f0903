import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.metrics import average_precision_score, roc_auc_score

from diti.core.errors import InputError
from diti.core.rng import numpy_generator
from diti.probes.scores import (
    ap_draws,
    auroc,
    average_precision,
    bootstrap_counts,
    chance_ap,
    mean_over_attributes,
    mse,
    pearson,
    percentile_interval,
    regression_draws,
)


def binary_case(n=300, attributes=6, seed=0, decimals=1):
    """Scores with many ties, and labels from rare to common."""
    rng = numpy_generator(seed, "case")
    truth = (rng.random((n, attributes)) < np.linspace(0.02, 0.9, attributes)).astype(float)
    return np.round(rng.normal(size=truth.shape) + truth, decimals), truth


@pytest.mark.parametrize("decimals", [0, 1, 12])
def test_ap_and_auroc_equal_scikit_learn(decimals):
    scores, truth = binary_case(decimals=decimals)
    columns = range(truth.shape[1])
    np.testing.assert_allclose(
        average_precision(scores, truth), [average_precision_score(truth[:, a], scores[:, a]) for a in columns]
    )
    np.testing.assert_allclose(auroc(scores, truth), [roc_auc_score(truth[:, a], scores[:, a]) for a in columns])


def test_missing_labels_are_left_out_per_attribute():
    scores, truth = binary_case()
    truth[::3, 1] = np.nan
    keep = np.isfinite(truth[:, 1])
    assert average_precision(scores, truth)[1] == pytest.approx(
        average_precision_score(truth[keep, 1], scores[keep, 1])
    )
    assert auroc(scores, truth)[1] == pytest.approx(roc_auc_score(truth[keep, 1], scores[keep, 1]))
    assert chance_ap(truth)[1] == pytest.approx(truth[keep, 1].mean())
    assert pearson(scores, truth)[1] == pytest.approx(pearsonr(scores[keep, 1], truth[keep, 1]).statistic)
    assert mse(scores, truth)[1] == pytest.approx(((scores - truth)[keep, 1] ** 2).mean())


def test_known_values():
    truth = np.array([[1.0], [0], [1], [0]])
    assert average_precision(np.array([[4.0], [3], [2], [1]]), truth)[0] == pytest.approx((1 + 2 / 3) / 2)
    assert auroc(np.array([[4.0], [3], [2], [1]]), truth)[0] == pytest.approx(0.75)
    assert average_precision(np.ones((4, 1)), truth)[0] == chance_ap(truth)[0] == 0.5
    assert pearson(3 - 2 * truth, truth)[0] == pytest.approx(-1)
    assert mse(truth + 0.5, truth)[0] == pytest.approx(0.25)


def test_undefined_scores_are_nan():
    scores = np.arange(4.0)[:, None]
    assert np.isnan(average_precision(scores, np.zeros((4, 1))))
    assert np.isnan(auroc(scores, np.ones((4, 1))))
    assert np.isnan(pearson(np.full((4, 1), 0.1), scores))
    assert np.isnan(mse(scores, np.full((4, 1), np.nan)))
    assert np.isnan(percentile_interval(np.full((5, 1), np.nan))).all()


def test_bootstrap_draws_equal_scores_of_the_drawn_images():
    """Oracle: write the drawn images out and let scikit-learn and scipy score them."""
    scores, truth = binary_case(n=60)
    truth[::7, 2] = np.nan
    counts = np.concatenate(list(bootstrap_counts(60, 7, seed=3)), axis=1).astype(int)
    ap = ap_draws(scores, truth, seed=3, resamples=7)
    r, error = regression_draws(scores, truth, seed=3, resamples=7)
    for draw in range(7):
        rows = np.repeat(np.arange(60), counts[:, draw])
        assert len(rows) == 60
        for a in range(2, truth.shape[1]):
            s, t = scores[rows, a], truth[rows, a]
            s, t = s[np.isfinite(t)], t[np.isfinite(t)]
            assert ap[draw, a] == pytest.approx(average_precision_score(t, s), rel=1e-6)
            assert r[draw, a] == pytest.approx(pearsonr(s, t).statistic)
            assert error[draw, a] == pytest.approx(((s - t) ** 2).mean())


def test_resamples_without_a_positive_do_not_count():
    scores, truth = np.arange(8.0)[:, None], np.eye(8)[:, :1]
    draws = ap_draws(scores, truth, seed=0, resamples=300)
    assert 0.2 < np.isnan(draws).mean() < 0.5  # (7/8)^8 = .34
    assert np.isfinite(percentile_interval(draws)).all()
    assert mean_over_attributes(np.array([[0.2, np.nan, 0.4]])) == pytest.approx(0.3)


def test_groups_are_drawn_whole():
    groups = np.repeat(np.arange(10), 5)
    counts = np.concatenate(list(bootstrap_counts(50, 20, seed=0, groups=groups)), axis=1)
    assert (counts.reshape(10, 5, 20) == counts.reshape(10, 5, 20)[:, :1]).all()
    assert (counts.sum(0) == 50).all()


def test_draws_depend_on_the_seed_only():
    scores, truth = binary_case()
    np.testing.assert_array_equal(
        ap_draws(scores, truth, seed=1, resamples=120)[:50], ap_draws(scores, truth, seed=1, resamples=50)
    )
    assert (ap_draws(scores, truth, seed=1, resamples=5) != ap_draws(scores, truth, seed=2, resamples=5)).any()


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """MSE of unit normal errors is 1 with sampling error sqrt(2 / n); r of this pair is .6."""
    rng = numpy_generator(0, "coverage")
    n, trials = 200, 150
    truth = rng.normal(size=(n, trials))
    predicted = 0.6 * truth + 0.8 * rng.normal(size=(n, trials))
    r, _ = regression_draws(predicted, truth, seed=0, resamples=300)
    _, error = regression_draws(truth + rng.normal(size=(n, trials)), truth, seed=0, resamples=300)
    for draws, expected in ((r, 0.6), (error, 1.0)):
        low, high = percentile_interval(draws).T
        assert 0.88 <= ((low <= expected) & (expected <= high)).mean() <= 0.99
    assert error.std(0).mean() == pytest.approx(np.sqrt(2 / n), rel=0.1)


def test_ap_intervals_cover_the_ap_of_a_large_sample():
    rng = numpy_generator(1, "coverage")
    large = (rng.random((200_000, 1)) < 0.3).astype(float)
    expected = average_precision(rng.normal(size=large.shape) + large, large)[0]
    truth = (rng.random((300, 100)) < 0.3).astype(float)
    draws = ap_draws(rng.normal(size=truth.shape) + truth, truth, seed=0, resamples=200)
    low, high = percentile_interval(draws).T
    assert 0.87 <= ((low <= expected) & (expected <= high)).mean() <= 0.99


def test_mean_interval_is_narrower_than_that_of_one_attribute():
    rng = numpy_generator(2, "case")
    truth = (rng.random((300, 20)) < 0.3).astype(float)
    draws = ap_draws(rng.normal(size=truth.shape) + truth, truth, seed=0, resamples=200)
    one, mean = percentile_interval(draws), percentile_interval(mean_over_attributes(draws))
    assert mean[1] - mean[0] < 0.5 * (one[:, 1] - one[:, 0]).min()


def test_bad_input_is_one_line():
    with pytest.raises(InputError, match=r"\(3, 2\) and truth \(3, 1\)"):
        average_precision(np.zeros((3, 2)), np.zeros((3, 1)))
    with pytest.raises(InputError, match=r"1 predicted scores are NaN"):
        pearson(np.array([[np.nan], [1]]), np.zeros((2, 1)))
    with pytest.raises(InputError, match=r"resamples is 0"):
        ap_draws(np.zeros((3, 1)), np.ones((3, 1)), seed=0, resamples=0)
