"""Tables from runs: numbers against oracles, who is bold, and the files."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from made_runs import PDAE, USUAL, column, counterfactual_record, make_group, make_run, probe_record
from scipy import stats

from diti.config import SolutionConfig
from diti.pages.blocks import Cell, Table
from diti.reporting.runs import Group
from diti.reporting.scores import PROBED, Score, apart, best_of, over_runs, seed_interval
from diti.reporting.tables import (
    attribute_table,
    cost_table,
    counterfactual_table,
    disentanglement_table,
    provenance_table,
    table1,
    table2,
    table_record,
    write_csv,
)
from diti.reporting.verdicts import verdicts
from diti.representation.settings import resolve

# ---- Intervals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.61, 0.63, 0.60], list(np.random.default_rng(0).normal(size=9))])
def test_the_interval_over_seeds_is_students(values):
    found = seed_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(values), low, high), rel=1e-12)


def test_one_seed_has_no_interval_over_seeds():
    assert seed_interval([0.5]) == Score(0.5)


def test_one_run_shows_the_interval_of_its_probe(good):
    own = good.runs[0].probe["probe"]
    score = over_runs(good, PROBED["ap"].of)
    assert score.value == pytest.approx(100 * own["mean_ap"])
    assert (score.low, score.high) == pytest.approx([100 * end for end in own["mean_ap_interval"]])


def test_several_seeds_show_the_interval_over_them():
    group = make_group(1.0, seeds=(0, 1, 2))
    values = [run.probe["probe"]["mean_mse"] for run in group.runs]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    cell = column(table1([group]), "MSE")["DiTi"]
    assert (cell.value, cell.low, cell.high) == pytest.approx((np.mean(values), low, high))
    assert cell.text == f"{np.mean(values):.3f} [{low:.3f}, {high:.3f}]"
    assert "DiTi: 3 seeds" in table1([group]).note


def test_a_seed_that_is_not_measured_is_not_counted():
    group = make_group(1.0, seeds=(0, 1))
    group = replace(group, runs=(group.runs[0], replace(group.runs[1], probe=None)))
    assert over_runs(group, PROBED["r"].of) == over_runs(replace(group, runs=group.runs[:1]), PROBED["r"].of)
    assert "DiTi: one run of 2 runs" in table1([group]).note


def test_apart_means_that_neither_interval_holds_the_other():
    narrow, wide, far = Score(2.0, 1.9, 2.1), Score(1.5, 0.5, 2.5), Score(0.0, -0.1, 0.1)
    assert apart(narrow, far) and apart(far, narrow)
    assert not apart(narrow, wide) and not apart(wide, narrow), "the wide one holds 2.0"
    assert not apart(Score(9.0), far), "an unknown interval shows nothing"


def test_the_best_is_by_direction_and_needs_a_second():
    scores = [Score(1.0, 0.9, 1.1), None, Score(3.0, 2.9, 3.1)]
    assert (best_of(scores, 1), best_of(scores, -1), best_of(scores, 0)) == (2, 0, None)
    assert best_of(scores[:2], 1) is None
    assert best_of([*scores, Score(3.05, 2.9, 3.2)], 1) is None


# ---- Table 1 and 2 ------------------------------------------------------------------------------------------


def test_table1_has_methods_baselines_and_chance(good, bad):
    baselines = [{"name": "PCA of pixels, 6 dims", "probe": probe_record(1.0)["probe"]}]
    table = table1([good, bad], baselines)
    assert list(table.columns) == ["method", "mean AP %", "Pearson r", "MSE", "minutes"]
    assert column(table, "minutes")["DiTi"].value == pytest.approx(good.runs[0].seconds / 60)
    assert [row[0].text for row in table.rows] == ["DiTi", "PDAE", "PCA of pixels, 6 dims", "chance"]
    assert [{cell.tone for cell in row} for row in table.rows[2:]] == [{"baseline"}] * 2
    assert [cell.tone for cell in table.rows[0]] == ["", "best", "best", "best", ""]
    assert {cell.tone for cell in table.rows[1]} == {""}
    rows = good.runs[0].probe["probe"]["rows"]
    assert table.rows[3][1].value == pytest.approx(50 * (rows[0]["chance"] + rows[1]["chance"]))
    assert "Nothing is bold" not in table.note


def test_nobody_is_bold_where_the_intervals_do_not_tell(good):
    twin = make_group(0.3, config=PDAE)
    table = table1([good, twin])
    assert {cell.tone for row in table.rows[:2] for cell in row} == {""}
    assert "Nothing is bold in mean AP %, Pearson r, MSE" in table.note


def test_a_single_method_is_neither_bold_nor_undecided(good):
    table = table1([good])
    assert {cell.tone for cell in table.rows[0]} == {""} and "Nobody" not in table.note


def test_a_method_is_never_bold_for_beating_a_floor(bad):
    table = table1([bad], [{"name": "baseline", "probe": probe_record(0.3)["probe"]}])
    assert "best" not in {cell.tone for row in table.rows for cell in row}


def test_scores_that_the_data_do_not_allow_are_left_out(good):
    record = json.loads(json.dumps(good.runs[0].probe))
    for name in ("r", "mse"):
        record["probe"] |= {f"mean_{name}": None, f"mean_{name}_interval": None}
    binary_only = Group("DiTi", (replace(good.runs[0], probe=record),))
    assert list(table1([binary_only]).columns) == ["method", "mean AP %", "minutes"]


def test_unequal_conditions_are_noted(good, bad):
    longer = replace(bad, runs=(replace(bad.runs[0], images=99),))
    record = json.loads(json.dumps(bad.runs[0].probe))
    record["probe"] |= {"protocol": "paper: other", "rows": record["probe"]["rows"][:1]}
    unlike = replace(bad, runs=(replace(bad.runs[0], probe=record),))
    assert "the same number of images" not in table1([good, bad]).note
    assert "the same number of images" in table1([good, longer]).note
    assert "Not probed alike: converged" in table1([good, unlike]).note
    assert "not over the same attributes" in table1([good, unlike]).note


def on_celeba(group, trained_on="celeba"):
    facts = group.runs[0].facts | {"data_name": trained_on}
    return replace(group, runs=tuple(replace(run, measured_on="celeba46k", facts=facts) for run in group.runs))


def test_the_papers_numbers_stand_beside_the_same_data_only(good, bad):
    table = table1([on_celeba(good), on_celeba(bad, "ffhq128")])
    assert list(table.columns)[-1] == "paper: mean AP %" and len(table.columns) == 6
    cells = column(table, "paper: mean AP %")
    assert cells["DiTi"] == Cell("62.3", pytest.approx(62.3), tone="paper")
    assert cells["PDAE"].text == "59.7", "trained on FFHQ"
    assert "another data set" not in table.note
    assert not any("paper" in heading for heading in table1([good, bad]).columns)


def moved_to(group, noise, name="lfw3k"):
    """The group with a probe on other images, where codes hold the attributes under so much noise."""
    run = replace(group.runs[0], transferred=probe_record(noise, 1), transferred_to=name)
    return replace(group, runs=(run,))


def test_table1_reads_the_same_codes_on_other_images(good, bad):
    groups = [moved_to(on_celeba(good), 0.5), moved_to(on_celeba(bad), 0.6)]
    pca = {"name": "PCA", "probe": probe_record(1.0)["probe"], "transferred": probe_record(2.0)["probe"]}
    table = table1(groups, [pca])
    here, there = column(table, "Pearson r"), column(table, "Pearson r, lfw3k")
    assert there["DiTi"].value == pytest.approx(groups[0].runs[0].transferred["probe"]["mean_r"])
    assert here["DiTi"].value == pytest.approx(good.runs[0].probe["probe"]["mean_r"])
    assert there["PCA"].value == pytest.approx(pca["transferred"]["mean_r"])
    assert "On lfw3k the same codes are read" in table.note


def test_the_papers_numbers_and_later_ones_stand_beside_the_transfer(good):
    table = table1([moved_to(on_celeba(good), 0.5)])
    assert list(table.columns)[-3:] == ["paper: mean AP %", "paper: Pearson r", "paper: MSE"]
    grey = [cell.text for cell in table.rows[-1]]
    assert grey[0] == "DBAE (Kim et al. 2025)" and grey[-3:] == ["65.5", "0.643", "0.369"]
    assert {cell.tone for cell in table.rows[-1]} == {"paper"}
    assert "DBAE" not in "".join(row[0].text for row in table1([moved_to(good, 0.5, "faces")]).rows)


def test_the_papers_numbers_on_other_data_when_asked(good, bad):
    table = table1([good, bad], paper=True)
    assert [column(table, f"paper: {name}")["PDAE"].text for name in ("mean AP %", "Pearson r", "MSE")] == [
        "60.2", "0.596", "0.410",
    ]  # fmt: skip
    assert "another data set" in table.note
    odd = make_group(1.0, config=replace(USUAL, subsets=8))
    assert column(table1([odd], paper=True), "paper: MSE")["DiTi, k = 8"] == Cell("–", tone="paper")


def test_table2_lists_variants_of_diti(bad):
    balanced = replace(USUAL, partition="balanced", detach=True, subsets=64)
    staged = replace(USUAL, partition="staged-even")
    variants = [make_group(0.3, config=staged), make_group(0.5, config=balanced), bad]
    table = table2(variants, paper=True)
    assert list(table.columns)[:7] == ["method", "partition", "detach", "k", "d", "τ", "mean AP %"]
    assert [[cell.text for cell in row[:6]] for row in table.rows] == [
        ["DiTi, staged-even", "staged-even", "no", "16", "128", "–"],
        ["DiTi-Detach, k = 64, balanced", "balanced", "yes", "64", "128", "–"],
    ]
    assert [cell.text for cell in column(table, "paper: mean AP %").values()] == ["62.1", "62.5"]


def test_table2_says_what_a_mask_costs(good):
    """A mask changes no probe: what it takes is the loss removed, what it gives are cleaner edits."""
    solved = [resolve(replace(USUAL, solution=SolutionConfig(tau=tau))) for tau in (0.02, 0.1)]
    groups = [make_group(0.3, config=config) for config in solved]
    runs = [replace(g.runs[0], checks={"loss_removed": v}) for g, v in zip(groups, (0.5, 0.4), strict=True)]
    table = table2([Group(run.label, (run,)) for run in runs])
    assert [cell.text for cell in column(table, "loss removed %").values()] == ["50.0", "40.0"]
    assert [cell.text for cell in column(table, "τ").values()] == ["0.02", "0.1"]
    assert "loss removed %" not in table2(groups).columns


# ---- The other tables ---------------------------------------------------------------------------------------


def test_disentanglement_stands_beside_chance(measured):
    table = disentanglement_table(measured)
    assert list(table.columns) == ["method", "DCI D", "DCI C", "DCI I", "FactorVAE", "MIG", "SAP", "TAD"]
    reductions = measured[0].runs[0].probe["disentanglement"]["reductions"]
    cells = column(table, "MIG")
    assert list(cells) == [
        "DiTi, 3 dims of all z", "DiTi, 3 dims of all z: chance", "PDAE",
        "DiTi, one dim per subset, 3", "DiTi, one dim per subset, 3: chance",
    ]  # fmt: skip
    for name, row in (("total", "3 dims of all z"), ("subsets", "one dim per subset, 3")):
        score = reductions[name]["scores"]["mig"]
        own, chance = cells[f"DiTi, {row}"], cells[f"DiTi, {row}: chance"]
        assert (own.value, own.low) == (score["value"], None)
        assert (chance.value, chance.low, chance.high) == tuple(score["chance"].values())
        assert chance.tone == "baseline"
    assert cells["PDAE"].text == "–"
    assert "DiTi: one run; PDAE: not measured" in table.note


def test_counterfactuals(measured):
    table = counterfactual_table(measured)
    mean = measured[0].runs[0].counterfactuals["manipulation"]["mean"]
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["flips %"].value == pytest.approx(100 * mean["flips"]["value"])
    assert row["leakage"].low == mean["leakage"]["low"] and row["leakage"].high == mean["leakage"]["high"]
    assert row["leakage per change"].value == pytest.approx(mean["leakage"]["value"] / mean["change"]["value"])
    assert row["distance"].value == pytest.approx(1.1, abs=0.05)
    assert row["distance, no edit"].value == pytest.approx(1.0, abs=0.05)
    swaps = measured[0].runs[0].counterfactuals["interpolation"]["x_t"]["keep"]["mean_above_random"]
    assert row["concentration (x_T kept)"].value == swaps["value"] > 0
    assert {cell.text for cell in table.rows[1][1:]} == {"–"}


def test_leakage_per_change_needs_a_change():
    group = make_group(counterfactuals=counterfactual_record(-0.5, 0.1))
    assert column(counterfactual_table([group]), "leakage per change")["DiTi"].text == "–"


def test_costs():
    runs = [make_run(seed=seed, images_per_s=speed) for seed, speed in ((0, 100.0), (1, 300.0), (2, 160.0))]
    table = cost_table([Group("DiTi", tuple(runs)), make_group(config=PDAE, images_per_s=None, weights={})])
    assert list(table.columns)[-2:] == ["weights of encoder", "weights of decoder"]
    first = [cell.value for cell in table.rows[0][1:]]
    assert first == [3, 25_600, 160.0, pytest.approx(25_600 / 160 / 60), 1_200, 3_400]
    assert table.rows[0][2].text == "25,600" and table.rows[1][3].text == "–" and table.rows[1][5].text == "–"
    with_memory = cost_table([make_group(peak_memory_mb=512.0)])
    assert with_memory.columns[-1] == "peak memory, MB" and with_memory.rows[0][-1].value == 512.0


def test_provenance(good):
    row = dict(zip((table := provenance_table([*good.runs, make_run()])).columns, table.rows[0], strict=True))
    assert row["command"].text == "diti train --seed 0" and row["versions"].text == "torch 2.13"
    assert row["data"].text == "toyfaces abababab" and row["backbone"].text.endswith("cdcdcdcd")
    assert row["encoder"].text == "0" * 8 and table.rows[1][6].text == "–"


def test_every_attribute_with_the_difference(good, bad):
    table = attribute_table([good, bad])
    assert list(table.columns) == ["attribute", "score", "DiTi", "PDAE", "DiTi − PDAE"]
    rows = [{row["name"]: row for row in group.runs[0].probe["probe"]["rows"]} for group in (good, bad)]
    hat, light = table.rows[0], table.rows[2]
    assert (hat[1].text, light[1].text) == ("AP, %", "r")
    assert hat[2].value == pytest.approx(100 * rows[0]["hat"]["ap"])
    assert (light[3].low, light[3].high) == pytest.approx(rows[1]["light"]["r_interval"])
    assert hat[4].value == pytest.approx(100 * (rows[0]["hat"]["ap"] - rows[1]["hat"]["ap"]))
    assert light[4].text == f"{rows[0]['light']['r'] - rows[1]['light']['r']:+.3f}"
    assert list(attribute_table([good]).columns) == ["attribute", "score", "DiTi"]


def test_nothing_measured_is_dashes_not_a_crash():
    groups = [make_group(), make_group(seeds=(0, 1), config=PDAE)]
    for table in (table1(groups, paper=True), table2(groups), cost_table(groups)):
        assert table.rows, table.key
    assert {cell.text for cell in table1(groups).rows[1][1:-1]} == {"–"}
    for make in (disentanglement_table, counterfactual_table, attribute_table):
        assert not make(groups).rows, "a table without a number is left out"
    assert verdicts(groups) == [] and not table1([]).rows


# ---- Files --------------------------------------------------------------------------------------------------


def read(path):
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def test_numbers_survive_the_csv_file(tmp_path, good, bad):
    table = table1([good, bad], paper=True)
    write_csv(table, tmp_path / "t" / "table1.csv")
    lines = read(tmp_path / "t" / "table1.csv")
    assert [line["method"] for line in lines] == [row[0].text for row in table.rows]
    for place, heading in list(enumerate(table.columns))[1:]:
        for line, row in zip(lines, table.rows, strict=True):
            for key, value in ((heading, row[place].value), (f"{heading} low", row[place].low)):
                assert line.get(key, "") == ("" if value is None else repr(value)), (heading, key)
    assert float(lines[0]["mean AP % high"]) == table.rows[0][1].high
    assert "paper: MSE low" not in lines[0], "no column for intervals that nothing has"


def test_texts_survive_the_csv_file(tmp_path):
    rows = [[Cell('a, "b"\nc'), Cell("β – 1")], [Cell(""), Cell("2")]]
    write_csv(Table("k", "t", ["name, first", "é"], rows), tmp_path / "k.csv")
    assert [list(line.values()) for line in read(tmp_path / "k.csv")] == [[c.text for c in row] for row in rows]


def test_the_record_holds_the_whole_table(good):
    table = table1([good])
    record = json.loads(json.dumps(table_record(table)))
    again = [[Cell(**cell) for cell in row] for row in record["rows"]]
    assert Table(record["key"], record["title"], record["columns"], again, record["note"]) == replace(
        table, rows=[list(row) for row in table.rows]
    )
