"""The paper's tables as data, against its source, and where they may stand beside a measurement."""

import pytest

from diti.reporting.paper_numbers import (
    TABLE_1,
    TABLE_2,
    ablation_label,
    ablation_scores,
    comparable,
    paper_scores,
    training_set,
)


def test_both_tables_of_the_paper_agree_on_its_own_choice():
    assert TABLE_2[True, False, 64] == TABLE_1["DiTi", "CelebA"] == paper_scores("DiTi", "CelebA")
    assert len({ablation_label(*key) for key in TABLE_2}) == len(TABLE_2) == 7
    assert paper_scores("DiTi, k = 16", "CelebA")["r"] == 0.619 and paper_scores("DiTi, k = 16", "FFHQ") is None
    assert paper_scores("DiTi-Detach, balanced", "CelebA")["mse"] == 0.422
    assert ablation_scores("staged", True, 64) == paper_scores("DiTi-Detach", "CelebA")
    assert ablation_scores("adaptive", False, 64) is None and ablation_scores("balanced", False, 16) is None


@pytest.fixture
def paper(shared):
    """The lines of the paper's source."""
    source = shared / "paper" / "diti.tex"
    return [line.strip() for line in source.read_text(encoding="utf-8").splitlines()]


def printed(scores):
    return [round(100 * scores["ap"], 1), scores["r"], scores["mse"]]


def test_table_1_is_that_of_the_source(paper):
    names = {"β-TCVAE": r"$\beta$-TCVAE", "DiTi": r"\textbf{DiTi (Ours)}"}
    for method in {method for method, _ in TABLE_1 if "," not in method}:
        line = next(line for line in paper if line.startswith(names.get(method, f"{method}~")))
        numbers = [float(word) for word in line.replace("{", " ").replace("}", " ").split() if _is_number(word)]
        assert numbers == printed(TABLE_1[method, "CelebA"]) + printed(TABLE_1[method, "FFHQ"]), method


def test_table_2_is_that_of_the_source(paper):
    rows = [[field.strip() for field in line.removesuffix("\\\\").split("&")] for line in paper]
    rows = [row for row in rows if len(row) == 6 and row[2].isdigit()]
    found = {(bool(a), bool(b), int(k)): [float(n) for n in numbers] for a, b, k, *numbers in rows}
    assert found == {key: printed(scores) for key, scores in TABLE_2.items()}


def _is_number(word):
    return word.count(".") == 1 and word.replace(".", "").isdigit()


@pytest.mark.parametrize(
    ("name", "scores", "trained_on"),
    [
        ("celeba", ("ap",), "CelebA"),
        ("celeba46k-64px", ("ap",), "CelebA"),
        ("lfw", ("r", "mse"), None),
        ("FFHQ", (), "FFHQ"),
        ("toyfaces", (), None),
    ],
)
def test_which_data_the_paper_uses(name, scores, trained_on):
    assert comparable(name) == scores and training_set(name) == trained_on
