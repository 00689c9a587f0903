"""Tables from runs: numbers against oracles, who is bold, what is said in words, and the files."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from diti.config import train_preset
from diti.measure.counterfactual_scores import resamples, rows_and_mean, summary, transfer_record
from diti.probe.disentangle import disentanglement
from diti.probe.linear import Splits, probe
from diti.report.blocks import Cell, Table
from diti.report.runs import Group, Run, label_of
from diti.report.scores import PROBED, Score, apart, best_of, over_runs, seed_interval
from diti.report.tables import (
    attribute_table,
    cost_table,
    counterfactual_table,
    disentanglement_table,
    provenance_table,
    summary_table,
    table1,
    table2,
    table_record,
    write_csv,
)
from diti.report.verdicts import headline, verdicts

USUAL = train_preset("toyfaces32")
NAMES = ["hat", "beard", "light"]  # two binary attributes and a continuous one
BINARY = np.array([True, True, False])
SPLITS = Splits(np.arange(300), np.arange(300, 400), np.arange(400, 600))


# ---- Records made by the code that makes them in a report ---------------------------------------------------


def probe_record(noise, seed=0, with_disentanglement=False):
    """A probe of 6 random dims, of which three hold the attributes under so much noise."""
    rng = np.random.default_rng(5)
    labels = np.stack([*(rng.random((2, 600)) < 0.4), rng.normal(size=600)], axis=1).astype(np.float64)
    codes = np.random.default_rng(seed).normal(size=(600, 6))
    codes[:, :3] = labels + noise * codes[:, :3]
    result = probe(codes, labels, NAMES, BINARY, SPLITS, seed=seed, resamples=100)
    record = {"encoder": f"{seed:064x}", "probe": json.loads(json.dumps(result.record()))}
    if with_disentanglement:
        found = disentanglement(
            codes, labels, NAMES, BINARY, [2, 4, 6], train=SPLITS.train, test=SPLITS.test, seed=0, permutations=2
        )
        record["disentanglement"] = json.loads(json.dumps(found.record()))
    return record


def counterfactual_record(change, leakage, seed=0):
    """Scores of 40 edits of two attributes and of 40 swaps between three groups, summed up as when measured."""
    rng, counts = np.random.default_rng(seed), resamples(40, 0)

    def around(mean):
        return mean + 0.05 * rng.normal(size=40)

    found = [
        {
            "upward": rng.random(40) < 0.5,
            "flips": (rng.random(40) < 0.7).astype(np.float64),
            "change": around(change),
            "leakage": around(leakage),
            "pixels": around(0.2),
            "distance": around(1.1),
        }
        for _ in range(2)
    ]
    shares = np.abs(rng.normal(0.2, 0.1, (1 + 3 + 3, 40, 2)))
    shares[0], shares[1] = 0, shares[1] + 0.5  # no swap moves nothing; the first group carries both attributes
    return {
        "manipulation": {
            "reconstruction": {"distance": rows_and_mean(around(1.0)[None], counts)[1]},
            **summary(["hat", "light"], found, counts),
        },
        "interpolation": {"x_t": {kind: transfer_record(shares, 3, counts) for kind in ("keep", "slerp")}},
    }


def make_run(config=USUAL, seed=0, **changes):
    facts = {"command": "diti train --seed 0", "versions": {"torch": "2.13"}, "data_name": "toyfaces"}
    run = Run(
        path=Path(f"{config.method}-{seed}"), label=label_of(config), checks={}, images=25_600, images_per_s=160.0,
        config=replace(config, training=replace(config.training, seed=seed)),
        facts=facts | {"data_hash": "ab" * 32}, peak_memory_mb=None, weights={"encoder": 1_200, "decoder": 3_400},
        backbone_hash="cd" * 32, measured_on="toyfaces", measured=Path("measured"),
    )  # fmt: skip
    return replace(run, **changes)


def make_group(noise=None, seeds=(0,), config=USUAL, **changes):
    """A group whose probes read codes of that noise; without noise nothing is measured."""
    records = [{} if noise is None else {"probe": probe_record(noise, seed)} for seed in seeds]
    runs = [make_run(config, seed, **(record | changes)) for seed, record in zip(seeds, records, strict=True)]
    return Group(runs[0].label, tuple(runs))


PDAE = replace(USUAL, method="pdae")


@pytest.fixture(scope="module")
def good():
    return make_group(0.3)


@pytest.fixture(scope="module")
def bad():
    return make_group(3.0, config=PDAE)


def column(table, heading):
    """The cells of a column by the name of their row."""
    place = list(table.columns).index(heading)
    return {row[0].text: row[place] for row in table.rows}


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
    assert list(table.columns) == ["method", "mean AP %", "Pearson r", "MSE"]
    assert [row[0].text for row in table.rows] == ["DiTi", "PDAE", "PCA of pixels, 6 dims", "chance"]
    assert [{cell.tone for cell in row} for row in table.rows[2:]] == [{"baseline"}] * 2
    assert [cell.tone for cell in table.rows[0]] == ["", "best", "best", "best"]
    assert {cell.tone for cell in table.rows[1]} == {""}
    rows = good.runs[0].probe["probe"]["rows"]
    assert table.rows[3][1].value == pytest.approx(50 * (rows[0]["chance"] + rows[1]["chance"]))
    assert "Nobody is bold" not in table.note


def test_nobody_is_bold_where_the_intervals_do_not_tell(good):
    twin = make_group(0.3, config=PDAE)
    table = table1([good, twin])
    assert {cell.tone for row in table.rows[:2] for cell in row} == {""}
    assert "Nobody is bold in mean AP %, Pearson r, MSE" in table.note


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
    assert list(table1([binary_only]).columns) == ["method", "mean AP %"]


def test_unequal_conditions_are_noted(good, bad):
    longer = replace(bad, runs=(replace(bad.runs[0], images=99),))
    record = json.loads(json.dumps(bad.runs[0].probe))
    record["probe"] |= {"protocol": "paper: other", "rows": record["probe"]["rows"][:1]}
    unlike = replace(bad, runs=(replace(bad.runs[0], probe=record),))
    assert "equally many images" not in table1([good, bad]).note
    assert "equally many images" in table1([good, longer]).note
    assert "Not probed alike: converged" in table1([good, unlike]).note
    assert "not over the same attributes" in table1([good, unlike]).note


def on_celeba(group, trained_on="celeba"):
    facts = group.runs[0].facts | {"data_name": trained_on}
    return replace(group, runs=tuple(replace(run, measured_on="celeba46k", facts=facts) for run in group.runs))


def test_the_papers_numbers_stand_beside_the_same_data_only(good, bad):
    table = table1([on_celeba(good), on_celeba(bad, "ffhq128")])
    assert list(table.columns)[-1] == "paper: mean AP %" and len(table.columns) == 5
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
    assert list(table.columns)[:5] == ["method", "partition", "detach", "k", "mean AP %"]
    assert [[cell.text for cell in row[:4]] for row in table.rows] == [
        ["DiTi, staged-even", "staged-even", "no", "16"],
        ["DiTi-Detach, k = 64, balanced", "balanced", "yes", "64"],
    ]
    assert [cell.text for cell in column(table, "paper: mean AP %").values()] == ["62.1", "62.5"]


# ---- The other tables ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    """DiTi with everything measured, PDAE with a probe alone."""
    full = make_group()
    record, edits = probe_record(0.3, with_disentanglement=True), counterfactual_record(2.0, 0.5)
    full = replace(full, runs=(replace(full.runs[0], probe=record, counterfactuals=edits),))
    return [full, make_group(1.0, config=PDAE)]


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
    assert {cell.text for cell in table1(groups).rows[1][1:]} == {"–"}
    for make in (disentanglement_table, counterfactual_table, attribute_table):
        assert not make(groups).rows, "a table without a number is left out"
    assert verdicts(groups) == [] and not table1([]).rows


# ---- In words -----------------------------------------------------------------------------------------------


def test_verdicts_are_honest_in_both_directions(good, bad):
    for first, second in ((good, bad), (bad, good)):
        ap, r, mse = verdicts([first, second])
        assert "DiTi is ahead by" in ap and "DiTi is ahead by" in r and "DiTi is ahead by" in mse
        assert "PDAE is ahead" not in ap + r + mse
        assert ap.startswith(first.label) and mse.endswith("; less is better.")
    renamed = replace(bad, label="DiTi"), replace(good, label="PDAE")
    assert all("PDAE is ahead" in sentence for sentence in verdicts(renamed))


def test_a_difference_within_the_interval_is_none(good):
    twin = make_group(0.3, config=PDAE)
    value = f"{100 * good.runs[0].probe['probe']['mean_ap']:.1f}"
    expected = f"DiTi {value} against PDAE {value} % AP: within the interval, no difference shown."
    assert verdicts([good, twin])[0] == expected


def test_verdicts_leave_out_what_has_no_interval_or_no_record(measured):
    other = make_group(config=PDAE, probe=measured[0].runs[0].probe)
    sentences = verdicts([measured[0], other])
    assert len(sentences) == 3, "AP, r, MSE"
    assert not any("MIG" in sentence or "flips" in sentence for sentence in sentences)


def test_edits_are_compared():
    groups = [make_group(counterfactuals=counterfactual_record(change, 0.5, 1), config=c)
              for change, c in ((2.0, USUAL), (1.0, PDAE))]  # fmt: skip
    sentences = verdicts(groups)
    assert any(" change: DiTi is ahead by 1.000." in s for s in sentences)
    assert not any(" leakage: " in s for s in sentences), "an edit that does nothing leaks nothing"


def test_of_several_methods_the_best_two_are_compared():
    configs = (USUAL, PDAE, replace(USUAL, method="tcvae"))
    groups = [make_group(counterfactuals=counterfactual_record(change, 0.5, 1), config=c)
              for change, c in zip((1.0, 2.0, 4.0), configs, strict=True)]  # fmt: skip
    told = next(s for s in verdicts(groups) if " change: " in s)
    assert re.fullmatch(r"β-TCVAE [\d.]+ against PDAE [\d.]+ change: β-TCVAE is ahead by 2\.000\.", told)


def with_budget(group, label, images=25_600, **run):
    return replace(group, label=label, runs=tuple(replace(r, images=images, **run) for r in group.runs))


SOLVED = {"facts": {"verb": "solve"}}


def test_a_budget_is_images_or_a_solution():
    assert make_run(replace(USUAL, start="copy")).budget == "25,600 images"
    assert make_run(replace(USUAL, start="solved")).budget == "25,600 images after the closed form"
    assert make_run(**SOLVED).budget == make_run(images=7, **SOLVED).budget == "solved in closed form"


def test_verdicts_compare_equal_budgets_only(good, bad):
    """The best of all was trained ten times longer, as the model in the package that a demo shows."""
    longer = with_budget(good, "shipped", 400_000)
    groups = [with_budget(bad, "DiTi", 40_000), with_budget(bad, "PDAE", 40_000), longer]
    told = verdicts(groups)
    assert len(told) == 3 and not any("shipped" in sentence for sentence in told)
    assert all(s.startswith("DiTi ") and "(both: 40,000 images): within the interval" in s for s in told)


def test_each_budget_has_its_own_verdict(good, bad):
    groups = [
        with_budget(good, "solved DiTi", 9, **SOLVED), with_budget(bad, "DiTi", 40), with_budget(good, "PDAE", 40),
        with_budget(bad, "solved PDAE", 8, **SOLVED),
    ]  # fmt: skip
    first, second, *_ = verdicts(groups)
    assert "(both: solved in closed form): solved DiTi is ahead" in first and "against solved PDAE" in first
    assert first.startswith("solved DiTi") and second.startswith("DiTi")
    assert "(both: 40 images): PDAE is ahead" in second


def test_unequal_budgets_are_named_and_nobody_is_ahead(good, bad):
    trained = {"config": replace(USUAL, start="solved")}
    groups = [with_budget(good, "DiTi", 400_000, **trained), with_budget(bad, "DiTi, solved", **SOLVED)]
    ap, r, mse = verdicts(groups)
    for sentence in (ap, r, mse):
        assert sentence.startswith("DiTi (400,000 images after the closed form) ")
        assert " against DiTi, solved (solved in closed form) " in sentence
        assert sentence.endswith("the budgets differ, so this is no verdict.") and "ahead" not in sentence
    assert "Budgets differ: DiTi 400,000 images" in attribute_table(groups).note
    assert "Budgets differ" not in attribute_table([good, bad]).note


def test_bold_is_the_best_of_an_equal_budget(good, bad):
    middle = make_group(1.0)
    groups = [with_budget(bad, "a", 40), with_budget(middle, "b", 40), with_budget(good, "longer", 400)]
    table = table1(groups)
    assert {name: cell.tone for name, cell in column(table, "mean AP %").items()} == {
        "a": "", "b": "best", "longer": "", "chance": "baseline",
    }  # fmt: skip
    assert "Bold compares equal budgets only." in table.note
    assert "equal budgets" not in table1([good, bad]).note


def test_methods_that_do_not_pass_the_best_baseline_are_named(good, bad):
    baselines = [
        {"name": name, "probe": probe_record(noise)["probe"]} for name, noise in (("PCA", 1.0), ("random", 3.0))
    ]
    ap, r, mse = verdicts([good, bad], baselines)[3:]
    for sentence in (ap, r, mse):
        assert sentence.startswith("PCA, which needs no training, reaches")
        assert "not passed by PDAE (" in sentence and "DiTi" not in sentence
    assert verdicts([good], baselines) == []


def test_the_headline_has_three_sentences_and_no_verdict_over_unequal_budgets(good, bad):
    baselines = [{"name": "PCA", "probe": probe_record(1.0)["probe"]}]
    edited = [replace(group.runs[0], counterfactuals=counterfactual_record(0.5, 0.1)) for group in (good, bad)]
    groups = [Group("DiTi", (edited[0],)), Group("PDAE", (edited[1],))]
    reads, edits, without = headline(groups, baselines)
    assert "AP: DiTi is ahead" in reads and "leakage per change: within the interval" in edits
    assert without.startswith("PCA, which needs no method, reaches") and without.endswith(") read more.")
    assert "DiTi (" in without and "PDAE" not in without
    assert headline(groups[1:], baselines)[-1].endswith("nobody reads clearly more.")
    unequal = [groups[0], with_budget(groups[1], "PDAE", 400_000)]
    assert all("no verdict" in sentence for sentence in headline(unequal)[:2])


def test_the_summary_reads_edits_and_times(good, bad):
    solved = replace(
        good.runs[0], counterfactuals=counterfactual_record(0.5, 0.1), images_per_s=None, solved_in=150.0
    )
    table = summary_table([Group("DiTi", (solved,)), bad], [{"name": "PCA", "probe": probe_record(1.0)["probe"]}])
    assert list(table.columns) == ["", "mean AP %", "Pearson r", "change", "leakage per change", "minutes"]
    assert column(table, "minutes")["DiTi"].text == "2.5" and column(table, "mean AP %")["DiTi"].tone == "best"
    assert column(table, "change")["PCA"].text == "–"
    assert not summary_table([make_group()]).rows, "nothing is measured"


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
