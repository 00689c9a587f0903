"""IB-GAN: its two bounds against closed forms, who learns from which loss, and whole tiny runs."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.distributions import Normal, kl_divergence

import diti
from diti.cli import main
from diti.config import EncoderConfig, GANConfig, TrainConfig, TrainingConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import Draws, torch_generator
from diti.core.runs import RunFolder
from diti.core.settings import to_yaml
from diti.core.weights import Weights
from diti.data import toyfaces
from diti.data.sources import open_data
from diti.representation.methods.coverage import LEAST_DIVERSITY, LEAST_NOVELTY
from diti.representation.methods.ibgan import (
    discriminator_loss,
    draw_images,
    gaussian_kl,
    generator_loss,
    information_bound,
)
from diti.representation.models.direct import DirectModel
from diti.representation.networks.adversarial import look
from diti.representation.registry import find_method
from diti.representation.train import train_model

CODE = EncoderConfig(encoder="residual", code_dim=12, encoder_channels=(8, 16))
LENGTH = TrainingConfig(images=128, train_batch_size=16, learning_rate=2e-3, log_images=64, ema_decay=0.9)
GAN = GANConfig(bottleneck_dim=10, generator_channels=(16, 8), discriminator_width=8)
PIXELS = toyfaces.render(toyfaces.sample(6, seed=2), 16)
CHANNELS = [(0.5, 1.0), (2.0, 0.3), (0.8, 0.6)]  # r = a z + σ ε


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "toyfaces"
    assert main(["prepare", "toyfaces:100", "--size", "16", "--out", str(folder)]) == 0
    return str(folder)


@pytest.fixture(scope="module")
def config(data):
    return TrainConfig(method="ibgan", data=data, code=CODE, gan=GAN, training=LENGTH)


def images(data, count=16):
    dataset = open_data(data, 16)
    return to_float(dataset.pixels(dataset.rows("train")[:count]))


def normal(seed, *shape):
    return torch.randn(shape, generator=torch_generator(seed, "test"), dtype=torch.float64)


def capacity(a, std):
    """I(z; r) of one dim of r = a z + std ε, z ~ N(0, 1)."""
    return math.log(1 + a**2 / std**2) / 2


# ---- The formulas ---------------------------------------------------------------------------------------------


def test_kl_is_that_of_two_normals():
    mean, log_std = normal(0, 5, 3), normal(1, 5, 3)
    expected = kl_divergence(Normal(mean, log_std.exp()), Normal(0.0, 1.0)).sum(1)
    assert torch.allclose(gaussian_kl(mean, log_std), expected)


@pytest.mark.parametrize(("a", "std"), CHANNELS)
def test_upper_bound_is_the_information_with_the_true_marginal_and_above_it_with_another(a, std):
    z = normal(0, 200_000, 1)
    width = math.sqrt(a**2 + std**2)  # of the true marginal of r
    exact = gaussian_kl(a * z / width, torch.full_like(z, math.log(std / width))).mean().item()
    assert exact == pytest.approx(capacity(a, std), abs=0.01)
    bound = gaussian_kl(a * z, torch.full_like(z, math.log(std))).mean().item()
    gap = (width**2 - 1) / 2 - math.log(width)  # KL of the true marginal to N(0, 1)
    assert bound == pytest.approx(capacity(a, std) + gap, abs=0.03) and gap >= 0


@pytest.mark.parametrize(("a", "std"), CHANNELS)
def test_lower_bound_is_the_information_with_the_true_posterior_and_below_it_with_another(a, std):
    z = normal(0, 200_000, 1)
    r = a * z + std * normal(1, 200_000, 1)
    mean, posterior_std = a * r / (a**2 + std**2), std / math.sqrt(a**2 + std**2)
    exact = information_bound(z, mean, torch.full((1,), math.log(posterior_std))).mean().item()
    assert exact == pytest.approx(capacity(a, std), abs=0.01)
    wider = information_bound(z, mean, torch.full((1,), math.log(2 * posterior_std))).mean().item()
    assert wider == pytest.approx(capacity(a, std) + 1 / 2 - 1 / 8 - math.log(2), abs=0.01)
    assert information_bound(z, mean + 0.1, torch.full((1,), math.log(posterior_std))).mean() < exact


def test_lower_bound_is_log_likelihood_plus_entropy():
    z, mean, log_std = normal(0, 4, 3), normal(1, 4, 3), normal(2, 3)
    entropy = Normal(torch.zeros(3, dtype=torch.float64), 1.0).entropy().sum()
    expected = Normal(mean, log_std.exp()).log_prob(z).sum(1) + entropy
    assert torch.allclose(information_bound(z, mean, log_std), expected)


def test_hinge_losses_equal_a_slow_loop():
    real, fake = 2 * normal(0, 5, 3), 2 * normal(1, 5, 3)
    for i in range(5):
        pairs = list(zip(real[i].tolist(), fake[i].tolist(), strict=True))
        judged = sum(max(0, 1 - r) + max(0, 1 + f) for r, f in pairs) / 3
        assert discriminator_loss(real, fake)[i].item() == pytest.approx(judged)
        assert generator_loss(fake)[i].item() == pytest.approx(-sum(f for _, f in pairs) / 3)


# ---- Who learns from what -------------------------------------------------------------------------------------


@pytest.fixture
def objective(config, backbone):
    config = replace(config, code=replace(CODE, encoder="backbone"))
    return find_method("ibgan").build(config, backbone, open_data(config.data, 16)).eval()


def gradients(loss, parameters):
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def test_each_network_gets_the_gradient_of_its_own_loss(objective, data):
    draws = Draws(0, 0, 16)
    report = objective(images(data), draws)
    critic = list(objective.discriminator.parameters())
    others = [p for n, p in objective.named_parameters() if p.requires_grad and not n.startswith("discriminator.")]
    together = gradients(report.total, critic + others)

    z, noise = draws.normal("code", (12,)), draws.normal("bottleneck", (10,))
    mean, log_std = objective.generator.bottleneck(z)
    views, read = look(objective.encoder, objective.generator(z, noise))
    real, _ = look(objective.encoder, images(data))
    fake = [view.detach() for view in views]
    own = discriminator_loss(objective.discriminator(real), objective.discriminator(fake)).mean()
    alone = gradients(own, critic)
    rest = (
        generator_loss(objective.discriminator(views))
        - GAN.info_weight * information_bound(z, read, objective.code_log_std) / 12
        + GAN.bottleneck_weight * gaussian_kl(mean, log_std) / 12
    )
    for found, expected in zip(together, (*alone, *gradients(rest.mean(), others)), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)
        assert len(found) == 1 or found.abs().max() > 0, "only the bias of a score may stand still"
    assert report.total.item() == pytest.approx((own + rest.mean()).item(), abs=1e-5)
    assert report.total.item() == pytest.approx(report.per_image.mean().item(), abs=1e-5)


def test_a_frozen_trunk_learns_nothing_and_rates_differ(objective):
    learned = {name for name, weight in objective.named_parameters() if weight.requires_grad}
    assert {n for n in learned if n.startswith("encoder.")} == {"encoder.head.weight", "encoder.head.bias"}
    rates = {n.split(".")[0]: objective.rate_factor(n) for n in learned}
    assert rates["encoder"] == pytest.approx(0.1) and rates["generator"] < rates["discriminator"]
    assert objective.betas[0] == 0.5


# ---- Whole runs -----------------------------------------------------------------------------------------------


def log(folder):
    return [line for line in RunFolder(folder).read_log() if "adversarial" in line]


def states(folder):
    newest = max((folder / "state").iterdir())
    return {k: v for file in newest.glob("*.safetensors") for k, v in load_file(file).items()}


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ibgan") / "run"
    return folder, train_model(config, folder)


def test_a_run_leaves_a_model_with_its_facts(trained):
    folder, findings = trained
    assert find_method("ibgan").decodes
    facts = json.loads((folder / "checks.json").read_text())
    assert facts.keys() >= {"diversity", "novelty", "coverage", "mode_collapse", "reconstruction_mse"}
    assert facts["mode_collapse"] == (facts["diversity"] < LEAST_DIVERSITY or facts["novelty"] < LEAST_NOVELTY)
    verdict = "mode collapse: " if facts["mode_collapse"] else "no mode collapse: "
    assert findings.sentences[0].startswith(verdict) and findings.sentences[0] in (folder / "card.md").read_text()
    assert (folder / "samples.png").exists() and (folder / "reconstructions.png").exists()
    parts = {"discriminator", "adversarial", "information", "bottleneck", "real_score", "fake_score"}
    assert all(np.isfinite(line[name]) for line in log(folder) for name in parts)
    validations = [line for line in RunFolder(folder).read_log() if "coverage" in line]
    assert validations[-1]["coverage"] == pytest.approx(facts["coverage"])
    assert validations[-1]["diversity"] == pytest.approx(facts["diversity"], rel=1e-3)


def test_a_saved_model_encodes_and_decodes_the_same(trained, tmp_path):
    model = diti.load(trained[0])
    assert isinstance(model, DirectModel) and model.noise_shape == (10,) and model.size == 16
    z = model.encode(PIXELS)
    model.save(tmp_path / "copy")
    again = diti.load(tmp_path / "copy")
    assert torch.equal(again.encode(PIXELS), z)
    noise = model.new_noise(6, seed=0)
    assert torch.equal(again.decode(z, noise), model.decode(z, noise))
    assert not torch.equal(model.decode(z, noise), model.decode(z, -noise))
    assert model.reconstruct(PIXELS).shape == (6, 3, 16, 16)
    assert torch.equal(model.reconstruct(PIXELS), model.decode(z, torch.zeros(6, 10)))
    with pytest.raises(InputError, match=r"ibgan model has no frozen diffusion model"):
        model.backbone  # noqa: B018


def test_a_continued_run_equals_one_run(trained, config, tmp_path):
    train_model(replace(config, training=replace(LENGTH, images=64)), tmp_path / "run")
    train_model(config, tmp_path / "run")
    whole, continued = states(trained[0]), states(tmp_path / "run")
    assert whole.keys() == continued.keys() and any("._u" in name for name in whole), "spectral norm is kept"
    assert all(torch.equal(whole[name], continued[name]) for name in whole)
    assert [line["loss"] for line in log(trained[0])] == [line["loss"] for line in log(tmp_path / "run")]


def test_it_learns_a_few_images(config, data):
    """After some steps on 16 images the code is told from what is drawn, which looks more like these images."""
    objective = find_method("ibgan").build(config, None, open_data(data, 16))
    real, weights = images(data), Weights(objective, LENGTH)
    for group in weights.optimizer.param_groups:
        group["lr"] = 2e-3 * group["factor"]
    reports, distances = [], []
    for step in range(160):
        distances.append((draw_images(objective.generator, 16).mean(0) - real.mean(0)).square().mean().item())
        reports.append(objective(real, Draws(0, 16 * step, 16)))
        weights.optimizer.zero_grad()
        reports[-1].total.backward()
        weights.optimizer.step()
    first, last = reports[0].parts, reports[-1].parts
    assert last["information"] > first["information"] + 0.05 and last["information"] > 0.05
    assert last["bottleneck"] > last["information"], "one bound is below I(z; r), one above"
    assert np.mean(distances[-20:]) < 0.5 * distances[0]


@pytest.mark.slow  # the gathering itself is tested in core/test_gather.py
def test_two_processes_equal_one(config, tmp_path, two_processes):
    (tmp_path / "run.yaml").write_text(
        to_yaml(replace(config, training=replace(LENGTH, images=64, log_images=16)))
    )
    words = ["train", "--config", str(tmp_path / "run.yaml"), "--out"]
    assert main([*words, str(tmp_path / "one")]) == 0
    two_processes(*words, tmp_path / "two")
    one, two = ([line["loss"] for line in log(tmp_path / name)] for name in ("one", "two"))
    assert len(one) == 4 and np.allclose(one, two, rtol=1e-3)


@pytest.mark.parametrize(
    ("section", "wrong", "words"),
    [
        ("gan", {"bottleneck_dim": 0}, r"--bottleneck-dim is 0"),
        ("gan", {"info_weight": -1.0}, r"--info-weight is -1\.0; it must be 0 or more"),
        ("gan", {"generator_channels": ()}, r"--generator-channels is empty"),
        ("gan", {"discriminator_width": 0}, r"--discriminator-width is 0"),
        ("training", {"gradient_accumulation_steps": 2}, r"compare the images of each part alone"),
    ],
)
def test_bad_settings_are_refused(config, section, wrong, words, tmp_path):
    with pytest.raises(InputError, match=words):
        train_model(replace(config, **{section: replace(getattr(config, section), **wrong)}), tmp_path / "run")


def test_a_size_that_cannot_be_drawn_is_refused_early(config):
    with pytest.raises(InputError, match=r"the image is 24 px"):
        find_method("ibgan").validate(config, 24)


def test_data_of_few_images_is_told_before_the_training_or_trains(config, tmp_path):
    """Of six faces one is for validation, and one image tells nothing about variety."""
    few = replace(config, data="toyfaces:6", training=replace(LENGTH, images=16))
    assert "diversity" in train_model(few, tmp_path / "few").facts
    with pytest.raises(InputError, match=r"1 training image"):
        train_model(replace(few, data="toyfaces:1"), tmp_path / "one")
