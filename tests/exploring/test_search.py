"""Search against a slow exact one, and on toy faces, where what is coarse is known."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import without_decoder

from diti.cli import main
from diti.core.errors import InputError
from diti.data import toyfaces
from diti.data.sources import open_data
from diti.edit.directions import standardise
from diti.exploring.search import nearest, oddest, searched_dims, searched_keys, with_axes
from diti.representation.features import encode_dataset
from diti.representation.models.axis_names import AxisName
from diti.representation.models.loading import load


@pytest.fixture
def model(solved_once):
    return load(solved_once)


@pytest.mark.parametrize("count", [1, 7, 500])
def test_the_nearest_are_those_of_a_slow_search(count):
    rng = np.random.default_rng(0)
    codes, wanted = rng.normal(size=(300, 8)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    found = nearest(codes, wanted, count)
    slow = sorted(range(300), key=lambda row: float(((codes[row].astype(float) - wanted) ** 2).sum()))[:count]
    assert found.rows.tolist() == slow
    np.testing.assert_allclose(found.values, np.linalg.norm(codes[slow] - wanted, axis=1), rtol=1e-5)


def test_the_nearest_are_exact_where_float32_cannot_tell():
    """All codes lie far from zero and near each other: their squares differ in the last digits alone."""
    codes = (np.random.default_rng(1).normal(size=(40, 8)) * 1e-3 + 100).astype(np.float32)
    slow = np.argsort(((codes.astype(float) - codes[0]) ** 2).sum(1), kind="stable")
    assert nearest(codes, codes[0], 4).rows.tolist() == slow[:4].tolist()


def test_the_oddest_lie_farthest_out():
    codes = np.eye(4, dtype=np.float32) * np.array([1, 5, 2, 3])
    assert oddest(codes, 2).rows.tolist() == [1, 3]


def test_dims_are_named_by_level_number_and_name(model):
    model.axis_names = {5: AxisName("hat")}
    assert searched_dims(model, "all").tolist() == list(range(12))
    assert searched_dims(model, "coarse").tolist() == [8, 9, 10, 11]
    assert searched_dims(model, "0:2").tolist() == list(range(8))
    assert searched_dims(model, "fine,hat").tolist() == [0, 1, 2, 3, 5]
    assert searched_dims(model, "z007,z11").tolist() == [7, 11]
    for wrong, complaint in (
        (
            "coars",
            "'coars' names no part of this code; use all, fine, coarse, .* z011, hat. Did you mean 'coarse'",
        ),
        (
            "nosuch",
            r"--subset 'nosuch' .* subsets by number \(0 to 2, or I:J\), or an axis: a00 to a11, z000 to z011",
        ),
        ("z012", "axis 12 does not exist"),
        ("-1", "'-1' names no part"),
        ("3", "'3' names no subset of this partition"),
    ):
        with pytest.raises(InputError, match=complaint):
            searched_dims(model, wrong)


def difference_from_neighbours(codes, labels, neighbours=8):
    """(A,) mean difference in each attribute between an image and those nearest to it, over all images."""
    return np.mean(
        [np.abs(labels[nearest(codes, code, neighbours + 1).rows[1:]] - labels[row]).mean(0)
         for row, code in enumerate(codes)], axis=0,
    )  # fmt: skip


def test_in_the_coarse_subsets_images_are_near_in_wall_and_light_and_not_in_brows(model, solved_faces):
    codes, labels = encode_dataset(model, solved_faces), solved_faces.labels()
    mean, std = (s.numpy() for s in model.statistics())
    standard = standardise(codes, mean, std)
    chance = np.abs(labels[:, None] - labels).mean((0, 1))
    coarse, fine = (
        dict(
            zip(
                solved_faces.attributes,
                difference_from_neighbours(standard[:, dims], labels) / chance,
                strict=True,
            )
        )
        for dims in (searched_dims(model, "coarse"), searched_dims(model, "fine"))
    )
    for wall_or_light in ("background", "brightness"):  # 0.2 and 0.4 of what chance gives; in fine subsets 1
        assert coarse[wall_or_light] < 0.6 < 0.9 < fine[wall_or_light]
        assert coarse[wall_or_light] < coarse["brow_angle"] - 0.4
    assert coarse["brow_angle"] > 0.9


@pytest.fixture
def with_odd_ones(tmp_path):
    """A folder of 60 toy faces and 6 odd pictures, whose names begin with odd."""
    faces = toyfaces.render(toyfaces.sample(66, seed=7), 16)
    noise = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3)).astype(np.uint8)
    odd = [*noise, *faces[60:62, ::-1], *np.roll(faces[62:64], 8, axis=1)]  # upside down; halves swapped
    for name, pictures in (("face", faces[:60]), ("odd", odd)):
        for index, pixels in enumerate(pictures):
            path = tmp_path / "photos" / f"{name}{index:02d}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(pixels).save(path)
    return path.parent


def found_by(words, out, capsys):
    """Files in the order found, what was printed, and what the values are."""
    assert main([*words, "--out", str(out)]) == 0
    record = json.loads(out.with_suffix(".json").read_text())
    return [Path(found["file"]).name for found in record["found"]], capsys.readouterr().out, record["values_are"]


def test_odd_images_are_those_that_z_explains_least(solved_once, with_odd_ones, tmp_path, capsys):
    words = ["search", str(solved_once), "--data", str(with_odd_ones), "--odd", "6"]
    files, shown, values = found_by(words, tmp_path / "odd.png", capsys)
    assert sum(file.startswith("odd") for file in files) >= 5, files
    assert "the 6 oddest images of 66, by what z explains least: " in shown and values.startswith("share of")
    _, shown, values = found_by([*words, "--subset", "coarse"], tmp_path / "far.png", capsys)
    assert "by the farthest codes in 4 of 12 dims (coarse)" in shown and values.startswith("mean square")


def test_models_without_a_frozen_one_find_odd_images_by_their_codes(solved_once, with_odd_ones, tmp_path, capsys):
    able = load(solved_once)
    without_decoder(able).save(tmp_path / "blind")
    words = ["search", str(tmp_path / "blind"), "--data", str(with_odd_ones), "--odd", "6"]
    files, shown, _ = found_by(words, tmp_path / "odd.png", capsys)
    assert "the 6 oddest images of 66, by the farthest codes in 12 of 12 dims (all)" in shown
    codes = able.encode(open_data(str(with_odd_ones), 16).images)
    far = (((codes - able.mean) / able.std) ** 2).sum(1).argsort(descending=True)[:6]
    assert files == [sorted(path.name for path in with_odd_ones.iterdir())[row] for row in far]


def test_the_verb_finds_the_image_itself_first(solved_once, solved_faces, tmp_path, capsys):
    Image.fromarray(np.asarray(solved_faces.images[42])).save(tmp_path / "x.png")
    words = ["search", str(solved_once), "--data", str(solved_faces.path), "--out", str(tmp_path / "found.png")]
    assert main([*words, str(tmp_path / "x.png"), "-n", "5", "--subset", "coarse"]) == 0
    record = json.loads((tmp_path / "found.json").read_text())
    assert [record["found"][0]["row"], len(record["found"])] == [42, 5]
    assert record["found"][0]["value"] == pytest.approx(0, abs=1e-3)
    for wrong in ([], [str(tmp_path / "x.png"), "--odd", "3"]):
        assert main([*words, *wrong]) == 2
        assert "one image to search for, or --odd N" in capsys.readouterr().err
    assert main([*words, "--odd", "3", "-n", "24"]) == 2
    assert "--odd says how many images to find; leave --count (-n) out" in capsys.readouterr().err
    assert main([*words, "--odd", "0"]) == 2
    assert "--odd is 0" in capsys.readouterr().err


def test_the_verb_searches_through_an_index(solved_once, solved_faces, tmp_path, capsys, monkeypatch):
    """Where there are so many images that an exact search takes long, it says so."""
    pytest.importorskip("faiss", reason="the extra index is not installed (pip install 'diti-torch[index]')")
    monkeypatch.setattr("diti.exploring.index.FEWEST", 100)
    monkeypatch.setattr("diti.exploring.search.MANY", 100)
    Image.fromarray(np.asarray(solved_faces.images[42])).save(tmp_path / "x.png")
    words = ["search", str(solved_once), "--data", str(solved_faces.path), "-n", "9", str(tmp_path / "x.png")]
    for subset in ("all", "coarse"):
        exact, told, _ = found_by([*words, "--subset", subset], tmp_path / f"{subset}.png", capsys)
        assert "--index makes further searches of so many faster" in told
        files, told, _ = found_by([*words, "--subset", subset, "--index"], tmp_path / f"{subset}-i.png", capsys)
        assert len(set(files) & set(exact)) >= 8 and files[0] == exact[0] and "% of them by an index" in told
    assert main([*words[:4], "--odd", "3", "--index"]) == 2
    assert "--odd looks at every code; leave --index out" in capsys.readouterr().err


def test_images_are_near_on_an_axis_alone(solved_once, solved_faces, tmp_path, capsys):
    """By the readings of the file, not by the code that searches."""
    model, codes = load(solved_once), encode_dataset(load(solved_once), solved_faces)
    places = (codes - model.mean.numpy()) @ model.axes.readings.numpy().T
    Image.fromarray(np.asarray(solved_faces.images[42])).save(tmp_path / "x.png")
    words = ["search", str(solved_once), str(tmp_path / "x.png"), "--data", str(solved_faces.path), "-n", "9"]
    for given, columns in ((["--axis", "a01"], [1]), (["--subset", "a00,a02"], [0, 2])):
        assert main([*words, *given, "--out", str(tmp_path / "found.png"), "--overwrite"]) == 0
        found = json.loads((tmp_path / "found.json").read_text())["found"]
        slow = np.argsort(((places[:, columns] - places[42, columns]) ** 2).sum(1), kind="stable")[:9]
        assert {item["row"] for item in found} == set(slow.tolist()) and found[0]["row"] == 42
    assert "on 2 axes and 0 dims (a00,a02)" in capsys.readouterr().out
    assert main([*words, "--axis", "a99", "--out", str(tmp_path / "found.png")]) == 2
    assert "axis a99 does not exist" in capsys.readouterr().err
    mixed = searched_keys(model, with_axes(model, "coarse", "a1,2"))
    assert mixed == ["a1", 2, 8, 9, 10, 11] and with_axes(model, "fine", "") == "fine"
