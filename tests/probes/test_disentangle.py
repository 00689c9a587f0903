"""Known answers of the disentanglement scores: tables by hand, perfect codes, rotated codes, permuted codes."""

from __future__ import annotations

import itertools
import json
import warnings

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, mutual_info_score, roc_auc_score

from diti.core.errors import InputError
from diti.probes import disentangle as d
from diti.probes.reduce import discretise, draw_from_table, drawable, reduce_subsets, reduce_total, take_sample

NAMES = ["hat", "beard", "shape", "turn", "skin"]
DISCRETE = np.array([True, True, True, False, False])
ROWS = 2400
TRAIN = np.arange(ROWS) < 1600
PARTS = {"train": np.arange(1600), "test": np.arange(1600, ROWS)}


@pytest.fixture(scope="module")
def factors() -> np.ndarray:
    """Two binary factors, one of three classes, two numbers: all independent."""
    rng = np.random.default_rng(1)
    classes = [rng.integers(2, size=ROWS), rng.integers(2, size=ROWS), rng.integers(3, size=ROWS)]
    return np.stack([*classes, rng.uniform(-1, 1, ROWS), rng.uniform(0, 1, ROWS)], 1).astype(float)


@pytest.fixture(scope="module")
def labels(factors: np.ndarray) -> np.ndarray:
    table = discretise(factors)
    table[:, DISCRETE] = factors[:, DISCRETE]
    return table


def rotate(codes: np.ndarray) -> np.ndarray:
    turn = np.linalg.qr(np.random.default_rng(5).normal(size=(codes.shape[1],) * 2))[0]
    return (codes - codes.mean(0)) / codes.std(0) @ turn


@pytest.fixture(scope="module")
def perfect(factors: np.ndarray) -> d.DisentanglementScores:
    return d.disentanglement(factors, factors, NAMES, DISCRETE, range(1, 6), **PARTS, seed=0, permutations=2)


# ---------------------------------------------------------------- MIG


def test_mig_equals_the_value_by_hand():
    # v is fair; z0 = v; z1 equals v in 3 of 4 rows: I(z1; v) = ln 2 - H(1/4)
    v = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    codes = np.stack([v, [0, 0, 0, 1, 1, 1, 1, 0], np.full(8, 7)], 1).astype(float)
    quarter = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert d.mig(codes, v[:, None])[0] == pytest.approx(quarter / np.log(2), abs=1e-12)


def test_mig_of_one_half():
    # v has 4 classes, z0 tells one bit of two, z1 nothing
    v = np.repeat([0, 1, 2, 3], 4)
    codes = np.stack([v // 2, np.tile([0, 1], 8)], 1).astype(float)
    assert d.mig(codes, v[:, None])[0] == pytest.approx(0.5, abs=1e-12)


def test_mutual_information_and_entropy_against_scikit_learn(factors, labels):
    bins = discretise(rotate(factors))
    ours = d.mutual_information(bins, labels)
    for a, b in itertools.product(range(5), repeat=2):
        assert ours[a, b] == pytest.approx(mutual_info_score(bins[:, a], labels[:, b]), abs=1e-12)
    assert d.entropy(labels) == pytest.approx([mutual_info_score(c, c) for c in labels.T], abs=1e-12)


def test_discretise_is_a_histogram():
    values = np.random.default_rng(0).normal(size=(500, 1))
    assert np.bincount(discretise(values)[:, 0], minlength=20).tolist() == np.histogram(values, 20)[0].tolist()
    assert not discretise(np.full((3, 1), 0.1)).any()


def test_perfect_code_loses_only_the_chance_information_of_the_second_dim(factors, labels):
    second = [
        max(mutual_info_score(labels[:, f], discretise(factors)[:, g]) for g in range(5) if g != f)
        for f in range(5)
    ]
    expected = 1 - np.array(second) / d.entropy(labels)
    assert d.mig(factors, labels) == pytest.approx(expected, abs=1e-9)
    assert expected.min() > 0.97


# ---------------------------------------------------------------- SAP


def test_sap_of_a_known_r2():
    rng = np.random.default_rng(0)
    columns = np.concatenate([np.ones((400, 1)), rng.normal(size=(400, 3))], 1)
    a, b, c = np.linalg.qr(columns)[0].T[1:]  # orthonormal and of mean 0
    value = 0.8 * a + 0.6 * b  # R² 0.64 from a, 0.36 from b, 0 from c
    held = np.zeros(400, bool)
    assert d.squared_correlation(np.stack([a, b, c], 1), value[:, None])[:, 0] == pytest.approx(
        [0.64, 0.36, 0], abs=1e-12
    )
    gap = d.sap(np.stack([a, b, c], 1), value[:, None], np.array([False]), held)
    assert gap[0] == pytest.approx(0.28, abs=1e-12)


def test_thresholds_by_brute_force():
    rng = np.random.default_rng(2)
    code, label = rng.integers(12, size=80).astype(float), rng.integers(2, size=80)
    train = np.ones(160, bool)
    train[80:] = (
        False  # the second half repeats the first: the held-out score is the best that thresholds can reach
    )
    ours = d.threshold_accuracy(np.tile(code, 2), np.tile(label, 2)[:, None], train)[0]
    cuts = [(code > t).astype(int) for t in np.arange(-1, 12) + 0.5]
    best = max(balanced_accuracy_score(label, guess) for cut in cuts for guess in (cut, 1 - cut))
    assert ours == pytest.approx(best, abs=1e-12)


def test_three_intervals_by_brute_force():
    weights = np.random.default_rng(3).normal(size=(7, 3))
    classes = d.best_intervals(weights, 3)
    best = max(
        weights[:i, x].sum() + weights[i:j, y].sum() + weights[j:, z].sum()
        for i, j in itertools.combinations_with_replacement(range(8), 2)
        for x, y, z in itertools.product(range(3), repeat=3)
    )
    assert weights[np.arange(7), classes].sum() == pytest.approx(best)
    assert (np.diff(classes) != 0).sum() <= 2


def test_sap_of_a_perfect_code(factors):
    s = d.sap_matrix(factors, factors, DISCRETE, TRAIN)
    assert s.diagonal() == pytest.approx(np.ones(5), abs=1e-12)
    maximum = 1 - d.no_knowledge(factors, DISCRETE)
    assert maximum.tolist() == pytest.approx([0.5, 0.5, 2 / 3, 1, 1])
    assert np.abs(d.sap(factors, factors, DISCRETE, TRAIN) - maximum).max() < 0.08


# ---------------------------------------------------------------- TAD


def test_aurocs_against_scikit_learn(factors):
    codes = np.round(rotate(factors), 1)  # with ties
    ours = d.aurocs(codes, factors[:, :2])
    for i, j in itertools.product(range(5), range(2)):
        area = roc_auc_score(factors[:, j], codes[:, i])
        assert ours[i, j] == pytest.approx(max(area, 1 - area), abs=1e-12)


def test_tad_counts_captured_attributes_only():
    a, b = np.tile([0, 0, 1, 1], 25), np.tile([0, 1, 0, 1], 25)
    noise = np.repeat(np.arange(25.0), 4)
    result = d.tad(np.stack([-a, noise], 1).astype(float), np.stack([a, b], 1))
    assert result.total == pytest.approx(0.5)  # a: 1.0 - 0.5; b stays at 0.5 and is not captured
    assert result.captured.tolist() == [True, False]
    both = d.tad(np.stack([a, b, noise], 1).astype(float), np.stack([a, b], 1))
    assert both.total == pytest.approx(1.0) and both.captured.all()


def test_tad_leaves_out_attributes_that_another_one_tells():
    rng = np.random.default_rng(0)
    a, c = rng.integers(2, size=(2, 400))
    near = np.where(rng.random(400) < 0.1, 1 - a, a)  # tells about half of the entropy of a
    attributes = np.stack([a, near, c], 1)
    assert d.tad_eligible(attributes).tolist() == [False, False, True]
    assert d.tad(attributes.astype(float), attributes).captured.tolist() == [False, False, True]


# ---------------------------------------------------------------- DCI


def test_dci_formulas_by_hand():
    r = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 0.0]])
    assert d.dci_disentanglement(r) == pytest.approx(0.5)  # dim 0: 1, dim 1: 0, each half of the importance
    p = np.array([2 / 3, 1 / 3])
    half = 1 + (p * np.log(p)).sum() / np.log(3)
    assert d.dci_completeness(r) == pytest.approx((half + 1) / 2)
    assert d.dci_disentanglement(np.eye(4)) == d.dci_completeness(np.eye(4)) == 1
    assert d.dci_disentanglement(np.ones((4, 3))) == pytest.approx(0) == d.dci_completeness(np.ones((4, 3)))
    assert d.dci_disentanglement(np.zeros((2, 2))) == 0


def test_forests_in_threads_leave_the_warning_filters_as_they_were(factors, monkeypatch):
    monkeypatch.setattr(d.os, "cpu_count", lambda: 8)  # scikit-learn's own handling of them is not safe in threads
    before = list(warnings.filters)
    for seed in range(5):
        d.dci_importance(factors, factors, DISCRETE, TRAIN, seed)
    assert warnings.filters == before


def test_dci_does_not_depend_on_the_scale_of_the_code(factors):
    one = d.dci_importance(factors, factors, DISCRETE, TRAIN, 0)[0]
    tiny = d.dci_importance(factors * 1e-9, factors, DISCRETE, TRAIN, 0)[0]
    assert tiny == pytest.approx(one, abs=1e-3)


# ---------------------------------------------------------------- FactorVAE score


def test_factor_vae_of_a_perfect_code_is_one(factors, labels):
    rng = np.random.default_rng(0)
    assert d.factor_vae(draw_from_table(factors, labels), 5, factors, rng, votes=(200, 200)) == 1.0


def test_factor_vae_takes_a_callable_and_prunes_dead_dims():
    def draw(factor: int, batch: int, rng: np.random.Generator) -> np.ndarray:
        v = rng.normal(size=(batch, 3))
        v[:, factor] = v[0, factor]
        return np.concatenate([v, np.full((batch, 1), 0.1)], 1)  # a dead dim would win every vote

    reference = np.concatenate([np.random.default_rng(0).normal(size=(500, 3)), np.full((500, 1), 0.1)], 1)
    assert d.factor_vae(draw, 3, reference, np.random.default_rng(1), votes=(100, 100)) == 1.0
    with pytest.raises(InputError, match="constant"):
        d.factor_vae(draw, 3, reference[:, 3:], np.random.default_rng(1))


def test_a_batch_shares_the_class_and_repeats_no_row(labels):
    rows = np.arange(ROWS)[:, None]
    batch = draw_from_table(rows, labels)(2, 64, np.random.default_rng(0))[:, 0]
    assert len(set(batch)) == 64 and len(set(labels[batch, 2])) == 1
    assert drawable(labels, 64).all() and not drawable(labels[:100, 3:], 64).any()
    with pytest.raises(InputError, match="no class with 64 rows"):
        draw_from_table(rows, labels[:100])(3, 64, np.random.default_rng(0))


# ---------------------------------------------------------------- all scores


def test_order_and_sign_of_dims_change_nothing(factors, labels):
    codes = rotate(factors)
    other = -codes[:, ::-1]
    assert d.mig(other, labels) == pytest.approx(d.mig(codes, labels), abs=1e-9)
    assert d.tad(other, labels[:, :2]).total == pytest.approx(d.tad(codes, labels[:, :2]).total)
    coarse = np.round(codes, 1)  # few values: every threshold is tried
    ours = [d.sap(c, factors, DISCRETE, TRAIN) for c in (coarse, -coarse[:, ::-1])]
    assert ours[0] == pytest.approx(ours[1], abs=0.01)
    votes = [
        d.factor_vae(draw_from_table(c, labels), 5, c, np.random.default_rng(0), votes=(100, 100))
        for c in (codes, other)
    ]
    assert votes[0] == votes[1]
    r = [d.dci_importance(c, factors, DISCRETE, TRAIN, 0)[0] for c in (codes, other)]
    assert d.dci_disentanglement(r[0]) == pytest.approx(d.dci_disentanglement(r[1]), abs=0.05)


@pytest.mark.parametrize("reduction", ["subsets", "total"])
def test_a_perfect_code_reaches_the_maximum(perfect, reduction):
    result = perfect.reductions[reduction]
    for name in ("dci_disentanglement", "dci_completeness", "dci_informativeness", "mig"):
        assert result.scores[name] == pytest.approx(1, abs=0.02), name
    assert result.scores["factor_vae"] == 1.0
    assert result.scores["tad_captured"] == result.maxima["tad_captured"] == 2
    assert result.scores["tad"] == pytest.approx(result.maxima["tad"], abs=0.05)
    assert result.scores["sap"] == pytest.approx(result.maxima["sap"], abs=0.05)
    assert all(c.high < result.scores[name] for name, c in result.chance.items())


def test_a_rotated_code_scores_lower(perfect, factors):
    rotated = d.disentanglement(
        rotate(factors), factors, NAMES, DISCRETE, range(1, 6), **PARTS, seed=0, permutations=2
    )
    before, after = perfect.reductions["subsets"].scores, rotated.reductions["subsets"].scores
    assert all(after[name] < before[name] for name in before if name != "tad_captured")
    assert after["mig"] < 0.4 and after["dci_disentanglement"] < 0.6


def test_a_random_code_is_inside_its_chance_range(factors):
    codes = np.random.default_rng(9).normal(size=(ROWS, 4))
    result = d.disentanglement(codes, factors, NAMES, DISCRETE, None, **PARTS, seed=3, permutations=4)
    for reduced in result.reductions.values():
        for name, value in reduced.scores.items():
            chance = reduced.chance[name]
            assert chance.low <= value <= chance.high, name
            assert chance.low <= chance.mean <= chance.high


def test_chance_range_is_the_prediction_interval():
    values = np.array([1.0, 2.0, 3.0])
    chance = d.chance_range(values)
    assert chance.mean == 2 and chance.high - 2 == pytest.approx(4.302653 * np.sqrt(4 / 3), rel=1e-6)


def test_record_is_json_and_names_what_is_left_out(factors):
    constant = np.concatenate([factors, np.full((ROWS, 1), 0.3)], 1)
    codes = np.concatenate([factors, np.full((ROWS, 2), 0.1)], 1).astype(np.float32)
    result = d.disentanglement(
        codes,
        constant,
        [*NAMES, "dull"],
        np.append(DISCRETE, False),
        [2, 2, 5, 7],
        **PARTS,
        seed=0,
        permutations=2,
    )
    record = json.loads(json.dumps(result.record(), allow_nan=False))
    assert record["left_out"]["constant_factors"] == ["dull"]
    assert record["left_out"]["constant_dims"] == [5, 6]
    assert record["reductions"]["subsets"]["subsets"] == [0, 2]  # subset 1 is empty, subset 3 constant
    assert record["reductions"]["total"]["dims"] == 5
    assert record["setup"]["rows"] == {"fit": 1600, "held_out": 800}
    assert {"dci", "mig", "sap", "tad", "factor_vae", "discretisation", "reduction", "chance"} <= set(
        record["protocol"]
    )
    assert set(record["reductions"]["total"]["factors"]["hat"]) == {"mig", "sap", "informativeness", "auroc"}


def test_the_same_seed_gives_the_same_numbers_and_a_code_without_subsets_one_reduction(factors):
    few = {"train": np.arange(400), "test": np.arange(400, 600)}
    one, two = (
        d.disentanglement(
            factors, factors, NAMES, DISCRETE, None, **few, seed=1, samples=300, permutations=2
        ).record()
        for _ in range(2)
    )
    assert one == two
    assert list(one["reductions"]) == ["total"] and "no subsets" in one["left_out"]["reduction_subsets"]
    assert one["setup"]["rows"] == {"fit": 200, "held_out": 100}
    assert one["left_out"]["factor_vae"] == ["turn", "skin"]  # no bin has 64 of 300 rows


def test_numbers_only_have_no_tad(factors):
    few = {"train": np.arange(200), "test": np.arange(200, 300)}
    codes = factors[:, 3:]
    result = d.disentanglement(codes, codes, NAMES[3:], DISCRETE[3:], [1, 2], **few, seed=0, permutations=2)
    assert "tad" not in result.reductions["total"].scores


# ---------------------------------------------------------------- bad input


def test_bad_input_is_refused(factors):
    def run(**changes: object) -> None:
        given = {"codes": factors, "factors": factors, "names": NAMES, "discrete": DISCRETE, "ends": [2, 5]}
        d.disentanglement(**{**given, **PARTS, "seed": 0, **changes})  # type: ignore[arg-type]

    broken = factors.copy()
    broken[7, 1] = np.nan
    cases = [
        ({"codes": broken}, r"codes of 1 rows are not finite, first row 7"),
        ({"factors": broken}, r"factors of 1 rows are not finite"),
        ({"names": NAMES[:4]}, r"must be \(N, D\)"),
        ({"ends": [2, 4]}, r"end at 5"),
        ({"train": np.arange(1601)}, r"none of them twice"),
        ({"train": TRAIN}, r"row numbers"),
        ({"test": np.array([ROWS, 1700])}, r"row numbers"),
        ({"permutations": 1}, r"2 or more"),
        ({"total": 0}, r"1 or more"),
        ({"discrete": np.ones(5, bool)}, r"'turn' has \d+ classes"),
        ({"codes": np.full((ROWS, 5), 0.1)}, r"are constant"),
        ({"factors": np.ones((ROWS, 5))}, r"0 of 5 factors vary"),
    ]
    for changes, words in cases:
        with pytest.raises(InputError, match=words):
            run(**changes)
    with pytest.raises(InputError, match="one value"):
        d.mig(factors, np.zeros((ROWS, 1), int))


# ---------------------------------------------------------------- reductions


def test_components_are_those_of_a_singular_value_decomposition():
    codes = np.random.default_rng(0).normal(size=(50, 6)) @ np.random.default_rng(1).normal(size=(6, 6))
    train = np.arange(40)
    ours = reduce_subsets(codes, [2, 2, 6], per_subset=2, train=train)
    assert ours.subsets.tolist() == [0, 0, 2, 2]
    for part, columns in ((slice(0, 2), slice(0, 2)), (slice(2, 6), slice(2, 4))):
        centred = codes[train, part] - codes[train, part].mean(0)
        axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
        expected = (codes[:, part] - codes[train, part].mean(0)) @ axes.T
        assert np.abs(ours.codes[:, columns]) == pytest.approx(np.abs(expected), abs=1e-9)
    assert ours.variances == pytest.approx(ours.codes[train].var(0, ddof=1))


def test_total_keeps_the_components_of_largest_variance():
    # variances 100 | 9, 4 | 16, 1, exactly, in uncorrelated dims
    columns = np.concatenate([np.ones((60, 1)), np.random.default_rng(0).normal(size=(60, 5))], 1)
    base = np.linalg.qr(columns)[0][:, 1:] * np.sqrt(59)
    codes = base * np.sqrt([100, 9, 4, 16, 1])
    reduced = reduce_total(codes, [1, 3, 5], 3)
    assert reduced.subsets.tolist() == [0, 1, 2]
    assert reduced.variances == pytest.approx([100, 9, 16])
    assert reduce_total(codes, [1, 3, 5], 4).subsets.tolist() == [0, 1, 1, 2]
    assert reduce_total(codes, [5], 2).variances == pytest.approx([100, 16])  # PCA of the whole code
    assert reduce_total(codes, [1, 3, 5], 99).codes.shape == (60, 5)


def test_equal_variances_do_not_exceed_the_total():
    column = np.random.default_rng(0).normal(size=(30, 1))
    reduced = reduce_total(np.repeat(column, 4, 1), [1, 2, 3, 4], 2)
    assert reduced.subsets.tolist() == [0, 1]


def test_a_sample_keeps_the_parts_apart(factors):
    train, test = np.arange(0, 900), np.arange(1000, 1300)
    sample = take_sample(factors, factors, NAMES, DISCRETE, (train, test), 400, 0)
    assert sample.train.sum() == 300 and len(sample.train) == 400
    rows = [np.flatnonzero((factors == code).all(1))[0] for code in sample.codes]
    assert set(rows[:300]) <= set(train) and set(rows[300:]) <= set(test) and len(set(rows)) == 400
    assert sample.binary.tolist() == [True, True, False, False, False]
