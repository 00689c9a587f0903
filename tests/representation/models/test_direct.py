"""Models that draw an image from a code in one go: decode, noise, prior, and the folder on disk."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from diti.config import EncoderConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import torch_generator
from diti.core.runs import read_json, write_json
from diti.data import toyfaces
from diti.representation.methods.method import Method
from diti.representation.models.direct import DirectModel, load_direct
from diti.representation.models.loading import load
from diti.representation.networks.encoder import build_encoder
from diti.representation.networks.image_decoder import OneStepDecoder
from diti.representation.networks.network_files import drawn_from
from diti.representation.partition import Partition
from diti.representation.registry import METHODS, register

DIMS = 6
IMAGES = to_float(toyfaces.render(toyfaces.sample(5, seed=2), 16))


class Flat(OneStepDecoder):
    """A linear decoder of 16 px images, with or without noise."""

    def __init__(self, dims, noise_dims):
        super().__init__()
        self.dims, self.noise_dims = dims, noise_dims
        self.description = {"dims": dims, "noise_dims": noise_dims}
        with drawn_from(0, "flat"):
            self.linear = torch.nn.Linear(dims + noise_dims, 3 * 16 * 16)
        self.dropout = torch.nn.Dropout(0.5)  # shows whether decoding is in inference mode

    def forward(self, z, noise):
        return self.dropout(self.linear(torch.cat([z, noise], 1))).tanh().unflatten(1, (3, 16, 16))


def make(noise_dims=3):
    code = EncoderConfig(encoder="residual", code_dim=DIMS, encoder_channels=(8, 16))
    parts = (build_encoder(code, 16, 0), Partition.single(1, DIMS), torch.zeros(DIMS), torch.ones(DIMS))
    return DirectModel(*parts, "flat", decoder=Flat(DIMS, noise_dims))


def build(description):
    return Flat(**description)


class FlatMethod(Method):
    name, title, about = "flat", "Flat", "linear"
    decodes = True
    build = None

    def load(self, folder):
        return load_direct(folder, build)


@pytest.fixture
def registered():
    register(FlatMethod)
    yield
    METHODS.pop("flat", None)


def codes(count):
    return torch.randn(count, DIMS, generator=torch_generator(1, "codes"))


def test_decode_is_the_decoder_in_inference_mode_whatever_fits_at_once(monkeypatch):
    model, z = make(), codes(5)
    noise = model.new_noise(5, seed=0)
    assert noise.shape == (5, 3) and model.has_noise
    expected = model.decoder.eval()(z, noise)
    model.decoder.train()
    monkeypatch.setattr("diti.representation.models.model.PIXELS_AT_ONCE", 2 * 16 * 16)
    seen = []
    images = model.decode(
        z, noise, sampling_steps=50, on_step=lambda index, total, x: seen.append((index, total, len(x)))
    )
    assert torch.allclose(images, expected, atol=1e-6) and model.decoder.training
    assert seen == [(0, 3, 2), (1, 3, 2), (2, 3, 1)] and model.steps_of(5, sampling_steps=50) == 3
    assert not torch.allclose(model.decode(z, -noise), images), "the noise must matter"


def test_a_decoder_without_noise_gives_one_image_per_code():
    model, z = make(noise_dims=0), codes(2)
    assert model.noise_shape == (0,) and not model.has_noise
    assert torch.equal(model.decode(z, model.new_noise(2, seed=0)), model.decode(z, model.new_noise(2, seed=1)))
    assert torch.equal(model.reconstruct(IMAGES, "random"), model.reconstruct(IMAGES, "inferred"))


def test_the_noise_of_an_image_is_zero_and_reconstruction_decodes_its_code():
    model = make()
    seen = []
    noise = model.infer_noise(IMAGES, on_step=lambda *step: seen.append(step))
    assert torch.equal(noise, torch.zeros(5, 3)) and len(seen) == model.steps_of(5, sampling_steps=1) == 1
    expected = model.decode(model.encode(IMAGES), torch.zeros(5, 3))
    assert torch.equal(model.reconstruct(IMAGES), expected)
    assert not torch.allclose(model.reconstruct(IMAGES, "random", seed=1), expected)
    with pytest.raises(InputError, match="allowed: inferred, random"):
        model.reconstruct(IMAGES, "none")


def test_the_prior_is_standard_normal_and_its_first_codes_stay_the_same():
    prior = make().prior
    drawn = prior.sample(2_000, seed=0)
    assert drawn.shape == (2_000, DIMS) and torch.equal(prior.sample(7, seed=0), drawn[:7])
    assert not torch.equal(prior.sample(7, seed=1), drawn[:7])
    assert drawn.mean(0).abs().max() < 0.1 and (drawn.T.cov() - torch.eye(DIMS)).abs().max() < 0.15


def test_any_number_of_steps_is_taken_as_one():
    model, z = make(), codes(2)
    noise = model.new_noise(2, seed=0)
    model.validate_sampling_steps(10**6)
    assert torch.equal(
        model.decode(z, noise, sampling_steps=1), model.decode(z, noise, sampling_steps=10**6, clamp=False)
    )


def test_a_saved_model_comes_back(registered, tmp_path):
    model, z = make(), codes(3)
    model.save(tmp_path)
    again = load(tmp_path)
    assert isinstance(again, DirectModel) and again.method == "flat" and not again.decoder.training
    noise = model.new_noise(3, seed=0)
    assert torch.equal(again.encode(IMAGES), model.encode(IMAGES))
    assert torch.equal(again.to("cpu").decode(z, noise), model.decode(z, noise))


def test_a_damaged_folder_is_refused(tmp_path):
    make().save(tmp_path)
    weights = tmp_path / "decoder" / "model.safetensors"
    whole = load_file(weights)
    save_file({"linear.weight": whole["linear.weight"]}, weights)
    with pytest.raises(InputError, match=r"missing: linear\.bias"):
        load_direct(tmp_path, build)
    save_file(whole | {"more": torch.ones(1)}, weights)
    with pytest.raises(InputError, match="unexpected: more"):
        load_direct(tmp_path, build)
    save_file(whole, weights)
    config = tmp_path / "decoder" / "config.json"
    write_json(config, read_json(config) | {"dims": DIMS + 1, "noise_dims": 2})
    with pytest.raises(InputError, match=r"decoder has 7 dims, the partition 6"):
        load_direct(tmp_path, build)
    weights.unlink()
    with pytest.raises(InputError, match=r"model\.safetensors is missing"):
        load_direct(tmp_path, build)


def test_it_has_no_diffusion_model():
    with pytest.raises(InputError, match="a flat model has no frozen diffusion model"):
        _ = make().backbone
