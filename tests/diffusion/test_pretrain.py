"""Pretraining as a user runs it: by command, killed, continued, by several processes. Tiny networks, few steps."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import metadata

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from diti.cli import main
from diti.config import BackboneConfig, PretrainConfig, TrainingConfig
from diti.core.rng import Draws, torch_generator
from diti.core.runs import RunFolder
from diti.core.settings import to_yaml
from diti.data.sources import open_data
from diti.diffusion.backbone import load_backbone
from diti.diffusion.pretrain import Denoising, pretrain_backbone, target_and_output, validation_losses
from diti.diffusion.schedule import dm_loss_eps
from diti.diffusion.start_run import settled
from diti.diffusion.unet import build_backbone

TINY = (
    "--data", "toyfaces:200", "--size", "16", "--unshuffle", "2", "--channels", "8", "16", "--layers", "1",
    "--attention", "--head-channels", "8", "--train-batch-size", "16", "--log-images", "64",
    "--checkpoint-images", "128", "--validate-images", "1024", "--lr-warmup-images", "64",
)  # fmt: skip
SHAPE = BackboneConfig(size=16, unshuffle=2, channels=(8, 16), layers=1, head_channels=8)


def weights(run):
    return load_file(run / "unet" / "diffusion_pytorch_model.safetensors")


def losses(run):
    return [r["loss"] for r in RunFolder(run).read_log() if "loss" in r]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def left_by(run):
    """Names of files and, but for what tells times and paths, their contents."""
    found = {}
    for file in (path for path in run.rglob("*") if path.is_file()):
        telling = file.name in ("log.jsonl", "card.md", "run.json") or file.parent.name == "tensorboard"
        name = re.sub(r"tfevents\..*", "tfevents", str(file.relative_to(run)))
        assert name not in found, "one file for TensorBoard"
        found[name] = None if telling else file.read_bytes()
    return found


def test_a_run_leaves_a_backbone_with_its_card(tmp_path, capsys):
    assert main(["pretrain", *TINY, "--images", "256", "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "learning_rate:" in shown and "next: " in shown
    run = tmp_path / "run"
    for name in (
        "unet",
        "scheduler",
        "backbone.json",
        "config.yaml",
        "run.json",
        "log.jsonl",
        "samples.png",
        "card.md",
    ):
        assert (run / name).exists(), name
    backbone = load_backbone(run)
    assert backbone.size == 16 and backbone.unshuffle == 2
    card = (run / "card.md").read_text()
    assert "images seen: 256" in card and "| 0.9 – 1.0 |" in card and "command: `diti" in card
    facts = json.loads((run / "run.json").read_text())
    assert facts["data_hash"] and facts["versions"]["torch"] == metadata.version("torch")


def test_killed_at_any_moment_the_same_command_ends_with_the_same_bits(tmp_path, one_thread):
    """kill -9 twice at moments that depend on the machine's mood, then run to the end."""
    words = ["pretrain", *TINY, "--images", "768", "--out"]
    command = [sys.executable, "-m", "diti", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    assert main([*words, str(tmp_path / "whole")]) == 0
    for wanted in (128, 384):
        process = subprocess.Popen([*command, tmp_path / "killed"], **quiet)
        while process.poll() is None and not (tmp_path / "killed" / "state" / f"{wanted:012d}").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "killed" / "card.md").exists(), "it ended before it was killed"
    assert main([*words, str(tmp_path / "killed")]) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")
    assert left_by(tmp_path / "whole") == left_by(tmp_path / "killed")


LAUNCHERS = {  # accelerate launch starts two processes where it thinks that there are GPUs, and else one
    "torchrun": "torch.distributed.run --standalone --nproc_per_node 2",
    "accelerate launch": "accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 "
    "--main_process_port 0 --mixed_precision no --dynamo_backend no",
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_with_half_the_batch_equal_one(tmp_path, launcher):
    words = ["pretrain", *TINY, "--images", "512", "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert main([*words, str(tmp_path / "one")]) == 0
    command = [sys.executable, "-m", *LAUNCHERS[launcher].split(), "-m", "diti", *words, tmp_path / "two"]
    subprocess.run(command, check=True, timeout=900, env=environment)
    assert np.allclose(losses(tmp_path / "one"), losses(tmp_path / "two"), rtol=1e-4)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert all(torch.allclose(one[k], two[k], atol=2e-3) for k in one)
    assert len((tmp_path / "two" / "log.jsonl").read_text().splitlines()) == len(
        (tmp_path / "one" / "log.jsonl").read_text().splitlines()
    ), "only one process writes"


def config(**training):
    return PretrainConfig(
        data="toyfaces:60",
        backbone=SHAPE,
        training=TrainingConfig(**{"images": 64, "train_batch_size": 16, "log_images": 32, **training}),
    )


def test_other_settings_do_not_continue_a_run(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["pretrain", *TINY, "--images", "128", "--out", run]) == 0
    assert main(["pretrain", *TINY, "--images", "128", "--out", run, "--learning-rate", "0.5", "--seed", "3"]) == 2
    shown = capsys.readouterr().err
    assert "holds a run with other settings (training.learning_rate, training.seed)" in shown
    assert main(["pretrain", *TINY[2:], "--data", "toyfaces:90", "--images", "128", "--out", run]) == 2
    assert "other settings (data_hash)" in capsys.readouterr().err
    assert main(["pretrain", *TINY, "--images", "256", "--out", run]) == 0, "a longer run continues"
    assert "continuing at image 128" in capsys.readouterr().out
    assert main(["pretrain", *TINY, "--images", "128", "--out", run]) == 2
    assert "has seen 256 images and --images is 128; give 256 or more" in capsys.readouterr().err
    words = [
        "train",
        "--data",
        "toyfaces:200",
        "--images",
        "32",
        "--out",
        run,
        "--start-from",
        "copy",
        "--backbone",
    ]
    assert main([*words, run]) == 2
    assert "which is an input; choose a place outside it" in capsys.readouterr().err
    assert main([*words, "toyfaces32"]) == 2
    assert "holds a run of diti pretrain; choose a new" in capsys.readouterr().err


def test_a_folder_with_other_files_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("x")
    assert main(["pretrain", *TINY, "--images", "64", "--out", str(tmp_path)]) == 2
    assert "holds other files" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_rate_that_is_too_high_stops_with_advice(tmp_path, capsys):
    run = tmp_path / "run"
    words = ["pretrain", *TINY, "--images", "128", "--out", str(run)]
    too_high = ["--learning-rate", "100", "--max-grad-norm", "0"]
    for _ in range(2):
        assert main([*words, *too_high]) == 2
        shown = capsys.readouterr()
        assert shown.out.count("back to image 0, rate") == 3
        assert "after 3 retries" in shown.err
        assert "start again with --learning-rate 0.004, or" in shown.err, "more than the preset's is never advised"
        assert shown.err == f"diti: {(run / 'diverged.txt').read_text()}", "the folder tells why"
        assert sum("fall" in line for line in RunFolder(run).read_log()) == 3, "and how"
    assert main([*words, "--learning-rate", "0.004"]) == 0, "there is nothing to continue, so it starts anew"
    assert not (run / "diverged.txt").exists()
    assert not any("fall" in line for line in RunFolder(run).read_log())


def test_a_network_that_fell_to_predicting_nothing_begins_again_and_learns(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("diti.core.health.PATIENCE", 384)
    monkeypatch.setattr(Denoising, "must_gain", 0.1)
    unsteady = ["--optimizer", "adam", "--adam-beta2", "0.999"]
    words = ["pretrain", *TINY, *unsteady, "--images", "1024", "--log-images", "128", "--learning-rate"]
    assert main([*words, "0.04", "--out", str(tmp_path / "fallen")]) == 0
    assert "predict nothing at image 512: back to image 0, rate 0.02" in capsys.readouterr().out
    assert main([*words, "0.02", "--out", str(tmp_path / "lower")]) == 0
    fallen, lower = (weights(tmp_path / name) for name in ("fallen", "lower"))
    assert all(torch.equal(value, lower[name]) for name, value in fallen.items())
    losses = [r["loss"] for r in RunFolder(tmp_path / "fallen").read_log() if "loss" in r]
    assert losses[-1] < 0.7, losses


def test_fine_tuning_starts_from_the_given_backbone(tmp_path):
    pretrain_backbone(config(), tmp_path / "base")
    frozen = dataclasses.replace(config(learning_rate=1e-12), init=str(tmp_path / "base"))
    pretrain_backbone(frozen, tmp_path / "tuned")
    assert all(
        torch.allclose(a, b, atol=1e-6)
        for a, b in zip(weights(tmp_path / "base").values(), weights(tmp_path / "tuned").values(), strict=True)
    )


def test_data_of_another_size_is_refused(tmp_path, capsys):
    assert main(["prepare", "toyfaces:40", "--size", "32", "--out", str(tmp_path / "data")]) == 0
    words = [
        "pretrain",
        *TINY[2:],
        "--data",
        str(tmp_path / "data"),
        "--images",
        "64",
        "--out",
        str(tmp_path / "r"),
    ]
    assert main(words) == 2
    assert "images are 32 px but the backbone is for 16 px" in capsys.readouterr().err


def test_muon_trains_the_matrices_inside():
    backbone = build_backbone(dataclasses.replace(SHAPE, attention=(4,)), 0)
    by_muon = Denoising(backbone, "muon")
    inner = {name for name, p in by_muon.named_parameters() if by_muon.is_inner(name, p)}
    parts = ("resnets.0.conv1", "resnets.0.conv2", "conv_shortcut", "to_q", "to_out.0", "downsamplers.0.conv")
    assert all(any(part in name for name in inner) for part in parts)
    assert not any(part in name for name in inner for part in ("conv_in", "conv_out", "time_emb", "norm", "bias"))
    assert not any(Denoising(backbone).is_inner(name, p) for name, p in by_muon.named_parameters())


def test_the_loss_is_eq_3_in_its_eps_form():
    """Against a slow loop over images: noise them one by one by the definition of q(x_t | x0)."""
    backbone = build_backbone(SHAPE, seed=0).eval()
    torch.nn.init.normal_(backbone.unet.conv_out.weight, std=0.1, generator=torch_generator(0, "test"))
    images = torch.rand(4, 3, 16, 16, generator=torch_generator(1, "test")) * 2 - 1
    draws = Draws(5, 32, 4)
    with torch.no_grad():
        report = Denoising(backbone)(images, draws)
        t, noise = draws.spread("time-step", 1000), draws.normal("noise", (3, 16, 16))
        betas = np.linspace(1e-4, 0.02, 1000)
        for i in range(4):
            abar = np.prod(1 - betas[: t[i] + 1])
            x_t = np.sqrt(abar) * images[i] + np.sqrt(1 - abar) * noise[i]
            output = backbone(x_t[None].float(), t[i : i + 1])
            assert ((output[0] - noise[i]) ** 2).mean().item() == pytest.approx(
                report.per_image[i].item(), rel=1e-4
            )
    assert report.total.item() == pytest.approx(report.per_image.mean().item())


def test_a_weight_changes_what_is_learned_and_not_what_is_logged():
    backbone = build_backbone(SHAPE, seed=0).eval()
    images = torch.rand(4, 3, 16, 16, generator=torch_generator(1, "test"))
    plain, weighted = (
        Denoising(backbone, loss_weight=by)(images, Draws(5, 32, 4)).detached() for by in ("none", "p2")
    )
    assert torch.equal(plain.per_image, weighted.per_image)
    t = Draws(5, 32, 4).spread("time-step", 1000)
    p2 = 1 - backbone.schedule.alpha_bar
    wanted = (p2[t] / p2.mean() * plain.per_image.double()).mean()
    assert weighted.total.item() == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.parametrize("prediction", ["sample", "v_prediction"])
def test_other_predictions_are_trained_on_what_the_network_says(prediction):
    """Their ε error shrinks with ᾱ_t, so that in ε form the largest time-steps would not be learned."""
    backbone = build_backbone(dataclasses.replace(SHAPE, prediction=prediction), 0).eval()
    rng = torch_generator(0, "test")
    images, noise = (torch.randn(2, 3, 16, 16, generator=rng) for _ in range(2))
    t = torch.tensor([10, 990])
    loss = dm_loss_eps(*target_and_output(backbone, images, t, noise))
    for index, step in enumerate(t):
        abar = backbone.schedule.alpha_bar[step].double()
        x_t = abar.sqrt() * images[index] + (1 - abar).sqrt() * noise[index]
        v = abar.sqrt() * noise[index] - (1 - abar).sqrt() * images[index]
        target = {"sample": images[index], "v_prediction": v}[prediction]
        error = backbone(x_t.float()[None], step[None])[0] - target
        assert loss[index].item() == pytest.approx(error.square().mean().item(), rel=1e-4)


def test_validation_is_repeatable_and_spread_over_time(tmp_path):
    backbone, dataset = build_backbone(SHAPE, seed=0), open_data("toyfaces:60", 16)
    (a, share), (b, _) = validation_losses(backbone, dataset), validation_losses(backbone, dataset)
    assert torch.equal(a, b)
    assert torch.histc(share.float(), 10, 0, 1).tolist() == pytest.approx([102.4] * 10, abs=2)
    assert a.mean().item() == pytest.approx(1.0, abs=0.02), (
        "a network that predicts nothing loses the noise's power"
    )


def test_auto_precision_is_settled_when_a_run_begins(tmp_path, monkeypatch):
    """So that it continues as it began, on a device that has another."""
    monkeypatch.setattr("diti.core.loop.has_bf16", lambda device: True)
    begun = PretrainConfig(training=TrainingConfig(mixed_precision="no"))
    (tmp_path / "config.yaml").write_text(to_yaml(begun))
    assert settled(PretrainConfig(), tmp_path).mixed_precision == "no"
    assert settled(PretrainConfig(), tmp_path / "new").mixed_precision == "bf16"
