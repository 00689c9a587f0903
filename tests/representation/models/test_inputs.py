import logging

import numpy as np
import pytest
import torch
from PIL import Image

from diti.core.errors import InputError
from diti.core.images import to_float
from diti.representation.models.inputs import as_batch, as_features, read_images

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)
FLOATS = to_float(PIXELS)


@pytest.mark.parametrize(
    "images",
    [
        PIXELS,
        FLOATS,
        FLOATS.numpy(),
        [Image.fromarray(p) for p in PIXELS],
        list(PIXELS),
        [PIXELS[0], Image.fromarray(PIXELS[1]), FLOATS[2]],
    ],
    ids=["uint8", "tensor", "float array", "PIL", "list", "mixed"],
)
def test_every_form_gives_the_same_batch(images):
    assert torch.equal(as_batch(images, 16), FLOATS)


def test_one_image_is_a_batch_of_one():
    for one in (PIXELS[0], FLOATS[0], Image.fromarray(PIXELS[0])):
        assert torch.equal(as_batch(one, 16), FLOATS[:1])


def test_other_sizes_are_resized_with_a_note(caplog):
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, 16:32] = 255
    for images in (wide, to_float(wide[None]), Image.fromarray(wide), np.stack([wide] * 3)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            batch = as_batch(images, 8)
        assert batch.shape[1:] == (3, 8, 8) and batch.min() > 0.99
        (line,) = caplog.messages  # of a batch, too
        assert "resized to the model's 8 px" in line


def test_many_images_of_other_sizes_get_one_note(caplog):
    small = [np.zeros((side, 9, 3), np.uint8) for side in (20, 21, 22, 23, 20)]
    with caplog.at_level(logging.WARNING):
        as_batch([*small, np.zeros((8, 8, 3), np.uint8)], 8)
    (note,) = caplog.messages
    assert note == (
        "5 of 6 images were cropped to the centre and resized to the model's 8 px (from 9×20, 9×21, 9×22, ... px)"
    )


def test_files_of_other_sizes_get_one_line(tmp_path):
    for name, side in (("a.png", 8), ("b.png", 12), ("c.png", 16)):
        Image.new("RGB", (side, side)).save(tmp_path / name)
    pixels, lines = read_images([tmp_path / name for name in ("a.png", "b.png", "c.png")], 8)
    assert [image.shape for image in pixels] == [(8, 8, 3)] * 3
    assert lines == [
        "2 of 3 images were cropped to the centre and resized to the model's 8 px (from 12×12, 16×16 px)"
    ]
    assert read_images([tmp_path / "a.png"], 8)[1] == []
    assert read_images([tmp_path / "b.png"], 8)[1][0].startswith("the image was cropped")


def test_grey_and_transparent_pictures_become_rgb():
    assert as_batch(Image.new("L", (16, 16), 255), 16).shape == (1, 3, 16, 16)
    assert as_batch(Image.new("RGBA", (16, 16), (0, 0, 0, 0)), 16).min() == 1


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([], "no images"),
        (np.zeros((4, 4), np.uint8), "have shape"),
        (torch.zeros(1, 1, 4, 4), "shape"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.int64), "int64"),
        (torch.full((1, 3, 4, 4), 255.0), "scale them to"),
        (torch.full((1, 3, 4, 4), float("nan")), "range from nan"),
    ],
)
def test_bad_images(images, words):
    with pytest.raises(InputError, match=words):
        as_batch(images, 4)


def test_features_come_as_any_array_of_numbers():
    rows = [[1.0, 2.0], [3.0, 4.0]]
    for given in (rows, np.array(rows), np.array(rows, np.int64), torch.tensor(rows, requires_grad=True)):
        found = as_features(given)
        assert found.dtype == torch.float32 and found.tolist() == rows


@pytest.mark.parametrize(
    "given", [None, 3.0, torch.tensor(3.0), "features", [[1.0], [2.0, 3.0]]],
    ids=["nothing", "number", "tensor of one number", "word", "ragged"],
)  # fmt: skip
def test_what_is_no_features(given):
    words = rf"encodes features of another network, numbers \(N, F\), and got {type(given).__name__}; give the"
    with pytest.raises(InputError, match=words):
        as_features(given)
