"""Every kind of backbone as a new user meets it: solved, continued, encoded, edited and moved."""

import json
import shutil

import pyarrow.parquet
import pytest
import torch
from own_models import BESIDE, CODE
from PIL import Image
from pipelines import PIPELINES, SIZE

import diti as package
from diti.core.images import to_float
from diti.data.sources import open_data
from diti.representation.solve import evidence

QUICK = ("latent", "flow")
SMALL = ("--code-dim", "12", "--subsets", "4", "--stretches", "2", "--pixel-axes", "12", "--images", "128")
DATA = "toyfaces:150"
STEPS = ("--sampling-steps", "4")


@pytest.fixture
def face(tmp_path):
    dataset = open_data(DATA, SIZE)
    for index, name in enumerate("ab"):
        Image.fromarray(dataset.images[index]).save(tmp_path / f"{name}.png")
    return tmp_path / "a.png"


def solve(diti_here, backbone, out):
    return diti_here("solve", "--data", DATA, "--backbone", backbone, *SMALL, "--out", out)


def walk_through(diti_here, backbone, out, face):
    """Everything that a person does with a model; it prints what goes wrong."""
    done = solve(diti_here, backbone, out)
    assert done.returncode == 0, done.stderr
    again = solve(diti_here, backbone, out)
    assert "is solved already" in again.stdout, again.stderr
    edits = (
        ("encode", out, DATA, "--out", out / "z.parquet"),
        (
            "interpolate",
            out,
            face,
            face.with_name("b.png"),
            "--scales",
            "0,1",
            *STEPS,
            "--out",
            out / "between.png",
        ),
        ("manipulate", out, face, "--attribute", "smile", "--data", DATA, *STEPS, "--out", out / "moved.png"),
        ("explore", out, "--data", DATA, *STEPS, "--out", out / "explored"),
    )
    for words in edits:
        result = diti_here(*words)
        assert result.returncode == 0, f"{words}: {result.stderr}"
    assert len(pyarrow.parquet.read_table(out / "z.parquet")) == 150
    return done


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PIPELINES]
)
def test_a_pipeline_from_the_command_line(name, diti_here, tmp_path, face):
    folder = PIPELINES[name](tmp_path / "pipeline")
    walk_through(diti_here, folder, tmp_path / "m", face)
    pixels = to_float(open_data(DATA, SIZE).pixels([0, 1, 2]))
    z = package.load(tmp_path / "m", "cpu").encode(pixels, value_range=(-1, 1))
    shutil.rmtree(folder)  # the model folder needs nothing else, wherever it is
    moved = package.load(shutil.move(tmp_path / "m", tmp_path / "elsewhere"), "cpu")
    assert torch.equal(moved.encode(pixels, value_range=(-1, 1)), z)
    assert moved.noise_shape == moved.backbone.shape
    moved.save(tmp_path / "again")
    again = package.load(tmp_path / "again", "cpu")
    rebuilt = [model.reconstruct(pixels, sampling_steps=4, value_range=(-1, 1)) for model in (moved, again)]
    assert torch.equal(*rebuilt) and rebuilt[0].shape == pixels.shape


def test_a_model_of_ones_own_from_the_command_line(diti_here, tmp_path, face, caplog):
    fields = {"seed": 0, "channels": 1, "schedule": "flow", "predicts": "flow", "size": SIZE}
    (tmp_path / "mine.py").write_text(CODE.format(**fields))
    (tmp_path / "beside.py").write_text(BESIDE)
    done = walk_through(diti_here, f"{tmp_path}/mine.py:make", tmp_path / "m", face)
    assert "running your code: make()" in caplog.text and "is solved" not in done.stdout
    facts = json.loads((tmp_path / "m" / "backbone.json").read_text())
    assert facts["code"] == f"{tmp_path}/mine.py:make"


def test_train_says_which_kinds_it_takes(diti_here, tmp_path):
    folder = PIPELINES["latent"](tmp_path / "pipeline")
    result = diti_here("train", "--data", DATA, "--backbone", folder, "--out", tmp_path / "t", "--images", "64")
    assert result.returncode == 2
    assert "diti train takes a UNet2DModel of RGB pixels" in result.stderr and not (tmp_path / "t").exists()


def test_a_long_pass_is_announced(diti_here, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(evidence, "TOLD_MINUTES", 0)
    done = solve(diti_here, PIPELINES["flow"](tmp_path / "p"), tmp_path / "m")
    assert done.returncode == 0 and "the pass takes about" in caplog.text and "128 images" in caplog.text


def test_what_the_autoencoder_loses_is_told_apart_from_the_inversion(diti_here, tmp_path):
    done = solve(diti_here, PIPELINES["latent"](tmp_path / "p"), tmp_path / "m")
    facts = json.loads((tmp_path / "m" / "checks.json").read_text())
    model, dataset = package.load(tmp_path / "m", "cpu"), open_data(DATA, SIZE)
    x = to_float(dataset.pixels(dataset.rows("valid")[:8]))
    with torch.no_grad():
        held = model.backbone.decode(model.backbone.encode(x))
    again = model.reconstruct(x, value_range=(-1, 1))
    assert facts["held_mse"] == pytest.approx((held - x).square().mean().item(), rel=1e-4)
    assert facts["round_trip_mse"] == pytest.approx((again - held).square().mean().item(), rel=1e-3)
    assert "the way to x0 and back alone makes" in done.stdout
    grey = solve(diti_here, PIPELINES["flow"](tmp_path / "q"), tmp_path / "n")
    assert "the way to x0" not in grey.stdout  # pixels are held as they are
