"""Diff-AE: its loss against a slow loop, what it learns, and the whole of the command line on its folder."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from tiny import CODE, DIMS, tiny_backbone, tiny_diffae

import diti
from diti.cli import main
from diti.config import BackboneConfig, TrainConfig, TrainingConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import Draws
from diti.core.runs import RunFolder
from diti.data import toyfaces
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source, open_data
from diti.diffusion.unet import build_backbone
from diti.diffusion.validation import fixed_batches
from diti.representation.methods.diffae import (
    ConditionedDenoising,
    conditional_loss,
    new_decoder,
    validation_losses,
)
from diti.representation.models.diffae import DiffAE
from diti.representation.networks.conditioned import ConditionedUNet
from diti.representation.networks.encoder import build_encoder
from diti.representation.partition import Partition
from diti.representation.registry import find_method
from diti.representation.train import train_model

LENGTH = TrainingConfig(
    images=256, train_batch_size=16, learning_rate=1e-2, ema_decay=0.5, log_images=64, checkpoint_images=64
)
FACES = to_float(toyfaces.render(toyfaces.sample(4, seed=2), 16))  # (4, 3, 16, 16)
PAIR = F.avg_pool2d(FACES[:2], 2)  # (2, 3, 8, 8)


@pytest.fixture
def small() -> DiffAE:
    return tiny_diffae()


@pytest.fixture(scope="module")
def learned() -> DiffAE:
    """Two faces of 8 px learned by heart from a random start, in a few seconds."""
    shape = BackboneConfig(size=8, unshuffle=2, channels=(32,), layers=1, head_channels=8)
    backbone = build_backbone(shape, seed=0)
    encoder = build_encoder(replace(CODE, encoder_channels=(16,)), backbone, 0)
    objective = ConditionedDenoising(encoder, ConditionedUNet(backbone, DIMS, "random"))
    faces, steps, rate = PAIR.repeat(16, 1, 1, 1), 150, 1e-2
    adam = torch.optim.Adam(objective.parameters(), betas=(0.9, 0.99))
    for step in range(steps):
        adam.param_groups[0]["lr"] = rate * min(1, 2 * (1 - step / steps))
        adam.zero_grad()
        objective(faces, Draws(0, 32 * step, 32)).total.backward()
        adam.step()
    objective.eval()
    single = Partition.single(1000, DIMS)
    return DiffAE(encoder, single, torch.zeros(DIMS), torch.ones(DIMS), "diffae", decoder=objective.decoder)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with 200 prepared faces and a tiny backbone."""
    folder = tmp_path_factory.mktemp("place")
    prepare(find_source("toyfaces:200", ReadOptions(size=16)), folder / "faces", 16)
    tiny_backbone().save(folder / "backbone")
    return folder


@pytest.fixture(scope="module")
def config(place) -> TrainConfig:
    data, backbone = str(place / "faces"), str(place / "backbone")
    return TrainConfig(method="diffae", data=data, backbone=backbone, code=CODE, training=LENGTH)


@pytest.fixture(scope="module")
def run(config, place):
    """The folder of a whole training."""
    train_model(config, place / "run")
    return place / "run"


# ---- The loss ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
@torch.no_grad()
def test_the_loss_is_the_mean_squared_error_of_what_the_network_predicts(prediction):
    model = tiny_diffae(prediction)
    encoder, decoder = model.encoder, model.decoder
    draws = Draws(seed=3, start=16, count=4)
    report = ConditionedDenoising(encoder, decoder)(FACES, draws)
    t, noise = draws.integers("time-step", 1000), draws.normal("noise", (3, 16, 16))
    kept = decoder.net.scheduler.alphas_cumprod  # diffusers' own table
    for i in range(4):
        signal, rest = kept[t[i]].sqrt(), (1 - kept[t[i]]).sqrt()
        x_t = signal * FACES[i] + rest * noise[i]
        target = {
            "epsilon": noise[i],
            "sample": FACES[i],
            "v_prediction": signal * noise[i] - rest * FACES[i],
        }[prediction]
        output = decoder(x_t[None], t[i : i + 1], encoder(FACES[i : i + 1]))[0]
        expected = (
            sum(((a - b) ** 2).item() for a, b in zip(target.flatten(), output.flatten(), strict=True)) / 768
        )
        assert report.per_image[i].item() == pytest.approx(expected, rel=1e-4)
    assert report.total.item() == pytest.approx(report.per_image.mean().item())
    assert torch.equal(report.time_share, t / 1000)


def test_encoder_and_network_learn_from_the_same_loss(small):
    objective = ConditionedDenoising(small.encoder, small.decoder, encoder_rate=0.1)
    objective(FACES, Draws(0, 0, 4)).total.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in objective.parameters())
    assert objective.rate_factor("encoder.head.weight") == 0.1 and objective.rate_factor("decoder.net.unet") == 1


@torch.no_grad()
def test_a_handful_of_images_is_learned_and_z_says_which(learned):
    t, z = torch.arange(50, 1000, 50), learned.encode(PAIR)
    noise = torch.randn((19, 3, 8, 8), generator=torch.Generator().manual_seed(9))

    def loss(codes: torch.Tensor) -> float:
        each = [
            conditional_loss(learned.decoder, face.expand(19, -1, -1, -1), t, noise, code.expand(19, -1))
            for face, code in zip(PAIR, codes, strict=True)
        ]
        return torch.cat(each).mean().item()

    assert loss(z) < 0.1, "1 at the start"
    assert loss(z) < 0.7 * loss(z.flip(0))


def test_an_image_comes_back_from_its_noise_and_code(learned):
    def error(images: torch.Tensor, wanted: torch.Tensor = PAIR) -> float:
        return (images - wanted).square().mean().item()

    few, many = (error(learned.reconstruct(PAIR, sampling_steps=sampling_steps)) for sampling_steps in (10, 50))
    assert many < 1e-4 and many < 0.1 * few
    x_T = learned.infer_noise(PAIR, sampling_steps=50)
    wrong = learned.decode(learned.encode(PAIR).flip(0), x_T, 50, clamp=False)
    assert error(wrong) > 100 * many, "the field depends on z"
    random = learned.reconstruct(PAIR, "random")
    assert error(random) < 0.9 * error(random, PAIR.flip(0)), "new noise, but z says which of the two it is"


# ---- The method -------------------------------------------------------------------------------------------


def losses(run):
    return [r["loss"] for r in RunFolder(run).read_log() if "loss" in r]


def test_training_leaves_a_model_with_its_facts(config, run):
    facts = json.loads((run / "checks.json").read_text())
    shuffled = facts["validation_loss_shuffled"]
    assert facts["loss_removed_of_shuffled"] == pytest.approx(1 - facts["validation_loss"] / shuffled)
    assert 0 < facts["validation_loss"] < 0.95 and len(facts["validation_loss_shuffled_by_time"]) == 10
    assert facts["reconstruction_mse"] < facts["reconstruction_mse_random_noise"]
    assert "z removes" in (run / "card.md").read_text() and (run / "reconstructions.png").is_file()
    log = RunFolder(run).read_log()
    assert len(log[0]["loss_by_time"]) == 10 and log[-1]["validation_loss"] == facts["validation_loss"]
    assert losses(run)[-1] < 0.9 * losses(run)[0]
    model = diti.load(run)
    measured = validation_losses(model.encoder, model.decoder, open_data(config.data, 16))
    assert measured.record()["validation_loss"] == pytest.approx(facts["validation_loss"], rel=1e-5)


@torch.no_grad()
def test_the_shuffled_loss_is_that_of_the_image_before(config, small):
    """Image by image, with the codes in a list of their own."""
    data = open_data(config.data, 16)
    found = validation_losses(small.encoder, small.decoder, data)
    pixels, t, noise = next(fixed_batches(data, 1000, torch.device("cpu")))
    codes = [small.encoder(pixels[i : i + 1]) for i in range(128)]
    for i in (0, 1, 77):
        one = slice(i, i + 1)
        for column, code in ((found.with_z, codes[i]), (found.shuffled, codes[i - 1])):
            expected = conditional_loss(small.decoder, pixels[one], t[one], noise[one], code)
            assert column[i].item() == pytest.approx(expected.item(), rel=1e-4)
        assert found.time_share[i].item() == pytest.approx(t[i].item() / 1000)
    assert len(found.with_z) == 1024


def test_a_continued_run_equals_the_uninterrupted_one(config, run, tmp_path):
    train_model(replace(config, training=replace(LENGTH, images=128)), tmp_path / "parts")
    train_model(config, tmp_path / "parts")
    for part in ("encoder", "decoder"):
        a, b = (load_file(folder / part / "model.safetensors") for folder in (run, tmp_path / "parts"))
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a), part
    assert losses(run) == losses(tmp_path / "parts")


def test_the_network_starts_from_the_backbone_at_random_or_from_the_preset(config, backbone):
    x, t, z = FACES, torch.full((4,), 300), torch.ones(4, DIMS)
    with torch.no_grad():
        copied = new_decoder(config, backbone).eval()
        torch.testing.assert_close(copied(x, t, z), backbone(x, t), atol=1e-5, rtol=1e-5)
        assert new_decoder(replace(config, start="random"), backbone)(x, t, z).abs().max() == 0
    alone = new_decoder(config, 64)  # the side of the images, no backbone
    assert alone.net.size == 64 and alone.net.unet.config["block_out_channels"] == [32, 32, 64]
    assert alone.net.unshuffle == 2 and alone.dims == DIMS


def test_it_does_without_a_backbone(config, tmp_path):
    method, data = find_method("diffae"), open_data("toyfaces:20", 32)
    assert not method.wants_backbone(config)
    objective = method.build(replace(config, backbone=""), None, data)
    assert objective(to_float(data.pixels([0, 1])), Draws(0, 0, 2)).total.isfinite()
    method.model(objective, config, torch.zeros(DIMS), torch.ones(DIMS)).save(tmp_path)
    assert diti.load(tmp_path).reconstruct(data.pixels([0]), sampling_steps=2).shape == (1, 3, 32, 32)


def test_what_cannot_be_built_is_one_line(config, backbone):
    validate = find_method("diffae").validate
    validate(config, backbone)
    validate(config, 32)
    with pytest.raises(InputError, match=r"--detach needs several subsets and diffae has one"):
        validate(replace(config, detach=True), backbone)
    with pytest.raises(InputError, match=r"--encoder backbone copies a backbone, and none is given"):
        validate(replace(config, code=replace(CODE, encoder="backbone")), 32)
    with pytest.raises(InputError, match=r"--size is 36 px; 3 levels and --unshuffle 2 need a multiple of 8"):
        validate(config, 36)


def test_the_whole_command_line(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, pixels in zip("ab", toyfaces.render(toyfaces.sample(2, seed=2), 16), strict=True):
        Image.fromarray(pixels).save(f"{name}.png")
    data, training = f"--data {place / 'faces'}", "--images 64 --train-batch-size 16 --log-images 64 --code-dim 12"
    commands = (
        f"train --method diffae {data} --backbone {place / 'backbone'} {training} --out model",
        "interpolate model a.png b.png --subset all --scales 0,1 --sampling-steps 3 --out between.png",
        f"manipulate model a.png --attribute hat {data} --dims 4 --sampling-steps 3 --out hat.png",
        "vary model a.png -n 2 --sampling-steps 3 --out varied.png",
        f"train-latent model {data} --codes 2560",
        "sample model -n 2 --sampling-steps 3 --out drawn.png",
    )
    for command in commands:
        assert main(command.split()) == 0, f"{command}: {capsys.readouterr().err}"
    for name in ("between", "hat", "varied", "drawn"):
        with Image.open(f"{name}.png") as picture:
            assert picture.width > 100
    capsys.readouterr()
    refused = f"manipulate model a.png --attribute hat {data} --dims 4 --stop-guidance 0.5 --out x.png"
    assert main(refused.split()) == 2
    assert "a frozen model without z, and a diffae model has none" in capsys.readouterr().err
