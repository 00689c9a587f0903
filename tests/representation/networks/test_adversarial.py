"""Generator with a bottleneck, and a discriminator that looks through a frozen trunk or at pixels."""

import pytest
import torch

from diti.config import EncoderConfig
from diti.core.errors import InputError
from diti.core.rng import torch_generator
from diti.representation.networks.adversarial import (
    Discriminator,
    generator_from_description,
    group_spread,
    look,
    new_discriminator,
    score_as_given,
)
from diti.representation.networks.encoder import build_encoder

IMAGES = torch.randn(8, 3, 16, 16, generator=torch_generator(0, "images")).clamp(-1, 1)
DESCRIPTION = {"kind": "ibgan", "size": 16, "dims": 12, "bottleneck": 7, "channels": (16, 8)}
RESIDUAL = EncoderConfig(encoder="residual", code_dim=12, encoder_channels=(8, 16))


def normal(*shape):
    return torch.randn(shape, generator=torch_generator(1, "normal"))


@pytest.fixture
def generator():
    return generator_from_description(DESCRIPTION)


@pytest.fixture(params=["backbone", "residual"])
def encoder(request, backbone):
    config = EncoderConfig(encoder="backbone", code_dim=12) if request.param == "backbone" else RESIDUAL
    return build_encoder(config, backbone, seed=0)


def test_the_image_is_drawn_from_the_mean_plus_noise(generator):
    z, noise = normal(5, 12), normal(5, 7)
    mean, log_std = generator.bottleneck(z)
    assert mean.shape == log_std.shape == (5, 7)
    image = generator(z, noise)
    assert image.shape == (5, 3, 16, 16) and image.abs().max() <= 1
    assert torch.allclose(image, generator.image(mean + log_std.exp() * noise), atol=1e-6)
    assert not torch.allclose(image, generator(z, noise + 1)), "noise has an effect"
    assert not torch.allclose(image, generator(z + 1, noise)), "so has the code"


def test_weights_depend_on_the_seed_only(generator):
    torch.manual_seed(5)
    again, other = (generator_from_description(DESCRIPTION, seed) for seed in (0, 1))
    assert all(torch.equal(a, b) for a, b in zip(generator.parameters(), again.parameters(), strict=True))
    assert not torch.equal(generator.image.linear.weight, other.image.linear.weight)


def test_pixels_of_one_position_start_alike(generator):
    image = generator(normal(2, 12), normal(2, 7))
    for down, right in ((0, 1), (1, 0), (1, 1)):
        assert torch.equal(image[..., ::2, ::2], image[..., down::2, right::2])


def test_a_description_builds_it_again(generator):
    twin = generator_from_description(generator.description)
    twin.load_state_dict(generator.state_dict(), strict=True)
    z, noise = normal(2, 12), normal(2, 7)
    assert torch.equal(generator(z, noise), twin(z, noise))
    for wrong in ({"kind": "vae"}, {"more": 1}):
        with pytest.raises(InputError, match=r"that of ibgan has kind, size, dims, bottleneck, channels"):
            generator_from_description(generator.description | wrong)


def test_spread_equals_a_slow_loop():
    h = normal(16, 2, 3, 3)
    found = group_spread(h)
    for i in range(16):
        group = h[i // 8 * 8 : i // 8 * 8 + 8].double()
        expected = (group - group.mean(0)).square().mean(0).sqrt()
        assert torch.allclose(found[i].double(), expected, atol=1e-4)
    assert torch.equal(found[:8], group_spread(h[:8])), "a process with its own groups computes the same"
    assert torch.allclose(group_spread(h[:3]), torch.full((3, 2, 3, 3), 1e-3)), "3 images make groups of one"


def test_convolutions_have_spectral_norm_one():
    critic = Discriminator([(12, 16)], 8)
    for _ in range(50):  # power iterations
        critic([normal(8, 12, 16, 16)])
    critic.eval()
    norms = [torch.linalg.matrix_norm(conv.weight.flatten(1), 2).item() for conv in critic.branches[0].convs]
    assert len(norms) == 3 and norms == pytest.approx([1, 1, 1], abs=1e-2)


def test_views_are_standardised_by_real_images(encoder):
    critic = new_discriminator(encoder, IMAGES, 8, seed=0)
    views, _ = look(encoder, IMAGES)
    assert len(critic.branches) == len(views)
    for branch, view in zip(critic.branches, views, strict=True):
        scaled = (view - branch.mean) / branch.std
        assert scaled.mean((0, 2, 3)).abs().max() < 1e-4
        assert torch.allclose(scaled.std((0, 2, 3)), torch.ones(len(branch.std)), atol=1e-3)
    assert critic(views).shape == (8, len(views))


def test_the_code_is_the_encoders_and_its_gradient_reaches_the_image(encoder):
    images = IMAGES.clone().requires_grad_()
    views, z = look(encoder, images)
    assert torch.allclose(z, encoder(IMAGES), atol=1e-6)
    assert len(views) == (2 if encoder.frozen else 1)
    for value in (z, *views):
        (gradient,) = torch.autograd.grad(value.square().sum(), images, retain_graph=True)
        assert gradient.abs().max() > 0


def test_a_judge_that_is_taken_as_given_does_not_learn():
    critic, view = Discriminator([(12, 8)], 8).eval(), normal(8, 12, 8, 8).requires_grad_()
    expected = critic([view])
    given = score_as_given(critic, [view])
    assert torch.equal(given, expected)
    given.sum().backward()
    assert all(weight.grad is None for weight in critic.parameters())
    (gradient,) = torch.autograd.grad(expected.sum(), view)
    assert torch.allclose(view.grad, gradient) and gradient.abs().max() > 0
