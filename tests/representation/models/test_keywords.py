"""The keywords of decoding, for a model of every kind: a misspelt one is never taken in silence."""

import pytest
import torch
from tiny import DIMS, perturb, tiny_backbone, tiny_model

from diti.config import EncoderConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.data import toyfaces
from diti.representation.methods.tcvae import VAEDecoder
from diti.representation.models.diffae import DiffAE
from diti.representation.models.direct import DirectModel
from diti.representation.models.guidance import Guidance
from diti.representation.networks.adversarial import Generator
from diti.representation.networks.conditioned import ConditionedUNet
from diti.representation.networks.encoder import build_encoder
from diti.representation.partition import Partition

IMAGES = to_float(toyfaces.render(toyfaces.sample(2, seed=2), 16))
STATISTICS = (torch.zeros(DIMS), torch.ones(DIMS))
GENERATOR = {"kind": "ibgan", "size": 16, "dims": DIMS, "bottleneck": 10, "channels": [32, 16]}


def encoder():
    return build_encoder(EncoderConfig(encoder="residual", code_dim=DIMS, encoder_channels=(8, 16)), 16, 0)


def diffae():
    decoder = ConditionedUNet(tiny_backbone(), DIMS)
    perturb(decoder)
    return DiffAE(encoder(), Partition.single(1000, DIMS), *STATISTICS, "diffae", decoder=decoder)


def one_step(decoder, method):
    return DirectModel(encoder(), Partition.single(1, DIMS), *STATISTICS, method, decoder=decoder)


KINDS = {
    "diti": tiny_model,
    "diffae": diffae,
    "tcvae": lambda: one_step(VAEDecoder(16, DIMS, (32, 16)), "tcvae"),
    "ibgan": lambda: one_step(Generator(GENERATOR), "ibgan"),
}
WITHOUT_FROZEN_MODEL = [name for name in KINDS if name != "diti"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_misspelt_keyword_is_an_error(kind):
    model, z = KINDS[kind](), torch.zeros(2, DIMS)
    calls = {
        "decode": (z, torch.zeros(2, 3, 16, 16)),
        "infer_noise": (IMAGES,),
        "reconstruct": (IMAGES,),
        "interpolate": (IMAGES[:1], IMAGES[1:]),
        "manipulate": (IMAGES, None),
    }
    for name, given in calls.items():
        with pytest.raises(TypeError, match="unexpected keyword argument 'maskd'"):
            getattr(model, name)(*given, maskd=False)


@pytest.mark.parametrize("kind", KINDS)
def test_reconstruction_is_decoding_from_the_inferred_noise_with_the_same_keywords(kind):
    model = KINDS[kind]()
    z, found = model.encode(IMAGES), {}
    for masked in (True, False):
        noise = model.infer_noise(IMAGES, sampling_steps=3, masked=masked)
        found[masked] = model.decode(z, noise, sampling_steps=3, masked=masked, clamp=False)
        again = model.reconstruct(IMAGES, sampling_steps=3, masked=masked)
        torch.testing.assert_close(again, found[masked], atol=1e-6, rtol=1e-6)
    assert torch.equal(found[True], found[False]) == (kind != "diti"), "only DiTi has masks"


@pytest.mark.parametrize("kind", WITHOUT_FROZEN_MODEL)
@pytest.mark.parametrize("asked", [{"stop_below": 100}, {"guidance": "authors"}])
def test_what_needs_a_frozen_model_is_refused_without_one(kind, asked):
    model = KINDS[kind]()
    (name,) = asked
    line = rf"^{name} is .* a {kind} model has none; use .*, or a diti or pdae model$"
    with pytest.raises(InputError, match=line):
        model.decode(torch.zeros(2, DIMS), model.new_noise(2, 0), 2, **asked)
    with pytest.raises(InputError, match=line):
        model.infer_noise(IMAGES, sampling_steps=2, **asked)
    with pytest.raises(InputError, match=line):
        model.reconstruct(IMAGES, "random", sampling_steps=2, **asked)


def test_every_keyword_reaches_the_field_of_diti():
    model = tiny_model()
    z, noise = model.encode(IMAGES), model.new_noise(2, 0)
    plain = model.decode(z, noise, 3)
    for asked in ({"masked": False}, {"guidance": "authors"}, {"stop_below": 500}):
        assert not torch.equal(model.decode(z, noise, 3, **asked), plain), asked
        assert not torch.equal(
            model.reconstruct(IMAGES, "random", 3, **asked), model.reconstruct(IMAGES, "random", 3)
        )
    unguided = model.decode(z, noise, 3, stop_below=1000)
    assert torch.equal(model.decode(z + 1, noise, 3, stop_below=1000), unguided), "ε_θ alone knows no z"


def test_impossible_guidance_is_one_line():
    with pytest.raises(
        InputError, match=r"guidance is 'author'; allowed: trained, authors\. Did you mean 'authors'"
    ):
        tiny_model().reconstruct(IMAGES, guidance="author")
    with pytest.raises(InputError, match=r"stop_below is -1; give a time-step, 0 or more"):
        Guidance(stop_below=-1)
