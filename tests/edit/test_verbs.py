"""The editing verbs as a person types them, on a tiny model: pictures, and one clear line for mistakes."""

from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageSequence
from tiny import tiny_model

from diti.data import toyfaces
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.edit.direction_files import load_direction
from diti.edit.trials import learn_direction
from diti.representation.models.latent import load_latent


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, 300 labelled faces and two image files of another size."""
    folder = tmp_path_factory.mktemp("place")
    tiny_model(subsets=6).save(folder / "model")
    replace(tiny_model(subsets=6), mean=torch.full((12,), 0.1)).save(folder / "known")  # has statistics
    prepare(find_source("toyfaces:300", ReadOptions(size=16)), folder / "faces", 16)
    for name, pixels in zip("ab", toyfaces.render(toyfaces.sample(2, seed=2), 40), strict=True):
        Image.fromarray(pixels).save(folder / f"{name}.png")
    return folder


def test_interpolate_writes_grid_frames_and_animation(place, diti_here):
    words = ["--subset", "early,late,all", "--scales", "0,0.5,1", "--sampling-steps", 4, "--x-t", "keep"]
    files = ["--out", "grid.png", "--frames", "frames", "--animate", "walk.gif"]
    result = diti_here("interpolate", "model", "a.png", "b.png", *words, *files, cwd=place)
    assert result.returncode == 0, result.stderr
    assert "next:" in result.stdout and "grid.png" in result.stdout
    with Image.open(place / "grid.png") as grid:
        assert grid.width > 300
    with Image.open(place / "walk.gif") as walk:
        assert len(list(ImageSequence.Iterator(walk))) > 3
    assert len(list((place / "frames").iterdir())) >= 9


def test_manipulate_draws_both_signs_and_keeps_the_direction(place, diti_here):
    words = ["--attribute", "hat", "--data", "faces", "--scale", "0.3", "--sampling-steps", 4, "--out", "hat.png"]
    first, second = (diti_here("manipulate", "model", "a.png", *words, cwd=place) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr
    assert "hat: all 12 dims; validation AP" in first.stdout
    assert "the image was cropped to the centre and resized to the model's 16 px (from 40×40 px)" in first.stdout
    kept = place / "model" / "attributes" / "hat.safetensors"
    kept.write_bytes(kept.read_bytes()[:100])  # cut: it is learned again
    third = diti_here("manipulate", "model", "a.png", *words, cwd=place)
    assert third.returncode == 0 and "kept the direction" in third.stdout, third.stderr
    assert "learned earlier" in second.stdout and load_direction(kept).attribute == "hat"
    sparse = diti_here("manipulate", "model", "a.png", *words, "--selection", "l1", cwd=place)
    assert "hat: 3 of 12 dims by l1" in sparse.stdout, "a quarter of a short code"
    assert "next:" in first.stdout
    with Image.open(place / "hat.png") as row:
        assert row.width > 4 * row.height / 2  # image, reconstruction, -0.3, +0.3


def test_manipulate_keeps_things_and_moves_several_at_once(place, diti_here):
    """Labels, axes and example images are kept; several attributes have a strength each."""
    steps = ["--sampling-steps", 2]
    words = ["manipulate", "known", "a.png", "--attribute", "hat,smile", "--data", "faces", *steps]
    kept = ["--keep", "background,z003,b.png", "--scale=1,-0.5", "--out", "both.png"]
    both = diti_here(*words, *kept, cwd=place)
    assert both.returncode == 0, both.stderr
    assert "hat: all 12 dims" in both.stdout and "smile: all 12 dims" in both.stdout
    for option in (["--scale", "0.5,1"], ["--paper-scale", "0.3"], []):
        alone = diti_here(*words[:4], "hat", *words[5:], *option, "--out", "alone.png", cwd=place)
        assert alone.returncode == 0, alone.stderr
    again = diti_here("manipulate", "known", "a.png", "--axis", "1,3", "--keep", "hat", *steps, cwd=place)
    assert again.returncode == 0, again.stderr


def test_new_images_come_from_the_backbone_until_there_is_a_latent(place, diti_here):
    before = diti_here("sample", "model", "-n", 2, "--sampling-steps", 3, "--out", "s.png", cwd=place)
    assert before.returncode == 0, before.stderr
    assert "drawn by the backbone alone" in before.stdout
    trained = diti_here("train-latent", "model", "--data", "faces", "--codes", 2560, cwd=place)
    assert trained.returncode == 0, trained.stderr
    assert "AUROC" in trained.stdout and load_latent(place / "model").dims == 12
    after = diti_here("sample", "model", "-n", 2, "--sampling-steps", 3, "--out", "s.png", cwd=place)
    assert after.returncode == 0, after.stderr
    assert "newly drawn z" in after.stdout


def test_the_same_command_runs_again_and_others_files_need_a_word(place, diti_here):
    words = ["vary", "model", "a.png", "-n", 1, "--sampling-steps", 2]
    for _ in range(2):
        assert diti_here(*words, "--out", "again.png", cwd=place).returncode == 0
    Image.new("RGB", (9, 9)).save(place / "mine.png")
    assert diti_here(*words, "--out", "mine.png", cwd=place).returncode == 2
    with Image.open(place / "mine.png") as mine:
        assert mine.size == (9, 9)
    assert diti_here(*words, "--out", "mine.png", "--overwrite", cwd=place).returncode == 0


def test_vary_shows_original_reconstruction_and_variations(place, diti_here):
    result = diti_here("vary", "model", "a.png", "-n", 3, "--sampling-steps", 3, "--out", "v.png", cwd=place)
    assert result.returncode == 0, result.stderr
    with Image.open(place / "v.png") as row:
        assert row.width > 4 * row.height / 2


def test_an_axis_is_named_by_its_number_or_as_features_are_called(place, diti_here, tmp_path):
    tiny_model(subsets=6).save(tmp_path / "named")
    for axis, name in (("3", "beak"), ("z004", "tail")):
        result = diti_here("name", tmp_path / "named", axis, name, cwd=place)
        assert result.returncode == 0 and f"axis {axis[-1]} is now z00{axis[-1]}_t" in result.stdout, result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["interpolate", "model", "a.png", "b.png", "--subset", "earli"], "early"),
        (["interpolate", "model", "a.png", "b.png", "--scales", "zero"], "is not a list of numbers"),
        (["interpolate", "model", "a.png", "missing.png"], "missing.png"),
        (["interpolate", "nowhere", "a.png", "b.png"], "nowhere"),
        (["manipulate", "model", "a.png", "--attribute", "hats", "--data", "faces", "--dims", "4"], "hat"),
        (["manipulate", "model", "a.png", "--attribute", "hat", "--data", "faces", "--dims", "99"], "12"),
        (["manipulate", "model", "a.png", "--attribute", "hat", "--data", "faces", "--dims", "0"], "--dims is 0"),
        (["manipulate", "model", "a.png", "--attribute", "hat", "--data", "faces", "--scale", "1e308"], "too far"),
        (
            ["manipulate", "model", "a.png", "--attribute", "hat", "--data", "faces", "--out", "faces/h.png"],
            "lies in",
        ),
        (
            ["interpolate", "model", "a.png", "b.png", "--scales", "1e308"],
            "too far; give numbers from -100 to 100",
        ),
        (["interpolate", "model", "a.png", "b.png", "--frames", "."], "--frames . holds a.png, which is an input"),
        (["interpolate", "model", "a.png", "b.png", "--out", "a.png"], "would replace a.png, which is an input"),
        (["interpolate", "model", "a.png", "b.png", "--out", "v.mp4"], "does not end in .png"),
        (["interpolate", "model", "a.png", "b.png", "--animate", "v.mp4"], "does not end in .gif"),
        (
            ["interpolate", "model", "a.png", "b.png", "--out", "w.webp", "--animate", "w.webp"],
            "both write w.webp",
        ),
        (["interpolate", "model", "a.png", "b.png", "--sampling-steps", "0"], "--sampling-steps is 0"),
        (["mix", "model", "a.png"], "Missing from diti mix: B"),
        (["interpolate"], "Missing from diti interpolate: MODEL A B"),
        (["manipulate", "model", "a.png", "--like", "b.png", "--stop-guidance", "1.5"], "--stop-guidance is 1.5"),
        (
            ["manipulate", "model", "a.png", "--attribute", "a,b", "--scale", "1,2,3"],
            "names 2 things and there are 3",
        ),
        (["manipulate", "model", "a.png", "--attribute", "a,a"], "names one thing twice"),
        (["manipulate", "model", "a.png", "--attribute", "hat", "--keep", "hat"], "is to be changed and kept"),
        (["manipulate", "model", "a.png", "--like", "b.png", "--keep", "hut"], "--keep 'hut': no axis is called"),
        (["manipulate", "model", "a.png", "--like", "b.png", "--keep", "no.png"], "no.png"),
        (
            ["manipulate", "model", "a.png", "--like", "b.png", "--scale", "1", "--paper-scale", "0.3"],
            "give one of them",
        ),
        (["manipulate", "model", "a.png", "--like", "b.png", "--dims", "999"], "--dims is 999"),
        (["manipulate", "model", "a.png", "--pairs", "b.png"], "--pairs names 1 images; give them in pairs"),
        (
            ["manipulate", "model", "a.png", "--pairs", "a.png,b.png", "--selection", "weight"],
            "leave --selection out",
        ),
        (
            ["manipulate", "model", "a.png", "--like", "b.png", "--selection", "weight"],
            "--like makes a direction from the examples alone; leave --selection out",
        ),
        (
            ["manipulate", "model", "a.png", "--attribute", "hat", "--data", "faces", "--subset", "late"],
            "--attribute learns from labels, in the whole code; leave --subset out",
        ),
        (
            ["manipulate", "model", "a.png", "--attribute", "hat", "--dims", "3", "--selection", "weight"],
            "--attribute without --data takes a direction as it was kept; leave --dims, --selection out",
        ),
        (["name", "model", "three", "x"], "AXIS 'three' is not the number of an axis; write it as a07, or"),
        (["name", "model", "z099", "x"], "axis 99 does not exist"),
        (["name", "model", "3", "coarse"], "the name 'coarse' cannot be used"),
        (["vary", "model", "model/model.json"], "model.json"),
        (
            ["vary", "model", "a.png", "--out", "b.png"],
            "diti did not write it; choose another name, or add --overwrite",
        ),
        (["vary", "model", "a.png", "--out", "model/model.json"], "does not end in .png"),
        (["vary", "model", "a.png", "-n", "99999999999999"], "draw from 1 to 10,000 images"),
        (["vary", "model", "a.png", "--out="], "--out is followed by an empty word"),
        (["sample", "model", "-n", "1000000000000"], "draw from 1 to 10,000 images"),
        (["sample", "model", "-n", "0"], "--count (-n) is 0"),
        (["sample", "model", "--out", "nowhere.txt"], "does not end in .png"),
        (["train-latent", "model", "--data", "faces", "--codes", "0"], "--codes is 0; it must be 1 or more"),
        (["train-latent", "nowhere", "--data", "faces"], "nowhere"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_mistakes_get_one_line(place, diti_here, words, said):
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    result = diti_here(*words, cwd=place)
    assert result.returncode == 2, result.stdout
    (line,) = result.stderr.splitlines()
    assert said in line and line.startswith("diti: ")
    assert before == {path: path.stat().st_mtime_ns for path in place.rglob("*")}, "nothing is written"


def test_the_methods_of_the_model_are_the_algorithms(model, faces, tmp_path):
    moved = model.interpolate(faces[0], faces[1], subset="late", scale=0.0, sampling_steps=4)
    torch.testing.assert_close(moved, model.reconstruct(faces[0], sampling_steps=4), atol=1e-4, rtol=1e-4)
    dataset = prepare(find_source("toyfaces:200", ReadOptions(size=16)), tmp_path / "faces", 16)
    direction = learn_direction(model, dataset, "hat", dims=4)
    still = model.manipulate(faces, direction, scale=0.0, sampling_steps=4)
    torch.testing.assert_close(still, model.reconstruct(faces, sampling_steps=4), atol=1e-4, rtol=1e-4)
    assert (model.manipulate(faces, direction, scale=2.0, sampling_steps=4) - still).abs().max() > 1e-4
