"""A report in words: who is ahead, and who is not said to be."""

import re
from dataclasses import replace

from made_runs import PDAE, USUAL, column, counterfactual_record, make_group, make_run, probe_record

from diti.reporting.runs import Group
from diti.reporting.tables import (
    attribute_table,
    summary_table,
    table1,
)
from diti.reporting.verdicts import headline, verdicts


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
        assert "not exceeded by PDAE (" in sentence and "DiTi" not in sentence
    assert verdicts([good], baselines) == []


def test_the_headline_has_three_sentences_and_no_verdict_over_unequal_budgets(good, bad):
    baselines = [{"name": "PCA", "probe": probe_record(1.0)["probe"]}]
    edited = [replace(group.runs[0], counterfactuals=counterfactual_record(0.5, 0.1)) for group in (good, bad)]
    groups = [Group("DiTi", (edited[0],)), Group("PDAE", (edited[1],))]
    reads, edits, without = headline(groups, baselines)
    assert "AP: DiTi is ahead" in reads and "leakage per change: within the interval" in edits
    assert without.startswith("PCA, which needs no method, reaches") and without.endswith(") read more.")
    assert "DiTi (" in without and "PDAE" not in without
    assert headline(groups[1:], baselines)[-1].endswith("none reads clearly more.")
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
