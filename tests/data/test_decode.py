"""Every kind of picture people have comes out upright, RGB, of the right size, in the right colours."""

import io

import numpy as np
import pytest
from PIL import Image

from diti.core.errors import InputError
from diti.data.decode import CROPS, Unreadable, check_crop, decode, decode_file


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def colour(pixels: np.ndarray) -> list[int]:
    return np.median(pixels.reshape(-1, 3), axis=0).astype(int).tolist()


RED = (200, 30, 40)


SIDEWAYS = Image.Exif()
SIDEWAYS[0x0112] = 6
PALETTE = Image.new("RGB", (30, 30), RED).quantize(8)
HALF_RED = [round(c * 128 / 255 + 255 * (1 - 128 / 255)) for c in RED]
FORTY_THOUSAND = Image.fromarray(np.full((30, 30), 40_000, np.uint16))
HALF = Image.fromarray(np.full((30, 30), 0.5, np.float32))


@pytest.mark.parametrize(
    ("data", "expected", "tolerance"),
    [
        pytest.param(encoded(Image.new("L", (30, 30), 77), "PNG"), 77, 0, id="grey"),
        pytest.param(encoded(Image.new("1", (30, 30), 1), "PNG"), 255, 0, id="one-bit"),
        pytest.param(encoded(Image.new("RGBA", (30, 30), (*RED, 128)), "PNG"), HALF_RED, 1, id="rgba-over-white"),
        pytest.param(encoded(Image.new("LA", (30, 30), (0, 0)), "PNG"), 255, 0, id="clear-over-white"),
        pytest.param(
            encoded(Image.new("CMYK", (30, 30), (0, 255, 255, 0)), "JPEG", quality=98), [255, 0, 0], 6, id="cmyk"
        ),
        pytest.param(encoded(PALETTE, "PNG"), RED, 4, id="palette"),
        pytest.param(encoded(PALETTE, "PNG", transparency=PALETTE.getpixel((0, 0))), 255, 0, id="clear-palette"),
        pytest.param(encoded(FORTY_THOUSAND, "PNG"), 156, 1, id="16-bit-png"),
        pytest.param(encoded(FORTY_THOUSAND, "TIFF"), 156, 1, id="16-bit-tiff"),
        pytest.param(encoded(HALF, "TIFF"), 128, 1, id="32-bit-float"),
    ],
)
def test_colours_of_every_kind(data, expected, tolerance):
    assert np.abs(np.subtract(colour(decode(data, 16, "centre")), expected)).max() <= tolerance


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_rotation_is_applied(kind):
    """A sideways photo: stored with its top at the left, orientation 6 says turn clockwise."""
    pixels = np.zeros((32, 32, 3), np.uint8)
    pixels[:, :16] = 250  # stored: bright left half; upright: bright top half
    upright = decode(encoded(Image.fromarray(pixels), kind, exif=SIDEWAYS), 16, "centre")
    assert upright[:7].mean() > 230 and upright[9:].mean() < 20


def test_exif_rotation_of_large_non_square_photo():
    """The draft decoding, the turn and the crop must agree on where the centre is."""
    pixels = np.zeros((600, 1200, 3), np.uint8)
    pixels[:, 300:900] = (0, 200, 0)
    pixels[:300, 300:900] = (200, 0, 0)  # stored top of the central square: right side when turned clockwise
    upright = decode(encoded(Image.fromarray(pixels), "JPEG", exif=SIDEWAYS, quality=95), 16, "centre")
    assert np.allclose(upright[:, 9:].reshape(-1, 3).mean(0), (200, 0, 0), atol=12)
    assert np.allclose(upright[:, :7].reshape(-1, 3).mean(0), (0, 200, 0), atol=12)


def test_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (30, 30), c) for c in (RED, (0, 0, 0))]
    for kind in ("GIF", "WEBP"):
        exactly = {"lossless": True} if kind == "WEBP" else {}
        data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **exactly)
        assert np.allclose(colour(decode(data, 16, "centre")), RED, atol=4)


def test_tiny_and_non_square():
    assert decode(encoded(Image.new("RGB", (1, 1), RED), "PNG"), 32, "centre").shape == (32, 32, 3)
    wide = np.zeros((20, 60, 3), np.uint8)
    wide[:, 20:40] = RED
    assert (decode(encoded(Image.fromarray(wide), "PNG"), 20, "centre") == RED).all()


def test_pixels_of_the_right_size_pass_unchanged():
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    assert np.array_equal(decode(pixels, 24, "centre"), pixels)
    assert np.array_equal(decode(encoded(Image.fromarray(pixels), "PNG"), 24, "whole"), pixels)


def test_nothing_outside_the_crop_shines_in():
    wide = np.zeros((40, 120, 3), np.uint8)
    wide[:, 40:80] = 255
    assert (decode(wide, 16, "centre") == 255).all()


def test_celeba_crop_is_128_px_around_89_121():
    image = np.zeros((218, 178, 3), np.uint8)
    image[121 - 64 : 121 + 64, 89 - 64 : 89 + 64] = 255
    assert (decode(encoded(Image.fromarray(image), "PNG"), 128, "celeba") == 255).all()
    image[:] = 255
    image[121 - 64 : 121 + 64, 89 - 64 : 89 + 64] = 0
    assert (decode(encoded(Image.fromarray(image), "PNG"), 128, "celeba") == 0).all()


def test_lfw_crop_equals_resize_then_centre_crop():
    image = Image.effect_mandelbrot((250, 250), (-2, -1.5, 1, 1.5), 50).convert("RGB")
    slow = image.resize((70, 70), Image.Resampling.BICUBIC).crop((3, 3, 67, 67))
    assert np.abs(decode(np.asarray(image), 64, "lfw").astype(int) - np.asarray(slow)).mean() < 4


def test_draft_decoding_stays_close_to_the_full_one():
    image = Image.effect_mandelbrot((1024, 1024), (-2, -1.5, 1, 1.5), 80).convert("RGB")
    data = encoded(image, "JPEG", quality=95)
    full = np.asarray(Image.open(io.BytesIO(data)).resize((64, 64), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(decode(data, 64, "centre") - full).mean() < 3


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b"not an image", "not an image"),
        (b"", "not an image"),
        (encoded(Image.effect_noise((64, 64), 50), "JPEG")[:400], "truncated"),
        (encoded(Image.effect_noise((64, 64), 50), "PNG")[:900], "truncated|broken"),
        (FileNotFoundError("x.jpg"), "missing"),
    ],
)
def test_broken_pictures_are_unreadable_with_a_reason(broken, reason):
    with pytest.raises(Unreadable, match=reason):
        decode(broken, 16, "centre")


def test_bad_arguments(tmp_path):
    with pytest.raises(InputError, match=r"centr\b.*Did you mean 'centre'"):
        check_crop("centr")
    assert all(len(box(178, 218)) == 4 for box in CROPS.values())
    with pytest.raises(InputError, match=r"gone\.png cannot be read as an image: file is missing"):
        decode_file(tmp_path / "gone.png", 16)
