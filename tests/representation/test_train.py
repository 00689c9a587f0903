"""`diti train` and `diti encode` as a user runs them, on a tiny backbone."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file
from tiny import perturb

import diti
from diti.cli import main
from diti.core.errors import InputError
from diti.core.machine import cache_folder
from diti.core.rng import Draws
from diti.core.runs import RunFolder
from diti.core.settings import from_options
from diti.data.prepared import training_batches
from diti.data.sources import open_data
from diti.presets import train_preset
from diti.representation.methods.base import see_before
from diti.representation.methods.diti import frozen_loss_by_time
from diti.representation.models.loading import load
from diti.representation.registry import find_method
from diti.representation.settings import resolve

COMMON = (
    "--data", "toyfaces:200", "--code-dim", "12", "--subsets", "4", "--train-batch-size", "16",
    "--start-from", "copy",
    "--log-images", "64", "--checkpoint-images", "128", "--validate-images", "1024", "--lr-warmup-images", "64",
)  # fmt: skip


@pytest.fixture
def frozen(backbone, tmp_path):
    backbone.save(tmp_path / "backbone")
    return str(tmp_path / "backbone")


def losses(run):
    return [r["loss"] for r in RunFolder(run).read_log() if "loss" in r]


def weights(run):
    found = {}
    for part in ("encoder", "decoder"):
        found |= {f"{part}.{k}": v for k, v in load_file(run / part / "model.safetensors").items()}
    return found


@pytest.mark.parametrize("method", ["diti", "diffae", "tcvae"])
def test_what_a_frozen_trunk_sees_is_looked_up_by_the_position_in_the_walk(backbone, method):
    faces = open_data("toyfaces:200", 16)
    options = {"method": method, "code_dim": 12, "subsets": 4, "start": "copy", "encoder_mirror": True}
    config = resolve(from_options(train_preset("toyfaces32"), options, "test"))
    objective = find_method(method).build(config, backbone, faces).train()
    perturb(objective)
    images = training_batches(faces, config.training.seed, flip=True)(48, 16)
    draws = Draws(config.training.seed, 48, 16)
    run = objective(images, draws).per_image
    see_before(objective, config.training, faces)
    assert objective.seen_before is not None
    looked_up = objective(images, draws).per_image
    torch.testing.assert_close(looked_up, run, atol=1e-4, rtol=1e-4)
    others = objective(images, Draws(config.training.seed, 64, 16)).per_image
    objective.seen_before = None
    assert not torch.allclose(objective(images, Draws(config.training.seed, 64, 16)).per_image, others, rtol=1e-3)


@pytest.mark.parametrize("flip", [True, False])
def test_a_trunk_that_tells_mirrored_images_apart_runs_anew_where_images_come_mirrored(backbone, flip):
    faces = open_data("toyfaces:200", 16)
    options = {"method": "tcvae", "code_dim": 12, "flip": flip}
    config = resolve(from_options(train_preset("toyfaces32"), options, "test"))
    objective = find_method("tcvae").build(config, backbone, faces)
    see_before(objective, config.training, faces)
    assert (objective.seen_before is None) == flip
    objective.seen_before = None
    objective.makes_views = True
    see_before(objective, config.training, faces)
    assert objective.seen_before is None


def test_a_training_with_a_frozen_trunk_looks_it_up(frozen, tmp_path, monkeypatch):
    def train(name):
        words = ["train", *COMMON, "--encoder-mirror", "--backbone", frozen, "--images", "128"]
        assert main([*words, "--out", str(tmp_path / name)]) == 0
        return losses(tmp_path / name)

    known = train("known")
    (path,) = (path for path in (cache_folder() / "features").glob("*.npy") if np.load(path).shape[1] > 12)
    np.save(path, np.load(path)[::-1])
    assert not np.allclose(train("wrong"), known, rtol=1e-5)
    path.unlink()
    monkeypatch.setattr("diti.representation.features.MOST_KEPT", 0)
    np.testing.assert_allclose(train("unknown"), known, rtol=1e-4)


def test_training_learns_and_leaves_a_model_with_its_facts(frozen, tmp_path, capsys):
    run = tmp_path / "run"
    words = ["train", *COMMON, "--backbone", frozen, "--images", "1024", "--out", str(run)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "z removes" in shown and f"explore {run} --data toyfaces:200 --out" in shown
    facts = json.loads((run / "checks.json").read_text())
    assert facts["loss_removed"] > 0.05, "a backbone of random weights leaves much to remove"
    assert facts["reconstruction_mse"] > 0 and len(facts["validation_loss_frozen_by_time"]) == 10
    for name in ("losses.png", "reconstructions.png", "card.md", "stats.safetensors", "partition.json"):
        assert (run / name).exists(), name
    model = load(run)
    assert model.partition.subsets == 4 and model.partition.kind == "staged-even"
    data = open_data("toyfaces:200", 16)
    z = model.encode(data.images[data.rows("train")])
    assert torch.allclose(z.mean(0), model.mean, atol=1e-4) and torch.allclose(z.std(0), model.std, rtol=0.02)


@pytest.mark.parametrize(
    "options",
    [
        ["--method", "pdae"],
        ["--detach", "--partition", "balanced"],
        ["--partition", "adaptive", "--time-sampling", "loss"],
        ["--encoder", "residual", "--encoder-channels", "8", "16", "--start", "random"],
        ["--trunk", "fine-tuned"],
    ],
    ids=" ".join,
)
def test_every_option_trains(frozen, tmp_path, options):
    run = tmp_path / "run"
    assert main(["train", *COMMON, *options, "--backbone", frozen, "--images", "64", "--out", str(run)]) == 0
    model = load(run)
    assert model.partition.subsets == (1 if "pdae" in options else 4)
    assert np.isfinite(losses(run)).all()


def test_killed_and_continued_equals_one_run(frozen, tmp_path, one_thread):
    words = ["train", *COMMON, "--backbone", frozen, "--images", "512", "--out"]
    assert main([*words, str(tmp_path / "whole")]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "diti", *words, tmp_path / "killed"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while process.poll() is None and not (tmp_path / "killed" / "state" / f"{128:012d}").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "card.md").exists(), "it ended before it was killed"
    assert main([*words, str(tmp_path / "killed")]) == 0
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")


def test_a_run_is_not_continued_over_another_backbone_of_the_same_path(frozen, backbone, tmp_path, capsys):
    words = ["train", *COMMON, "--backbone", frozen, "--out", str(tmp_path / "run"), "--images"]
    assert main([*words, "64"]) == 0
    with torch.no_grad():
        backbone.unet.conv_out.weight.add_(1)
    backbone.save(frozen)
    assert main([*words, "128"]) == 2
    assert "other settings (backbone_hash)" in capsys.readouterr().err


def test_two_processes_with_half_the_batch_equal_one(frozen, tmp_path, two_processes):
    words = ["train", *COMMON, "--backbone", frozen, "--images", "256", "--out"]
    assert main([*words, str(tmp_path / "one")]) == 0
    two_processes(*words, tmp_path / "two", apart=tmp_path / "apart")
    assert np.allclose(losses(tmp_path / "one"), losses(tmp_path / "two"), rtol=1e-4)


def test_from_python_it_is_the_same(frozen, tmp_path):
    words = [
        "train",
        *COMMON,
        "--backbone",
        frozen,
        "--images",
        "64",
        "--seed",
        "3",
        "--out",
        str(tmp_path / "verb"),
    ]
    assert main(words) == 0
    settings = {"code_dim": 12, "subsets": 4, "train_batch_size": 16, "start": "copy", "lr_warmup_images": 64}
    data = open_data("toyfaces:200", 16)
    model = diti.train(data, frozen, out=tmp_path / "python", images=64, seed=3, **settings)
    assert isinstance(model, diti.DiTi) and model.method == "diti"
    verb, python = weights(tmp_path / "verb"), weights(tmp_path / "python")
    assert verb.keys() == python.keys() and all(torch.equal(verb[key], python[key]) for key in verb)


def test_nothing_that_is_said_from_python_is_swallowed(frozen, tmp_path, monkeypatch):
    for wrong, told in (
        ({"code_dims": 3}, r"diti\.train: unknown setting 'code_dims'.*Did you mean 'code_dim'"),
        ({"method": "ditti"}, "method 'ditti' is unknown"),
        ({"preset": "faces"}, "preset 'faces' is unknown"),
        ({"backbone": None}, "method diti needs a backbone"),
    ):
        with pytest.raises(InputError, match=told):
            diti.train(**{"data": "toyfaces:9", "backbone": frozen, "out": tmp_path / "run", **wrong})
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="one process and 2 were started; use torchrun -m diti train"):
        diti.train("toyfaces:9", frozen, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_encode_keeps_the_order_and_names_what_it_could_not_read(model, image_folder, tmp_path, capsys):
    model.save(tmp_path / "model")
    (image_folder / "a" / "00x.png").write_bytes(b"broken")
    out = tmp_path / "features.parquet"
    assert main(["encode", str(tmp_path / "model"), str(image_folder), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "12 images × 12 dims; 1 unreadable images are named in" in shown
    table = pyarrow.parquet.read_table(out)
    data = open_data(str(image_folder), 16)
    assert table["file"].to_pylist() == data.table["file"].to_pylist()
    assert table.column_names[:3] == ["file", "split", "z000_t0000"]
    z = np.stack([table[name].to_numpy() for name in model.feature_names()], 1)
    assert np.allclose(z, model.encode(np.asarray(data.images)), atol=1e-5)


def test_bad_input_is_one_line(frozen, model, tmp_path, capsys):
    base = ["train", *COMMON, "--backbone", frozen, "--images", "64", "--out"]

    def complaint(*words: str) -> str:
        assert main(list(words)) == 2
        shown = capsys.readouterr()
        assert shown.out == "", "settings are shown once all is checked"
        assert shown.err.startswith("diti: ") and shown.err.count("\n") == 1
        return shown.err

    assert "--backbone is missing" in complaint("train", "--data", "toyfaces:9", "--out", str(tmp_path / "x"))
    assert "subsets" in complaint(*base, str(tmp_path / "x1"), "--subsets", "50")
    assert "--code-dim is 9999" in complaint(*base, str(tmp_path / "x2"), "--code-dim", "9999")
    assert "pdae has one" in complaint(*base, str(tmp_path / "x3"), "--method", "pdae", "--detach")
    assert main(["prepare", "toyfaces:40", "--size", "32", "--out", str(tmp_path / "d32")]) == 0
    capsys.readouterr()
    other = [str(tmp_path / "d32") if w == "toyfaces:200" else w for w in base]
    assert "images are 32 px but the backbone is for 16 px" in complaint(*other, str(tmp_path / "x4"))
    assert not any((tmp_path / f"x{number}").exists() for number in ("", 1, 2, 3, 4)), "a refusal leaves nothing"
    assert main([*base, str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert "other settings (code.code_dim)" in complaint(*base, str(tmp_path / "run"), "--code-dim", "11")
    assert "is not a model folder" in complaint("encode", frozen, "toyfaces:9")


def test_the_frozen_loss_by_time_has_a_value_for_every_step(backbone):
    curve = frozen_loss_by_time(backbone, open_data("toyfaces:60", 16))
    assert curve.shape == (1000,) and (curve > 0).all() and len(curve.unique()) == 50
