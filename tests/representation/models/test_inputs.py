import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diti.core.errors import InputError
from diti.core.images import grid, to_float
from diti.representation.models.inputs import _warn_of_range, as_batch, as_features, read_images

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


@pytest.fixture
def files(tmp_path) -> list[Path]:
    for index, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    return [tmp_path / f"{index}.png" for index in range(len(PIXELS))]


def test_paths_are_read(files):
    names = [str(path) for path in files]
    for given in (files, names, tuple(names), np.array(names), [names[0], PIXELS[1], FLOATS[2]]):
        assert torch.equal(as_batch(given, 16), FLOATS)
    for given in (files[0], names[0]):
        assert torch.equal(as_batch(given, 16), FLOATS[:1])


def test_files_are_cropped_and_resized_as_on_the_command_line(tmp_path, caplog):
    wide = np.random.default_rng(1).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    Image.fromarray(wide).save(tmp_path / "wide.png", exif=exif)
    (pixels,), (line,) = read_images([tmp_path / "wide.png"], 16)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(as_batch(str(tmp_path / "wide.png"), 16), to_float(pixels[None]))
    assert caplog.messages == [line]


# ---- Ranges of floats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (0, 255), (0.0, 65535.0)])
def test_floats_of_a_range_that_is_said(low, high):
    floats = low + PIXELS.transpose(0, 3, 1, 2) / 255 * (high - low)
    for given in (floats, floats.astype(np.float32), torch.from_numpy(floats), list(floats)):
        assert torch.allclose(as_batch(given, 16, (low, high)), FLOATS, atol=1e-6)
    with pytest.raises(InputError, match=rf"outside value_range=\({low:g}, {high:g}\)"):
        as_batch(floats + (high - low) / 2, 16, (low, high))


def test_nothing_negative_is_told_once_and_taken_as_it_is_documented():
    floats = (FLOATS + 1) / 2
    _warn_of_range.cache_clear()
    with pytest.warns(
        UserWarning, match=r"say value_range=\(0, 1\) if 0 is black, or value_range=\(-1, 1\)"
    ) as told:
        assert torch.equal(as_batch(floats, 16), floats), "a code does not depend on the other images of its batch"
        as_batch(list(floats), 16)
    assert len(told) == 1
    _warn_of_range.cache_clear()


def test_what_is_clear_is_taken_in_silence():
    _warn_of_range.cache_clear()
    bright = FLOATS[:1].abs()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_batch(bright, 16, (-1, 1))
        as_batch(bright, 16, (0, 1))
        as_batch([bright[0], FLOATS[1]], 16)  # one bright image beside others
        as_batch(torch.zeros(1, 3, 16, 16), 16)  # of one colour nothing can be told
        as_batch(PIXELS, 16)


def test_a_grid_of_floats_of_another_range():
    shown = np.asarray(grid(FLOATS, 3, scale=1))
    assert np.array_equal(np.asarray(grid((FLOATS + 1) / 2, 3, scale=1, value_range=(0, 1))), shown)


@pytest.mark.parametrize("given", [(1, 0), (0, 0), (0, float("inf")), "01", 1, (0, 1, 2), ("0", "1"), (None, 1)])
def test_what_is_no_range(given):
    with pytest.raises(InputError, match=r"value_range is .*; give the lowest and the highest value of a pixel"):
        as_batch(FLOATS, 16, given)


# ---- Sizes -----------------------------------------------------------------------------------------------------


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
        (torch.rand(1, 3, 4, 4) * 255, r"give uint8, or say what they are: value_range=\(0, 255\)"),
        (torch.rand(1, 3, 4, 4) * 999, r"say what they are: value_range=\(lowest, highest\)"),
        (None, r"an image is missing \(None\); give floats .* or paths of image files"),
        ([None], "an image is missing"),
        (b"bytes", "an image is of type bytes"),
        ([[0.5]], "an image is of type float"),
        (np.array([1 + 2j]), "images are complex128 of shape"),
        (np.zeros((4, 4, 3), np.int64), "images are int64 of shape"),
        ("nowhere.png", r"nowhere\.png cannot be read as an image: file is missing"),
        (["nowhere.png"], "file is missing"),
        (Path(), r"\. is a folder; name image files, or encode a folder with diti\.encode"),
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


def test_a_range_does_not_go_with_bytes():
    with pytest.raises(InputError, match=r"value_range is \(0\.0, 1\.0\), and the images are uint8"):
        as_batch(PIXELS, 16, (0, 1))
    assert torch.equal(as_batch(PIXELS, 16, (0, 255)), FLOATS)
