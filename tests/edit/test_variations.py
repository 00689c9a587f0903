"""New images and variations: what is drawn anew, what is kept, and the pictures."""

import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import without_decoder

from diti.core.errors import InputError
from diti.core.images import to_uint8
from diti.edit.variations import draw, sample, save_new_images, save_samples, save_variations, vary
from diti.representation.models.latent import encoder_file_hash, load_latent
from diti.representation.networks.latent import LatentShape, new_latent
from diti.verbs.parsing import parse


@pytest.fixture(scope="module")
def latent(model):
    shape = LatentShape(dims=model.dims, width=16, layers=2)
    return new_latent(shape, model.mean, model.std, seed=0)


@pytest.fixture
def folder(model, latent, tmp_path):
    """A model folder with a latent."""
    model.save(tmp_path / "model")
    shape = LatentShape(dims=model.dims, width=16, layers=2, encoder=encoder_file_hash(tmp_path / "model"))
    new_latent(shape, model.mean, model.std, seed=0).save(tmp_path / "model")
    return tmp_path / "model"


def test_variations_keep_z_and_change_the_noise(model, faces):
    varied = vary(model, faces[0], 3, seed=5, sampling_steps=4)
    z = model.encode(faces[0])
    for index in range(3):
        expected = model.decode(z, model.new_noise(3, 5)[index : index + 1], 4)
        assert torch.allclose(varied[index], expected[0], atol=2e-3)
    assert varied.shape == (3, 3, 16, 16) and not torch.allclose(varied[0], varied[1], atol=0.1)
    other = vary(model, faces[1], 3, seed=5, sampling_steps=4)
    assert not torch.allclose(varied, other, atol=1e-4), "another image has another z"


def test_new_images_have_drawn_codes(model, latent):
    images = draw(model, latent, 2, seed=7, sampling_steps=4)
    expected = model.decode(latent.sample(2, 7), model.new_noise(2, 7), 4)
    assert torch.equal(images, expected) and images.abs().max() <= 1
    assert not torch.allclose(images, draw(model, latent, 2, seed=8, sampling_steps=4), atol=0.1)


def test_many_images_are_the_same_in_parts(model, faces, monkeypatch):
    whole = vary(model, faces[0], 5, seed=1, sampling_steps=3)
    monkeypatch.setattr("diti.representation.models.model.PIXELS_AT_ONCE", 2 * 16 * 16)
    steps = []
    parts = vary(
        model, faces[0], 5, seed=1, sampling_steps=3, on_step=lambda index, total, x: steps.append(len(x))
    )
    # The first steps divide by a tiny √ᾱ, which enlarges the rounding errors of another batch size.
    assert torch.allclose(whole, parts, atol=2e-3) and steps == [2, 2, 2, 2, 2, 2, 1, 1, 1]
    assert torch.allclose(whole[:2], vary(model, faces[0], 2, seed=1, sampling_steps=3), atol=2e-3)


def test_the_global_random_state_is_left_alone(model, latent, faces):
    before = torch.get_rng_state()
    first = draw(model, latent, 1, sampling_steps=2), vary(model, faces[0], 1, sampling_steps=2)
    again = draw(model, latent, 1, sampling_steps=2), vary(model, faces[0], 1, sampling_steps=2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(before, torch.get_rng_state())


def test_the_picture_of_variations_starts_with_the_original(folder, model, faces, tmp_path):
    Image.fromarray(faces[0]).save(tmp_path / "face.png")
    lines = save_variations(folder, tmp_path / "face.png", 3, tmp_path / "v.png", sampling_steps=5)
    assert lines == [f"wrote {tmp_path / 'v.png'}"]
    with Image.open(tmp_path / "v.png") as picture:
        pixels = np.asarray(picture)
    cell = 96 + 2  # 16 px, each enlarged 6 times, and the gap
    assert pixels.shape == (96 + 20, 5 * cell - 2, 3)
    cells = [pixels[:96:6, i * cell : i * cell + 96 : 6] for i in range(5)]
    assert np.array_equal(cells[0], faces[0])
    shown = np.stack(cells[1:])
    rebuilt = to_uint8(model.reconstruct(faces[0], sampling_steps=5))
    varied = to_uint8(vary(model, faces[0], 3, sampling_steps=5))
    assert np.abs(shown - np.concatenate([rebuilt, varied]).astype(int)).max() <= 1
    assert not np.array_equal(shown[1], shown[2])


def test_new_images_are_written_as_a_picture(folder, tmp_path):
    out = save_new_images(folder, 3, seed=0, sampling_steps=2, out=tmp_path / "s.png")
    with Image.open(out) as picture:
        assert picture.size == (3 * 98 - 2, 96)


def test_bad_input_is_refused(folder, model, latent, faces, tmp_path):
    model.save(tmp_path / "bare")
    with pytest.raises(InputError, match=r"no finished latent/.*diti train-latent .*bare --data"):
        save_new_images(tmp_path / "bare", 2, out=tmp_path / "s.png")
    with pytest.raises(InputError, match=r"--count \(-n\) is 0; draw from 1 to"):
        save_new_images(folder, 0, out=tmp_path / "s.png")
    with pytest.raises(InputError, match=r"--sampling-steps is 1001; .* 1 to 1000"):
        draw(model, latent, 2, sampling_steps=1001)
    with pytest.raises(InputError, match=r"2 images were given; vary one"):
        vary(model, faces, 2)
    stranger = new_latent(LatentShape(dims=5, width=8, layers=1), torch.zeros(5), torch.ones(5), seed=0)
    with pytest.raises(InputError, match=r"codes of 5 dims, the model has 12"):
        draw(model, stranger, 2)
    with pytest.raises(InputError, match=r"cannot be read as an image"):
        save_variations(folder, tmp_path / "absent.png", 2, tmp_path / "v.png")


@pytest.mark.parametrize("data", ["toyfaces:40", "my photos", None, "gone"])
def test_the_hint_for_new_codes_can_be_typed_where_the_data_are_known(model, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my photos").mkdir()
    model.save(Path("a model"))
    if data is not None:
        Path("a model", "config.yaml").write_text(f"data: {data}\nimages: 9\n")
    _, hint = save_samples("a model", 1, Path("s.png"), sampling_steps=1)
    command = hint.removeprefix("drawn by the backbone alone; for new z run: ")
    if data in ("toyfaces:40", "my photos"):
        verb, *words = shlex.split(command)[1:]
        assert (verb, parse(verb, words).data) == ("train-latent", data)
    else:
        assert command == "diti train-latent a model --data DATA, DATA being the images it was made from"


def test_the_hint_for_a_model_in_the_box_asks_for_a_copy(tmp_path):
    _, hint = save_samples("toyfaces32-diti", 1, tmp_path / "s.png", sampling_steps=1)
    assert "diti train-latent on a copy of " in hint


def test_sample_draws_from_the_latent_of_the_folder_or_from_given_codes(model, folder, latent, tmp_path):
    expected = draw(model, load_latent(folder), 2, seed=7, sampling_steps=3)
    assert torch.equal(sample(folder, 2, seed=7, sampling_steps=3), expected)
    given = sample(model, 2, seed=7, sampling_steps=3, codes=latent)
    assert torch.equal(given, draw(model, latent, 2, seed=7, sampling_steps=3))
    with pytest.raises(InputError, match="a diti model draws new codes with the latent in its folder"):
        sample(model, 2)
    blind = without_decoder(model)
    for drawing in (lambda: sample(blind), lambda: vary(blind, torch.zeros(3, 16, 16))):
        with pytest.raises(InputError, match="a simclr model has no decoder"):
            drawing()
