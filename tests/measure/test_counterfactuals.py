"""`measure_counterfactuals` on a tiny model: what is written, that the numbers are the edits', and bad input."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from tiny import DIMS, tiny_model

from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.runs import sha256_folder
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source, open_data
from diti.edit.direction_files import direction_path, load_direction
from diti.edit.manipulate import manipulate
from diti.measure.attribute_classifier import AttributeClassifier, Trait, train_classifier
from diti.measure.counterfactual_scores import opposite
from diti.measure.counterfactuals import (
    CounterfactualOptions,
    EditStudy,
    groups_with_dims,
    measure_counterfactuals,
    most_different,
    print_record,
    result_lines,
    spread_over,
)
from diti.representation.features import encoder_hash
from diti.representation.partition import Partition

ATTRIBUTES = ("brightness", "freckles", "background", "blue")
SAMPLING_STEPS = 3
SCALE = 2.0  # the tiny model is not trained: it takes a strong push to move anything
FEW = CounterfactualOptions(
    images=4, pairs=3, classifier_images=1_600, scale=SCALE, random_groupings=1, sampling_steps=SAMPLING_STEPS
)
FIGURES = ["figure2a.png", "figure5.png", "figure7.png", "moves.png", "transfers.png"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a model and 300 faces; `blue` is planted to be easily read, freckles cannot be at 16 px."""
    folder = tmp_path_factory.mktemp("place")
    tiny_model(subsets=6).save(folder / "model")
    faces = prepare(find_source("toyfaces:300", ReadOptions(size=16)), folder / "faces", 16)
    blueness = faces.images[..., 2].mean((1, 2)) - faces.images[..., 0].mean((1, 2))
    table = faces.table.select(["file", "split", *ATTRIBUTES[:-1]])
    table = table.append_column("blue", pa.array((blueness > np.median(blueness)).astype(np.int8)))
    pyarrow.parquet.write_table(table, folder / "faces" / "table.parquet")
    return folder


@pytest.fixture(scope="module")
def measured(place):
    """The record of the tiny model; the classifier stays in a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(place / "cache"))
        return measure_counterfactuals(str(place / "model"), str(place / "faces"), place / "out", FEW)


@pytest.fixture
def kept_cache(place, measured, monkeypatch):
    """What `measured` left in the cache is used again."""
    monkeypatch.setenv("DITI_CACHE", str(place / "cache"))


def test_the_record_is_whole_and_on_disk(place, measured):
    assert json.loads((place / "out" / "counterfactuals.json").read_text()) == measured
    json.dumps(measured, allow_nan=False)
    data = open_data(str(place / "faces"))
    assert measured["data"] == {"name": "toyfaces", "hash": data.hash, "images": 300}
    assert measured["encoder"] == encoder_hash(tiny_model(subsets=6).encoder)
    assert measured["weights"] == {
        part: sha256_folder(place / "model" / part) for part in ("encoder", "decoder", "unet")
    }
    assert (measured["method"], measured["subsets"], measured["split"]) == ("diti", 6, "test")
    assert measured["settings"]["dims"] == DIMS // 4 and measured["settings"]["classifier_images"] == 1_600
    assert measured["command"] == "called from Python" and measured["versions"]["torch"]
    assert measured["figures"] == FIGURES and measured["left_out"] == []
    for name in FIGURES:
        with Image.open(place / "out" / name) as picture:
            picture.load()
            assert min(picture.size) > 100


def test_all_readable_attributes_are_edited(measured):
    readable, qualities = measured["classifier"]["readable"], measured["classifier"]["attributes"]
    assert tuple(qualities) == ATTRIBUTES and qualities["blue"]["accuracy"] > 0.8
    assert [name for name, quality in qualities.items() if quality["readable"]] == readable
    assert {"background", "blue"} <= set(readable) and measured["classifier"]["unreadable"] == ["freckles"]
    edits = measured["manipulation"]
    assert list(edits["attributes"]) == list(measured["directions"]) == readable and edits["images"] == 4
    assert "attribute classifier before its last layer" in edits["distance_is"]
    for score in ("change", "leakage", "pixels", "distance"):
        assert edits["mean"][score]["low"] <= edits["mean"][score]["value"] <= edits["mean"][score]["high"]
    swaps = measured["interpolation"]
    assert swaps["pairs"] == 3 and swaps["groups"] == ["early", "middle", "late"]
    assert set(swaps["x_t"]) == {"keep", "slerp"} and "mean_above_random" in swaps["x_t"]["keep"]


def test_the_scores_are_those_of_the_edited_test_images(place, measured, kept_cache):
    data, model = open_data(str(place / "faces")), tiny_model(subsets=6)
    classifier = train_classifier(data, images=1_600)
    study = EditStudy(str(place / "model"), model, data, classifier, DIMS // 4, place / "out", FEW)
    assert set(study.rows) <= set(data.rows("test")) and len(set(study.rows)) == 4
    assert not set(study.pairs[0]) & set(study.pairs[1]) and set(study.pairs[0]) <= set(data.rows("test"))
    direction = load_direction(direction_path(place / "model", "background"))
    assert len(direction.dims) == DIMS and direction.along == "conditional"
    images, column = to_float(data.pixels(study.rows)), classifier.index("background")
    upward = opposite(classifier, "background", classifier(images))
    pushed = manipulate(model, images, direction, (SCALE, -SCALE), sampling_steps=SAMPLING_STEPS)
    edited = torch.where(torch.from_numpy(upward)[:, None, None, None], *pushed.images).clamp(-1, 1)
    moved = (classifier(edited) - classifier(pushed.reconstructions.clamp(-1, 1)))[:, column] / classifier.spread[
        column
    ]
    found = measured["manipulation"]["attributes"]["background"]["change"]["value"]
    assert found == pytest.approx(np.where(upward, moved, -moved).mean(), abs=1e-4)
    assert abs(found) > 1e-3


def test_directions_are_kept_with_the_model_and_used_again(place, measured, kept_cache, tmp_path):
    paths = sorted((place / "model" / "attributes").iterdir())
    assert len(paths) == len(measured["directions"])
    before = [path.stat().st_mtime_ns for path in paths]
    options = replace(FEW, compare_selections=False)
    again = measure_counterfactuals(str(place / "model"), str(place / "faces"), tmp_path, options)
    assert [path.stat().st_mtime_ns for path in paths] == before
    assert again["manipulation"] == measured["manipulation"] and "selections" not in again
    assert again["interpolation"] == measured["interpolation"]


def test_selections_are_compared_on_binary_attributes(place, measured):
    found, data = measured["selections"], open_data(str(place / "faces"))
    assert list(found["attributes"]) == ["blue"] and found["rows"] == len(data.rows("train"))
    for scores in found["attributes"].values():
        assert set(scores) == {"l1", "probmask", "weight", "all dims"} and all(
            0 < ap <= 1 for ap in scores.values()
        )
    assert found["mean"] == pytest.approx(found["attributes"]["blue"]) and found["dims"] == DIMS // 4


# ---- Other models, with a classifier that needs no training ------------------------------------------------


def level(x: torch.Tensor) -> torch.Tensor:
    """Something that moves with the pixels, and stands for two of the attributes."""
    return torch.stack([x.mean((1, 2, 3)), torch.sigmoid(20 * (x[:, 0] - x[:, 2]).mean((1, 2)))], dim=1)


def study(place, out, partition, **changed) -> EditStudy:
    model = replace(tiny_model(), partition=partition)
    model.save(out / "model")
    traits = (Trait("brightness", False, 0.0, 0.1), Trait("blue", True, 0.5, 0.2))
    options = replace(FEW, compare_selections=False, **changed)
    data = open_data(str(place / "faces"))
    return EditStudy(str(out / "model"), model, data, AttributeClassifier(level, 16, traits), 3, out, options)


def test_a_model_of_one_subset_borrows_a_split(place, tmp_path):
    record = study(place, tmp_path, Partition.single(1000, DIMS)).measure()
    assert record["subsets"] == 1 and record["figures"] == FIGURES
    assert record["interpolation"]["partition"] == "balanced" and record["interpolation"]["group_dims"] == [
        4,
        4,
        4,
    ]
    assert "not masked" in record["interpolation"]["notes"][0]


def test_a_model_whose_dims_all_lie_in_one_third(place, tmp_path):
    partition = Partition.custom(1000, 4, DIMS, ends=[DIMS] * 4)
    record = study(place, tmp_path, partition).measure()
    assert record["figures"] == ["figure2a.png", "figure7.png", "moves.png"] and "interpolation" not in record
    assert record["left_out"] == ["interpolation: all dims of z belong to one third of the time-steps"]
    assert "left out: interpolation" in "\n".join(result_lines(record))


def test_fewer_images_than_asked_for_are_used_and_counted(place, tmp_path):
    few = study(place, tmp_path, Partition.balanced(1000, 4, DIMS), images=10_000, pairs=10_000)
    test_rows = len(few.dataset.rows("test"))
    assert len(few.rows) == test_rows and len(few.pairs[0]) == len(few.pairs[1]) == test_rows // 2


def test_another_seed_takes_other_images(place, tmp_path):
    partition = Partition.balanced(1000, 4, DIMS)
    first, second = (study(place, tmp_path / str(seed), partition, seed=seed) for seed in (0, 1))
    assert set(first.rows) != set(second.rows)


def test_a_classifier_that_reads_nothing_is_told(place, tmp_path):
    blind = study(place, tmp_path, Partition.balanced(1000, 4, DIMS))
    traits = tuple(replace(trait, readable=False) for trait in blind.classifier.traits)
    with pytest.raises(InputError, match=r"no attribute of .* can be read .* more than 1,600 images"):
        replace(blind, classifier=replace(blind.classifier, traits=traits)).measure()


def test_an_attribute_that_never_varies_is_left_out(place, tmp_path):
    one = study(place, tmp_path, Partition.balanced(1000, 4, DIMS))
    for changed, left in ((["blue"], ["brightness"]), (["blue", "brightness"], [])):
        table = one.dataset.table.drop_columns(changed)
        for name in changed:
            kind = np.int8 if name == "blue" else np.float32
            table = table.append_column(name, pa.array(np.ones(len(one.dataset), kind)))
        constant = replace(one, dataset=replace(one.dataset, table=table), left_out=[])
        if left:
            assert [d.attribute for d in constant.directions] == left
            assert constant.left_out == ["the same in all training or validation images: blue"]
        else:
            with pytest.raises(InputError, match=r"brightness, blue can be read .* none varies"):
                constant.measure()


# ---- Choices -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("items", "count", "expected"), [("abcdefghijk", 6, "acegik"), ("ab", 6, "ab"), ("abc", 1, "a"), ("", 4, "")]
)
def test_attributes_shown_are_spread_over_all(items, count, expected):
    assert "".join(spread_over(items, count)) == expected


def test_the_pair_shown_differs_in_most_labels():
    labels = np.array([[0.0, 5.0, 1.0], [0.0, 5.1, 0.0], [1.0, 9.0, 0.0], [0.0, 9.0, 0.0]])
    assert most_different(labels, np.array([0, 0, 1]), np.array([1, 2, 3])) == 1


def test_groups_are_those_that_own_dims():
    assert groups_with_dims(Partition.balanced(1000, 64, 64)) == ["early", "middle", "late"]
    assert groups_with_dims(Partition.balanced(1000, 2, 8)) == ["early", "middle"]
    assert groups_with_dims(Partition.custom(1000, 3, 8, ends=[3, 3, 8])) == ["early", "late"]


# ---- At the terminal, and bad input --------------------------------------------------------------------------


def test_what_is_printed(measured, capsys):
    print_record(measured, Path("out"))
    printed = capsys.readouterr().out
    words = ("background", "mean", "95 % from", "flips", "leakage per change", "l1 AP", "measured: freckles")
    for word in (*words, f"wrote {Path('out') / 'counterfactuals.json'}, figure2a.png, figure5.png, figure7.png"):
        assert word in printed, word
    assert f"{measured['manipulation']['mean']['pixels']['value']:.2f}" in printed


def test_lines_say_where_the_edits_changed_nothing(measured):
    edits = measured["manipulation"]
    for score, expected in (
        (None, "leakage per change: not defined, the edits changed nothing"),
        ({"value": 0.5, "low": 0.25, "high": None}, "leakage per change: 0.50 (0.25 to ∞)"),
    ):
        changed = measured | {"manipulation": edits | {"mean": edits["mean"] | {"leak_per_change": score}}}
        assert result_lines(changed)[0] == expected
    assert "predicted by a network" in "\n".join(result_lines(measured | {"predicted": ["blue"]}))


def test_files_that_cannot_be_written_are_told_first(place, tmp_path):
    """Before a classifier is trained, and whatever else is wrong."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "figure5.png").write_text("mine")
    for out, words in (
        ("file", "is a file, not a folder"),
        (".", r"figure5\.png exists, and diti did not write it"),
    ):
        with pytest.raises(InputError, match=words):
            measure_counterfactuals("nothing", "nothing", tmp_path / out, FEW)
    data = str(place / "faces")
    with pytest.raises(InputError, match="which is an input; choose a place outside"):
        measure_counterfactuals("nothing", data, place / "faces" / "edits", FEW)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": 0}, "images is 0"),
        ({"pairs": -1}, "pairs is -1"),
        ({"classifier_images": 0}, "--classifier-images is 0"),
        ({"dims": 0}, "dims is 0"),
        ({"random_groupings": 0}, "--random-groupings is 0"),
        ({"sampling_steps": 0}, "--sampling-steps is 0"),
        ({"scale": 0.0}, "scale is 0"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"selection": "l2"}, "selection is 'l2'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        CounterfactualOptions(**options)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dims": 13}, "--dims is 13; z of this model has 12"),
        ({"sampling_steps": 5_000}, "--sampling-steps is 5000"),
    ],
)
def test_what_the_model_does_not_allow_is_told_before_any_work(place, tmp_path, monkeypatch, changed, message):
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match=message):
        measure_counterfactuals(
            str(place / "model"), str(place / "faces"), tmp_path / "out", replace(FEW, **changed)
        )
    kept = {path.name for folder in tmp_path.iterdir() for path in folder.iterdir()}
    assert kept <= {"contents"}, "that the data are as they were prepared may be remembered, no more"


def test_data_without_attributes_are_refused(place, tmp_path, image_folder):
    with pytest.raises(InputError, match=r"no attributes to measure edits by; add some with diti prepare"):
        measure_counterfactuals(str(place / "model"), str(image_folder), tmp_path / "out", FEW)
