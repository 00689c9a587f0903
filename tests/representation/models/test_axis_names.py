import json

import pytest

from diti.core.errors import InputError
from diti.representation.models.axis_names import (
    AxisName,
    find_axis,
    read_names,
    with_name,
    with_names,
    write_names,
)

NAMES = {3: AxisName("beard", "clean-shaven"), 5: AxisName("Open mouth")}


def test_names_are_read_back(tmp_path):
    assert read_names(tmp_path, 8) == {}
    write_names(tmp_path, NAMES)
    assert read_names(tmp_path, 8) == NAMES


def test_an_axis_is_found_by_number_and_by_either_end():
    assert find_axis(NAMES, 8, "7") == (7, 1.0)
    assert find_axis(NAMES, 8, "BEARD") == (3, 1.0)
    assert find_axis(NAMES, 8, "clean-shaven") == (3, -1.0)
    assert find_axis(NAMES, 8, "open mouth") == (5, 1.0)
    assert find_axis(NAMES, 8, "z007") == find_axis(NAMES, 8, "z7") == (7, 1.0)


@pytest.mark.parametrize(
    "word, complaint",
    [("8", "axis 8 does not exist; z of this model has the axes 0 to 7"), ("-1", "axis -1 does not"),
     ("bear", "in use: beard, clean-shaven, Open mouth.* Did you mean 'beard'"), ("", "no axis is called ''")],
)  # fmt: skip
def test_unknown_axes_are_told(word, complaint):
    with pytest.raises(InputError, match=complaint):
        find_axis(NAMES, 8, word)
    with pytest.raises(InputError, match="none has a name yet"):
        find_axis({}, 8, "beard")


def test_a_name_replaces_that_of_its_axis_alone():
    assert with_name(NAMES, 8, 3, "moustache") == {5: AxisName("Open mouth"), 3: AxisName("moustache")}


@pytest.mark.parametrize(
    "axis, name, negative, complaint",
    [(9, "x", "", "axis 9 does not exist"), (1, "", "", "name '' cannot"), (1, "a/b", "", "cannot be used"),
     (1, "12", "", "not a number"), (1, "x" * 41, "", "up to 40"), (1, "Beard", "", "axis 3 is already called"),
     (1, "x", "open mouth", "axis 5 is already called"), (1, "x", "a\nb", "cannot be used")],
)  # fmt: skip
def test_names_that_cannot_be(axis, name, negative, complaint):
    with pytest.raises(InputError, match=complaint):
        with_name(NAMES, 8, axis, name, negative)


@pytest.mark.parametrize(
    "word", ["all", "Coarse", "fine", "early", "middle", "LATE", "z012", "Z3", "z012_t0300", "a07"]
)
def test_words_that_mean_something_else_are_no_names(word, tmp_path):
    for ends in ((word, ""), ("beak", word)):
        with pytest.raises(InputError, match=f"the name '{word}' cannot be used: commands take it for a part"):
            with_name(NAMES, 8, 1, *ends)
    write_names(tmp_path, old := {1: AxisName(word)})  # as earlier versions could
    assert read_names(tmp_path, 8) == old and find_axis(old, 8, word) == (1, 1.0)
    assert with_name(old, 8, 2, "zebra") == {**old, 2: AxisName("zebra")}


@pytest.mark.parametrize("content", ["[]", '{"9": {"name": "x"}}', '{"1": "x"}', '{"1": {"name": "a/b"}}', "{"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "names.json").write_text(content)
    with pytest.raises(InputError, match=r"names\.json"):
        read_names(tmp_path, 8)


def test_features_carry_the_name():
    assert with_names(["z0", "z1"], {1: AxisName("beard")}) == ["z0", "z1_beard"]
    assert json.dumps(NAMES[3].negative) == '"clean-shaven"'
