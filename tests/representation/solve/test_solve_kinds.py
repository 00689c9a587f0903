"""Every kind of backbone as a new user meets it: solved, continued, encoded, edited and moved."""

import json
import shutil

import pyarrow.parquet
import pytest
import torch
from own_models import BESIDE, CODE
from PIL import Image
from pipelines import PIPELINES, SIZE
from safetensors.torch import load_file

import diti as package
from diti.core.card import Findings
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.data.sources import open_data
from diti.representation.solve import collect as collecting
from diti.representation.solve import evidence
from diti.representation.solve import run as run_module

QUICK = ("latent",)
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


def check_errors(model, printed, facts):
    """What the way to x0 and back loses is told apart from the inversion, where it loses anything."""
    dataset = open_data(DATA, SIZE)
    x = to_float(dataset.pixels(dataset.rows("valid")[:8]))
    with torch.no_grad():
        held = model.backbone.decode(model.backbone.encode(x))
    again = model.reconstruct(x, value_range=(-1, 1))
    assert facts["reconstruction_mse"] == pytest.approx((again - x).square().mean().item(), rel=1e-3)
    if torch.equal(held, x):
        assert "held_mse" not in facts and "the way to x0" not in printed
    else:
        assert facts["held_mse"] == pytest.approx((held - x).square().mean().item(), rel=1e-4)
        assert facts["round_trip_mse"] == pytest.approx((again - held).square().mean().item(), rel=1e-3)
        assert "the way to x0 and back alone makes an error" in printed


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PIPELINES]
)
def test_a_pipeline_from_the_command_line(name, diti_here, tmp_path, face):
    folder = PIPELINES[name](tmp_path / "pipeline")
    done = walk_through(diti_here, folder, tmp_path / "m", face)
    model = package.load(tmp_path / "m", "cpu")
    check_errors(model, done.stdout, json.loads((tmp_path / "m" / "checks.json").read_text()))
    pixels = to_float(open_data(DATA, SIZE).pixels([0, 1, 2]))
    z = model.encode(pixels, value_range=(-1, 1))
    shutil.rmtree(folder)  # the model folder needs nothing else, wherever it is
    moved = package.load(shutil.move(tmp_path / "m", tmp_path / "elsewhere"), "cpu")
    assert torch.equal(moved.encode(pixels, value_range=(-1, 1)), z)
    assert moved.noise_shape == moved.backbone.shape
    moved.save(tmp_path / "again")
    again = package.load(tmp_path / "again", "cpu")
    rebuilt = [model.reconstruct(pixels, sampling_steps=4, value_range=(-1, 1)) for model in (moved, again)]
    assert torch.equal(*rebuilt) and rebuilt[0].shape == pixels.shape


def test_a_model_of_ones_own_from_the_command_line(diti_here, tmp_path, face, caplog, monkeypatch):
    monkeypatch.setattr(evidence, "TOLD_MINUTES", 0)
    fields = {"seed": 0, "channels": 1, "schedule": "flow", "predicts": "flow", "size": 28}
    (tmp_path / "mine.py").write_text(CODE.format(**fields))
    (tmp_path / "beside.py").write_text(BESIDE)
    done = walk_through(diti_here, f"{tmp_path}/mine.py:make", tmp_path / "m", face)
    assert "running your code: make()" in caplog.text and done.returncode == 0
    assert caplog.text.count("take about") == 1
    facts = json.loads((tmp_path / "m" / "backbone.json").read_text())
    assert facts["code"] == f"{tmp_path}/mine.py:make"
    drawn = diti_here("sample", facts["code"], "-n", "2", *STEPS, "--out", tmp_path / "drawn.png")
    assert drawn.returncode == 0 and (tmp_path / "drawn.png").is_file(), drawn.stderr
    export = diti_here("export", tmp_path / "m", "--out", tmp_path / "e.onnx")
    assert export.returncode == 2 and "of which no ONNX file is made" in export.stderr


def test_what_is_distilled_says_so_once_and_at_once(diti_here, tmp_path, caplog, monkeypatch):
    def stopped(*given, **more):
        raise InputError("stopped")

    monkeypatch.setattr(run_module, "gather_evidence", stopped)
    assert solve(diti_here, PIPELINES["Flux"](tmp_path / "pipeline"), tmp_path / "m").returncode == 2
    assert caplog.text.count("this Flux is distilled") == 1


def test_the_minutes_are_told_before_any_of_them_passes(diti_here, tmp_path, caplog, monkeypatch):
    def stopped(*given, **more):
        raise InputError("stopped")

    monkeypatch.setattr(evidence, "TOLD_MINUTES", 0)
    monkeypatch.setattr(evidence, "_looked", stopped)
    assert solve(diti_here, PIPELINES["latent"](tmp_path / "pipeline"), tmp_path / "m").returncode == 2
    splits = open_data(DATA, SIZE).rows
    looked, validated = len(splits("train")), evidence.DRAWS_OF_ONE * len(splits("valid"))
    said = f"a first look at {looked} images and the pass over the first {validated + 128}, 2 times each, take"
    assert said in caplog.text


def test_train_says_which_kinds_it_takes(diti_here, tmp_path):
    folder = PIPELINES["latent"](tmp_path / "pipeline")
    result = diti_here("train", "--data", DATA, "--backbone", folder, "--out", tmp_path / "t", "--images", "64")
    assert result.returncode == 2
    assert "diti train takes a UNet2DModel of RGB pixels" in result.stderr and not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PIPELINES]
)
def test_a_stopped_solution_continues_to_the_same_model(name, diti_here, tmp_path, monkeypatch):
    folder = PIPELINES[name](tmp_path / "pipeline")
    monkeypatch.setattr(collecting, "SECONDS_BETWEEN_STATES", -1.0)
    monkeypatch.setattr(collecting, "CHUNK", 64)
    monkeypatch.setattr(run_module, "finish", lambda model, *rest: model.save(rest[2].path) or Findings())
    assert solve(diti_here, folder, tmp_path / "whole").returncode == 0
    real = collecting.Pass.take_in

    def stopping(job, sums, walk, start, count):
        if walk.purpose == "solve-train" and start == 64:
            raise KeyboardInterrupt
        real(job, sums, walk, start, count)

    with monkeypatch.context() as patch:
        patch.setattr(collecting.Pass, "take_in", stopping)
        assert solve(diti_here, folder, tmp_path / "m").returncode == 130
    assert (tmp_path / "m" / "state").is_dir() and not (tmp_path / "m" / "model.json").exists()
    assert solve(diti_here, folder, tmp_path / "m").returncode == 0
    for part in ("encoder", "decoder"):
        whole, again = (load_file(tmp_path / run / part / "model.safetensors") for run in ("whole", "m"))
        assert all(torch.equal(whole[name], again[name]) for name in whole)
