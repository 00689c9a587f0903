"""A report in words: who is ahead where the intervals show it, and what needs no method at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from diti.reporting.runs import Group, Record
from diti.reporting.scores import CLEAN, EDITED, PROBED, Measure, Score, apart, baseline_records, over_runs

Scored = tuple[Group, Score]


def headline(groups: Sequence[Group], baselines: Sequence[Record] = ()) -> list[str]:
    """Three sentences at most: who reads better, who edits more cleanly, and what needs no method at all."""
    found = []
    for measure in (PROBED["ap"], CLEAN):
        found += verdicts_by(_with_interval(groups, measure), measure)[:1]
    return [*found, *filter(None, [best_baseline(PROBED["ap"], groups, baselines)])]


def best_baseline(measure: Measure, groups: Sequence[Group], baselines: Sequence[Record]) -> str:
    """What is known without a trained encoder, and who is ahead of it beyond the intervals."""
    name, best = _highest(measure, baselines)
    if best is None:
        return ""
    ahead = _labels_where(measure, groups, lambda own: gain(measure, own, best) > 0 and apart(own, best))
    words = f"{name}, which needs no method, reaches {measure.text(best.value)} {measure.unit}"
    return f"{words}: {' and '.join(ahead)} read more." if ahead else f"{words}: none reads clearly more."


def verdicts(groups: Sequence[Group], baselines: Sequence[Record] = ()) -> list[str]:
    """By each score with intervals two groups of one budget, the best two of several; then the best baseline."""
    found = []
    for measure in [*PROBED.values(), *(m for m in EDITED if m.better)]:
        found += verdicts_by(_with_interval(groups, measure), measure)
    return found + [sentence for m in PROBED.values() if (sentence := baseline_verdict(m, groups, baselines))]


def _with_interval(groups: Sequence[Group], measure: Measure) -> list[Scored]:
    scores = [(group, score) for group in groups if (score := over_runs(group, measure.of))]
    return [(group, score) for group, score in scores if score.low is not None]


def verdicts_by(scores: Sequence[Scored], measure: Measure) -> list[str]:
    """By one score: a verdict for each budget that several have; where none has, two are named with their own."""
    budgets = list(dict.fromkeys(group.budget for group, _ in scores))
    equals = [[item for item in scores if item[0].budget == budget] for budget in budgets]
    shared = [two_of(members, measure) for members in equals if len(members) > 1]
    if not shared and len(scores) > 1:
        return [no_verdict(*two_of(scores, measure), measure)]
    return [verdict(*pair, measure, named=len(budgets) > 1) for pair in shared]


def two_of(scores: Sequence[Scored], measure: Measure) -> tuple[Scored, Scored]:
    """Two as they stand, or the best two of several."""
    ranked = sorted(scores, key=lambda item: -measure.better * item[1].value)
    first, second = (ranked if len(scores) > 2 else scores)[:2]
    return first, second


def verdict(first: Scored, second: Scored, measure: Measure, named: bool = False) -> str:
    """Who is ahead by one score, if the intervals show it. named: with the budget that both have."""
    (one, a), (other, b) = first, second
    numbers = f"{one.label} {measure.text(a.value)} against {other.label} {measure.text(b.value)} {measure.unit}"
    numbers += f" (both: {one.budget})" if named else ""
    if not apart(a, b):
        return f"{numbers}: within the interval, no difference shown."
    ahead = one if gain(measure, a, b) > 0 else other
    less = "; less is better" if measure.better < 0 else ""
    return f"{numbers}: {ahead.label} is ahead by {measure.text(abs(a.value - b.value))}{less}."


def no_verdict(first: Scored, second: Scored, measure: Measure) -> str:
    """Both scores with what was spent on each."""
    sides = [f"{group.label} ({group.budget}) {measure.text(score.value)}" for group, score in (first, second)]
    return f"{' against '.join(sides)} {measure.unit}: the budgets differ, so this is no verdict."


def baseline_verdict(measure: Measure, groups: Sequence[Group], baselines: Sequence[Record]) -> str:
    """Which methods do not exceed what is known without a trained encoder; empty if all of them do."""
    name, baseline = _highest(measure, baselines)
    if baseline is None:
        return ""
    below = _labels_where(measure, groups, lambda own: gain(measure, own, baseline) <= 0)
    best = f"{name}, which needs no training, reaches {measure.text(baseline.value)} {measure.unit}"
    return f"{best}: not exceeded by {', '.join(below)}." if below else ""


def gain(measure: Measure, own: Score, other: Score) -> float:
    """By how much the first is better."""
    return measure.better * (own.value - other.value)


def _labels_where(measure: Measure, groups: Sequence[Group], chosen: Callable[[Score], bool]) -> list[str]:
    """The groups whose score is `chosen`, with it."""
    scores = [(group.label, score) for group in groups if (score := over_runs(group, measure.of))]
    return [f"{label} ({measure.text(own.value)})" for label, own in scores if chosen(own)]


def _highest(measure: Measure, baselines: Sequence[Record]) -> tuple[str, Score | None]:
    """The best baseline by a score, if there is any."""
    reached = [(name, score) for name, records in baseline_records(baselines) if (score := measure.of(records))]
    return max(reached, key=lambda item: measure.better * item[1].value, default=("", None))
