"""Toy faces: the draws, the exact pairs, the pictures, and the shapes they are painted with."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from diti.core.errors import InputError
from diti.data import toyfaces
from diti.data.toyfaces import ATTRIBUTES, FACTORS, NAMES, change, find, pairs, render, sample
from diti.data.toyfaces_render import Canvas, along, colours

BINARY = [a.name for a in ATTRIBUTES if a.binary]
CONTINUOUS = [a.name for a in ATTRIBUTES if not a.binary]


def squared_change(attribute: str) -> float:
    x0, y0 = pairs(attribute, 256, 32, seed=5)
    return float(np.mean((x0 / 255.0 - y0 / 255.0) ** 2))


def shrink(images: np.ndarray, factor: int) -> np.ndarray:
    n, h, w, c = images.shape
    return images.reshape(n, h // factor, factor, w // factor, factor, c).mean((2, 4))


def extreme_faces(count: int) -> np.ndarray:
    """Faces with about half of the attributes at an end of their range, where shapes reach farthest."""
    factors = sample(count, seed=11)
    rng = np.random.default_rng(0)
    for a in ATTRIBUTES:
        ends = np.where(rng.random(count) < 0.5, a.low, a.high)
        factors[a.name] = np.where(rng.random(count) < 0.5, ends, factors[a.name])
    return factors


# --- the draws ------------------------------------------------------------------------------------


def test_factors_are_pinned():
    face = sample(1, seed=0, start=2000)[0]
    assert face["background"] == pytest.approx(0.06389329)
    assert face["gaze"] == pytest.approx(0.35984337)
    assert [int(face[name]) for name in BINARY] == [1, 1, 1, 0, 1, 1, 0]


def test_any_slice_equals_the_slice_of_a_larger_draw():
    whole = sample(3000, seed=4)
    for start, count in [(0, 1), (5, 10), (1000, 100), (1023, 2), (1024, 1024), (2047, 953)]:
        assert np.array_equal(sample(count, seed=4, start=start), whole[start : start + count])


@pytest.mark.parametrize("other", [(1, 0), (0, toyfaces.BLOCK)], ids=["seed", "block"])
def test_seeds_and_blocks_do_not_repeat(other):
    a, b = sample(toyfaces.BLOCK, seed=0), sample(toyfaces.BLOCK, *other)
    for name in CONTINUOUS:
        assert abs(np.corrcoef(a[name], b[name])[0, 1]) < 0.15


def test_attributes_are_many_and_of_both_kinds():
    assert len(set(NAMES)) == len(NAMES) >= 16
    assert len(BINARY) >= 5 and len(CONTINUOUS) >= 5
    factors = sample(3, seed=0)
    assert all(np.issubdtype(factors[name].dtype, np.integer) for name in BINARY)
    assert all(np.issubdtype(factors[name].dtype, np.floating) for name in CONTINUOUS)


def test_attributes_are_independent():
    factors = sample(4000, seed=0)
    correlation = np.corrcoef([factors[name].astype(float) for name in NAMES]) - np.eye(len(NAMES))
    assert np.abs(correlation).max() < 0.07


@pytest.mark.parametrize("attribute", ATTRIBUTES, ids=NAMES)
def test_every_attribute_has_its_distribution(attribute):
    values = sample(4000, seed=0)[attribute.name].astype(float)
    if attribute.binary:
        assert set(values) == {0, 1}
        assert abs(values.mean() - 0.5) < 0.03
    else:
        share = np.sort((values - attribute.low) / (attribute.high - attribute.low))
        assert share[0] >= 0 and share[-1] <= 1
        assert np.abs(share - np.linspace(0, 1, len(share))).max() < 0.03  # Kolmogorov-Smirnov


# --- changing one attribute -----------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_change_alters_one_factor_and_the_picture(name):
    factors = sample(64, seed=3)
    before = factors.copy()
    changed = change(factors, name, seed=9)
    assert np.array_equal(factors, before)
    assert (changed[name] != factors[name]).all()
    assert all(np.array_equal(changed[other], factors[other]) for other in NAMES if other != name)

    difference = np.abs(render(changed, 32).astype(int) - render(factors, 32))
    assert difference.mean() > 0.1
    visible = difference.max((1, 2, 3)) >= 3
    assert visible.mean() > 0.9


@pytest.mark.parametrize("name", BINARY)
def test_a_binary_attribute_is_flipped(name):
    factors = sample(200, seed=3)
    assert np.array_equal(change(factors, name)[name], 1 - factors[name])
    assert np.array_equal(change(change(factors, name), name), factors)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_a_continuous_attribute_is_drawn_anew(name):
    factors = sample(2000, seed=3)
    changed = change(factors, name, seed=3)  # the same seed must not give the same or a related draw
    assert abs(np.corrcoef(factors[name], changed[name])[0, 1]) < 0.1
    a = find(name)
    assert changed[name].mean() == pytest.approx((a.low + a.high) / 2, abs=0.03 * (a.high - a.low))
    later = change(factors[1500:], name, seed=3, start=1500)
    assert np.array_equal(later, changed[1500:])


def test_values_are_set_as_given():
    factors = sample(3, seed=0)
    assert np.array_equal(change(factors, "hat", values=1)["hat"], [1, 1, 1])
    assert np.array_equal(change(factors, "turn", values=[-1, 0.5, 1])["turn"], [-1, 0.5, 1])


def test_pairs_are_the_pictures_before_and_after():
    x0, y0 = pairs("smile", 12, 16, seed=2)
    factors = sample(12, seed=2)
    assert np.array_equal(x0, render(factors, 16))
    assert np.array_equal(y0, render(change(factors, "smile", seed=2), 16))
    x5, y5 = pairs("smile", 7, 16, seed=2, start=5)
    assert np.array_equal(x5, x0[5:]) and np.array_equal(y5, y0[5:])


def test_attributes_go_from_coarse_to_fine():
    sizes = [squared_change(name) for name in NAMES]
    ranks = np.argsort(np.argsort(sizes))[::-1]
    spearman = np.corrcoef(ranks, np.arange(len(NAMES)))[0, 1]
    assert spearman > 0.95
    size = dict(zip(NAMES, sizes, strict=True))
    assert size["background"] > 10 * size["gaze"]
    assert size["background"] > 50 * size["brow_angle"]
    assert size["hat"] > 10 * size["earrings"]


# --- the pictures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [16, 32, 50, 64, 256])
def test_shape_and_type(size):
    images = render(sample(3, seed=0), size)
    assert images.shape == (3, size, size, 3) and images.dtype == np.uint8
    assert images.std((1, 2)).min() > 5


@pytest.mark.parametrize(("size", "count"), [(16, 40), (32, 40), (50, 20), (256, 4)])
def test_a_picture_does_not_depend_on_its_batch(size, count, monkeypatch):
    factors = extreme_faces(count)
    together = render(factors, size)
    alone = np.concatenate([render(factors[i : i + 1], size) for i in range(count)])
    assert np.array_equal(together, alone)
    monkeypatch.setattr(toyfaces, "CHUNK_PIXELS", 3 * size * size)
    assert np.array_equal(together, render(factors, size))
    order = np.random.default_rng(1).permutation(count)
    assert np.array_equal(together[order], render(factors[order], size))


def test_another_process_paints_the_same_bytes():
    code = (
        "import hashlib; from diti.data.toyfaces import pairs; "
        "x0, y0 = pairs('turn', 9, 32, seed=3, start=1020); "
        "print(hashlib.sha256(x0.tobytes() + y0.tobytes()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    other = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    x0, y0 = pairs("turn", 9, 32, seed=3, start=1020)
    assert other.strip() == hashlib.sha256(x0.tobytes() + y0.tobytes()).hexdigest()


@pytest.mark.parametrize(("small", "large", "tolerance"), [(16, 32, 4), (32, 64, 2), (32, 256, 2.5)])
def test_the_layout_is_the_same_at_any_size(small, large, tolerance):
    factors = sample(32, seed=1)
    coarse, fine = render(factors, small), shrink(render(factors, large), large // small)
    assert np.abs(coarse - fine).mean() < tolerance  # of 255
    assert np.abs(np.roll(coarse, 1, 0) - fine).mean() > 8 * tolerance  # other faces look different


@pytest.mark.parametrize(
    ("name", "untouched"),
    [
        ("mouth_open", slice(0, 20)),
        ("smile", slice(0, 20)),
        ("freckles", slice(0, 19)),
        ("brow_angle", slice(18, 32)),
        ("gaze", slice(0, 15)),
        ("hat", slice(15, 32)),
    ],
)
def test_fine_changes_stay_in_their_place(name, untouched):
    x0, y0 = pairs(name, 200, 32, seed=6)
    assert np.array_equal(x0[:, untouched], y0[:, untouched])
    assert not np.array_equal(x0, y0)


def test_the_background_stays_behind_the_face():
    x0, y0 = pairs("background", 200, 32, seed=6)
    face = (slice(None), slice(17, 24), slice(14, 18))
    assert np.array_equal(x0[face], y0[face])
    assert np.abs(x0[:, :3].astype(int) - y0[:, :3]).mean() > 20


def low_and_high(name: str, size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    attribute, factors = find(name), sample(50, seed=8)
    low, high = (render(change(factors, name, values=v), size) for v in (attribute.low, attribute.high))
    return low.astype(float), high.astype(float)


def test_brightness_brightens_every_picture():
    dusk, day = low_and_high("brightness")
    assert (day.mean((1, 2, 3)) > 1.3 * dusk.mean((1, 2, 3))).all()


def test_light_comes_from_the_side_it_says():
    left, right = low_and_high("light")
    assert (left[:, :, :8] > right[:, :, :8]).mean() > 0.9
    assert (left[:, :, -8:] < right[:, :, -8:]).mean() > 0.9


def test_skin_goes_from_light_to_dark():
    light, dark = low_and_high("skin")
    face = (slice(None), slice(20, 23), slice(12, 20))
    assert (light[face].mean((1, 2, 3)) > dark[face].mean((1, 2, 3)) + 15).all()


def test_position_moves_the_whole_person():
    factors = change(sample(20, seed=8), "light", values=0)
    left, right = (render(change(factors, "position", values=v), 128).astype(int) for v in (-1, 1))
    moved = 2 * 0.12 * 64  # pixels: the person moves by 0.12 of half the frame to either side
    aligned = np.abs(left[:, :, 20:-40] - right[:, :, 20 + round(moved) : -40 + round(moved)]).mean()
    assert aligned < 4
    assert np.abs(left - right).mean() > 4 * aligned


# --- the shapes, against indicator functions on a grid 16 times finer -----------------------------

SIZE, FINE = 32, 16


def indicator_cover(inside) -> np.ndarray:
    """Share of the FINE x FINE points of each pixel that lie inside: the cover by brute force."""
    at = (np.arange(SIZE * FINE) + 0.5) * 2 / (SIZE * FINE) - 1
    points = inside(at[None, :], at[:, None]).astype(float)
    return shrink(points[None, :, :, None], FINE)[0, :, :, 0]


def whole(canvas: Canvas):
    return canvas.box(0.0, 0.0, 1.0, 1.0)


SHAPES = {  # the cover, the indicator, the exact area
    "circle": (
        lambda c: c.oval(whole(c), np.float32([0.1]), -0.2, 0.5, 0.5),
        lambda x, y: (x - 0.1) ** 2 + (y + 0.2) ** 2 < 0.25,
        np.pi * 0.5**2,
    ),
    "ellipse": (
        lambda c: c.oval(whole(c), np.float32([0.0]), 0.1, 0.7, 0.4),
        lambda x, y: (x / 0.7) ** 2 + ((y - 0.1) / 0.4) ** 2 < 1,
        np.pi * 0.7 * 0.4,
    ),
    "bar": (
        lambda c: c.oval(whole(c), np.float32([0.0]), 0.1, 0.2, 0.2, 0.4),
        lambda x, y: np.maximum(np.abs(x) - 0.4, 0) ** 2 + (y - 0.1) ** 2 < 0.04,
        np.pi * 0.2**2 + 0.8 * 0.4,
    ),
    "line": (
        lambda c: c.line(whole(c), np.float32([0.1]), 0.0, 0.5, 0.25, 0.15),
        lambda x, y: np.hypot(*off_segment(x - 0.1, y, 0.5, 0.25)) < 0.15,
        np.pi * 0.15**2 + 2 * np.hypot(0.5, 0.25) * 0.3,
    ),
    "crescent": (
        lambda c: c.crescent(whole(c), np.float32([0.0]), 0.0, 0.6, -0.2, 0.5, 0.0),
        lambda x, y: (y > -0.2 * (1 - (x / 0.6) ** 2)) & (y < 0.5 * (1 - (x / 0.6) ** 2)),
        (0.5 + 0.2) * 0.6 * 4 / 3,
    ),
}


def off_segment(x, y, dx, dy):
    share = np.clip((x * dx + y * dy) / (dx * dx + dy * dy), -1, 1)
    return x - share * dx, y - share * dy


@pytest.mark.parametrize("shape", SHAPES)
def test_covers_match_the_indicator(shape):
    soft, inside, area = SHAPES[shape]
    cover = soft(Canvas(1, SIZE))[:, :, 0]
    assert cover.dtype == np.float32
    assert cover.sum() * (2 / SIZE) ** 2 == pytest.approx(area, rel=0.01)
    # The ramp is one pixel wide whatever its slant, the cover of a slanted edge rises over up to 1.4 pixels.
    assert np.abs(cover - indicator_cover(inside)).max() < 0.1


def test_glow_is_one_in_the_middle_and_ends_at_the_ellipse():
    canvas = Canvas(1, 33)  # odd: a pixel lies at the origin
    glow = canvas.glow(whole(canvas), np.float32([0.0]), 0.0, 0.5, 0.25)[:, :, 0]
    x, y = canvas.at[:, 0][None, :], canvas.at[:, 0][:, None]
    assert glow[16, 16] == 1
    assert np.array_equal(glow > 0, (x / 0.5) ** 2 + (y / 0.25) ** 2 < 1)


def test_paint_mixes_by_cover_inside_the_box_only():
    canvas = Canvas(2, 16)
    for plane in canvas.planes:
        plane[:] = 0.2
    box = (slice(2, 4), slice(5, 8))
    cover = np.random.default_rng(0).random((2, 3, 2), np.float32)
    canvas.paint(box, cover, np.float32([[1, 0], [0.5, 0.5], [0, 1]]))
    expected = np.full((3, 16, 16, 2), 0.2)
    for c, i, j, n in np.ndindex(3, 2, 3, 2):
        colour = [[1, 0], [0.5, 0.5], [0, 1]][c][n]
        expected[c, 2 + i, 5 + j, n] = cover[i, j, n] * colour + (1 - cover[i, j, n]) * 0.2
    assert np.allclose(canvas.planes, expected, atol=1e-6)


def test_a_palette_is_a_path_through_its_colours():
    palette = colours("000000", "FF0000", "FFFF00")
    assert np.allclose(palette, [[0, 0, 0], [1, 0, 0], [1, 1, 0]])
    path = along(palette, np.float32([0, 0.25, 0.5, 0.75, 1]))
    assert np.allclose(path.T, [[0, 0, 0], [0.5, 0, 0], [1, 0, 0], [1, 0.5, 0], [1, 1, 0]])


# --- bad input ------------------------------------------------------------------------------------


FACE = sample(1, seed=0)
OUTSIDE = np.zeros(2, FACTORS)
OUTSIDE["background"][1] = 1.2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *(
            (partial(render, FACE, size), f"{size} px large; choose a size from 16 to 256")
            for size in (0, 15, 257)
        ),
        (partial(change, FACE, "glases"), r"no attribute 'glases'.*Did you mean 'glasses'\?"),
        (partial(pairs, "wings", 1, 32, seed=0), "no attribute"),
        (partial(sample, 0, seed=0), "0 toyfaces from index 0"),
        (partial(sample, -3, seed=0), "-3 toyfaces from index 0"),
        (partial(sample, 4, seed=0, start=-1), "4 toyfaces from index -1"),
        (partial(change, FACE, "smile"), "'smile' is continuous: give the seed"),
        (partial(change, FACE, "smile", values=1.5), "'smile' of 1.5; choose -1 to 1"),
        (partial(change, OUTSIDE, "smile", values=[0, float("nan")]), "'smile' of nan; choose -1 to 1"),
        (partial(change, FACE, "hat", values=0.5), "'hat' of 0.5; choose 0 or 1"),
        (partial(change, OUTSIDE, "hat", values=[0, 1, 1]), r"'hat' of shape \(3,\) for 2 faces"),
        (partial(render, OUTSIDE, 32), r"'background' of 1.2; choose 0 to 1"),
    ],
)
def test_what_makes_no_face_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
