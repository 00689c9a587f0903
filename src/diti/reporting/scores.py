"""The scores that a report compares: where each is found in a run's records, its interval, which way is better.

One run has the interval of its own record, several seeds have a t-interval over them. A method counts as ahead
only where neither interval holds the other's value.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from diti.reporting.runs import Group, Record

Records = Mapping[str, Record | None]  # checks, probe, analysis, counterfactuals of a run


@dataclass(frozen=True)
class Score:
    """A number and its 95 % interval, where one is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Measure:
    """A column of scores: where it is found, how it is written, and which direction is better."""

    heading: str
    unit: str  # as a sentence says it
    pick: Callable[[Records], Score | None]
    better: Literal[1, 0, -1] = 1  # 1: more, -1: less, 0: neither by itself
    scale: float = 1.0
    digits: int = 3

    def of(self, records: Records) -> Score | None:
        found = self.pick(records)
        return None if found is None else scaled(found, self.scale)

    def text(self, value: float) -> str:
        return f"{value:.{self.digits}f}"


# ---- Numbers -----------------------------------------------------------------------------------------------


def seed_interval(values: Sequence[float]) -> Score:
    """Mean over seeds with its 95 % t-interval: mean ± t(n-1) s / √n. One value has no interval."""
    from scipy.special import stdtrit

    mean = statistics.fmean(values)
    if len(values) < 2:
        return Score(mean)
    half = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / len(values) ** 0.5
    return Score(mean, mean - half, mean + half)


def over_runs(group: Group, pick: Callable[[Records], Score | None]) -> Score | None:
    """The score of a group: that of its only measured run, or the mean over seeds."""
    found = [score for run in group.runs if (score := pick(run.records)) is not None]
    if len(found) < 2:
        return found[0] if found else None
    return seed_interval([score.value for score in found])


def scaled(score: Score, factor: float) -> Score:
    ends = [None if end is None else end * factor for end in (score.low, score.high)]
    return Score(score.value * factor, *ends)


def holds(score: Score, value: float) -> bool:
    """Whether the interval holds a value; an unknown interval may hold any."""
    return score.low is None or score.high is None or score.low <= value <= score.high


def apart(first: Score, second: Score) -> bool:
    """Whether neither interval holds the other's value."""
    return not holds(first, second.value) and not holds(second, first.value)


def best_of(scores: Sequence[Score | None], better: int) -> int | None:
    """Place of the best of two or more, if it is apart from the second."""
    known = [(place, score) for place, score in enumerate(scores) if score is not None]
    ranked = sorted(known, key=lambda item: -better * item[1].value)
    if better == 0 or len(ranked) < 2 or not apart(ranked[0][1], ranked[1][1]):
        return None
    return ranked[0][0]


def at(record: Any, *keys: str) -> Any:
    """What lies under the keys; None where one is missing."""
    for key in keys:
        record = record.get(key) if isinstance(record, Mapping) else None
    return record


# ---- What is measured --------------------------------------------------------------------------------------


def _probed(name: str, record: str = "probe") -> Callable[[Records], Score | None]:
    return lambda records: score_in_row(at(records, record, "probe"), f"mean_{name}")


def score_in_row(row: Any, name: str) -> Score | None:
    """NAME with NAME_interval of a probe's record."""
    value, ends = at(row, name), at(row, f"{name}_interval")
    return None if value is None else Score(value, *(ends or ()))


def _number(*keys: str) -> Callable[[Records], Score | None]:
    """A number of the records that has no interval."""

    def pick(records: Records) -> Score | None:
        value = at(records, *keys)
        return None if value is None else Score(value)

    return pick


def _edited(*keys: str) -> Callable[[Records], Score | None]:
    """A {value, low, high} of the counterfactuals; an interval that is open at one end counts as none."""

    def pick(records: Records) -> Score | None:
        found = at(records, "counterfactuals", *keys)
        if not found:
            return None
        ends = (found.get("low"), found.get("high"))
        return Score(found["value"]) if None in ends else Score(found["value"], *ends)

    return pick


def _swapped(x_t: str) -> Callable[[Records], Score | None]:
    return _edited("interpolation", "x_t", x_t, "mean_above_random")


REMOVED = Measure(
    "loss removed %", "% of the frozen model's loss removed", _number("checks", "loss_removed"), 1, 100, 1
)
PROBED = {
    "ap": Measure("mean AP %", "% AP", _probed("ap"), scale=100, digits=1),
    "r": Measure("Pearson r", "r", _probed("r")),
    "mse": Measure("MSE", "MSE", _probed("mse"), better=-1),
}


def transferred_key(key: str) -> str:
    """Of a score of PROBED on other images."""
    return f"{key}, transferred"


def transferred(data: str) -> dict[str, Measure]:
    """The scores of PROBED of the same codes on other images, of that name."""
    return {
        transferred_key(key): replace(m, heading=f"{m.heading}, {data}", pick=_probed(key, "transferred"))
        for key, m in PROBED.items()
    }


def baseline_records(baselines: Sequence[Record]) -> list[tuple[str, Records]]:
    """Name and records of what was probed without a trained encoder."""
    parts = ("probe", "transferred")
    return [
        (baseline["name"], {part: {"probe": baseline[part]} for part in parts if part in baseline})
        for baseline in baselines
    ]


DISENTANGLED = {
    "dci_disentanglement": "DCI D",
    "dci_completeness": "DCI C",
    "dci_informativeness": "DCI I",
    "factor_vae": "FactorVAE",
    "mig": "MIG",
    "sap": "SAP",
    "tad": "TAD",
}
REDUCTIONS = {"total": "{} dims of all z", "subsets": "one dim per subset, {}"}
# Leakage and pixels alone are not better when small: an edit that does nothing would win.
CHANGE = Measure("change", "change", _edited("manipulation", "mean", "change"))
CLEAN = Measure(
    "leakage per change", "leakage per change", _edited("manipulation", "mean", "leak_per_change"), better=-1
)
EDITED = (
    Measure("flips %", "% flips", _edited("manipulation", "mean", "flips"), scale=100, digits=1),
    CHANGE,
    Measure("leakage", "leakage", _edited("manipulation", "mean", "leakage"), better=0),
    CLEAN,
    Measure("pixels", "pixels", _edited("manipulation", "mean", "pixels"), better=0),
    Measure("distance", "distance to the data", _edited("manipulation", "mean", "distance"), better=-1),
    Measure("distance, no edit", "", _edited("manipulation", "reconstruction", "distance"), better=0),
    Measure("concentration (x_T kept)", "concentration above random (x_T kept)", _swapped("keep")),
    Measure("concentration (x_T swapped)", "concentration above random (x_T swapped)", _swapped("slerp")),
)


SUMMARISED = (PROBED["ap"], PROBED["r"], CHANGE, CLEAN)
VARIED = PROBED | {"removed": REMOVED, "change": CHANGE, "clean": CLEAN}  # what variants of DiTi may differ in


def disentangled_measures(reduction: str) -> list[Measure]:
    keys = ("probe", "disentanglement", "reductions", reduction, "scores")
    return [Measure(name, name, _number(*keys, key, "value")) for key, name in DISENTANGLED.items()]
