"""Images inverted once, against the model's own methods."""

import pytest
import torch

from diti.core.images import to_float
from diti.edit.invert import Inverted

STEPS = 3


@pytest.fixture
def pixels(faces):
    return to_float(faces)


@pytest.mark.parametrize("field", [{}, {"masked": False}, {"stop_below": 500}])
def test_codes_and_noise_are_the_models_and_variants_follow_the_same_field(model, pixels, field):
    z = model.encode(pixels)
    noise = model.infer_noise(pixels, z, STEPS, **field)
    start = Inverted.of(model, pixels, STEPS, **field)
    assert torch.equal(start.z, z) and torch.equal(start.x_T, noise)
    expected = model.decode(z.flip(0), noise, STEPS, clamp=False, **field)
    assert torch.equal(start.decode(z.flip(0), noise), expected)
    assert torch.equal(start.shown(z.flip(0), noise), expected.clamp(-1, 1)) and expected.abs().max() > 1
    assert torch.equal(start.decode(z, noise), model.reconstruct(pixels, sampling_steps=STEPS, **field))


def test_all_images_are_inverted_in_one_batch_and_every_step_is_told(model, pixels):
    sizes = []
    start = Inverted.of(model, pixels, STEPS, on_step=lambda index, total, x: sizes.append(len(x)))
    assert sizes == [2] * model.steps_of(2, STEPS)
    start.decode(start.z, start.x_T, lambda index, total, x: sizes.append(len(x)))
    assert sizes == [2] * 2 * model.steps_of(2, STEPS)


def test_drawn_noise_is_taken_as_it_is_and_decodes_clamped(model, pixels, monkeypatch):
    noise = model.new_noise(2, seed=4)
    monkeypatch.setattr(type(model), "infer_noise", None)  # is not asked for
    start = Inverted.of(model, pixels, STEPS, noise=noise)
    assert torch.equal(start.x_T, noise)
    assert torch.equal(start.decode(start.z, noise), model.decode(start.z, noise, STEPS, clamp=True))
    assert not torch.equal(start.decode(start.z, noise), model.decode(start.z, noise, STEPS, clamp=False))
