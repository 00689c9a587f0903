"""SimCLR: its loss against a slow loop, and the method as a user runs it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import diti
from diti.cli import main
from diti.config import EncoderConfig, TrainConfig, TrainingConfig, ViewsConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.loop import make_accelerator, train
from diti.core.rng import Draws, torch_generator
from diti.core.runs import RunFolder
from diti.data import toyfaces
from diti.data.augment import two_views
from diti.data.sources import open_data
from diti.representation.methods import simclr
from diti.representation.models.model import Model
from diti.representation.networks.encoder import build_encoder
from diti.representation.registry import find_method
from diti.representation.train import train_model

DATA = "toyfaces:200"
CODE = EncoderConfig(encoder="residual", code_dim=12, encoder_channels=(8, 16))
LENGTH = TrainingConfig(images=128, train_batch_size=16, learning_rate=1e-2, ema_decay=0.5, log_images=64)
VIEWS = ViewsConfig(projection_dim=8)
PIXELS = toyfaces.render(toyfaces.sample(5, seed=2), 32)


@pytest.fixture
def config():
    return TrainConfig(method="simclr", data=DATA, code=CODE, views=VIEWS, training=LENGTH)


@pytest.fixture
def folder(config, tmp_path):
    train_model(config, tmp_path / "run")
    return tmp_path / "run"


def rows(count, seed, width=5):
    return torch.randn(count, width, generator=torch_generator(seed, "rows"))


def complaint(capsys, *words):
    capsys.readouterr()
    assert main(list(map(str, words))) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("diti: ") and "Traceback" not in "".join(lines)
    return lines[-1]


# ---- The loss -------------------------------------------------------------------------------------------------


def slow_nt_xent(first, second, temperature):
    """Eq. 1 of Chen et al., one view after the other, in plain Python; and whether the partner is the nearest."""
    views = [vector for pair in zip(first.tolist(), second.tolist(), strict=True) for vector in pair]

    def similarity(a, b):
        dot = sum(x * y for x, y in zip(a, b, strict=True))
        return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))

    losses, nearest = [], []
    for i, view in enumerate(views):
        partner = i + 1 if i % 2 == 0 else i - 1
        others = {k: similarity(view, other) for k, other in enumerate(views) if k != i}
        total = sum(math.exp(s / temperature) for s in others.values())
        losses.append(-math.log(math.exp(others[partner] / temperature) / total))
        nearest.append(max(others, key=others.get) == partner)
    halves = range(0, len(views), 2)
    return [(losses[i] + losses[i + 1]) / 2 for i in halves], [(nearest[i] + nearest[i + 1]) / 2 for i in halves]


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("count", [2, 7])
def test_nt_xent_is_equation_1(count, temperature):
    first = 2 * rows(count, 0).double()
    second = first + rows(count, 1)
    loss, nearest = simclr.nt_xent(first, second, temperature)
    expected, partners = slow_nt_xent(first, second, temperature)
    assert np.allclose(loss, expected, rtol=1e-9) and nearest.tolist() == partners


def test_nt_xent_of_equal_and_of_perfect_views_has_a_closed_form():
    same = torch.ones(4, 3)  # everything alike: a guess among 2N - 1 views
    assert np.allclose(simclr.nt_xent(same, same, 0.5)[0], math.log(7))
    apart = torch.eye(4)  # partners equal, others at right angles
    loss, nearest = simclr.nt_xent(apart, 2 * apart, 0.5)
    assert np.allclose(loss, math.log(1 + 6 * math.exp(-2))) and nearest.tolist() == [1] * 4


def test_the_gradient_of_nt_xent_is_that_of_differences():
    first, second = rows(3, 0).double().requires_grad_(), rows(3, 1).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: simclr.nt_xent(a, b, 0.3)[0], (first, second))


def test_the_projection_has_two_layers_with_a_relu_between():
    head, z = simclr.projection_head(12, 8), rows(4, 0, 12)
    hidden = z @ head[0].weight.T + head[0].bias
    assert hidden.shape == (4, 12)
    assert torch.allclose(head(z), hidden.clamp(min=0) @ head[2].weight.T + head[2].bias, atol=1e-6)


def test_the_objective_compares_the_projected_codes_of_two_views():
    objective = simclr.Contrast(build_encoder(CODE, 32, seed=0), VIEWS, batch=5).eval()
    images, draws = to_float(PIXELS), Draws(3, 16, 5)
    report = objective(images, draws)
    with torch.no_grad():
        projected = [objective.projection(objective.encoder(view)) for view in two_views(images, draws, VIEWS)]
    loss, nearest = slow_nt_xent(*projected, VIEWS.temperature)
    assert np.allclose(report.per_image.detach(), loss, rtol=1e-4)
    assert report.total.item() == pytest.approx(np.mean(loss), rel=1e-4)
    assert report.parts["top1"].item() == pytest.approx(np.mean(nearest))


def test_it_learns_to_tell_a_handful_of_images_apart(tmp_path):
    length = replace(LENGTH, images=1000, train_batch_size=5, log_images=200)
    objective = simclr.Contrast(build_encoder(CODE, 32, seed=0), replace(VIEWS, temperature=0.1), batch=5)
    run, images = RunFolder(tmp_path / "run"), to_float(PIXELS)
    train(
        objective, lambda start, count: images, length, run,
        label="", evaluate=lambda seen: {}, accelerator=make_accelerator(length),
    )  # fmt: skip
    lines = [line for line in run.read_log() if "loss" in line]
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"] and lines[-1]["top1"] > 0.8 > lines[0]["top1"]


# ---- The method -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", ["full", "no-colour", "none"])
def test_the_command_line_trains_each_kind_of_view(tmp_path, backbone, augment):
    run = tmp_path / "run"
    backbone.save(tmp_path / "backbone")
    words = ["--method", "simclr", "--augment", augment, "--data", DATA, "--backbone", tmp_path / "backbone"]
    words += ["--code-dim", 12, "--projection-dim", 8, "--images", 64, "--train-batch-size", 16, "--out", run]
    assert main(["train", *map(str, words)]) == 0
    lines = RunFolder(run).read_log()
    logged, checked = [next(line for line in lines if name in line) for name in ("loss", "validation_loss")]
    assert math.isfinite(logged["loss"]) and 0 <= logged["top1"] <= 1
    assert math.isfinite(checked["validation_loss"]) and 0 <= checked["validation_top1"] <= 1
    assert diti.load(run).encode(PIXELS).shape == (5, 12)


def test_the_saved_model_gives_the_codes_of_the_trained_encoder(config, tmp_path):
    method, data = find_method("simclr"), open_data(DATA, 32)
    objective = method.build(config, None, data)
    model = method.model(objective.eval(), config, torch.zeros(12), torch.ones(12))
    model.save(tmp_path / "model")
    loaded = diti.load(tmp_path / "model")
    assert type(loaded) is Model and loaded.method == "simclr"
    with torch.no_grad():
        assert torch.allclose(loaded.encode(PIXELS), objective.encoder(to_float(PIXELS)), atol=1e-6)
    saved = load_file(tmp_path / "model" / "encoder" / "model.safetensors")
    assert not [name for name in saved if "projection" in name], "the projection is dropped"


def test_a_continued_run_equals_one_run(config, tmp_path):
    for images in (64, 128):  # the second continues the first
        train_model(replace(config, training=replace(LENGTH, images=images)), tmp_path / "twice")
    train_model(config, tmp_path / "once")
    once, twice = (load_file(tmp_path / run / "encoder" / "model.safetensors") for run in ("once", "twice"))
    assert once.keys() == twice.keys() and all(torch.equal(once[name], twice[name]) for name in once)
    lines = [[r["loss"] for r in RunFolder(tmp_path / run).read_log() if "loss" in r] for run in ("once", "twice")]
    assert lines[0] == lines[1] and len(lines[0]) == 2


@pytest.mark.slow  # the gathering itself is tested in core/test_gather.py
def test_two_processes_with_half_the_batch_equal_one(tmp_path, two_processes):
    words = ["train", "--method", "simclr", "--data", DATA, "--encoder", "residual"]
    words += ["--encoder-channels", "8", "16", "--code-dim", "12", "--train-batch-size", "16", "--images", "256"]
    words += ["--log-images", "64", "--validate-images", "128", "--lr-warmup-images", "0", "--out"]
    assert main([*words, str(tmp_path / "one")]) == 0
    two_processes(*words, tmp_path / "two")
    one, two = (RunFolder(tmp_path / name).read_log() for name in ("one", "two"))
    for name in ("loss", "grad_norm", "validation_loss"):
        a, b = ([line[name] for line in lines if name in line] for lines in (one, two))
        assert len(a) > 1 and np.allclose(a, b, rtol=1e-3), name
    weights = [load_file(tmp_path / name / "encoder" / "model.safetensors") for name in ("one", "two")]
    assert all(torch.allclose(weights[0][key], weights[1][key], atol=1e-4) for key in weights[0])


def test_validation_compares_as_many_images_as_the_training(config):
    data = open_data(DATA, 32)
    objective = find_method("simclr").build(config, None, data).train()
    valid = data.rows("valid")
    batches = [valid[i : i + 16] for i in range(0, len(valid) - 15, 16)]
    assert 1 <= len(batches) < len(valid) / 16, "some are left over"
    with torch.no_grad():
        parts = [
            objective.eval()(to_float(data.pixels(part)), Draws(0, 16 * i, 16)) for i, part in enumerate(batches)
        ]
    found = find_method("simclr").evaluate(objective.train(), data)
    assert objective.training and found["validation_loss"] == pytest.approx(
        np.mean([p.total.item() for p in parts]), rel=1e-5
    )
    assert found["validation_top1"] == pytest.approx(np.mean([p.parts["top1"].item() for p in parts]))
    objective.batch = 150  # more than there are to validate on
    assert len(valid) < 150 and math.isfinite(find_method("simclr").evaluate(objective, data)["validation_loss"])


# ---- Complaints -----------------------------------------------------------------------------------------------


def test_an_image_alone_cannot_be_compared(config, tmp_path, capsys):
    with pytest.raises(InputError, match="compares the images of a batch, and this one has 1"):
        simclr.nt_xent(rows(1, 0), rows(1, 1), 0.5)
    alone = replace(config, training=replace(LENGTH, train_batch_size=1))
    with pytest.raises(InputError, match=r"--train-batch-size is 1, .*use 2 or more"):
        find_method("simclr").validate(alone, 32)
    words = ["train", "--method", "simclr", "--encoder", "residual", "--data", DATA, "--images", 64]
    words += ["--train-batch-size", 1, "--out", tmp_path / "run"]
    assert "simclr compares the images of a batch; use 2 or more" in complaint(capsys, *words)
    with pytest.raises(InputError, match="--code-dim is 0"):
        find_method("simclr").validate(replace(config, code=replace(CODE, code_dim=0)), 32)


def test_a_batch_is_not_cut_into_parts(config, tmp_path):
    parts = replace(config, training=replace(LENGTH, gradient_accumulation_steps=2))
    with pytest.raises(InputError, match="would compare the images of each part alone"):
        train_model(parts, tmp_path / "run")


def test_what_needs_a_decoder_says_so_in_one_line(folder, image_folder, tmp_path, capsys):
    picture, out = image_folder / "a" / "00.png", ("--out", tmp_path / "out.png")
    for words in (
        ["interpolate", folder, picture, picture, *out],
        ["manipulate", folder, picture, "--attribute", "smile", "--data", DATA, *out],
        ["vary", folder, picture, *out],
        ["sample", folder, *out],
    ):
        assert "a simclr model has no decoder: it can encode and be probed" in complaint(capsys, *words), words[0]
    assert not list(tmp_path.glob("out*"))
