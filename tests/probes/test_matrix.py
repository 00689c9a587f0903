import dataclasses
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from diti.core.errors import InputError
from diti.core.rng import numpy_generator
from diti.probes.linear import Splits
from diti.probes.matrix import SubsetProbe, carriers
from diti.probes.scores import average_precision, pearson

ENDS = (3, 6, 6, 10, 12)  # the third subset is empty


def planted(n=1200):
    """Binary: dims 0-2 (subset 0), dims 6-9 (subset 3), noise; a value of dims 3 (subset 1) and 11 (subset 4)."""
    rng = numpy_generator(0, "planted")
    z = rng.normal(size=(n, 12))
    noise = rng.normal(size=(n, 4))
    labels = np.column_stack(
        [
            z[:, :3].sum(1) + 0.3 * noise[:, 0] > 0,
            z[:, 6:10].sum(1) + 0.3 * noise[:, 1] > 1,
            noise[:, 2] > 0.3,
            z[:, 3] + z[:, 11] + 0.3 * noise[:, 3],
        ]
    ).astype(float)
    splits = Splits(np.arange(n // 2), np.arange(n // 2, 3 * n // 4), np.arange(3 * n // 4, n))
    return z * np.linspace(0.1, 5, 12) + 3, labels, ["a", "b", "noise", "value"], [True, True, True, False], splits


@pytest.fixture(scope="module")
def matrix():
    return SubsetProbe.of(*planted(), ENDS).matrix()


def test_the_planted_subsets_carry_their_attributes(matrix):
    assert matrix.alone.shape == matrix.without.shape == (5, 4)
    assert matrix.scores == ("ap", "ap", "ap", "r")
    assert matrix.alone[0, 0] > 0.95 and matrix.alone[3, 1] > 0.9
    assert (np.delete(matrix.alone[:, 0], 0) < matrix.chance[0] + 0.12).all()
    assert matrix.without[0, 0] < matrix.chance[0] + 0.12 and matrix.without[3, 1] < matrix.chance[1] + 0.12
    np.testing.assert_allclose(matrix.without[[1, 3, 4], 0], matrix.full[0], atol=0.02)
    np.testing.assert_allclose(matrix.alone[[1, 4], 3], np.sqrt(1 / 2.09), atol=0.06)  # half the signal each
    assert matrix.full[3] > 0.97
    assert (np.abs(matrix.alone[:, 2] - matrix.chance[2]) < 0.1).all()


def test_an_empty_subset_has_the_score_of_chance_and_takes_nothing_away(matrix):
    np.testing.assert_array_equal(matrix.alone[2], matrix.chance)
    np.testing.assert_array_equal(matrix.without[2], matrix.full)
    assert matrix.chance[3] == 0


def test_scores_equal_separate_fits():
    """Oracle: scikit-learn on the subset's columns, numpy's normal equations for ridge."""
    features, labels, names, binary, splits = planted()
    got = SubsetProbe.of(features, labels, names, binary, splits, ENDS, "valid", l2=1e-2).matrix()
    train = features[splits.train]
    x = (features - train.mean(0)) / train.std(0)
    for dims, row in ((np.arange(3, 6), got.alone[1]), (np.r_[0:6, 10:12], got.without[3])):
        xt, xv = x[splits.train][:, dims], x[splits.valid][:, dims]
        for a in range(3):
            fit = LogisticRegression(C=1 / (600 * 1e-2), tol=1e-8, max_iter=1000).fit(xt, labels[splits.train, a])
            expected = average_precision(fit.decision_function(xv)[:, None], labels[splits.valid][:, [a]])[0]
            assert row[a] == pytest.approx(expected, abs=2e-3)
        y = labels[splits.train, 3]
        w = np.linalg.solve(xt.T @ xt + 600 * 1e-2 * np.eye(len(dims)), xt.T @ (y - y.mean()))
        assert row[3] == pytest.approx(pearson((xv @ w)[:, None], labels[splits.valid][:, 3:])[0], abs=1e-5)


def test_carriers_name_subset_and_position(matrix):
    found = {carrier.name: carrier for carrier in carriers(matrix)}
    assert (found["a"].subset, found["b"].subset) == (0, 3)
    assert found["a"].position < 0.2 and found["b"].position == pytest.approx(0.75, abs=0.15)
    assert found["value"].position == pytest.approx((0.25 + 1) / 2, abs=0.12)
    assert found["a"].above_chance == pytest.approx(found["a"].score - matrix.chance[0])


def test_an_attribute_that_no_subset_carries_has_no_carrier(matrix):
    silent = dataclasses.replace(matrix, alone=np.broadcast_to(matrix.chance, matrix.alone.shape))
    assert {(c.subset, c.position, c.above_chance) for c in carriers(silent)} == {(None, None, 0.0)}


def test_cumulative_scores_rise_where_the_attribute_sits(matrix):
    result = SubsetProbe.of(*planted(), ENDS).cumulative()
    np.testing.assert_allclose(result.early[-1], matrix.full, atol=1e-3)
    np.testing.assert_allclose(result.late[-1], matrix.full, atol=1e-3)
    assert result.early[0, 0] > 0.95  # subset 0 comes first
    assert result.late[3, 0] < result.chance[0] + 0.12  # all but subset 0
    assert result.late[4, 0] > 0.95
    np.testing.assert_allclose(result.early[1], result.early[2], atol=1e-3)  # the empty subset adds nothing
    means = result.means()
    np.testing.assert_allclose(means["ap"]["early"], result.early[:, :3].mean(1))
    np.testing.assert_allclose(means["r"]["late"], result.late[:, 3])
    json.dumps(result.record(), allow_nan=False)


def test_missing_labels_and_one_kind_only():
    features, labels, names, binary, splits = planted()
    labels[::4, 0] = np.nan
    labels[::3, 3] = np.nan
    holes = SubsetProbe.of(features, labels, names, binary, splits, ENDS).matrix()
    assert holes.alone[0, 0] > 0.95 and holes.full[3] > 0.96
    only = SubsetProbe.of(features, labels[:, 3:], names[3:], binary[3:], splits, ENDS).matrix()
    np.testing.assert_allclose(only.without[:, 0], holes.without[:, 3])


def test_rows_are_capped_and_the_record_says_so():
    first, second = (SubsetProbe.of(*planted(), ENDS, rows=200, seed=4).matrix() for _ in range(2))
    assert "200 of 600 training images" in first.protocol
    assert json.dumps(first.record(), allow_nan=False) == json.dumps(second.record(), allow_nan=False)
    assert (SubsetProbe.of(*planted(), ENDS, rows=200, seed=5).matrix().full != first.full).any()


def test_bad_input_is_one_line():
    with pytest.raises(InputError, match=r"ends \[3, 6\] do not divide 12 dims"):
        SubsetProbe.of(*planted(), (3, 6)).matrix()
    with pytest.raises(InputError, match=r"do not divide"):
        SubsetProbe.of(*planted(), (6, 3, 12))
    with pytest.raises(InputError, match=r"split 'train'"):
        SubsetProbe.of(*planted(), ENDS, "train").matrix()
    with pytest.raises(InputError, match=r"rows 1"):
        SubsetProbe.of(*planted(), ENDS, rows=1).matrix()
