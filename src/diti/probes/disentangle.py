"""Scores of disentanglement on data with known factors: DCI, FactorVAE score, MIG, SAP and TAD, with their chance.

Notation: N rows, D dims of the code, F factors. Every score compares single dims with single factors; a code of
vector-valued subsets is first reduced to such dims (`diti.probes.reduce`). A factor is discrete (classes) or
continuous (a number). `disentanglement` computes everything; its `record()` states the protocol with the numbers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from diti.core.errors import InputError
from diti.core.rng import numpy_generator, stream_seed
from diti.probes.reduce import (
    BINS,
    TINY,
    Draw,
    Reduced,
    Sample,
    discretise,
    draw_from_table,
    drawable,
    reduce_subsets,
    reduce_total,
    take_sample,
)

CUTS = 100  # places where SAP may put a threshold on one dim
TREES, DEPTH, LEAF = 10, 8, 5  # of the forest that gives DCI its importances
BATCH, VOTES = 64, 800  # rows with one factor fixed per FactorVAE vote; votes to train on, and as many to test
CAPTURED = 0.75  # TAD: the least AUROC of a captured attribute
SHARED = 0.2  # TAD: the largest share of its entropy that another attribute may explain


def mutual_information(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """I(a; b) in nats (A, B) of all pairs of columns of two tables of class numbers (N, A) and (N, B)."""
    rows, sizes = len(first), second.max(0) + 1
    result = np.empty((first.shape[1], second.shape[1]))
    for a, column in enumerate(first.T):
        for b, other in enumerate(second.T):
            counts = np.bincount(column * sizes[b] + other, minlength=(column.max() + 1) * sizes[b])
            joint = counts.reshape(-1, sizes[b]) / rows
            apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
            seen = joint > 0
            result[a, b] = (joint[seen] * np.log(joint[seen] / apart[seen])).sum()
    return result


def entropy(labels: np.ndarray) -> np.ndarray:
    """H in nats (F,) of the columns of a table of class numbers (N, F)."""
    shares = [np.bincount(column) / len(labels) for column in labels.T]
    return np.array([-(p[p > 0] * np.log(p[p > 0])).sum() for p in shares])


def top_two_gap(matrix: np.ndarray, floor: float | np.ndarray) -> np.ndarray:
    """Largest minus second largest entry of each column of (D, F); the second is `floor` if D = 1."""
    if len(matrix) == 1:
        return matrix[0] - floor
    ordered = np.sort(matrix, 0)
    return ordered[-1] - ordered[-2]


def mig(codes: np.ndarray, labels: np.ndarray, bins: int = BINS) -> np.ndarray:
    """Mutual information gap per factor (F,), Chen et al. 2018: (I(z_1; v) - I(z_2; v)) / H(v), with z_1 and z_2
    the dims that know most about v. The score is the mean. `labels` (N, F) are class numbers."""
    _check_varying(labels)
    return top_two_gap(mutual_information(discretise(codes, bins), labels), 0.0) / entropy(labels)


def squared_correlation(codes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """R² (D, F) of the best line from one dim to one factor: Cov(z, v)² / (Var z Var v), 0 for a constant dim."""
    z, v = codes - codes.mean(0), values - values.mean(0)
    power = np.outer((z**2).sum(0), (v**2).sum(0))
    return np.divide((z.T @ v) ** 2, power, out=np.zeros_like(power), where=power > 0)


def best_intervals(weights: np.ndarray, segments: int) -> np.ndarray:
    """Class (B,) of each of B bins, from at most `segments` intervals of one class each, of largest total weight.

    `weights` (B, C) says what is gained by giving a bin a class. Exact, by dynamic programming over the bounds.
    """
    bins = len(weights)
    sums = np.concatenate([np.zeros((1, weights.shape[1])), weights.cumsum(0)])  # (B+1, C)
    each = sums[None] - sums[:, None]  # (start, end, C): the gain of the interval start .. end - 1
    gain = np.where(np.triu(np.ones((bins + 1, bins + 1), bool)), each.max(2), -np.inf)
    best, starts = gain[0], []
    for _ in range(segments - 1):
        ways = best[:, None] + gain
        starts.append(ways.argmax(0))
        best = ways.max(0)
    classes, end = np.empty(bins, np.int64), bins
    for start in [*reversed(starts), np.zeros(bins + 1, np.int64)]:
        begin = int(start[end])
        classes[begin:end] = each[begin, end].argmax()
        end = begin
    return classes


def threshold_accuracy(code: np.ndarray, labels: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Balanced accuracy (F,) of thresholds on one dim (N,), set on the rows `train` (N,) bool, scored on the rest.

    A factor of C classes gets up to C - 1 thresholds among CUTS places; each interval between them is one class.
    """
    middles = np.unique(code[train])
    middles = (middles[1:] + middles[:-1]) / 2
    if len(middles) > CUTS:
        middles = middles[np.linspace(0, len(middles) - 1, CUTS).round().astype(int)]
    place = np.searchsorted(middles, code)  # (N,) in 0 .. len(middles)
    scores = []
    for column in labels.T:
        count = int(column.max()) + 1
        flat = np.bincount(place[train] * count + column[train], minlength=(len(middles) + 1) * count)
        counts = flat.reshape(-1, count)
        classes = best_intervals(counts / np.maximum(counts.sum(0), 1), count)
        right = classes[place[~train]] == column[~train]
        scores.append(np.mean([right[column[~train] == c].mean() for c in np.unique(column[~train])]))
    return np.array(scores)


def sap_matrix(codes: np.ndarray, values: np.ndarray, discrete: np.ndarray, train: np.ndarray) -> np.ndarray:
    """S (D, F) of Kumar et al. 2018 (section 3): how well one dim alone predicts one factor, on held-out rows.

    Continuous factor: squared correlation. Discrete factor, `values` being class numbers: balanced accuracy.
    """
    _check_varying(values)
    scores = np.empty((codes.shape[1], values.shape[1]))
    scores[:, ~discrete] = squared_correlation(codes[~train], values[~train][:, ~discrete])
    if discrete.any():
        labels = values[:, discrete].astype(np.int64)
        scores[:, discrete] = [threshold_accuracy(code, labels, train) for code in codes.T]
    return scores


def sap(codes: np.ndarray, values: np.ndarray, discrete: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Separated attribute predictability per factor (F,): best minus second best in S. The score is the mean."""
    return top_two_gap(sap_matrix(codes, values, discrete, train), no_knowledge(values, discrete))


def no_knowledge(values: np.ndarray, discrete: np.ndarray) -> np.ndarray:
    """What an uninformative dim scores in S (F,): R² 0, balanced accuracy 1 / classes."""
    return np.array([1 / len(np.unique(v)) if d else 0.0 for v, d in zip(values.T, discrete, strict=True)])


@dataclass(frozen=True)
class Tad:
    """Total AUROC difference over A binary attributes."""

    total: float
    captured: np.ndarray  # (A,) bool
    aurocs: np.ndarray  # (D, A) in [0.5, 1]


def aurocs(codes: np.ndarray, attributes: np.ndarray) -> np.ndarray:
    """Area under the ROC curve (D, A) of each dim as detector of each 0/1 attribute, with the better sign."""
    from scipy.stats import rankdata

    positive = attributes.sum(0)
    ranks = rankdata(codes, axis=0).T @ attributes  # (D, A) sum of the ranks of the positives
    area = (ranks - positive * (positive + 1) / 2) / (positive * (len(codes) - positive))
    return np.maximum(area, 1 - area)


def tad_eligible(attributes: np.ndarray) -> np.ndarray:
    """(A,) bool: attributes of whose entropy no other one explains more than 20 %."""
    shared = mutual_information(attributes, attributes)
    own = shared.diagonal().copy()
    np.fill_diagonal(shared, 0.0)
    return shared.max(0) <= SHARED * own


def tad(codes: np.ndarray, attributes: np.ndarray) -> Tad:
    """Yeats et al. 2022 (NashAE): the sum of AUROC gaps, best minus second best dim, over the captured attributes.

    Captured: best AUROC >= 0.75, and `tad_eligible`.
    """
    _check_varying(attributes)
    attributes = attributes.astype(np.int64)
    areas = aurocs(codes, attributes)
    captured = tad_eligible(attributes) & (areas.max(0) >= CAPTURED)
    return Tad(float(top_two_gap(areas, 0.5)[captured].sum()), captured, areas)


def concentration(importance: np.ndarray) -> np.ndarray:
    """1 - entropy of each row of (..., B), in units of log B, each scaled to sum 1; 0 for an empty row."""
    columns = importance.shape[-1]
    if columns == 1:
        return np.ones(importance.shape[:-1])  # a single column has nothing to be spread over
    total = importance.sum(-1, keepdims=True)
    shares = np.divide(importance, total, out=np.full(importance.shape, 1 / columns), where=total > 0)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.maximum(1 + (shares * logs).sum(-1) / np.log(columns), 0.0)


def dci_disentanglement(importance: np.ndarray) -> float:
    """D of Eastwood & Williams 2018 from R (D, F): does a dim serve one factor? Dims weighted by importance."""
    weights = importance.sum(1)
    return float(weights @ concentration(importance) / weights.sum()) if weights.any() else 0.0


def dci_completeness(importance: np.ndarray) -> float:
    """C of Eastwood & Williams 2018 from R (D, F): does one dim alone serve a factor? Mean over the factors."""
    return float(concentration(importance.T).mean())


def dci_importance(
    codes: np.ndarray, values: np.ndarray, discrete: np.ndarray, train: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """R (D, F) and informativeness (F,): forests fitted on the rows `train` (N,) bool, measured on the other rows.

    R holds the forest's importances: mean decrease of impurity, each factor sums to 1. Informativeness, 1 - error,
    is the accuracy of a discrete factor, R² of a continuous one.
    """
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
    from sklearn.preprocessing import StandardScaler

    _check_varying(values)
    scale = StandardScaler().fit_transform  # trees treat a range below 1e-7 as constant, whatever the unit
    codes, values = scale(codes).astype(np.float32), np.where(discrete, values, scale(values))

    def fit(factor: int) -> tuple[np.ndarray, float]:
        kind = ExtraTreesClassifier if discrete[factor] else ExtraTreesRegressor
        state = stream_seed(seed, "dci-forest", factor) % 2**32
        forest = kind(TREES, max_depth=DEPTH, min_samples_leaf=LEAF, max_features=None, random_state=state)
        forest.fit(codes[train], values[train, factor])
        return forest.feature_importances_, forest.score(codes[~train], values[~train, factor])

    threads = min(os.cpu_count() or 1, values.shape[1])
    with warnings.catch_warnings(record=True), ThreadPoolExecutor(threads) as pool:
        # In each thread scikit-learn empties and refills the filters of the whole process: they would be lost.
        warnings.simplefilter("ignore")
        columns, scores = zip(*pool.map(fit, range(values.shape[1])), strict=True)
    return np.stack(columns, 1), np.array(scores)


def factor_vae(
    draw: Draw,
    factors: int,
    reference: np.ndarray,
    rng: np.random.Generator,
    *,
    batch: int = BATCH,
    votes: tuple[int, int] = (VOTES, VOTES),
) -> float:
    """Accuracy of Kim & Mnih 2018 (section 4). In a batch with one factor fixed, the dim whose variance is least
    relative to all data, `reference` (N, D), votes for that factor; a dim stands for the majority of its votes.

    Dims of negligible variance are pruned. `votes`: how many to train on, how many to test.
    """
    variances = reference.var(0, ddof=1)
    active = (variances > TINY * variances.max()) & (np.ptp(reference, axis=0) > 0)
    if not active.any():
        raise InputError("all dims of the code are constant; the FactorVAE score needs one that varies")

    def count(number: int) -> np.ndarray:  # (D, F) votes
        table = np.zeros((int(active.sum()), factors), np.int64)
        for factor in rng.integers(factors, size=number):
            spread = draw(int(factor), batch, rng)[:, active].var(0, ddof=1) / variances[active]
            table[spread.argmin(), factor] += 1
        return table

    classifier = count(votes[0]).argmax(1)
    test = count(votes[1])
    return float(test[np.arange(len(test)), classifier].sum() / votes[1])


def _check_varying(factors: np.ndarray) -> None:
    constant = np.flatnonzero(factors.min(0) == factors.max(0))
    if len(constant):
        raise InputError(f"factor {constant[0]} has one value in all {len(factors)} rows; leave it out")


PROTOCOL = {
    "rows": "a random sample of the rows given to fit on and to measure on, in proportion; principal components, "
    "forests and thresholds are fitted on the former, DCI informativeness and SAP measured on the latter; MIG, "
    "TAD and the FactorVAE score fit nothing and use both",
    "discretisation": f"{BINS} bins of equal width between least and largest value: each dim of the code for MIG, "
    "each continuous factor for MIG and the FactorVAE score; DCI and SAP take continuous factors as numbers",
    "dci": f"Eastwood & Williams 2018; importance: mean decrease of impurity in {TREES} extremely randomised "
    f"trees (depth <= {DEPTH}, >= {LEAF} rows per leaf, all dims tried at a split); disentanglement: dims "
    "weighted by importance; completeness: mean over factors; informativeness: mean over factors of accuracy "
    "(discrete) or R² (continuous), that is 1 - error",
    "factor_vae": f"Kim & Mnih 2018; {BATCH} rows per vote, one factor fixed to a class of at least {BATCH} rows; "
    f"{VOTES} votes to train, {VOTES} to test; dims below {TINY:g} of the largest variance pruned",
    "mig": "Chen et al. 2018; plug-in mutual information of the histograms, gap of the best two dims over the "
    "entropy of the factor, mean over factors; the bias of finite samples is not removed: see the chance value",
    "sap": "Kumar et al. 2018; squared correlation (continuous) or balanced accuracy of up to classes - 1 "
    f"thresholds among {CUTS} places (discrete); gap of the best two dims, mean over factors",
    "tad": "Yeats et al. 2022; binary factors; sum of the AUROC gaps of the best two dims over captured factors "
    f"(best AUROC >= {CAPTURED}), without those of whose entropy another explains more than {SHARED:.0%}",
    "reduction": "subsets: the first principal component of each non-empty subset; total: the principal "
    "components of all subsets ranked by variance, the largest kept, as many as factors are given or as asked for",
    "chance": "the scores with the rows of the code permuted; mean, and the 95 % range for one more permutation",
    "one_dim": "where the code has a single dim, the second best dim counts as knowing nothing",
}


@dataclass(frozen=True)
class Chance:
    """A score of codes that know nothing about their row."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class ReductionScores:
    """All scores of one reduction of the code to M dims."""

    reduced: Reduced
    scores: dict[str, float]
    maxima: dict[str, float]  # of the definition; with finite samples the gaps stay a little below
    chance: dict[str, Chance]
    factors: dict[str, dict[str, float]]  # factor → its part in the scores
    importance: np.ndarray  # (M, F) R of DCI

    def record(self) -> dict[str, Any]:
        """JSON-able."""
        scores = {
            name: {"value": value, "maximum": self.maxima[name], "chance": asdict(self.chance[name])}
            for name, value in self.scores.items()
        }
        subsets, variances = self.reduced.subsets.tolist(), self.reduced.variances.tolist()
        table = {"subsets": subsets, "variances": variances, "importance": self.importance.tolist()}
        return {"dims": len(subsets), "scores": scores, "factors": self.factors, **table}


@dataclass(frozen=True)
class DisentanglementScores:
    """The scores of both reductions, `subsets` and `total`, and how they were measured."""

    reductions: dict[str, ReductionScores]
    setup: dict[str, Any]  # rows, seed, permutations, factors
    left_out: dict[str, Any]

    def record(self) -> dict[str, Any]:
        """JSON-able."""
        reductions = {name: scores.record() for name, scores in self.reductions.items()}
        return {"reductions": reductions, "setup": self.setup, "left_out": self.left_out, "protocol": PROTOCOL}


def disentanglement(
    codes: np.ndarray,
    factors: np.ndarray,
    names: Sequence[str],
    discrete: np.ndarray,
    ends: Sequence[int] | None,
    *,
    train: np.ndarray,
    test: np.ndarray,
    seed: int,
    samples: int = 10_000,
    total: int | None = None,
    permutations: int = 5,
) -> DisentanglementScores:
    """Every score of codes (N, D) on factors (N, F), reduced to a dim per subset and to `total` dims (default F).

    `train` and `test` are row numbers; give rows that the encoder has not seen where that matters. `discrete` (F,)
    says which factors are classes. `ends` (K,) are the subsets of the code, None for a code without subsets.
    """
    if permutations < 2:
        raise InputError(f"{permutations} permutations were asked for; a range of chance needs 2 or more")
    sample = take_sample(codes, factors, names, np.asarray(discrete, bool), (train, test), samples, seed)
    left_out: dict[str, Any] = {
        "constant_factors": sample.constant,
        "constant_dims": np.flatnonzero(np.ptp(sample.codes[sample.train], axis=0) == 0).tolist(),
        "factor_vae": [sample.names[f] for f in np.flatnonzero(~drawable(sample.labels, BATCH))],
    }
    bounds = [codes.shape[1]] if ends is None else [int(end) for end in ends]
    count = factors.shape[1] if total is None else total
    reduced = {"total": reduce_total(sample.codes, bounds, count, train=sample.train)}
    if np.count_nonzero(np.diff([0, *bounds])) > 1:
        reduced["subsets"] = reduce_subsets(sample.codes, bounds, train=sample.train)
    else:
        left_out["reduction_subsets"] = "the code has no subsets: one dim would be left"
    setup = {
        "rows": {"fit": int(sample.train.sum()), "held_out": int((~sample.train).sum())},
        "seed": seed,
        "permutations": permutations,
        "factors": sample.names,
        "discrete": sample.discrete.tolist(),
    }
    scored = {name: _score(each, sample, seed, permutations) for name, each in reduced.items()}
    return DisentanglementScores(scored, setup, left_out)


def _score(reduced: Reduced, sample: Sample, seed: int, permutations: int) -> ReductionScores:
    """All scores of one reduction, and of the same codes with their rows permuted."""
    scores, parts, importance = _measure(reduced.codes, sample, seed, 0)
    permuted: list[dict[str, float]] = []
    for index in range(1, permutations + 1):
        rng = numpy_generator(seed, "disentanglement-chance", index)
        order = np.concatenate([rng.permutation(np.flatnonzero(part)) for part in (sample.train, ~sample.train)])
        permuted.append(_measure(reduced.codes[order], sample, seed, index)[0])
    chance = {name: chance_range(np.array([p[name] for p in permuted])) for name in scores}
    factors = {
        name: {key: float(values[f]) for key, values in parts.items() if np.isfinite(values[f])}
        for f, name in enumerate(sample.names)
    }
    maxima = _maxima(sample, reduced.codes.shape[1])
    return ReductionScores(reduced, scores, maxima, chance, factors, importance)


def _measure(
    codes: np.ndarray, sample: Sample, seed: int, index: int
) -> tuple[dict[str, float], dict[str, np.ndarray], np.ndarray]:
    """Scores, their parts per factor (F,), and R (M, F). Scores that no factor allows are absent."""
    importance, informativeness = dci_importance(codes, sample.values, sample.discrete, sample.train, seed)
    parts = {
        "informativeness": informativeness,
        "mig": mig(codes, sample.labels),
        "sap": sap(codes, sample.values, sample.discrete, sample.train),
    }
    scores = {
        "dci_disentanglement": dci_disentanglement(importance),
        "dci_completeness": dci_completeness(importance),
        "dci_informativeness": float(informativeness.mean()),
        "mig": float(parts["mig"].mean()),
        "sap": float(parts["sap"].mean()),
    }
    fine = drawable(sample.labels, BATCH)
    if fine.any():
        draw = draw_from_table(codes, sample.labels[:, fine])
        scores["factor_vae"] = factor_vae(draw, int(fine.sum()), codes, numpy_generator(seed, "factor-vae", index))
    if sample.binary.any():
        result = tad(codes, sample.labels[:, sample.binary])
        scores |= {"tad": result.total, "tad_captured": float(result.captured.sum())}
        parts["auroc"] = np.full(len(sample.names), np.nan)
        parts["auroc"][sample.binary] = result.aurocs.max(0)
    return scores, parts, importance


def _maxima(sample: Sample, dims: int) -> dict[str, float]:
    """The largest value each definition allows with this many dims and these factors."""
    maxima = dict.fromkeys(("dci_disentanglement", "dci_completeness", "dci_informativeness", "mig"), 1.0)
    maxima["sap"] = float((1 - no_knowledge(sample.values, sample.discrete)).mean())
    maxima["factor_vae"] = min(1.0, dims / max(int(drawable(sample.labels, BATCH).sum()), 1))
    eligible = float(tad_eligible(sample.labels[:, sample.binary]).sum()) if sample.binary.any() else 0.0
    return maxima | {"tad": 0.5 * eligible, "tad_captured": eligible}


def chance_range(values: np.ndarray) -> Chance:
    """Mean, and the 95 % range for one more value of the same kind: mean ± t s sqrt(1 + 1/n)."""
    from scipy.special import stdtrit

    half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) * np.sqrt(1 + 1 / len(values))
    return Chance(float(values.mean()), float(values.mean() - half), float(values.mean() + half))
