import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

import diti
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.data import toyfaces
from diti.representation.models.guidance import Guidance
from diti.representation.models.loading import load
from diti.representation.models.model import Model, code_statistics
from diti.representation.networks.linear import LinearPart
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.partition import Partition

PIXELS = toyfaces.render(toyfaces.sample(5, seed=2), 16)


@pytest.fixture
def folder(model, tmp_path):
    model.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_gives_the_same_model_wherever_it_is_copied(model, folder, tmp_path):
    shutil.move(folder, tmp_path / "else where")
    again = diti.load(tmp_path / "else where")
    assert torch.equal(again.encode(PIXELS), model.encode(PIXELS))
    z, noise = model.encode(PIXELS), torch.randn(5, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again.decode(z, noise, sampling_steps=3), model.decode(z, noise, sampling_steps=3))
    assert again.partition == model.partition and again.method == "diti"
    assert again.feature_names()[0] == "z000_t0000" and len(again.feature_names()) == model.dims


def test_no_pickle_is_written(folder):
    kinds = {p.suffix for p in folder.rglob("*") if p.is_file()}
    assert kinds == {".json", ".safetensors"}


@pytest.mark.parametrize(
    "part", ["encoder", "decoder", "partition.json", "stats.safetensors", "model.json", "unet"]
)
def test_a_missing_part_is_named(folder, part):
    path = folder / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(InputError, match=f"not a model folder: {part} missing"):
        load(folder)


def test_parts_of_another_model_are_refused(model, folder):
    other = dict(model.partition.to_json(), dims=9, ends=[2, 4, 6, 9])
    (folder / "partition.json").write_text(json.dumps(other))
    with pytest.raises(InputError, match="encoder has 12 dims, the partition 9"):
        load(folder)


def test_a_weight_too_few_or_too_many_is_named(folder):
    from safetensors.torch import load_file, save_file

    path = folder / "encoder" / "model.safetensors"
    weights = load_file(path)
    save_file({k: v for k, v in weights.items() if k != "head.bias"}, path)
    with pytest.raises(InputError, match=r"missing: head\.bias"):
        load(folder)
    save_file({**weights, "extra": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="unexpected: extra"):
        load(folder)


def test_encode_takes_one_or_many_in_any_batch(model):
    whole = model.encode(PIXELS)
    assert whole.shape == (5, 12) and torch.allclose(model.encode(PIXELS, batch=2), whole, atol=1e-5)
    assert torch.allclose(model.encode(PIXELS[3]), whole[3:4], atol=1e-5)
    assert torch.allclose(model.encode(to_float(PIXELS)), whole, atol=1e-6)


def test_inference_leaves_modes_and_random_state_alone(model):
    model.encoder.train()
    model.decoder.train()
    before = torch.get_rng_state()
    model.reconstruct(PIXELS[:1], sampling_steps=2)
    model.reconstruct(PIXELS[:1], "random", sampling_steps=2)
    assert model.encoder.training and model.decoder.training and not model.backbone.training
    assert torch.equal(before, torch.get_rng_state())


def test_inferred_noise_brings_the_image_back(model):
    images = to_float(PIXELS)
    errors = [(model.reconstruct(images, sampling_steps=c) - images).square().mean().item() for c in (10, 40, 160)]
    assert errors[0] > 2 * errors[1] > 4 * errors[2], "a wild network needs many calls, but converges"
    random = (model.reconstruct(images, "random", sampling_steps=40) - images).square().mean().item()
    assert random > 2 * errors[2], "random noise gives another image"
    with pytest.raises(InputError, match="allowed: inferred, random"):
        model.reconstruct(images, "none")


def test_the_guided_field_follows_its_definition(model):
    x, t = to_float(PIXELS), torch.full((5,), 600)
    z = model.encode(PIXELS)
    with torch.no_grad():
        eps_theta, _, g = model.decoder(x, t, model.partition.mask(z, t))
        betas = np.linspace(1e-4, 0.02, 1000)
        abar = np.cumprod(1 - betas)
        w = np.sqrt(1 - betas[600]) * (1 - abar[599]) / np.sqrt(1 - abar[600])
        assert torch.allclose(model.guided_eps(z)(x, t), eps_theta - w * g, atol=1e-5)
        authors = model.guided_eps(z, Guidance(weight="authors"))(x, t)
        assert torch.allclose(authors, eps_theta - np.sqrt(1 - abar[600]) * g, atol=1e-5)
        whole = model.decoder(x, t, z).g
        assert torch.allclose(model.guided_eps(z, Guidance(masked=False))(x, t), eps_theta - w * whole, atol=1e-5)
        assert not torch.allclose(whole, g)


def test_a_model_whose_decoder_is_linear_alone(model, tmp_path):
    rng = torch.Generator().manual_seed(0)
    part = LinearPart(16, 5, model.dims, 2)
    for buffer in (part.weights, part.axes.axes):
        buffer.copy_(0.1 * torch.randn(buffer.shape, generator=rng))
    part.times.copy_(torch.tensor([100.0, 700.0]))
    model.decoder = ShiftDecoder(model.backbone, model.dims, "none", linear=part)
    model.save(tmp_path / "m")
    again = diti.load(tmp_path / "m")
    x, z = to_float(PIXELS), model.encode(PIXELS)
    for step in (0, 600):
        t = torch.full((5,), step)
        masked = model.partition.mask(z, t)
        with torch.no_grad():
            abar = model.schedule.alpha_bar[step]
            change = part(model.backbone.x0(x, t), t, masked)
            expected = model.backbone.eps(x, t) - (abar / (1 - abar)).sqrt().float() * change
            assert torch.allclose(model.guided_eps(z)(x, t), expected, atol=1e-4)
            assert torch.equal(again.guided_eps(z)(x, t), model.guided_eps(z)(x, t))
        assert change.std() > 1e-3
    assert torch.equal(again.decode(z, x, sampling_steps=3), model.decode(z, x, sampling_steps=3))
    assert again.decoder.to("meta").linear.weights.is_meta, "it moves with the decoder"


def test_statistics_of_z_against_numpy():
    z = np.random.default_rng(0).normal(3, 2, (1000, 4)).astype(np.float32)
    mean, std = code_statistics(torch.from_numpy, iter(np.split(z, 10)))
    assert np.allclose(mean, z.mean(0), atol=1e-5) and np.allclose(std, z.std(0), atol=1e-4)


def test_a_model_prints_as_one_line_and_can_be_a_key(model, backbone):
    assert repr(model) == "<DiTi by diti: z of 12 dims in 4 subsets, images of 16 px>"
    plain = Model(model.encoder, Partition.single(1, 12), model.mean, model.std, "simclr")
    assert repr(plain) == "<Model by simclr: z of 12 dims, images of 16 px>"
    assert {model: 1, plain: 2}[model] == 1 and model == model and model != plain
    weights = sum(weight.numel() for weight in backbone.parameters())
    assert repr(backbone) == f"<Backbone: U-Net, images of 16 px, T = 1000, predicts epsilon, {weights:,} weights>"


def test_unknown_statistics_are_said_to_be_unknown(model, tmp_path):
    model.save(tmp_path)  # mean 0 and std 1: so were they marked by earlier versions
    assert diti.load(tmp_path).mean is None and diti.load(tmp_path).std is None
    dataclasses.replace(model, mean=None, std=None).save(tmp_path)
    stranger = diti.load(tmp_path)
    assert stranger.mean is None and not (tmp_path / "stats.safetensors").exists()
    with pytest.raises(InputError, match=r"mean and std of z are not known.*convert it again with --data"):
        stranger.statistics()
    z = torch.randn(50, model.dims, generator=torch.Generator().manual_seed(0)) * 3 + 1
    mean, std = stranger.statistics(z)
    assert np.allclose(mean, z.numpy().mean(0), atol=1e-5) and np.allclose(std, z.numpy().std(0), atol=1e-5)
    known = dataclasses.replace(model, mean=mean, std=std)
    assert known.statistics(z + 1) == (mean, std)
    known.save(tmp_path)
    assert torch.equal(diti.load(tmp_path).std, std)
