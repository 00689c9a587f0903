"""`diti label`: tiny real ONNX classifiers over real dataset folders, with known answers."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from on_disk import contents, hash_on_disk

from diti.core.errors import InputError
from diti.core.locks import locked
from diti.core.runs import sha256_file
from diti.data.predicted import UNFINISHED, activate, label_dataset, predicted_columns, resized
from diti.data.prepare import prepare
from diti.data.prepared import Dataset, open_dataset
from diti.data.source import ReadOptions
from diti.data.sources import find_source

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
COLOURS = ["red", "green", "blue"]


def save_model(path: Path, nodes: list, inputs: list, outputs: list[str]) -> Path:
    floats = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    graph = onnx.helper.make_graph(nodes, "classifier", inputs, floats)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), path)
    return path


ANY_SIZE = (None, 3, None, None)


def colour_means(path: Path, shape: tuple = ANY_SIZE, *, axes=(2, 3), kind="FLOAT", then="Identity") -> Path:
    """A model whose three outputs are the means of red, green and blue of its input, through one more operator."""
    taken = onnx.helper.make_tensor_value_info("x", getattr(onnx.TensorProto, kind), shape)
    nodes = [
        onnx.helper.make_node("Cast", ["x"], ["float"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("ReduceMean", ["float"], ["means"], axes=axes, keepdims=0),
        onnx.helper.make_node(then, ["means"], ["scores"]),
    ]
    return save_model(path, nodes, [taken], ["scores"])


@pytest.fixture
def dataset(image_folder, tmp_path) -> Dataset:
    """Twelve images of one colour each, told by their number, with a true attribute."""
    rows = [f"{'ab'[i % 2]}/{i:02d}.png,{i % 3 == 0:d}" for i in range(12)]
    (image_folder / "attributes.csv").write_text("\n".join(["file,Smiling", *rows]))
    return prepare(find_source(str(image_folder), ReadOptions()), tmp_path / "set", 16)


@pytest.fixture
def names(tmp_path) -> Path:
    path = tmp_path / "names.txt"
    path.write_text("\n".join(COLOURS) + "\n")
    return path


@pytest.fixture
def model(tmp_path) -> Path:
    return colour_means(tmp_path / "colours.onnx")


def true_colours(dataset: Dataset) -> np.ndarray:
    """(12, 3) in 0..255, from the number in each file's name."""
    numbers = [int(Path(file).stem) for file in dataset.table["file"].to_pylist()]
    return np.array([[n * 37 % 256, n * 91 % 256, n] for n in numbers], float)


def scores_of(folder: Path) -> np.ndarray:
    return open_dataset(folder).labels([f"{colour}_score" for colour in COLOURS])


MODELS = {  # any size, fixed size, fixed batch that does not divide 12, channels last, bytes
    "any": (ANY_SIZE, {}),
    "fixed-size": (("N", 3, 9, 24), {}),
    "fixed-batch": ((5, 3, 16, 16), {}),
    "channels-last": (("N", 16, 16, 3), {"axes": (1, 2)}),
    "half": (("N", 3, 16, 16), {"kind": "FLOAT16"}),
    "double": (("N", 3, 16, 16), {"kind": "DOUBLE"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_scores_and_labels_are_those_of_each_image(name, dataset, names, tmp_path):
    shape, options = MODELS[name]
    model = colour_means(tmp_path / "colours.onnx", shape, **options)
    said = label_dataset(dataset.path, model, names, threshold=0.4, batch=7, normalisation="unit")
    labelled = open_dataset(dataset.path)
    expected = true_colours(dataset) / 255
    assert np.allclose(scores_of(dataset.path), expected, atol=1e-3 if name == "half" else 1e-6)
    assert np.array_equal(labelled.labels(COLOURS), expected >= 0.4) and 0 < (expected >= 0.4).mean() < 1
    assert labelled.is_binary("red") and not labelled.is_binary("red_score")
    share = (expected[:, 0] >= 0.4).mean()
    assert f"red: {share:.1%} positive" in said and "outputs taken as scores" in said


@pytest.mark.parametrize("normalisation", ["unit", "signed", "none", "imagenet"])
def test_normalisations(normalisation, dataset, names, model):
    label_dataset(dataset.path, model, names, threshold=9.0, normalisation=normalisation, activation="none")
    unit = true_colours(dataset) / 255
    expected = {
        "unit": unit,
        "signed": unit * 2 - 1,
        "none": unit * 255,
        "imagenet": (unit - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225],
    }[normalisation]
    assert np.allclose(scores_of(dataset.path), expected, rtol=1e-5, atol=1e-5)


def test_byte_inputs_get_the_pixels_as_they_are(dataset, names, tmp_path):
    model = colour_means(tmp_path / "colours.onnx", kind="UINT8")
    label_dataset(dataset.path, model, names, threshold=128.0, activation="none")
    assert np.array_equal(scores_of(dataset.path), true_colours(dataset))


def test_true_columns_stay_and_predicted_ones_are_marked(dataset, names, model):
    assert predicted_columns(dataset) == {}
    label_dataset(dataset.path, model, names, threshold=0.25, normalisation="unit")
    labelled = open_dataset(dataset.path)
    assert labelled.table.select(dataset.table.column_names).equals(dataset.table)
    mark = {"model": "colours.onnx", "sha256": sha256_file(model), "threshold": 0.25}
    columns = [c for colour in COLOURS for c in (colour, f"{colour}_score")]
    assert predicted_columns(labelled) == dict.fromkeys(columns, mark) == labelled.info["predicted"]
    assert labelled.info["binary"] == ["Smiling", *COLOURS]
    assert labelled.info["continuous"] == [f"{colour}_score" for colour in COLOURS]
    kept = dataset.info.keys() - {"binary", "continuous", "hash", "files"}
    assert {k: labelled.info[k] for k in kept} == {k: dataset.info[k] for k in kept}
    assert prepare(find_source(dataset.info["source"], ReadOptions()), dataset.path, 16).hash == labelled.hash


def test_the_hash_follows_the_table_and_is_that_of_prepare(dataset, names, model):
    assert hash_on_disk(dataset.path) == dataset.hash, "prepare.py computes the hash in another way now"
    label_dataset(dataset.path, model, names, normalisation="unit")
    assert open_dataset(dataset.path).hash == hash_on_disk(dataset.path) != dataset.hash


def test_repeating_changes_nothing_and_another_model_replaces(dataset, names, model, tmp_path):
    label_dataset(dataset.path, model, names, normalisation="unit")
    once = contents(dataset.path)
    label_dataset(dataset.path, model, names, normalisation="unit")
    assert contents(dataset.path) == once
    columns = open_dataset(dataset.path).table.column_names
    other = colour_means(tmp_path / "negative.onnx", then="Neg")
    label_dataset(dataset.path, other, names, normalisation="unit", activation="none")
    labelled = open_dataset(dataset.path)
    assert np.allclose(scores_of(dataset.path), -true_colours(dataset) / 255, atol=1e-6)
    assert predicted_columns(labelled)["red"]["model"] == "negative.onnx"
    assert labelled.table.column_names == columns
    names.write_text("r\ng\nb")
    label_dataset(dataset.path, model, names, normalisation="unit")
    assert {"red", "r", "r_score"} <= predicted_columns(open_dataset(dataset.path)).keys()


KILLED_BEFORE_RENAME = """
import os, signal, sys
from pathlib import Path
from diti.core import runs
from diti.data.predicted import label_dataset

rename, left = runs._rename_over, int(sys.argv[4])
def rename_or_die(temporary, path):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(temporary, path)
runs._rename_over = rename_or_die
label_dataset(*map(Path, sys.argv[1:4]), normalisation="unit")
"""


def run_python(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=dict(os.environ))


@pytest.mark.parametrize("rename", [1, 2, 3])  # description, table, description
def test_a_kill_leaves_a_usable_folder_that_tells_no_lie(rename, dataset, names, model, tmp_path):
    first = colour_means(tmp_path / "negative.onnx", then="Neg")
    names.write_text("red\ngreen\nblue")
    label_dataset(dataset.path, first, names, normalisation="unit")
    before = open_dataset(dataset.path)
    names.write_text("red\ngreen\nnew")  # two columns are replaced, one is added
    assert run_python(KILLED_BEFORE_RENAME, dataset.path, model, names, rename).returncode == -9
    left = open_dataset(dataset.path)
    assert left.hash == hash_on_disk(dataset.path)
    assert (left.hash == before.hash) == (rename < 3), "only a new table has a new hash"
    assert ("new" in left.attributes) == (rename == 3), "the kill was where this test means it to be"
    assert set(left.attributes) - {"Smiling"} == predicted_columns(left).keys()
    claimed = predicted_columns(left)["red"]["model"]
    assert claimed == ("negative.onnx" if rename == 1 else UNFINISHED)
    assert predicted_columns(left)["blue"]["model"] == "negative.onnx", "was not being replaced"
    assert left.table.select(dataset.table.column_names).equals(dataset.table)
    label_dataset(dataset.path, model, names, normalisation="unit")
    done = open_dataset(dataset.path)
    assert done.hash == hash_on_disk(dataset.path)
    assert (
        predicted_columns(done)["red"]["model"] == predicted_columns(done)["new_score"]["model"] == "colours.onnx"
    )
    assert np.allclose(done.labels(["new_score"])[:, 0], true_colours(dataset)[:, 2] / 255, atol=1e-6)


def test_one_writer_at_a_time(dataset, names, model):
    with locked(dataset.path):
        other = run_python(KILLED_BEFORE_RENAME, dataset.path, model, names, 9)
    assert other.returncode == 1 and "is writing to" in other.stderr.splitlines()[-1]
    assert open_dataset(dataset.path).hash == dataset.hash


def test_activations():
    outputs = np.array([[0.0, 2.0, -900.0], [900.0, 900.0, 1.0]], np.float32)
    sigmoid, _ = activate(outputs, "sigmoid")
    assert np.allclose(sigmoid, [[0.5, 1 / (1 + math.exp(-2)), 0], [1, 1, 1 / (1 + math.exp(-1))]])
    softmax, _ = activate(outputs, "softmax")
    assert np.allclose(softmax, [[1 / (1 + math.e**2), math.e**2 / (1 + math.e**2), 0], [0.5, 0.5, 0]])
    assert np.array_equal(activate(outputs, "none")[0], outputs)
    assert activate(outputs, "auto")[1] == "sigmoid" and np.array_equal(activate(outputs, "auto")[0], sigmoid)
    inside = np.array([[0.0, 1.0]], np.float32)
    assert activate(inside, "auto")[1] == "none" and np.array_equal(activate(inside, "auto")[0], inside)


def test_auto_decides_for_the_whole_set_and_not_by_batch(dataset, names, model):
    said = label_dataset(dataset.path, model, names, batch=1, normalisation="signed")
    expected = 1 / (1 + np.exp(-(true_colours(dataset) / 127.5 - 1)))
    assert np.allclose(scores_of(dataset.path), expected, atol=1e-6) and "sigmoid of the outputs" in said


def test_smaller_images_are_antialiased():
    fine = np.zeros((2, 16, 16, 3), np.uint8)
    fine[:, ::2, ::2] = fine[:, 1::2, 1::2] = 255  # a chessboard of single pixels
    small = resized(fine, 4, 8)
    assert small.shape == (2, 4, 8, 3) and np.abs(small.astype(int) - 127).max() < 20
    assert resized(fine, None, 16) is fine


def test_one_of_several_outputs(dataset, names, tmp_path):
    taken = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ("N", 3, "H", "W"))
    nodes = [
        onnx.helper.make_node("ReduceMean", ["x"], ["pooled"], axes=[2, 3], keepdims=1),  # (N, 3, 1, 1)
        onnx.helper.make_node("Neg", ["pooled"], ["negative"]),
        onnx.helper.make_node("ReduceMean", ["x"], ["whole"], axes=[0, 1, 2, 3], keepdims=0),
    ]
    model = save_model(tmp_path / "m.onnx", nodes, [taken], ["negative", "pooled", "whole"])
    label_dataset(dataset.path, model, names, normalisation="unit", output="pooled")
    assert np.allclose(scores_of(dataset.path), true_colours(dataset) / 255, atol=1e-6)
    with pytest.raises(InputError, match="has 3 outputs; name one with --output: negative, pooled, whole"):
        label_dataset(dataset.path, model, names)
    with pytest.raises(InputError, match=r"--output poled is not in .*Did you mean 'pooled'"):
        label_dataset(dataset.path, model, names, output="poled")
    with pytest.raises(InputError, match=r"output 'whole' is \(\) for 12 images; it must be a row"):
        label_dataset(dataset.path, model, names, output="whole")


def test_a_layout_that_cannot_be_seen_is_asked_for(dataset, names, tmp_path):
    model = colour_means(tmp_path / "colours.onnx", (None, None, None, None), axes=(1, 2))
    with pytest.raises(
        InputError, match="does not show where the channels are; add --layout nchw or --layout nhwc"
    ):
        label_dataset(dataset.path, model, names)
    label_dataset(dataset.path, model, names, layout="nhwc", normalisation="unit")
    assert np.allclose(scores_of(dataset.path), true_colours(dataset) / 255, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", "is empty; write a name per line"),
        (b"\n\n", "is empty; write a name per line"),
        (b"red\n\nblue\n", "line 2 is empty"),
        (b"red\ngreen\nred\n", "line 3 repeats 'red'"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (None, r"cannot be read \(No such file"),
        (b"red\ngreen\n", r"gives 3 outputs per image and .*names.txt holds 2 names"),
        (b"Smiling\ngreen\nblue\n", "has a column 'Smiling' of its own"),
        (b"red\nidentity\nblue\n", "has a column 'identity' of its own"),
        (b"red\nred_score\nblue\n", "would both write 'red_score'"),
    ],
)
def test_bad_names_are_one_line_and_write_nothing(text, line, dataset, names, model):
    names.unlink()
    if text is not None:
        names.write_bytes(text)
    refused(dataset, line, model, names)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"threshold": 1.5}, "--threshold 1.5 is out of range"),
        ({"threshold": float("nan"), "activation": "none"}, "--threshold nan is out of range"),
        ({"batch": 0}, "--batch 0 is too small"),
        ({"normalisation": "units"}, "--normalisation units is unknown; use imagenet, .*Did you mean 'unit'"),
        ({"activation": "relu"}, "--activation relu is unknown; use auto, none, sigmoid, softmax"),
        ({"layout": "nch"}, "--layout nch is unknown"),
        ({"layout": "nhwc"}, r"takes \[None, 3, 16, 16\]; it must take RGB images"),
    ],
)
def test_bad_options_are_one_line_and_write_nothing(options, line, dataset, names, tmp_path):
    refused(dataset, line, colour_means(tmp_path / "colours.onnx", (None, 3, 16, 16)), names, **options)


def test_bad_models_are_one_line_and_write_nothing(dataset, names, tmp_path):
    refused(dataset, "absent.onnx is not a file", tmp_path / "absent.onnx", names)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nonsense")
    refused(dataset, "broken.onnx cannot be opened as ONNX: ", broken, names)
    good = colour_means(tmp_path / "colours.onnx").read_bytes()
    broken.write_bytes(good[: len(good) // 2])
    refused(dataset, "broken.onnx cannot be opened as ONNX: ", broken, names)
    grey = colour_means(tmp_path / "grey.onnx", (None, 1, 28, 28))
    refused(dataset, r"takes \[None, 1, 28, 28\]; it must take RGB images", grey, names)
    flat = colour_means(tmp_path / "flat.onnx", (None, 3, None), axes=(2,))
    refused(dataset, "it must take one batch of RGB images", flat, names)
    logarithm = colour_means(tmp_path / "log.onnx", then="Log")
    refused(dataset, r"no finite score for \d+ images, the first is a/00.png", logarithm, names, activation="none")


def test_a_model_that_fails_on_its_own_input_is_one_line(dataset, names, tmp_path):
    taken = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ("N", 3, "H", "W"))
    weight = onnx.helper.make_node("Constant", [], ["w"], value_floats=[1.0] * 7)
    nodes = [weight, onnx.helper.make_node("Mul", ["x", "w"], ["y"])]  # 16 px wide × 7: cannot be
    refused(dataset, r"fails on images of shape \(12, 3, 16, 16\): ",
            save_model(tmp_path / "m.onnx", nodes, [taken], ["y"]), names)  # fmt: skip


def refused(dataset: Dataset, line: str, model: Path, names: Path, **options: object) -> None:
    before = contents(dataset.path)
    with pytest.raises(InputError, match=line) as caught:
        label_dataset(dataset.path, model, names, **options)
    assert "\n" not in str(caught.value) and contents(dataset.path) == before


def test_a_folder_that_is_not_prepared_is_sent_to_prepare(image_folder, names, model):
    with pytest.raises(InputError, match=r"images is not a dataset folder.*run diti prepare .*images --out DIR"):
        label_dataset(image_folder, model, names)


def test_without_the_extra_the_remedy_is_named(dataset, names, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refused(dataset, r'pip install "diti-torch\[onnx\]"', tmp_path / "m.onnx", names)


def test_the_description_stays_plain_json(dataset, names, tmp_path):
    label_dataset(dataset.path, colour_means(tmp_path / "c.onnx"), names)
    info = json.loads((dataset.path / "dataset.json").read_text())
    assert info["predicted"]["blue_score"]["threshold"] == 0.5


def test_the_verb_adds_the_columns_and_says_what_is_wrong(dataset, names, model, tmp_path, diti):
    words = ["--model", model, "--names", names, "--normalisation", "unit"]
    result = diti("label", dataset.path, *words)
    assert result.returncode == 0, result.stderr
    assert set(COLOURS) <= set(predicted_columns(open_dataset(dataset.path)))
    assert np.allclose(scores_of(dataset.path), true_colours(dataset) / 255, atol=1e-3)
    wrong = diti("label", tmp_path, *words)
    assert wrong.returncode == 2 and "diti prepare" in wrong.stderr and "Traceback" not in wrong.stderr
