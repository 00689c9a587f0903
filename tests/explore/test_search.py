"""Search against a slow exact one, and on toy faces, where what is coarse is known."""

import json

import numpy as np
import pytest
from PIL import Image
from tiny import tiny_backbone

from diti.cli import main
from diti.core.errors import InputError
from diti.data.sources import open_data
from diti.explore.search import chosen_dims, nearest, oddest
from diti.representation.models.axis_names import AxisName
from diti.representation.solve.run import solve


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched") / "model"
    found = solve(
        "toyfaces:300", tiny_backbone(), code_dim=12, subsets=3, images=400, pixel_axes=24, stretches=3, out=folder
    )
    return found, folder


@pytest.mark.parametrize("count", [1, 7, 500])
def test_the_nearest_are_those_of_a_slow_search(count):
    rng = np.random.default_rng(0)
    codes, wanted = rng.normal(size=(300, 8)).astype(np.float32), rng.normal(size=8).astype(np.float32)
    found = nearest(codes, wanted, count)
    slow = sorted(range(300), key=lambda row: float(((codes[row].astype(float) - wanted) ** 2).sum()))[:count]
    assert found.rows.tolist() == slow
    np.testing.assert_allclose(found.values, np.linalg.norm(codes[slow] - wanted, axis=1), rtol=1e-5)


def test_the_oddest_lie_farthest_out():
    codes = np.eye(4, dtype=np.float32) * np.array([1, 5, 2, 3])
    assert oddest(codes, 2).rows.tolist() == [1, 3]


def test_dims_are_named_by_level_number_and_name(model):
    found, _ = model
    found.axis_names = {5: AxisName("hat")}
    assert chosen_dims(found, "all").tolist() == list(range(12))
    assert chosen_dims(found, "coarse").tolist() == [8, 9, 10, 11]
    assert chosen_dims(found, "0:2").tolist() == list(range(8))
    assert chosen_dims(found, "fine,hat").tolist() == [0, 1, 2, 3, 5]
    with pytest.raises(InputError, match="no axis is called 'coars'"):
        chosen_dims(found, "coars")


def test_the_verb_finds_the_image_itself_first(model, tmp_path, capsys):
    _, folder = model
    dataset = open_data("toyfaces:300", 16)
    Image.fromarray(np.asarray(dataset.images[42])).save(tmp_path / "x.png")
    words = ["search", str(folder), "--data", "toyfaces:300", "--out", str(tmp_path / "found.png")]
    assert main([*words, str(tmp_path / "x.png"), "-n", "5", "--subset", "coarse"]) == 0
    record = json.loads((tmp_path / "found.json").read_text())
    assert [record["found"][0]["row"], len(record["found"])] == [42, 5]
    assert record["found"][0]["value"] == pytest.approx(0, abs=1e-3)
    assert main([*words, "--odd", "3"]) == 0
    assert "the 3 oddest images" in capsys.readouterr().out
    for wrong in ([], [str(tmp_path / "x.png"), "--odd", "3"]):
        assert main([*words, *wrong]) == 2
        assert "one image to search for, or --odd N" in capsys.readouterr().err
    assert main([*words, "--odd", "0"]) == 2
    assert "--odd is 0" in capsys.readouterr().err
