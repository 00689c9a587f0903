"""Each transform against Pillow, colorsys, scipy or a slow loop; then the views as a whole."""

import colorsys
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from scipy.ndimage import gaussian_filter

from diti.config import ViewsConfig
from diti.core.errors import InputError
from diti.core.images import to_float, to_uint8
from diti.core.rng import Draws, torch_generator
from diti.data import augment, toyfaces

PIXELS = toyfaces.render(toyfaces.sample(6, seed=4), 32)  # (6,32,32,3) uint8
IMAGES = to_float(PIXELS)
ONE = torch.ones(1)


def pillow(enhance, pixels, factor):
    return np.asarray(enhance(Image.fromarray(pixels)).enhance(factor)).astype(float)


def grey_levels(images):
    return to_uint8(images)[0].astype(float)


def turned(red, green, blue, turns):
    """A colour whose (I, Q) is turned by an angle, with the YIQ of the standard library."""
    y, i, q = colorsys.rgb_to_yiq(red, green, blue)
    angle = -2 * math.pi * turns  # in its plane HSV's direction is clockwise
    i, q = i * math.cos(angle) - q * math.sin(angle), i * math.sin(angle) + q * math.cos(angle)
    return colorsys.yiq_to_rgb(y, i, q)


# ---- Colour ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.5])
@pytest.mark.parametrize("index", [0, 3])
def test_saturation_brightness_and_contrast_are_pillows(factor, index):
    image, pixels, eye = IMAGES[index : index + 1], PIXELS[index], torch.eye(3)[None]
    found = {
        ImageEnhance.Color: augment.recolour(image, augment.saturation_matrix(factor * ONE), ONE),
        ImageEnhance.Brightness: augment.recolour(image, factor * eye, ONE),
        ImageEnhance.Contrast: augment.recolour(image, eye, factor * ONE),
    }
    for enhance, ours in found.items():  # Pillow rounds grey to whole levels before it mixes, and the result down
        assert np.abs(grey_levels(ours) - pillow(enhance, pixels, factor)).max() <= 2, enhance.__name__


def test_grey_is_the_luma_of_pillow():
    found = grey_levels(augment.recolour(IMAGES[:1], augment.TO_GREY[None], ONE))
    luma = np.asarray(Image.fromarray(PIXELS[0]).convert("L")).astype(float)
    assert np.abs(found - luma[..., None]).max() <= 1


@pytest.mark.parametrize("turns", [-0.2, 0.05, 0.1, 0.4])
def test_hue_turns_the_chroma_as_the_standard_librarys_yiq(turns):
    matrix = augment.hue_matrix(torch.tensor([turns]))[0].numpy()
    for colour in np.random.default_rng(0).random((20, 3)) * 0.3 + 0.35:
        expected = turned(*colour, turns)
        assert min(expected) > 0 and max(expected) < 1, "colorsys would clamp"
        assert np.allclose(matrix @ colour, expected, atol=0.02)  # its coefficients have two digits


def test_hue_moves_as_in_hsv_and_keeps_grey_and_luma():
    small = augment.hue_matrix(torch.tensor([0.05]))[0].numpy()
    for hue in np.linspace(0, 1, 12, endpoint=False):
        colour = np.array(colorsys.hsv_to_rgb(hue, 0.5, 0.8))
        moved = (colorsys.rgb_to_hsv(*(small @ colour))[0] - hue + 0.5) % 1 - 0.5
        assert 0.02 < moved < 0.1
    turns = torch.tensor([0.0, 0.13, 0.5, 1.0])
    matrices = augment.hue_matrix(turns)
    assert torch.allclose(matrices.sum(2), torch.ones(4, 3), atol=1e-6), "grey stays grey"
    assert torch.allclose(augment.LUMA @ matrices, augment.LUMA.expand(4, 3), atol=1e-6)
    assert torch.allclose(matrices[[0, 3]], torch.eye(3).expand(2, 3, 3), atol=1e-5)
    assert torch.allclose(augment.hue_matrix(-turns) @ matrices, torch.eye(3).expand(4, 3, 3), atol=1e-5)


def test_the_order_of_the_colour_changes_makes_no_difference():
    calm = 0.3 * IMAGES  # nothing is clamped
    eye, saturation = torch.eye(3).expand(6, 3, 3), augment.saturation_matrix(torch.full((6,), 1.2))
    hue, contrast = augment.hue_matrix(torch.full((6,), 0.1)), torch.full((6,), 0.7)
    at_once = augment.recolour(calm, 0.9 * hue @ saturation, contrast)
    steps = [(eye, contrast), (0.9 * eye, ONE), (saturation, ONE), (hue, ONE)]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        images = calm
        for step in order:
            images = augment.recolour(images, *(part.expand(6, *part.shape[1:]) for part in steps[step]))
        assert torch.allclose(images, at_once, atol=1e-5)


def test_images_keep_their_range_and_do_not_mix():
    wild = augment.recolour(IMAGES, 5 * augment.hue_matrix(torch.full((6,), 0.3)), torch.full((6,), 3.0))
    assert wild.min() == -1 and wild.max() == 1
    matrix, contrast = augment.hue_matrix(torch.linspace(0, 0.5, 6)), torch.linspace(0.5, 1.5, 6)
    together = augment.recolour(IMAGES, matrix, contrast)
    for i in range(6):
        alone = augment.recolour(IMAGES[i : i + 1], matrix[i : i + 1], contrast[i : i + 1])
        assert torch.allclose(together[i], alone[0], atol=1e-6)


# ---- Place ----------------------------------------------------------------------------------------------------


def test_the_chosen_images_are_mirrored():
    chosen = torch.tensor([True, False, True, False, False, True])
    found = to_uint8(augment.mirror(IMAGES, chosen))
    expected = [p[:, ::-1] if c else p for p, c in zip(PIXELS, chosen, strict=True)]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(("side", "radius"), [(16, 1), (32, 1), (64, 3), (128, 6)])
def test_blur_is_scipys_with_a_sigma_of_its_own_for_each_image(side, radius):
    images = torch.randn(4, 3, side, side, generator=torch_generator(0, "blur"))
    sigma = torch.tensor([0.1, 0.5, 1.0, 2.0])
    found = augment.blur(images, sigma).numpy()
    for image, width, ours in zip(images.numpy(), sigma.tolist(), found, strict=True):
        expected = [gaussian_filter(channel, width, mode="mirror", radius=radius) for channel in image]
        assert np.allclose(ours, expected, atol=1e-5)
    assert np.allclose(found[0], images[0], atol=1e-6), "a sigma of 0.1 px blurs nothing"


def test_no_image_to_blur():
    assert augment.blur(IMAGES[:0], torch.ones(0)).shape == (0, 3, 32, 32)


def slow_crop(image, left, top, width, height):
    """Bilinear, one output pixel after the other; beyond the edge lies the edge."""
    side = len(image)
    found = np.zeros_like(image)
    for row in range(side):
        for column in range(side):
            y = min(max((top + height * (row + 0.5) / side) * side - 0.5, 0), side - 1)
            x = min(max((left + width * (column + 0.5) / side) * side - 0.5, 0), side - 1)
            y0, x0 = int(y), int(x)
            y1, x1, b, a = min(y0 + 1, side - 1), min(x0 + 1, side - 1), y - y0, x - x0
            upper = (1 - a) * image[y0, x0] + a * image[y0, x1]
            found[row, column] = (1 - b) * upper + b * ((1 - a) * image[y1, x0] + a * image[y1, x1])
    return found


def test_crop_resize_is_the_slow_loop():
    images = torch.randn(3, 3, 8, 8, generator=torch_generator(0, "crop"))
    boxes = [(0.0, 0.0, 1.0, 1.0), (0.25, 0.5, 0.5, 0.5), (0.1, 0.3, 0.9, 0.45)]
    found = augment.crop_resize(images, *torch.tensor(boxes).T)
    assert torch.allclose(found[0], images[0], atol=1e-6), "the whole image stays as it is"
    for image, box, ours in zip(images, boxes, found, strict=True):
        assert np.allclose(ours.permute(1, 2, 0), slow_crop(image.permute(1, 2, 0).numpy(), *box), atol=1e-5)


def test_random_boxes_lie_inside_and_cover_their_ranges():
    numbers = torch.rand(4, 20_000, generator=torch_generator(0, "boxes"))
    left, top, width, height = augment.random_box(*numbers)
    assert min(left.min(), top.min()) >= 0 and max((left + width).max(), (top + height).max()) <= 1 + 1e-6
    area, ratio = width * height, width / height
    assert area.min() + 1e-6 >= 0.2 and area.min() < 0.21 and area.max() > 0.98
    assert 0.74 < ratio.min() < 0.76 and 1.32 < ratio.max() < 1.34
    whole = (width < 1) & (height < 1)  # of those that are not cut
    assert abs((area[whole] < 0.4).float().mean() / (area[whole] < 0.6).float().mean() - 0.5) < 0.02
    assert abs((ratio[whole] < 1).float().mean() - 0.5) < 0.02


# ---- Views ----------------------------------------------------------------------------------------------------


def views(config, start=40, count=6, images=IMAGES):
    return augment.two_views(images, Draws(1, start, count), config)


@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize("how", ["full", "no-colour"])
def test_views_differ_repeat_and_do_not_depend_on_how_a_batch_is_cut(how, crop):
    config = ViewsConfig(augment=how, crop_resize=crop)
    before = IMAGES.clone()
    first, second = views(config)
    assert not torch.equal(first, second) and torch.equal(before, IMAGES)
    parts = [views(config, 40, 1, IMAGES[:1]), views(config, 41, 5, IMAGES[1:])]
    for view, pieces in zip((first, second), zip(*parts, strict=True), strict=True):
        assert torch.allclose(view, torch.cat(pieces), atol=1e-6)
    assert not torch.allclose(first, views(config, start=80)[0])


def test_none_is_the_image_twice():
    first, second = views(ViewsConfig(augment="none"))
    assert torch.equal(first, IMAGES) and torch.equal(second, IMAGES)


def test_no_colour_mirrors_and_blurs_only():
    count = 200
    images = IMAGES[:1].expand(count, 3, 32, 32)
    first, _ = views(ViewsConfig(augment="no-colour"), 0, count, images)
    assert torch.allclose(first.mean((2, 3)), IMAGES[0].mean((1, 2)).expand(count, 3), atol=0.02)
    sharp = sum((first == version).flatten(1).all(1).sum().item() for version in (IMAGES[0], IMAGES[0].flip(2)))
    assert 70 < sharp < 130, "half are not blurred"


def test_shares_of_the_views_are_those_of_simclr():
    images = IMAGES[:1].expand(2000, 3, 32, 32)
    first, second = views(ViewsConfig(jitter_strength=1.0), 0, 2000, images)
    both = torch.cat([first, second])
    grey = (both - both[:, :1]).abs().flatten(1).amax(1) < 1e-5
    assert abs(grey.float().mean().item() - 0.2) < 0.03
    untouched = (both - IMAGES[0]).abs().flatten(1).amax(1) < 1e-5
    assert abs(untouched.float().mean().item() - 0.5 * 0.2 * 0.8 * 0.5) < 0.02  # nothing was chosen for these
    assert abs((grey[:2000] & grey[2000:]).float().mean().item() - 0.04) < 0.02, "the two views are independent"


def test_jitter_stays_within_its_strength():
    plain = torch.full((500, 3, 8, 8), 0.0)  # mid grey: only brightness acts on it
    levels = (views(ViewsConfig(jitter_strength=0.5), 0, 500, plain)[0].mean((1, 2, 3)) + 1) / 2
    assert 0.3 - 1e-5 <= levels.min() < 0.32 and 0.68 < levels.max() <= 0.7 + 1e-5
    still = views(ViewsConfig(jitter_strength=0.0), 0, 500, plain)[0]
    assert torch.allclose(still, plain, atol=1e-5)


def test_views_stay_float32_under_autocast():
    with torch.autocast("cpu", torch.bfloat16):
        low = views(ViewsConfig(augment="no-colour"))
    assert low[0].dtype == torch.float32 and torch.equal(low[0], views(ViewsConfig(augment="no-colour"))[0])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": 0.0}, r"--temperature is 0.0; it must be above 0"),
        ({"projection_dim": 0}, "--projection-dim is 0; it must be from 1"),
        ({"jitter_strength": 1.5}, "--jitter-strength is 1.5; it must be from 0 to 1"),
        ({"augment": "none", "crop_resize": True}, "use one of the two"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        ViewsConfig(**wrong)
