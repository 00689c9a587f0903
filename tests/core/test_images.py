import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from diti.core.errors import InputError
from diti.core.images import PICTURES, grid, is_signed, save_figure, save_picture, to_float, to_uint8


def test_every_byte_survives_the_round_trip():
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    floats = to_float(pixels)
    assert floats.dtype == torch.float32 and floats.shape == (1, 3, 16, 16)
    assert floats.min() == -1 and floats.max() == 1
    assert np.array_equal(to_uint8(floats), pixels)


def test_to_uint8_rounds_and_clamps():
    values = torch.tensor([-3.0, -1.0, 0.001, 1.0, 2.0]).reshape(1, 1, 1, 5).expand(1, 3, 1, 5)
    assert to_uint8(values)[0, 0, :, 0].tolist() == [0, 0, 128, 255, 255]


def test_to_float_refuses_floats():
    with pytest.raises(TypeError, match="uint8"):
        to_float(np.zeros((1, 4, 4, 3), np.float32))


def test_to_float_leaves_its_input_alone():
    pixels = np.full((1, 2, 2, 3), 7, np.uint8)
    to_float(pixels)
    assert (pixels == 7).all()


def test_grid_places_images_row_by_row_below_the_labels():
    images = np.stack([np.full((8, 8, 3), 40 * i, np.uint8) for i in range(5)])
    bare = np.asarray(grid(images, 3, scale=1))
    assert bare.shape == (18, 28, 3)
    assert bare[0, 0, 0] == 0 and bare[0, 10, 0] == 40 and bare[10, 10, 0] == 160 and bare[10, 20, 0] == 255
    labelled = np.asarray(grid(images, 3, scale=1, title="faces", column_labels="abc", row_labels=["one", "two"]))
    assert labelled.shape[0] > bare.shape[0] and labelled.shape[1] > bare.shape[1]
    assert (labelled[:10] < 128).any(), "the title is drawn"


def test_grid_takes_what_models_give_and_refuses_what_nobody_can_show():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    assert np.array_equal(grid(to_float(pixels), 2), grid(pixels, 2))
    for wrong in (
        pixels[0],
        pixels / 255,
        pixels[:0],
        to_float(pixels)[0],
        torch.zeros(1, 3, 8, 8, dtype=torch.uint8),
    ):
        with pytest.raises(InputError, match=r"of shape .*; give uint8 \(N, H, W, 3\)"):
            grid(wrong, 2)
    with pytest.raises(InputError, match="columns is 0"):
        grid(pixels, 0)


def test_captions_stand_below_their_image():
    images = np.zeros((2, 40, 40, 3), np.uint8)
    sheet = np.asarray(grid(images, 1, scale=1, captions=["hat", "smile"]))
    assert sheet.shape == (2 * (40 + 2 + 20) - 2, 40, 3)
    assert (sheet[40:60] < 128).any() and sheet[60, 0].tolist() == [255] * 3 and (sheet[62:102] == 0).all()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_images_that_are_not_finite_are_never_shown(number):
    images = torch.zeros(1, 3, 4, 4)
    images[0, 1, 2, 3] = number
    with pytest.raises(InputError, match="not finite"):
        to_uint8(images)


@pytest.mark.parametrize("ending", [*PICTURES, ".PNG"])
def test_a_picture_is_of_the_kind_its_name_says_and_signed(ending, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / f"other{ending}")
    path = save_picture(Image.new("RGB", (8, 8)), tmp_path / f"own{ending}")
    with Image.open(path) as image:
        assert image.format == PICTURES[ending.lower()]
    assert is_signed(path) and not is_signed(tmp_path / f"other{ending}")


def test_figures_are_signed(tmp_path):
    assert is_signed(save_figure(Figure(figsize=(1, 1)), tmp_path / "f.png"))


@pytest.mark.parametrize("name", ["v.mp4", "v.txt", "v", "v.png.part"])
def test_pictures_that_cannot_be_written_are_refused(name, tmp_path):
    with pytest.raises(InputError, match=r"does not end in \.png"):
        save_picture(Image.new("RGB", (8, 8)), tmp_path / name)
    with pytest.raises(InputError, match=r"9×16384 px, too large for WEBP"):
        save_picture(Image.new("RGB", (9, 16_384)), tmp_path / "long.webp")
    assert not list(tmp_path.iterdir())


def test_save_picture_leaves_only_the_picture(tmp_path):
    path = save_picture(grid(np.zeros((1, 8, 8, 3), np.uint8), 1), tmp_path / "new" / "sheet.png")
    assert [p.name for p in path.parent.iterdir()] == ["sheet.png"]
    with Image.open(path) as image:
        assert image.format == "PNG"
