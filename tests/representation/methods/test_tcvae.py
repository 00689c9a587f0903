"""β-TCVAE: the parts of the KL divergence against integrals and closed forms, and the whole method."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import diti
from diti.cli import main
from diti.config import EncoderConfig, TrainConfig, TrainingConfig, VAEConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import Draws, torch_generator
from diti.core.runs import RunFolder
from diti.data import toyfaces
from diti.data.sources import open_data
from diti.presets import train_preset
from diti.representation.methods import tcvae
from diti.representation.methods.tcvae import tc_decomposition
from diti.representation.models.direct import DirectModel
from diti.representation.networks.encoder import build_encoder
from diti.representation.networks.image_decoder import VAEDecoder, vae_decoder_from_description
from diti.representation.networks.network_files import drawn_from
from diti.representation.registry import find_method
from diti.representation.train import train_model

DATA, SIZE, DIMS = "toyfaces:200", 16, 6
CODE = EncoderConfig(encoder="residual", code_dim=DIMS, encoder_channels=(8, 16))
LENGTH = TrainingConfig(images=128, train_batch_size=16, learning_rate=1e-3, ema_decay=0.5, log_images=64)
WORDS = (
    "--method", "tcvae", "--encoder", "residual", "--encoder-channels", "8", "16", "--code-dim", DIMS,
    "--train-batch-size", "16", "--log-images", "64", "--lr-warmup-images", "0",
)  # fmt: skip


@pytest.fixture
def dataset(tmp_path):
    assert main(["prepare", DATA, "--size", str(SIZE), "--out", str(tmp_path / "data")]) == 0
    return str(tmp_path / "data")


@pytest.fixture
def config(dataset):
    return TrainConfig(method="tcvae", data=dataset, code=CODE, training=LENGTH)


def objective(settings=None):
    return tcvae.TotalCorrelationVAE(
        build_encoder(CODE, SIZE, 0), decoder(SIZE, DIMS, (32, 16)), settings or VAEConfig()
    )


def decoder(*shape):
    with drawn_from(0, "test"):
        return VAEDecoder(*shape)


def posteriors(count, dims, seed=0):
    """Mean and log variance (count, dims) in float64, none like another."""
    rng = torch_generator(seed, "posteriors")
    mean = torch.randn(count, dims, generator=rng, dtype=torch.float64)
    return mean, torch.randn(count, dims, generator=rng, dtype=torch.float64) * 0.5 - 1


# ---- The three parts ----------------------------------------------------------------------------------------


def test_each_part_is_the_slow_sum_over_densities():
    mean, log_var = posteriors(7, 3)
    z = torch.randn(3, 3, generator=torch_generator(0, "z"), dtype=torch.float64)
    found = tc_decomposition(z, mean, log_var, first=2, data_count=50)
    for i in range(3):
        density = scipy.stats.norm(mean.numpy(), log_var.mul(0.5).exp().numpy()).pdf(z[i].numpy())  # (M, D)
        joint = math.log(sum(math.prod(row) for row in density) / (50 * 7))
        product = sum(math.log(sum(column) / (50 * 7)) for column in density.T)
        prior = sum(scipy.stats.norm.logpdf(z[i].numpy()))
        own = math.log(math.prod(density[i + 2]))
        expected = (own - joint, joint - product, product - prior)
        assert np.allclose([part[i].item() for part in found], expected, rtol=1e-10)


def test_the_parts_add_up_to_the_whole_divergence():
    mean, log_var = posteriors(9, 5)
    z = mean[4:] + 0.3
    whole = scipy.stats.norm(mean[4:], log_var[4:].mul(0.5).exp()).logpdf(z) - scipy.stats.norm.logpdf(z)
    for count in (1, 1000):
        found = tc_decomposition(z, mean, log_var, first=4, data_count=count)
        assert torch.allclose(sum(found), torch.from_numpy(whole.sum(1)), rtol=1e-10)


def integrals(mean, log_var):
    """Mutual information, total correlation and dimension-wise KL of a data set with D = 2, on a fine grid."""
    axis = np.linspace(-8, 8, 1001)
    cell = axis[1] - axis[0]
    by_dim = scipy.stats.norm(mean.numpy()[..., None], log_var.mul(0.5).exp().numpy()[..., None]).pdf(
        axis
    )  # (N,2,G)
    conditional = by_dim[:, 0, :, None] * by_dim[:, 1, None, :]  # (N, G, G)
    joint = conditional.mean(0)
    margins = joint.sum(1) * cell, joint.sum(0) * cell
    product = np.outer(*margins)

    def expected_log(density, ratio_above, ratio_below):
        return (density * np.log(np.maximum(ratio_above, 1e-300) / np.maximum(ratio_below, 1e-300))).sum()

    information = expected_log(conditional, conditional, joint[None]) * cell**2 / len(mean)
    own_kl = sum(expected_log(margin, margin, scipy.stats.norm.pdf(axis)) * cell for margin in margins)
    return information, expected_log(joint, joint, product) * cell**2, own_kl


def expectations(mean, log_var, nodes=24, **options):
    """The same from `tc_decomposition`, its expectation over z ~ q(z|x) by Gauss-Hermite quadrature."""
    places, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights = weights / weights.sum()
    total = np.zeros(3)
    for i, j in np.ndindex(nodes, nodes):
        z = mean + log_var.mul(0.5).exp() * torch.tensor([places[i], places[j]])
        parts = tc_decomposition(z, mean, log_var, **options)
        total += weights[i] * weights[j] * np.array([part.mean().item() for part in parts])
    return total


def test_where_the_batch_is_the_data_set_the_parts_are_the_integrals():
    mean, log_var = posteriors(5, 2)
    exact = integrals(mean, log_var)
    assert np.allclose(expectations(mean, log_var), exact, atol=2e-3) and min(exact) > 0.05
    shift = math.log(5)  # of minibatch-weighted sampling with N = M = 5
    weighted = expectations(mean, log_var, data_count=5)
    assert np.allclose(weighted - exact, [shift, shift, -2 * shift], atol=2e-3)


def test_images_that_share_a_posterior_have_only_the_divergence_of_each_dim():
    mean, log_var = torch.tensor([[0.7, -0.2]]).double(), torch.tensor([[-1.0, 0.5]]).double()
    found = expectations(mean.expand(4, 2), log_var.expand(4, 2), nodes=8)
    closed = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum().item()  # KL of two normal distributions
    assert np.allclose(found, [0, 0, closed], atol=1e-9)


def test_many_images_of_normal_means_approach_the_closed_form():
    count, variance = 1_500, 0.2  # q(z) is then normal with covariance `spread` + variance = [[1, .6], [.6, 1]]
    spread = torch.tensor([[0.8, 0.6], [0.6, 0.8]]).double()
    rng = torch_generator(0, "means")
    mean = torch.randn(count, 2, generator=rng, dtype=torch.float64) @ torch.linalg.cholesky(spread).T
    log_var = torch.full_like(mean, math.log(variance))
    z = mean + math.sqrt(variance) * torch.randn(count, 2, generator=rng, dtype=torch.float64)
    found = tc_decomposition(z, mean, log_var)
    information = 0.5 * math.log(np.linalg.det(np.eye(2) + spread.numpy() / variance))
    correlation = -0.5 * math.log(1 - 0.6**2)
    assert np.allclose([part.mean().item() for part in found], [information, correlation, 0], atol=0.05)


def test_the_size_of_the_data_set_shifts_the_parts_and_no_gradient():
    gradients, values = [], []
    for count in (1, 10_000):
        mean, log_var = (tensor.requires_grad_() for tensor in posteriors(6, 4))
        parts = tc_decomposition(mean + (0.5 * log_var).exp() * 0.4, mean, log_var, data_count=count)
        (parts[0] + 6 * parts[1] + 2 * parts[2]).mean().backward()
        gradients.append((mean.grad, log_var.grad))
        values.append(torch.stack(parts))
    for one, many in zip(*gradients, strict=True):
        assert torch.allclose(one, many, atol=1e-12)
    shift = math.log(10_000) * torch.tensor([1, 3, -4])
    assert torch.allclose(values[1] - values[0], shift[:, None].double().expand(3, 6))


# ---- The objective ------------------------------------------------------------------------------------------


def test_the_loss_is_the_weighted_sum_in_nats_per_pixel_value():
    settings = VAEConfig(mi_weight=0.5, tc_weight=3, dim_kl_weight=2, pixel_std=0.3)
    network, images = objective(settings).eval(), faces(8)
    torch.nn.init.normal_(network.log_var_head.weight, std=0.1, generator=torch_generator(0, "head"))
    report = network(images, Draws(0, 16, 8))
    mean, log_var = network.posterior(images, Draws(0, 0, len(images)))
    assert torch.allclose(mean, network.encoder(images), atol=1e-6)
    z = mean + log_var.mul(0.5).exp() * Draws(0, 16, 8).normal("posterior", (DIMS,))
    decoded = network.decoder.network(z)
    nats = -scipy.stats.norm(decoded.detach().double(), 0.3).logpdf(images.double()).sum((1, 2, 3))
    nats -= images[0].numel() * math.log(0.3 * math.sqrt(2 * math.pi))  # the constant is left out
    information, correlation, own_kl = tc_decomposition(z, mean, log_var)
    expected = torch.from_numpy(nats) + 0.5 * information + 3 * correlation + 2 * own_kl
    assert torch.allclose(report.per_image.double(), expected / images[0].numel(), rtol=1e-4)
    assert report.total.item() == pytest.approx(report.per_image.mean().item())
    assert report.parts["reconstruction"].item() == pytest.approx(
        (decoded - images).square().mean().item(), rel=1e-4
    )
    assert report.parts["total_correlation"].item() == pytest.approx(correlation.mean().item(), rel=1e-4)
    assert list(report.parts)[1:] == ["mutual_information", "total_correlation", "dimension_kl"]


def test_it_starts_at_a_small_variance_and_learns_everything_but_a_frozen_trunk(backbone):
    network = objective()
    _, log_var = network.posterior(faces(4), Draws(0, 0, 4))
    assert torch.allclose(log_var.mul(0.5).exp(), torch.tensor(tcvae.START_STD))
    encoder = build_encoder(EncoderConfig(code_dim=DIMS), backbone, 0)
    slow = tcvae.TotalCorrelationVAE(encoder, decoder(SIZE, DIMS), VAEConfig(), encoder_rate=0.1)
    slow(faces(4), Draws(0, 0, 4)).total.backward()
    trained = {name for name, p in slow.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    frozen = {name for name, _ in slow.named_parameters() if name.startswith("encoder.trunk.")}
    assert frozen and trained == {name for name, _ in slow.named_parameters()} - frozen
    rates = {name: slow.rate_factor(f"{name}.weight") for name in ("encoder.head", "log_var_head", "decoder.x")}
    assert rates == {"encoder.head": 0.1, "log_var_head": 0.1, "decoder.x": 1.0}


def faces(count):
    return to_float(toyfaces.render(toyfaces.sample(count, seed=2), SIZE))


def test_a_handful_of_images_is_learned_by_heart():
    network, images = objective(VAEConfig(pixel_std=0.05)), faces(6)
    adam = torch.optim.Adam(network.parameters(), 4e-3)
    for step in range(120):
        report = network(images, Draws(0, step * 16, len(images)))
        adam.zero_grad()
        report.total.backward()
        adam.step()
    around_mean = (images - images.mean(0)).square().mean().item()
    assert report.parts["reconstruction"].item() < 0.25 * around_mean
    decoded = network.decoder(network.encoder(images))
    assert (decoded - images).square().mean().item() < 0.25 * around_mean


def test_the_networks_of_the_64_px_preset_train():
    code = train_preset("celeba64").code
    network = tcvae.TotalCorrelationVAE(build_encoder(code, 64, 0), decoder(64, code.code_dim), VAEConfig())
    images = to_float(toyfaces.render(toyfaces.sample(4, seed=2), 64))
    adam, found = torch.optim.Adam(network.parameters(), 1e-3), []
    for _ in range(6):
        report = network(images, Draws(0, 0, 4))
        adam.zero_grad()
        report.total.backward()
        adam.step()
        found.append(report.parts["reconstruction"].item())
    assert found[-1] < 0.8 * found[0]


# ---- The method ---------------------------------------------------------------------------------------------


def test_training_leaves_a_model_that_encodes_decodes_and_is_loaded_again(config, tmp_path):
    findings = train_model(config, tmp_path / "run")
    names = {"reconstructions.png", "samples.png", "checks.json", "decoder", "encoder", "card.md"}
    assert names <= {path.name for path in (tmp_path / "run").iterdir()}
    assert findings.facts == json.loads((tmp_path / "run" / "checks.json").read_text())
    model = diti.load(tmp_path / "run")
    assert isinstance(model, DirectModel) and (model.method, model.size, model.dims) == ("tcvae", SIZE, DIMS)
    data = open_data(config.data, SIZE)
    images = to_float(data.pixels(data.rows("valid")))
    again = diti.load(tmp_path / "run")
    assert torch.equal(model.encode(images), again.encode(images))
    assert torch.equal(model.reconstruct(images), again.reconstruct(images))
    error = (model.reconstruct(images) - images).square().mean().item()
    assert findings.facts["reconstruction_mse"] == pytest.approx(error, rel=1e-4)
    both = model.reconstruct(images[:2])
    for scale, end in ((0.0, both[:1]), (1.0, both[1:])):
        assert torch.allclose(model.interpolate(images[:1], images[1:2], scale=scale), end, atol=1e-5)
    line = next(record for record in RunFolder(tmp_path / "run").read_log() if "loss" in record)
    assert {"reconstruction", "mutual_information", "total_correlation", "dimension_kl"} < line.keys()
    assert 0 <= line["mutual_information"] <= math.log(16) + 1e-4
    with pytest.raises(InputError, match="a tcvae model has no frozen diffusion model"):
        _ = model.backbone


def test_the_editing_verbs_draw_with_the_decoder(config, image_folder, tmp_path, capsys, monkeypatch):
    train_model(config, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    picture = str(image_folder / "a" / "00.png")
    assert main(["interpolate", "run", picture, picture, "--out", "between.png"]) == 0
    assert main(["sample", "run", "-n", "3", "--out", "drawn.png"]) == 0
    assert "newly drawn z" in capsys.readouterr().out
    assert main(["vary", "run", picture, "--out", "varied.png"]) == 2
    assert "a tcvae model draws one image from a code: there is nothing to vary" in capsys.readouterr().err
    for name in ("between", "drawn"):
        with Image.open(f"{name}.png") as sheet:
            assert sheet.width > 100
    assert not (tmp_path / "varied.png").exists()


def test_a_continued_run_equals_one_run(config, tmp_path):
    for images in (64, 128):  # the second continues the first
        train_model(replace(config, training=replace(LENGTH, images=images)), tmp_path / "twice")
    train_model(config, tmp_path / "once")
    for part in ("encoder", "decoder"):
        once, twice = (load_file(tmp_path / run / part / "model.safetensors") for run in ("once", "twice"))
        assert once.keys() == twice.keys() and all(torch.equal(once[name], twice[name]) for name in once)
    assert losses(tmp_path / "once") == losses(tmp_path / "twice") and len(losses(tmp_path / "once")) == 2


def losses(run):
    return [record["loss"] for record in RunFolder(run).read_log() if "loss" in record]


@pytest.mark.slow  # the gathering itself is tested in core/test_gather.py
def test_two_processes_with_half_the_batch_equal_one(dataset, tmp_path, two_processes):
    words = ["train", "--data", str(dataset), "--images", "64", *map(str, WORDS), "--log-images", "16"]
    words += ["--pixel-std", "1", "--tc-weight", "50"]  # so that what compares images is most of the loss
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    two_processes(*words, "--out", tmp_path / "two")
    assert len(losses(tmp_path / "one")) == 4
    assert np.allclose(losses(tmp_path / "one"), losses(tmp_path / "two"), rtol=1e-4)


def test_unused_dims_are_counted_and_called_collapse(config, tmp_path):
    model = find_method("tcvae").model(objective(), config, torch.zeros(DIMS), torch.ones(DIMS))
    torch.nn.init.zeros_(model.encoder.head.weight)
    facts = find_method("tcvae").assess(model, open_data(config.data, SIZE), tmp_path)
    assert facts.facts["active_dims"] == 0 and facts.facts["dims"] == DIMS
    assert f"posterior collapse: only 0 of {DIMS} dims" in facts.sentences[1]
    spread = torch.tensor([[0.0, 0.09, 0.11, 5.0], [0.0, -0.09, -0.11, -5.0]])
    assert tcvae.active_dims(spread) == 2, "variances 0, 0.0081, 0.0121, 25"
    told = tcvae.sentences({**facts.facts, "active_dims": DIMS})
    assert told[1] == f"{DIMS} of {DIMS} dims of z vary over images"


def test_bad_settings_are_one_line(config, tmp_path):
    for wrong in ({"pixel_std": 0}, {"tc_weight": -1}, {"mi_weight": -0.1}, {"dim_kl_weight": -2}):
        with pytest.raises(InputError, match=r"it must be (0 or more|above 0)"):
            VAEConfig(**wrong)
    method = find_method("tcvae")
    method.validate(config, 32)
    with pytest.raises(InputError, match="the image is 24 px; a one-step decoder draws 8, 16"):
        method.validate(config, 24)
    with pytest.raises(InputError, match="--code-dim is 9999"):
        method.validate(replace(config, code=replace(CODE, code_dim=9999)), 32)
    with pytest.raises(InputError, match="would compare the images of each part alone"):
        train_model(replace(config, training=replace(LENGTH, gradient_accumulation_steps=2)), tmp_path / "run")


def test_a_folder_with_another_decoder_is_refused(config, tmp_path):
    model = find_method("tcvae").model(objective(), config, torch.zeros(DIMS), torch.ones(DIMS))
    model.save(tmp_path)
    assert find_method("tcvae").load(tmp_path).decoder.description == model.decoder.description
    weights = tmp_path / "decoder" / "model.safetensors"
    whole = load_file(weights)
    save_file({name: whole[name] for name in whole if name != "network.linear.bias"}, weights)
    with pytest.raises(InputError, match=r"missing: network\.linear\.bias"):
        find_method("tcvae").load(tmp_path)
    for change in ({"kind": "gan"}, {"depth": 3}):
        with pytest.raises(InputError, match="a tcvae model has kind 'vae' and channels, dims, kind, size"):
            vae_decoder_from_description(model.decoder.description | change)
