"""The page of a tiny solved model: whole, quiet in a browser, the same without labels."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import launch, open_page
from PIL import Image

from diti.cli import main
from diti.exploring.axes import COPIES
from diti.exploring.page import FILMS
from diti.exploring.seen import FRAMES, LEAST, placed_codes
from diti.exploring.strips import PLACES, Strips, heat, pushed_codes
from diti.representation.models.axes import Axes
from diti.representation.models.loading import load


@pytest.fixture(scope="module")
def model(solved_once, tmp_path_factory):
    return Path(shutil.copytree(solved_once, tmp_path_factory.mktemp("explored") / "model"))


@pytest.fixture(scope="module")
def explored(model, solved_faces):
    out = model.parent / "page"
    words = [
        "--data",
        str(solved_faces.path),
        "--axes",
        "2",
        "--first",
        "8",
        "--sampling-steps",
        "3",
        "--out",
        str(out),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(model.parent / "cache"))
        assert main(["explore", str(model), *words]) == 0
    return out


def test_it_writes_a_page_with_a_picture_per_axis(explored):
    record = json.loads((explored / "explore.json").read_text())
    drawn = record["axes"] + record["dims"]
    assert len(record["subsets"]) == 3 and len(drawn) + record["unseen"] == 8 + 6
    assert {p.stem for p in (explored / "axes").iterdir()} == {axis["name"] for axis in drawn}
    assert all(len(axis["lowest"]) == len(axis["highest"]) == len(PLACES) + 1 for axis in drawn)
    visibility = [axis["visibility"] for axis in record["axes"]]
    assert visibility == sorted(visibility, reverse=True) and record["axes"][0]["name"] == "a00"
    assert all(axis["changed"] > LEAST for axis in drawn), "what cannot be seen is not drawn"


def test_the_images_at_the_ends_are_those_of_a_slow_sort(explored, model, solved_faces):
    """By the readings of the file; of two that are nearly copies the outer one."""
    first = json.loads((explored / "explore.json").read_text())["axes"][0]
    loaded = load(model)
    codes = loaded.encode(solved_faces.images)
    places, measured = (codes - loaded.mean) @ loaded.axes.readings[0], loaded.in_metric(codes)
    usual = torch.pdist(measured.double()).square().mean()

    def outermost(order):
        kept = []
        for row in order.tolist():
            if all((measured[row] - measured[other]).square().sum() > COPIES * usual for other in kept):
                kept.append(row)
        return [solved_faces.table["file"][row].as_py() for row in kept[:3]]

    assert first["lowest"][:3] == outermost(places.argsort())
    assert first["highest"][:3] == outermost(places.argsort(descending=True))


def test_the_page_is_quiet_in_a_browser_and_tells_each_axis(explored):
    record = json.loads((explored / "explore.json").read_text())
    with launch() as browser, open_page(browser, (explored / "index.html").as_uri()) as visit:
        shown, text = visit.page.inner_text("body"), visit.page.text_content("main")
        visit.assert_quiet()
        drawn, films = record["axes"] + record["dims"], min(FILMS, len(record["axes"]))
        assert visit.page.locator("img").count() == len(drawn) + films + 1
        slider, film = visit.page.locator(".film input").first, visit.page.locator(".film img").first
        before = film.evaluate("picture => picture.style.transform")
        slider.fill("0")
        assert film.evaluate("picture => picture.style.transform") != before, "the slider moves the film"
        visit.assert_quiet()
    assert all(axis["name"] in shown for axis in record["axes"]), "nothing to open first"
    assert all(axis["name"] in text for axis in drawn)
    assert text.index("What one can see") < text.index("From fine to coarse") < text.index("Subset 0 (early)")
    assert "of the pixels change visibly" in text


def test_the_page_calls_a_folder_by_its_name_and_its_images_pictures(model, solved_faces, tmp_path, monkeypatch):
    """Numbers for names do not make a folder one of faces."""
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "cache"))
    (tmp_path / "stars").mkdir()
    for row in range(4):
        Image.fromarray(solved_faces.images[row]).save(tmp_path / "stars" / f"{row:05d}.png")
    words = [
        "--data",
        str(tmp_path / "stars"),
        "--axes",
        "1",
        "--first",
        "2",
        "--faces",
        "1",
        "--sampling-steps",
        "2",
    ]
    assert main(["explore", str(model), *words, "--out", str(tmp_path / "out")]) == 0
    text = re.sub(
        r'(src|href)="data:[^"]*"|<style>.*?</style>|<script>.*?</script>',
        "",
        (tmp_path / "out" / "index.html").read_text(),
    )
    assert "found in stars" in text and "strips of one picture" in text
    assert "ffhq" not in text.lower() and not re.search(r"\bfaces?\b", text)


def test_it_can_be_run_again_but_spares_what_is_not_its_own(explored, model, solved_faces, capsys):
    words = ["explore", str(model), "--data", str(solved_faces.path), "--out"]
    (model.parent / "mine").mkdir(exist_ok=True)
    (model.parent / "mine" / "index.html").write_text("my page")
    assert main([*words, str(model.parent / "mine")]) == 2
    assert "diti did not write it" in capsys.readouterr().err
    assert main([*words, str(explored), "--axes", "0"]) == 2
    assert "--axes is 0; it must be from 1" in capsys.readouterr().err


def test_a_name_is_kept_and_shown(model, capsys):
    assert main(["name", str(model), "3", "beard", "--negative", "clean-shaven"]) == 0
    assert "axis 3 is now z003_t" in capsys.readouterr().out
    assert load(model).feature_names()[3].endswith("_beard")
    assert main(["name", str(model), "a2", "wall", "--negative", "night"]) == 0
    assert "axis a2 is now a02_wall" in capsys.readouterr().out
    assert json.loads((model / "names.json").read_text()).keys() == {"a2", "3"}
    assert load(model).axis_names["a2"].negative == "night" and load(model).axis_names[3].name == "beard"
    assert main(["name", str(model), "a99", "roof"]) == 2
    assert "axis a99 does not exist" in capsys.readouterr().err
    assert main(["name", "toyfaces32-diti", "3", "beard"]) == 2
    assert "ships with diti; use a copy" in capsys.readouterr().err


def test_a_code_is_pushed_along_one_axis_alone():
    z = torch.zeros(2, 4) + torch.tensor([1.0, 2, 3, 4])
    mean, std = torch.tensor([0.0, 10, 0, 0]), torch.tensor([1.0, 2, 1, 1])
    codes = pushed_codes(z, mean, std, [1, 3], (-1.0, 0.0))
    assert codes.shape == (2, 2, 2, 4)
    assert codes[0, 0].tolist() == [[1, 8, 3, 4], [1, 10, 3, 4]]
    assert codes[1, 1].tolist() == [[1, 2, 3, -1], [1, 2, 3, 0]]


def test_a_code_is_placed_on_an_axis_and_keeps_the_rest():
    z, mean = torch.tensor([[3.0, 1.0, 5.0]]), torch.tensor([1.0, 1.0, 0.0])
    directions, readings = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.5, 0.5]]), torch.tensor([[0.5, 0, 0], [0, 1, 1]])
    axes = Axes(directions, readings, torch.ones(2), torch.ones(2), torch.ones(2, 1))
    codes = placed_codes(z, mean, axes, [0, 1], 2.0)
    assert codes.shape == (2, 1, FRAMES, 3)
    places = axes.places(codes.flatten(0, 2), mean).reshape(2, FRAMES, 2)
    expected = torch.linspace(-2, 2, FRAMES)
    torch.testing.assert_close(places[0, :, 0], expected)
    torch.testing.assert_close(places[1, :, 1], expected)
    torch.testing.assert_close(places[0, :, 1], torch.full((FRAMES,), 5.0))


def test_the_heat_map_is_white_where_nothing_changes():
    images = torch.zeros(1, 1, 2, 3, 2, 2)
    images[0, 0, 1, :, 0, 0] = 1.0  # half of the range of one of four pixels
    strips = Strips(images, torch.zeros(1, 3, 2, 2))
    assert strips.change()[0, 0, 0, 0] == 0.5 and strips.share_changed().tolist() == [0.25]
    colours = heat(strips.change())
    assert colours.dtype == np.uint8 and colours[0, 0, 1, 1].tolist() == [255, 255, 255]
    assert colours[0, 0, 0, 0].max() < 100
