"""`diti probe` as a person runs it: a small model on toy faces, tables, JSON, figures, and bad input."""

import json
import shutil
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from diti.core.errors import InputError
from diti.data import toyfaces
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source, open_data
from diti.measure.probing import ProbeOptions, ProbeStudy, probe, read_labels
from diti.probes.few_shot import few_shot
from diti.representation.features import encode_dataset

NAMES = set(toyfaces.NAMES)
FEW = {"baselines": False, "subsets": False}


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(find_source("toyfaces:400", ReadOptions(size=16)), tmp_path_factory.mktemp("faces"), 16).path


@pytest.fixture
def faces(prepared, tmp_path):
    """400 toy faces at 16 px as a dataset folder of its own."""
    return shutil.copytree(prepared, tmp_path / "faces")


def with_columns(folder, **columns):
    """Change the attribute table of a dataset folder."""
    path = folder / "table.parquet"
    table = pyarrow.parquet.read_table(path)
    for name, values in columns.items():
        table = table.drop_columns([name]) if name in table.column_names else table
        if values is not None:
            table = table.append_column(name, pa.array(values))
    pyarrow.parquet.write_table(table, path)


def test_everything_at_once_on_the_command_line(folder, faces, tmp_path, diti_here, monkeypatch):
    monkeypatch.setattr("diti.measure.probing.few_shot", partial(few_shot, repeats=2))
    with_columns(faces, **dict.fromkeys(NAMES - {"hat", "beard", "background", "brightness"}))
    out = tmp_path / "found" / "probe.json"
    words = ["--few-shot", "10,100", "--disentanglement", "--reconstruct", 4, "--against", folder]
    result = diti_here("probe", folder, "--data", faces, "--out", out, *words)
    assert result.returncode == 0, result.stderr
    record = json.loads(out.read_text())
    rows = {row["name"]: row for row in record["probe"]["rows"]}
    assert rows["hat"]["kind"] == "binary" and 0 < rows["hat"]["ap_interval"][0] <= rows["hat"]["ap"]
    assert rows["background"]["r_interval"][0] <= rows["background"]["r"] and rows["background"]["ap"] is None
    assert record["baselines"][0]["name"].startswith("PCA of pixels")
    assert record["against"]["probe"]["rows"] == record["probe"]["rows"], "the same model must score the same"
    assert np.shape(record["subsets"]["alone"]) == (4, len(rows)) == np.shape(record["cumulative"]["early"])
    assert record["few_shot"]["counts"] == [10, 100]
    assert len(record["baselines"]) > 2
    for item in record["baselines"]:
        assert np.shape(item["few_shot"]["mean_ap"]) == (2, 2), "each baseline with as few labels as z"
    assert record["disentanglement"]["reductions"] and record["reconstruction"]["inferred"]["images"] == 4
    assert record["data"]["hash"] and record["versions"]["torch"] and record["seed"] == 0
    assert record["command"].startswith("diti probe")
    for name in ("attributes", "weights", "against", "subsets", "cumulative"):
        with Image.open(out.with_name(f"probe-{name}.png")) as picture:
            assert min(picture.size) > 100, name
    for word in (
        "linear probe on",
        "PCA of pixels",
        "chance",
        "hat",
        "mean AP with few labels",
        "mean r with few labels",
        "reconstruction of",
        "next:",
    ):
        assert word in result.stdout, word


def test_the_probe_reads_what_the_code_holds(folder, faces, model):
    """An attribute that is a dim of z must be found, one of coin flips must stay near chance."""
    codes = encode_dataset(model, open_data(str(faces)))
    coins = np.random.default_rng(0).integers(0, 2, len(codes))
    with_columns(
        faces, planted=(codes[:, 3] > np.median(codes[:, 3])).astype(np.int8), coins=coins.astype(np.int8)
    )
    record = probe(str(folder), str(faces), folder.parent / "p.json", **FEW)
    rows = {row["name"]: row for row in record["probe"]["rows"]}
    assert rows["planted"]["ap"] > 0.99
    low, high = rows["coins"]["ap_interval"]
    assert low - 0.05 < rows["coins"]["chance"] < high + 0.05


def test_paper_protocol_is_stated_and_near_the_converged_one(folder, faces):
    found = {
        protocol: probe(str(folder), str(faces), folder.parent / "p.json", protocol=protocol, **FEW)["probe"]
        for protocol in ("converged", "paper")
    }
    assert found["paper"]["protocol"] != found["converged"]["protocol"]
    assert "15 epochs" in found["paper"]["protocol"]
    assert abs(found["paper"]["mean_ap"] - found["converged"]["mean_ap"]) < 0.15


def test_what_cannot_be_scored_is_named_and_the_rest_is_scored(folder, faces):
    with_columns(faces, always=np.ones(400, np.int8), same=np.zeros(400, np.float32))
    record = probe(str(folder), str(faces), folder.parent / "p.json", **FEW)
    assert {item["name"] for item in record["probe"]["left_out"]} == {"always", "same"}
    assert len(record["probe"]["rows"]) == 22


def test_without_test_images_a_k_fold_scores(folder, faces):
    with_columns(faces, split=["train"] * 400, identity=[f"person{i // 4}" for i in range(400)])
    labels = read_labels(open_data(str(faces)))
    assert labels.groups is not None and "by k-fold, all images of a person" in labels.notes[0]
    record = probe(str(folder), str(faces), folder.parent / "p.json", **FEW)
    assert "k-fold" in record["notes"][0] and record["probe"]["mean_ap"] > 0


def test_folds_score_every_image_whatever_its_split(folder, faces):
    with_columns(faces, identity=[f"person{i // 4}" for i in range(400)])
    plain, folded = read_labels(open_data(str(faces))), read_labels(open_data(str(faces)), folds=True)
    assert len(plain.splits.test) and not len(folded.splits.test)
    scored = np.concatenate([folded.splits.train, folded.splits.valid])
    assert sorted(scored) == list(range(400))
    assert "all images are scored by k-fold, all images of a person in one fold" in folded.notes
    record = probe(str(folder), str(faces), folder.parent / "p.json", folds=True, **FEW)
    assert "scored on each of 5 folds of whole groups" in record["probe"]["protocol"]


def test_against_an_earlier_probe_with_other_attributes(folder, faces, tmp_path):
    probe(str(folder), str(faces), tmp_path / "first.json", **FEW)
    with_columns(faces, hat=None, extra=np.arange(400) % 2)
    options = {**FEW, "against": str(tmp_path / "first.json")}
    record = probe(str(folder), str(faces), tmp_path / "second.json", **options)
    assert any("not compared: extra, hat" in note for note in record["notes"])


def test_predicted_labels_are_marked(folder, faces):
    info = json.loads((faces / "dataset.json").read_text())
    info["predicted"] = {"hat": {"model": "m.onnx", "sha256": "0", "threshold": 0.5}}
    (faces / "dataset.json").write_text(json.dumps(info))
    assert read_labels(open_data(str(faces))).notes == ["labels predicted by a network, not true ones: hat"]


def test_bad_input_is_one_clear_line(folder, faces, image_folder, diti_here, tmp_path):
    for words, said in (
        (["--data", image_folder], "has no attributes to probe"),
        (
            ["--data", "toyfaces:4"],
            "training images are too few for the baselines of 12 dims: give more than 12, or",
        ),
        (["--data", faces, "--out", "p.txt"], "must end in .json"),
        (["--data", faces, "--few-shot", "ten"], "is not a list of numbers"),
        (["--data", faces, "--few-shot", "nan"], "--few-shot nan is not a whole number"),
        (["--data", faces, "--few-shot", "10,inf"], "--few-shot inf is not a whole number"),
        (["--data", faces, "--few-shot", "2"], "--few-shot 2 cannot be drawn: give numbers from 4 to"),
        (["--data", faces, "--few-shot", "1e30"], "cannot be drawn: give numbers from 4 to"),
        (["--data", faces, "--reconstruct", "-3"], "--reconstruct is -3; it must be 0 or more"),
        (["--data", faces, "--out", faces / "p.json"], "which is an input; choose a place outside"),
        (["--data", faces, "--out", folder / "model.json"], "model.json exists, and diti did not write it"),
        (["--data", faces, "--against", tmp_path / "no.json"], "is missing"),
    ):
        result = diti_here("probe", folder, *words, cwd=tmp_path)
        assert result.returncode == 2, result.stderr
        assert said in result.stderr.splitlines()[-1] and "Traceback" not in result.stderr


def test_a_record_of_another_kind_is_told_before_the_work(folder, faces, tmp_path):
    """--against names a list, another record, or a probe of other attributes."""
    other = tmp_path / "other.json"
    rows = [{"name": "bark", "kind": "binary", "ap": 0.5}]
    for content in (
        [],
        {"probe": []},
        {"probe": {"rows": [1]}},
        {"probe": {"rows": rows}},
        {"probe": {"rows": [{}]}},
    ):
        other.write_text(json.dumps(content))
        with pytest.raises(InputError, match=r"other\.json"):
            ProbeStudy.of(str(folder), str(faces), tmp_path / "p.json", ProbeOptions(**FEW, against=str(other)))
