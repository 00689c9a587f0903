"""The tables of a report, from groups of runs: scores with intervals, beside baselines and the paper's numbers.

Pure functions of what was read; what was not measured is a dash. A cell is bold only where `scores.apart` says so.
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diti.config import TrainConfig
from diti.core.runs import atomic_path
from diti.pages.blocks import Cell, Table, Tone
from diti.reporting.paper_numbers import ablation_scores, comparable, later_scores, paper_scores, training_set
from diti.reporting.runs import Group, Record, Run, label_of, unequal_budgets
from diti.reporting.scores import (
    DISENTANGLED,
    EDITED,
    PROBED,
    REDUCTIONS,
    SUMMARISED,
    VARIED,
    Measure,
    Records,
    Score,
    at,
    baseline_records,
    best_of,
    disentangled_measures,
    over_runs,
    scaled,
    score_in_row,
    transferred,
    transferred_key,
)

KEYS = ("summary", "table1", "counterfactuals", "disentanglement", "attributes", "cost", "provenance", "table2")
MISSING = Cell("–")
OF_IMAGES = "bootstrap over the test images, which does not show what another seed would give"
PAPER_SETTINGS = (
    "the paper's numbers are for CelebA at 64 px or FFHQ at 128 px with d = 512 and, unless said, k = 64"
)


# ---- Parts of tables ---------------------------------------------------------------------------------------


def score_cell(score: Score | None, measure: Measure, tone: Tone = "") -> Cell:
    """`62.3 [61.8, 62.9]`, or a dash."""
    if score is None:
        return dataclasses.replace(MISSING, tone=tone)
    text = measure.text(score.value)
    if score.low is not None and score.high is not None:
        text += f" [{measure.text(score.low)}, {measure.text(score.high)}]"
    return Cell(text, score.value, score.low, score.high, tone)


def score_columns(groups: Sequence[Group], measures: Sequence[Measure]) -> tuple[list[list[Cell]], list[str]]:
    """A row of cells per group, the best of each budget in bold; and notes on what is bold."""
    columns, undecided = [], []
    budgets = {group.budget for group in groups}
    for measure in measures:
        scores = [over_runs(group, measure.of) for group in groups]
        equals = [_of_budget(groups, scores, budget) for budget in budgets]
        best = {best_of(members, measure.better) for members in equals} - {None}
        contested = any(sum(score is not None for score in members) > 1 for members in equals)
        if not best and measure.better and contested:
            undecided.append(measure.heading)
        tones: list[Tone] = ["best" if place in best else "" for place in range(len(scores))]
        columns.append([score_cell(score, measure, tone) for score, tone in zip(scores, tones, strict=True)])
    rows = [[column[place] for column in columns] for place in range(len(groups))]
    words = f"Nothing is bold in {', '.join(undecided)}: the intervals do not tell the best two apart."
    unequal = ["Bold compares equal budgets only."] if len(budgets) > 1 else []
    return rows, unequal + ([words] if undecided else [])


def _of_budget(groups: Sequence[Group], scores: Sequence[Score | None], budget: str) -> list[Score | None]:
    """The scores of the groups with that budget, None for the others."""
    return [score if group.budget == budget else None for group, score in zip(groups, scores, strict=True)]


def intervals_note(groups: Sequence[Group], one_run: str, *record: str) -> str:
    """Where the intervals of each group come from; `record` names what is measured, as in `at`."""
    parts = []
    for group in groups:
        count, known = len(group.runs), sum(at(run.records, *record) is not None for run in group.runs)
        source = "not measured" if known == 0 else "one run" if known == 1 else f"{known} seeds"
        parts.append(f"{group.label}: {source}" + (f" of {count} runs" if 0 < known < count else ""))
    return f"95 % intervals: of one run, {one_run}; of several seeds, a t-interval over them. {'; '.join(parts)}."


def probe_notes(groups: Sequence[Group]) -> list[str]:
    """Where the intervals come from, and what makes the comparison unfair."""
    notes = [intervals_note(groups, OF_IMAGES, "probe")]
    runs = [run for group in groups for run in group.runs]
    probes = [found for run in runs if (found := at(run.records, "probe", "probe"))]
    if len({probe["protocol"] for probe in probes}) > 1:
        notes.append("Not probed alike: " + " | ".join(sorted({probe["protocol"] for probe in probes})) + ".")
    if len({tuple(row["name"] for row in probe["rows"]) for probe in probes}) > 1:
        notes.append("The means are not over the same attributes.")
    if len({run.images for run in runs}) > 1:
        notes.append("Not trained on the same number of images: see the table of costs.")
    return notes


def _measured(groups: Sequence[Group], measures: Mapping[str, Measure]) -> dict[str, Measure]:
    """Those of the scores that the data allow."""
    return {key: m for key, m in measures.items() if any(over_runs(group, m.of) for group in groups)}


def _paper_keys(groups: Sequence[Group], measures: Mapping[str, Measure], asked: bool) -> tuple[list[str], str]:
    """The scores that get a grey column, and the note that belongs to it."""
    runs = [group.runs[0] for group in groups[:1]]
    fitting = [key for run in runs for name in (run.measured_on, run.transferred_to) for key in comparable(name)]
    keys = [key for key in measures if key in PROBED and (asked or key in fitting)]
    keys += [key for key in fitting if key not in keys and transferred_key(key) in measures]
    if not keys:
        return [], ""
    if set(keys) <= set(fitting):
        return keys, f"Grey: {PAPER_SETTINGS}; they do not hold for other sizes and lengths of training."
    return keys, f"Grey: {PAPER_SETTINGS}, and for another data set: only the order can be compared."


def _paper_cells(scores: Mapping[str, float] | None, keys: Sequence[str]) -> list[Cell]:
    found = [Score(scores[key] * PROBED[key].scale) if scores else None for key in keys]
    return [score_cell(score, PROBED[key], "paper") for key, score in zip(keys, found, strict=True)]


def _paper_of(run: Run, asked: bool) -> Mapping[str, float] | None:
    """The paper's scores of the method."""
    cuts = ("subsets",) if run.config.partition == "staged" else ("subsets", "partition")  # staged is the paper's
    return paper_scores(label_of(run.config, only=cuts), _trained_on(run, asked))


def _trained_on(run: Run, asked: bool) -> str:
    """The training set as the paper calls it; CelebA where its scores were asked for on other data."""
    return training_set(run.data_name) or ("CelebA" if asked else "")


# ---- Tables ------------------------------------------------------------------------------------------------


def summary_table(groups: Sequence[Group], baselines: Sequence[Record] = ()) -> Table:
    """What is compared first: attributes read, edits, and minutes; baselines, which cannot edit, below."""
    measures = [measure for measure in SUMMARISED if any(over_runs(group, measure.of) for group in groups)]
    cells, undecided = score_columns(groups, measures)
    rows = [[Cell(group.label), *row, _minutes(group)] for group, row in zip(groups, cells, strict=True)]
    for name, records in baseline_records(baselines):
        scores = [score_cell(measure.of(records), measure, "baseline") for measure in measures]
        rows.append([Cell(name, tone="baseline"), *scores, dataclasses.replace(MISSING, tone="baseline")])
    about = (
        "AP, r: attributes read by a linear probe. Change: how far edits go, in standard deviations of the wanted "
        "attribute; leakage: of the others. In brackets 95 % intervals."
    )
    columns = ["", *(measure.heading for measure in measures), "minutes"]
    shown = rows if measures else []
    return Table("summary", "Read and edited", columns, shown, " ".join([about, *undecided]))


def table1(groups: Sequence[Group], baselines: Sequence[Record] = (), paper: bool = False) -> Table:
    """Table 1: methods × probe scores, baselines below, the paper's numbers in grey where the data is the same.

    paper: show them on other data too, with a note.
    """
    other = groups[0].runs[0].transferred_to if groups else ""
    measures = (_measured(groups, PROBED) or PROBED) | _measured(groups, transferred(other))
    keys, paper_note = _paper_keys(groups, measures, paper)
    cells, undecided = score_columns(groups, list(measures.values()))
    rows = [
        [Cell(group.label), *row, _minutes(group), *_paper_cells(_paper_of(group.runs[0], paper), keys)]
        for group, row in zip(groups, cells, strict=True)
    ]
    below = [
        (name, [score_cell(measure.of(records), measure, "baseline") for measure in measures.values()])
        for name, records in baseline_records(baselines)
    ]
    if "ap" in measures and (chance := _chance_ap(groups)) is not None:
        knows_nothing = score_cell(Score(100 * chance), PROBED["ap"], "baseline")
        below.append(
            ("chance", [knows_nothing if key == "ap" else Cell("–", tone="baseline") for key in measures])
        )
    rows += [
        [Cell(name, tone="baseline"), *row, *(Cell("", tone="baseline") for _ in ("minutes", *keys))]
        for name, row in below
    ]
    if keys:
        rows += _later_rows(_trained_on(groups[0].runs[0], paper), len(measures) + 1, keys)
    measured, from_paper = _headings(measures, keys)
    headings = ["method", *measured, "minutes", *from_paper]
    moved = f"On {other} the same codes are read, by a k-fold." if other else ""
    notes = [*probe_notes(groups), moved, *undecided, paper_note]
    title = "Table 1: attributes read by a linear probe"
    return Table("table1", title, headings, rows, " ".join(filter(None, notes)))


def _later_rows(trained_on: str, measured: int, keys: Sequence[str]) -> list[list[Cell]]:
    """Methods of later papers, all grey: a dash for each score that is measured here."""
    dashes = [Cell("–", tone="paper")] * measured
    found = later_scores(trained_on)
    return [[Cell(name, tone="paper"), *dashes, *_paper_cells(scores, keys)] for name, scores in found.items()]


def _headings(measures: Mapping[str, Measure], keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """Of the columns of scores: those measured here, and those printed in the paper."""
    return [m.heading for m in measures.values()], [f"paper: {PROBED[key].heading}" for key in keys]


def _minutes(group: Group) -> Cell:
    """How long a run of the group took."""
    return count_cell(_middle([run.seconds and run.seconds / 60 for run in group.runs]), digits=1)


def _chance_ap(groups: Sequence[Group]) -> float | None:
    """Mean AP of a score that knows nothing, from the first probe."""
    for run in (run for group in groups for run in group.runs):
        chances = [row["chance"] for row in at(run.records, "probe", "probe", "rows") or () if row["chance"]]
        if chances:
            return statistics.fmean(chances)
    return None


def table2(groups: Sequence[Group], paper: bool = False) -> Table:
    """Table 2: what partition, detach, the lengths of code and subsets and τ do to DiTi. paper: as in `table1`."""
    variants = [group for group in groups if group.runs[0].config.method == "diti"]
    measures = _measured(variants, VARIED) or PROBED
    keys, paper_note = _paper_keys(variants, measures, paper)
    cells, undecided = score_columns(variants, list(measures.values()))
    rows = []
    for group, row in zip(variants, cells, strict=True):
        config = group.runs[0].config
        printed = ablation_scores(config.partition, config.detach, config.subsets)
        rows.append([Cell(group.label), *_variant(config), *row, *_paper_cells(printed, keys)])
    measured, from_paper = _headings(measures, keys)
    headings = ["method", "partition", "detach", "k", "d", "τ", *measured, *from_paper]
    notes = [*probe_notes(variants), *undecided, paper_note]
    return Table("table2", "Table 2: variants of DiTi", headings, rows, " ".join(filter(None, notes)))


def _variant(config: TrainConfig) -> list[Cell]:
    """Partition, detach, k, d, τ of a run; τ sets the times of subsets that are matched."""
    tau = Cell(str(config.solution.tau)) if config.partition == "matched" else MISSING
    numbers = [Cell(str(number)) for number in (config.subsets, config.code.code_dim)]
    return [Cell(config.partition), Cell("yes" if config.detach else "no"), *numbers, tau]


def disentanglement_table(groups: Sequence[Group]) -> Table:
    """DCI, FactorVAE, MIG, SAP and TAD by reduction of the code, each row with its chance below."""
    rows: list[list[Cell]] = []
    notes = [
        intervals_note(groups, "none", "probe", "disentanglement"),
        "Chance: the same code with its rows permuted, and its 95 % range.",
        "Methods are compared on the same number of dims only, those of all subsets.",
    ]
    if any(_reduced(group, "total") for group in groups):
        cells, undecided = score_columns(groups, disentangled_measures("total"))
        notes += undecided
        for group, row in zip(groups, cells, strict=True):
            rows += _with_chance(group, "total", row)
    for group in groups:
        if _reduced(group, "subsets"):
            rows += _with_chance(group, "subsets", score_columns([group], disentangled_measures("subsets"))[0][0])
    columns = ["method", *DISENTANGLED.values()]
    return Table("disentanglement", "Disentanglement", columns, rows, " ".join(notes))


def _with_chance(group: Group, reduction: str, cells: Sequence[Cell]) -> list[list[Cell]]:
    """A row of scores, and the row of chance where it is known."""
    found = _reduced(group, reduction)
    if not found:
        return [[Cell(group.label), *cells]]
    name = f"{group.label}, {REDUCTIONS[reduction].format(found[0]['dims'])}"
    measures = disentangled_measures(reduction)
    chance = [
        score_cell(_chance(found, key), m, "baseline") for key, m in zip(DISENTANGLED, measures, strict=True)
    ]
    return [[Cell(name), *cells], [Cell(f"{name}: chance", tone="baseline"), *chance]]


def _reduced(group: Group, reduction: str) -> list[Record]:
    """The records of the runs that have this reduction."""
    keys = ("probe", "disentanglement", "reductions", reduction)
    return [found for run in group.runs if (found := at(run.records, *keys))]


def _chance(reductions: Sequence[Record], name: str) -> Score | None:
    """Mean of chance over the runs, with the widest range."""
    found = [chance for record in reductions if (chance := at(record, "scores", name, "chance"))]
    if not found:
        return None
    low, high = min(c["low"] for c in found), max(c["high"] for c in found)
    return Score(statistics.fmean(c["mean"] for c in found), low, high)


def counterfactual_table(groups: Sequence[Group]) -> Table:
    """What edits of z do to images, as an attribute classifier sees it (`diti.measure.counterfactual_scores`)."""
    shown = groups if any(run.counterfactuals for group in groups for run in group.runs) else []
    cells, undecided = score_columns(shown, EDITED)
    rows = [[Cell(group.label), *row] for group, row in zip(shown, cells, strict=True)]
    one_run = "bootstrap over the edited images (none where it would be open)"
    about = (
        "Flips: edits that reach the wanted answer. Change and leakage: of the wanted attribute, and on average "
        "of the others, in standard deviations. Pixels: RMS change in [-1, 1]. Distance: to the data, 1 is usual. "
        "Concentration: whether one third of z alone carries an attribute, above what random thirds give."
    )
    notes = [about, intervals_note(groups, one_run, "counterfactuals"), *undecided]
    columns = ["method", *(measure.heading for measure in EDITED)]
    return Table("counterfactuals", "Counterfactual images, measured", columns, rows, " ".join(notes))


def cost_table(groups: Sequence[Group]) -> Table:
    """What the training took."""
    parts = list(dict.fromkeys(part for group in groups for run in group.runs for part in run.weights))
    memory = any(run.peak_memory_mb is not None for group in groups for run in group.runs)
    rows = []
    for group in groups:
        speed = _middle([run.images_per_s for run in group.runs])
        weights = [_middle([run.weights.get(part) for run in group.runs]) for part in parts]
        peak = [_middle([run.peak_memory_mb for run in group.runs])] if memory else []
        rows.append(
            [
                Cell(group.label),
                count_cell(len(group.runs)),
                count_cell(_middle([run.images for run in group.runs])),
                count_cell(speed),
                _minutes(group),
                *(count_cell(value) for value in (*weights, *peak)),
            ]
        )
    columns = ["method", "runs", "images seen", "images/s", "minutes", *(f"weights of {part}" for part in parts)]
    note = (
        "Images/s: median over the log, then over runs. Minutes: images seen / images/s, of training alone; "
        "start, validation and pauses are not in it. Other work on the machine slows a run down."
    )
    return Table("cost", "Cost of training", [*columns, *(["peak memory, MB"] if memory else [])], rows, note)


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def count_cell(value: float | None, digits: int = 0) -> Cell:
    return MISSING if value is None else Cell(f"{value:,.{digits}f}", value)


def provenance_table(runs: Sequence[Run]) -> Table:
    """What each run was made of, enough to make it again."""
    columns = ["run", "method", "seed", "command", "data", "backbone", "encoder", "versions"]
    rows = [
        [
            Cell(run.path.name),
            Cell(run.label),
            Cell(str(run.seed)),
            Cell(run.command or MISSING.text),
            Cell(f"{run.data_name} {run.data_hash[:8]}".strip() or MISSING.text),
            Cell(f"{run.config.backbone} {(run.backbone_hash or '')[:8]}".strip() or MISSING.text),
            Cell((run.encoder_hash or MISSING.text)[:8]),
            Cell(", ".join(f"{name} {version}" for name, version in run.versions.items()) or MISSING.text),
        ]
        for run in runs
    ]
    note = "Data, backbone and encoder: name and the first 8 digits of the sha256 of the contents."
    return Table("provenance", "Where the numbers come from", columns, rows, note)


def attribute_table(groups: Sequence[Group]) -> Table:
    """Every attribute: AP (binary) or r (continuous) of each method, and the first minus the second."""
    kinds = {
        row["name"]: "ap" if row["kind"] == "binary" else "r"
        for group in groups
        for run in group.runs
        for row in at(run.records, "probe", "probe", "rows") or ()
    }
    rows = []
    for name, key in kinds.items():
        scores = [over_runs(group, _attribute_score(name, key)) for group in groups]
        cells = [score_cell(score, PROBED[key]) for score in scores]
        first, second = [*scores, None, None][:2]
        gap = Score(first.value - second.value) if first and second else None
        gap_cell = MISSING if gap is None else Cell(f"{gap.value:+.{PROBED[key].digits}f}", gap.value)
        heading = {"ap": "AP, %", "r": "r"}[key]
        rows.append([Cell(name), Cell(heading), *cells, *([gap_cell] if len(groups) > 1 else [])])
    labels = [group.label for group in groups]
    columns = ["attribute", "score", *labels, *([f"{labels[0]} − {labels[1]}"] if len(groups) > 1 else [])]
    notes = [intervals_note(groups, OF_IMAGES, "probe")]
    if len(groups) > 1:
        notes += ["Differences have no interval of their own.", unequal_budgets(*groups[:2])]
    return Table("attributes", "Every attribute", columns, rows, " ".join(filter(None, notes)))


def _attribute_score(name: str, key: str) -> Callable[[Records], Score | None]:
    def pick(records: Records) -> Score | None:
        rows = at(records, "probe", "probe", "rows") or ()
        found = next((score_in_row(row, key) for row in rows if row["name"] == name), None)
        return found and scaled(found, PROBED[key].scale)

    return pick


# ---- Files -------------------------------------------------------------------------------------------------


def write_csv(table: Table, path: Path) -> None:
    """The table as CSV: numbers in full, the ends of intervals in columns of their own; texts as they are."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle)
        columns = [_csv_column(head, [row[i] for row in table.rows]) for i, head in enumerate(table.columns)]
        for line in zip(*columns, strict=True):
            writer.writerow([text for part in line for text in part])


def _csv_column(heading: str, cells: Sequence[Cell]) -> list[list[str]]:
    """Lines of a column, the heading first: texts, or value, low and high where there is a number."""

    def number(value: float | None) -> str:
        return "" if value is None else repr(value)

    if all(cell.value is None for cell in cells):
        return [[heading], *([cell.text] for cell in cells)]
    if all(cell.low is None for cell in cells):
        return [[heading], *([number(cell.value)] for cell in cells)]
    names = [heading, f"{heading} low", f"{heading} high"]
    return [names, *([number(cell.value), number(cell.low), number(cell.high)] for cell in cells)]


def table_record(table: Table) -> dict[str, Any]:
    """JSON-able: everything the table holds."""
    return dataclasses.asdict(table)
