"""A judge from elsewhere: a function or a program in the place of the trained classifier."""

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_model

from diti.core.errors import InputError
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.measure.counterfactuals import (
    CounterfactualOptions,
    counterfactuals,
    measure_counterfactuals,
    result_lines,
)
from diti.measure.judge import ask_program, judged_by, recognised_by

PROGRAM = textwrap.dedent(
    """
    import csv, sys
    import numpy as np
    from PIL import Image
    writer = csv.writer(sys.stdout)
    writer.writerow(["file", "brightness", "other"])
    for file in sys.argv[1:]:
        level = np.asarray(Image.open(file)).mean() / 255
        writer.writerow([file, "" if level < DARK else level, 1 - level])
    """
)


@pytest.fixture(scope="module")
def faces(tmp_path_factory):
    return prepare(find_source("toyfaces:200", ReadOptions(size=16)), tmp_path_factory.mktemp("faces"), 16)


def program(folder: Path, text: str = PROGRAM, dark: float = 0.0) -> str:
    """The command of a program that reads brightness, and finds nothing in pictures darker than `dark`."""
    (folder / "judge.py").write_text(text.replace("DARK", str(dark)))
    return f"{sys.executable} {folder / 'judge.py'}"


def test_a_program_reads_what_a_function_reads(faces, tmp_path):
    pictures = faces.pixels(np.arange(5))
    read = ask_program(program(tmp_path), pictures)
    assert list(read) == ["brightness", "other"]
    np.testing.assert_allclose(read["brightness"], pictures.mean((1, 2, 3)) / 255, rtol=1e-12)


def test_where_nothing_is_found_is_no_number(faces, tmp_path):
    pictures = faces.pixels(np.arange(40))
    levels = pictures.mean((1, 2, 3)) / 255
    dark = float(np.median(levels))
    read = ask_program(program(tmp_path, dark=dark), pictures)
    np.testing.assert_array_equal(np.isnan(read["brightness"]), levels < dark)


def test_the_judge_knows_what_the_data_name_too(faces):
    judge = judged_by(lambda x: {"brightness": x.mean((1, 2, 3)), "strange": np.zeros(len(x))}, faces)
    (trait,) = judge.traits
    rows = faces.rows("test")
    assert trait.name == "brightness" and not trait.binary
    levels = faces.pixels(rows).mean((1, 2, 3))
    truth = faces.labels(["brightness"])[rows, 0]
    assert trait.quality["r"] == pytest.approx(np.corrcoef(levels, truth)[0, 1])
    assert (trait.centre, trait.spread) == pytest.approx((levels.mean(), levels.std()))
    np.testing.assert_allclose(judge(faces.pixels(rows[:3]))[:, 0], levels[:3])


def test_edits_are_measured_by_it(faces, tmp_path):
    """The moves are those of a slow loop over the judge's own readings; dark pictures count as not found."""
    tiny_model(subsets=6).save(tmp_path / "model")
    asked: list[np.ndarray] = []

    def judge(pictures: np.ndarray) -> dict[str, np.ndarray]:
        asked.append(pictures)
        level = pictures.mean((1, 2, 3)) / 255
        return {"brightness": np.where(level < 0.3, np.nan, level)}

    options = CounterfactualOptions(
        images=6, pairs=2, scale=6.0, random_groupings=1, sampling_steps=2, compare_selections=False
    )
    record = measure_counterfactuals(tmp_path / "model", faces, tmp_path / "out", options, judge)
    moves = record["manipulation"]["moves"]
    seen, before, after = (batch.mean((1, 2, 3)) / 255 for batch in asked[1:4])  # after the test of the judge
    trait = judged_by(judge, faces).traits[0]
    moved = [
        (1 if seen[i] <= trait.centre else -1) * (after[i] - before[i]) / trait.spread
        for i in range(6)
        if min(after[i], before[i]) >= 0.3
    ]
    assert moves["edited"] == moves["read"] == ["brightness"]
    assert moves["mean"][0][0] == pytest.approx(np.mean(moved))
    assert moves["found"] == pytest.approx(len(moved) / 6)
    told = any("found something to read" in line for line in result_lines(record))
    assert told == (len(moved) < 6)
    assert moves["asked"] == [6.0] and moves["got"] == [moves["mean"][0][0]] and moves["fixed"] is None
    assert (tmp_path / "out" / "moves.csv").read_text().splitlines()[1].startswith("brightness,brightness,")
    assert "pixels" in record["manipulation"]["distance_is"]


def test_who_it_is_and_what_should_stay_are_measured_too(faces, tmp_path):
    """A program says who a face is, of the two readings one is edited, and the other should stay."""
    tiny_model(subsets=6).save(tmp_path / "model")

    def judge(pictures: np.ndarray) -> dict[str, np.ndarray]:
        return {"brightness": pictures.mean((1, 2, 3)), "background": pictures[:, 0, 0] @ [-1.0, 0.0, 1.0]}

    text = PROGRAM.replace('"other"]', '"x"]')
    few = CounterfactualOptions(
        images=4, pairs=2, scale=4.0, random_groupings=1, sampling_steps=2, compare_selections=False,
        edits=("brightness",), fixed=("background",),
    )  # fmt: skip
    who = program(tmp_path, text)
    record = measure_counterfactuals(tmp_path / "model", faces, tmp_path / "out", few, judge, identity=who)
    moves, same = record["manipulation"]["moves"], record["manipulation"]["mean"]["identity"]
    assert moves["edited"] == ["brightness"] and moves["read"] == ["background", "brightness"]
    fixed = moves["fixed"]
    assert fixed["readings"] == ["background"] and fixed["by"] == "brightness"
    assert fixed["absolute"] == fixed["most"] == moves["absolute"][0][0] >= fixed["mean"] > 0
    assert same["low"] <= same["value"] <= same["high"] <= 1 and record["manipulation"]["strangers"] < 1
    said = "\n".join(result_lines(record))
    assert "should stay: moved by" in said and "the same face: cosine" in said and "asked and got" in said
    with pytest.raises(InputError, match=r"--fixed names 'wall'; what can be read here is background, brightness"):
        counterfactuals(tmp_path / "model", faces, tmp_path / "out", judge=judge, fixed=["wall"])
    with pytest.raises(InputError, match="gave no numbers"):
        recognised_by(lambda pictures: {})(torch.zeros(1, 3, 4, 4))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("raise SystemExit('no mesh')", "exit code 1: no mesh"),
        ("print('file,brightness')", "no row for 4 of 4 pictures"),
        ("import sys; print('file,b'); [print(f'{f},much') for f in sys.argv[1:]]", "not a number"),
    ],
)
def test_a_program_that_does_not_answer_is_told(faces, tmp_path, text, complaint):
    with pytest.raises(InputError, match=complaint):
        ask_program(program(tmp_path, text), faces.pixels(np.arange(4)))


def test_what_cannot_judge_is_refused(faces, tmp_path):
    with pytest.raises(InputError, match="cannot be started"):
        ask_program("no-such-judge", faces.pixels(np.arange(1)))
    with pytest.raises(InputError, match=r"the judge reads mood, but .* has .*brightness"):
        judged_by(lambda x: {"mood": np.zeros(len(x))}, faces)
    with pytest.raises(InputError, match="finds something in 0 of"):
        judged_by(lambda x: {"brightness": np.full(len(x), np.nan)}, faces)
    with pytest.raises(InputError, match=r"did not give .* numbers for 'brightness'"):
        judged_by(lambda x: {"brightness": [1.0]}, faces)
    tiny_model(subsets=6).save(tmp_path / "model")
    options = CounterfactualOptions(classifier_images=100)
    with pytest.raises(InputError, match="--classifier-images"):
        measure_counterfactuals(tmp_path / "model", faces, tmp_path / "out", options, lambda x: {})
