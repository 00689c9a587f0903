"""Which edit moves which reading: on arrays worked out by hand."""

import csv

import numpy as np
import pytest

from diti.core.errors import InputError
from diti.measure.attribute_classifier import AttributeClassifier, Trait, measure_traits, usual_spreads
from diti.measure.moves import Moves, check_named, likeness, moves_lines, save_moves_table, strangers

NAN = np.nan


@pytest.fixture
def moves():
    """Three readings, of which one cannot be read; edits of the first two, two images each."""
    facts = (("smile", True, 1.5), ("wall", False, 1.0), ("odd", False, 1.0))
    traits = tuple(Trait(name, binary, 0.0, 1.0, name != "odd", usual) for name, binary, usual in facts)
    found = Moves(AttributeClassifier(lambda x: x, 16, traits), fixed=("wall",))
    found.add("smile", 2.0, np.array([[2.0, 0.5, 9.0], [1.0, -0.1, NAN]]))
    found.add("wall", 2.0, np.array([[0.2, 1.5, 9.0], [NAN, 2.5, 9.0]]))
    return found


def test_the_table_by_hand(moves):
    record = moves.record()
    assert (record["edited"], record["read"]) == (["smile", "wall"], ["smile", "wall"])
    np.testing.assert_allclose(record["mean"], [[1.5, 0.2], [0.2, 2.0]])
    np.testing.assert_allclose(record["absolute"], [[1.5, 0.3], [0.2, 2.0]])
    assert record["asked"] == [3.0, 2.0] and record["got"] == pytest.approx([1.5, 2.0])
    assert record["found"] == 3 / 4, "in one of four pictures a readable reading was not found"
    fixed = record["fixed"]
    assert fixed["readings"] == ["wall"] and fixed["by"] == "smile", "edits of the wall itself do not count"
    assert (fixed["absolute"], fixed["mean"], fixed["most"]) == pytest.approx((0.3, 0.2, 0.3))


def test_it_is_told_and_written(moves, tmp_path):
    record = moves.record()
    lines = "\n".join(moves_lines(record))
    assert "75.0%" in lines and "75% of what was asked on average; no reading got less than half" in lines
    assert "wall should stay: moved by 0.300 sd" in lines
    record["got"][0] = 1.2
    assert "less than half: smile 40%" in "\n".join(moves_lines(record))
    with save_moves_table(record, tmp_path / "moves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["edit"] + "/" + row["reading"] for row in rows][:2] == ["smile/smile", "smile/wall"]
    assert [float(row["asked_sd"]) for row in rows] == [3.0, 0, 0, 2.0]
    assert float(rows[1]["absolute_sd"]) == pytest.approx(0.3)


def test_nothing_edited_is_no_table(moves):
    assert Moves(moves.classifier).record() is None


def test_what_a_strength_of_one_asks_for():
    reads, truth = (
        np.array([[1.0, 5.0], [2.0, 7.0], [5.0, 1.0], [9.0, 3.0]]),
        np.array([[0, 0.0], [0, 1], [1, 2], [1, 3]]),
    )
    binary, continuous = measure_traits(("a", "b"), (True, False), reads, truth)
    assert binary.usual == pytest.approx((7 - 1.5) / reads[:, 0].std()) and continuous.usual == 1
    assert usual_spreads(reads[:, 0], np.zeros(4)) is None


def test_the_same_face_and_strangers():
    before = np.array([[1.0, 0], [0, 2], [NAN, NAN]])
    np.testing.assert_allclose(likeness(before, np.array([[3.0, 0], [1, 1], [1, 1]])), [1, 0.5**0.5, NAN])
    assert strangers(before) == pytest.approx(0) and np.isnan(strangers(before[1:]))


def test_a_misspelt_reading_is_told():
    with pytest.raises(InputError, match=r"--fixed names 'wal'; .* wall.* Did you mean 'wall'"):
        check_named("--fixed", ["wal"], ["smile", "wall"])
