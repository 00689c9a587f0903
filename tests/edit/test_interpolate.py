import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diti.core.errors import InputError
from diti.core.images import to_float, to_uint8
from diti.edit import interpolate as module
from diti.edit.interpolate import (
    DIRECTIONS,
    Variant,
    check_scales,
    cut_of,
    decode_distinct,
    interpolate,
    interpolate_files,
    mix_variants,
    moved_dims,
    plan,
)
from diti.edit.invert import Inverted
from diti.interop.convert import model_from
from diti.representation.partition import Partition

SAMPLING_STEPS = 4


@pytest.fixture(scope="module")
def result(model, faces):
    return interpolate(model, *faces, ["early", "late", "all"], [0, 0.4, 1], sampling_steps=SAMPLING_STEPS)


@pytest.fixture
def one_subset(model):
    """The same networks as a model without a partition of its own (PDAE)."""
    return dataclasses.replace(model, partition=Partition.single(1000, model.dims), method="pdae")


def close(ours, theirs):
    """Equal up to float32 rounding: random networks give images of any size, so measure against that size."""
    return (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


def image_of(result, subset, direction, scale):
    return result.images[result.variants.index(Variant(subset, direction, scale))]


# ---- Which variants ---------------------------------------------------------------------------------------


def test_every_subset_direction_and_scale_once(result):
    assert len(result.images) == len(result.variants) == (2 + 2 + 1) * 3
    assert result.variants[:4] == (
        Variant("early", "a_to_b", 0),
        Variant("early", "a_to_b", 0.4),
        Variant("early", "a_to_b", 1),
        Variant("early", "b_to_a", 0),
    )
    assert {v.direction for v in result.variants if v.subset == "all"} == {"a_to_b"}


@pytest.mark.parametrize(
    ("subset", "x_t", "ways"), [("0:6", "slerp", 1), ("all", "random", 1), ("all", "keep", 2), ("0:5", "slerp", 2)]
)
def test_the_whole_of_z_has_one_direction_unless_the_noise_tells_them_apart(model, subset, x_t, ways):
    assert len(plan(model.partition, [subset, subset], [0.5, 0.5], DIRECTIONS, x_t)) == ways


# ---- Codes and noises -------------------------------------------------------------------------------------


def test_codes_and_noises_against_a_loop_over_the_definition(model):
    rng = np.random.default_rng(0)
    z, x_T = rng.normal(size=(2, 12)).astype(np.float32), rng.normal(size=(2, 3, 4, 4)).astype(np.float32)
    specs = [("2:4", "a_to_b", 0.3), ("2:4", "b_to_a", 0.3), ("late", "b_to_a", 1.5), ("all", "a_to_b", 1.0)]
    owned = {"2:4": range(4, 8), "late": range(8, 12), "all": range(12)}  # 2 dims each; late starts at T 2/3
    variants = [Variant(*spec) for spec in specs]
    codes, noises = mix_variants(torch.from_numpy(z), torch.from_numpy(x_T), variants, model.partition, "slerp")
    for row, (subset, direction, scale) in enumerate(specs):
        start, end = (0, 1) if direction == "a_to_b" else (1, 0)
        code = z[start].astype(np.float64)
        for dim in owned[subset]:
            code[dim] = (1 - scale) * z[start, dim] + scale * z[end, dim]
        assert np.allclose(codes[row], code, atol=1e-6)
        outside = [dim for dim in range(12) if dim not in owned[subset]]
        assert np.array_equal(codes[row, outside], z[start, outside])
        a, b = x_T[start].astype(np.float64), x_T[end].astype(np.float64)
        theta = np.arccos((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))
        noise = (np.sin((1 - scale) * theta) * a + np.sin(scale * theta) * b) / np.sin(theta)
        assert np.allclose(noises[row], noise, atol=1e-6)


def test_kept_noise_is_that_of_the_start(model):
    z, x_T = torch.zeros(2, 12), torch.stack([torch.zeros(3, 4, 4), torch.ones(3, 4, 4)])
    variants = [Variant("late", "a_to_b", 0.5), Variant("late", "b_to_a", 0.5)]
    _, noises = mix_variants(z, x_T, variants, model.partition, "keep")
    assert torch.equal(noises, x_T)


# ---- Images -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x_t", ["slerp", "keep", "random"])
def test_scale_0_is_the_reconstruction_whatever_the_subset(model, faces, x_t):
    result = interpolate(model, *faces, ["early", "1:3"], [0, 0.5], x_t=x_t, sampling_steps=SAMPLING_STEPS, seed=3)
    for subset in ("early", "1:3"):
        assert torch.equal(image_of(result, subset, "a_to_b", 0), result.reconstructions[0])
        assert torch.equal(image_of(result, subset, "b_to_a", 0), result.reconstructions[1])
        assert not torch.equal(image_of(result, subset, "a_to_b", 0.5), result.reconstructions[0])
    if x_t != "random":
        assert close(result.reconstructions, model.reconstruct(faces, sampling_steps=SAMPLING_STEPS))


def test_scale_1_of_all_is_the_other_image(result):
    assert torch.equal(image_of(result, "all", "a_to_b", 0), result.reconstructions[0])
    assert torch.equal(image_of(result, "all", "a_to_b", 1), result.reconstructions[1])
    assert not torch.equal(image_of(result, "late", "a_to_b", 1), result.reconstructions[1])


def test_errors_are_mean_squares(result, faces):
    wanted = ((result.reconstructions - to_float(faces)) ** 2).flatten(1).mean(1)
    assert result.errors == pytest.approx(wanted.tolist()) and min(result.errors) > 0
    assert torch.equal(result.ends, to_float(faces))


@pytest.mark.parametrize("masked", [True, False])
def test_the_batch_equals_one_by_one(model, faces, masked, monkeypatch):
    monkeypatch.setattr("diti.representation.models.model.PIXELS_AT_ONCE", 3 * 16 * 16)  # three images at a time
    subsets, scales = ["early", "4:6"], [0.25, 1]
    together = interpolate(model, *faces, subsets, scales, masked=masked, sampling_steps=SAMPLING_STEPS)
    pixels = to_float(faces)
    z = model.encode(pixels)
    x_T = torch.cat(
        [model.infer_noise(pixels[i : i + 1], sampling_steps=SAMPLING_STEPS, masked=masked) for i in range(2)]
    )
    for place, variant in enumerate(together.variants):
        code, noise = mix_variants(z, x_T, [variant], model.partition, "slerp")
        alone = model.decode(code, noise, SAMPLING_STEPS, clamp=False, masked=masked)
        assert close(together.images[place], alone[0])


def test_masks_matter_and_can_be_left_out(model, faces):
    masked, unmasked = (
        interpolate(model, *faces, ["late"], [1], masked=m, sampling_steps=SAMPLING_STEPS) for m in (True, False)
    )
    assert (masked.images - unmasked.images).abs().max() > 1e-3


def test_only_distinct_pairs_are_decoded(model, faces, monkeypatch):
    decoded = []
    decode = type(model).decode
    monkeypatch.setattr(
        type(model),
        "decode",
        lambda self, z, *rest, **more: decoded.append(len(z)) or decode(self, z, *rest, **more),
    )
    interpolate(model, *faces, ["early", "late", "all"], [0, 0.5, 1], sampling_steps=2)
    assert decoded == [2 + 2 * 2 * 2 + 1]  # the ends, scales .5 and 1 of two subsets both ways, .5 of all
    interpolate(model, faces[0], faces[0], ["early", "all"], [0, 0.5, 2], sampling_steps=2)
    assert decoded[1:] == [1], "between an image and itself there is only that image"


def test_decode_distinct_keeps_the_order(model):
    rng = torch.Generator().manual_seed(0)
    z, x_T = torch.randn(4, 12, generator=rng), torch.randn(4, 3, 16, 16, generator=rng)
    order = [2, 0, 2, 3, 1, 0]
    start = Inverted(model, z, x_T, 2, masked=True, stop_below=0, clamp=False)
    images = decode_distinct(start, z[order], x_T[order])
    assert close(images, model.decode(z, x_T, 2, clamp=False)[order])
    assert torch.equal(images[0], images[2]) and torch.equal(images[1], images[5])


def test_random_noise_is_one_for_all_and_follows_the_seed(model, faces):
    first, again, other = (
        interpolate(model, *faces, ["all"], [0, 0.5], x_t="random", sampling_steps=2, seed=seed)
        for seed in (1, 1, 2)
    )
    assert torch.equal(first.images, again.images) and not torch.equal(first.images, other.images)
    assert first.images.abs().max() <= 1, "images from random noise are clamped on the way"
    same = interpolate(model, faces[0], faces[0], ["all"], [0.5], x_t="random", sampling_steps=2)
    assert torch.equal(*same.reconstructions), "equal codes and one noise give one image"


def test_extrapolation_is_noted(model, faces, result):
    beyond = interpolate(model, *faces, ["late"], [-0.5, 1, 1.5], sampling_steps=2)
    assert beyond.notes == ("scale -0.5, 1.5 is outside 0..1: extrapolated beyond A and B",)
    assert torch.isfinite(beyond.images).all() and result.notes == ()


# ---- Partitions -------------------------------------------------------------------------------------------


def test_a_model_of_one_subset_borrows_a_balanced_split(one_subset, faces):
    result = interpolate(one_subset, *faces, ["late"], [1], sampling_steps=2)
    assert result.partition == Partition.balanced(1000, 12, 12) and "balanced split into 12" in result.notes[0]
    unmasked = interpolate(one_subset, *faces, ["late"], [1], masked=False, sampling_steps=2)
    assert torch.equal(result.images, unmasked.images)
    large = dataclasses.replace(one_subset, partition=Partition.single(1000, 512))
    assert cut_of(large, None)[0] == Partition.balanced(1000, 64, 512)


def test_a_given_partition_chooses_the_dims(model, faces):
    lent = Partition.custom(1000, 6, 12, ends=[1, 2, 3, 4, 5, 12])
    assert torch.equal(moved_dims(lent, "5"), torch.arange(12) >= 5)
    result = interpolate(model, *faces, ["5"], [1], partition=lent, sampling_steps=2)
    assert result.partition == lent and result.notes == ()
    assert not torch.equal(result.images, interpolate(model, *faces, ["5"], [1], sampling_steps=2).images)
    with pytest.raises(InputError, match=r"for 13 dims and T = 1000, the model has 12"):
        interpolate(model, *faces, ["5"], [1], partition=Partition.balanced(1000, 6, 13))


@pytest.mark.parametrize(
    ("ends", "subset", "message"),
    [
        ([0, 0, 3, 5, 12, 12], "early", r"'early' owns no dims .* not empty: middle, late; by number 2-4$"),
        ([0, 4, 4, 5, 5, 12], "2", r"'2' owns no dims .* not empty: early, middle, late; by number 1, 3, 5$"),
        ([6, 12], "late", r"'late' owns no dims .* not empty: early, middle; by number 0-1$"),
        ([6, 12], "erly", r"'erly' names no subset .* Did you mean 'early'"),
        ([6, 12], "1:3", r"'1:3' names no subset .* \(0 <= I < J <= 2\)"),
    ],
)
def test_empty_and_unknown_subsets(ends, subset, message):
    with pytest.raises(InputError, match=message):
        moved_dims(Partition.custom(1000, len(ends), 12, ends=ends), subset)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subsets": []}, "no subsets were given"),
        ({"scales": []}, "no scales were given"),
        ({"scales": [0, "half"]}, "scale 'half' is not a number"),
        ({"scales": [float("nan")]}, "scale nan is not a number"),
        ({"x_t": "slurp"}, "x_t is 'slurp'; allowed: slerp, keep, random. Did you mean 'slerp'"),
        ({"directions": ["a_to_c"]}, "direction is 'a_to_c'; allowed: a_to_b, b_to_a. Did you mean"),
        ({"directions": []}, "no direction was given"),
        ({"sampling_steps": 0}, "--sampling-steps is 0"),
    ],
)
def test_bad_choices_are_one_clear_line(model, faces, changes, message):
    with pytest.raises(InputError, match=message) as complaint:
        interpolate(model, *faces, **changes)
    assert "\n" not in str(complaint.value)


def test_two_single_images_are_needed(model, faces):
    with pytest.raises(InputError, match="B is a batch of 2 images"):
        interpolate(model, faces[0], faces)


def test_scales_of_the_command_line():
    assert check_scales(["0", " 0.5", "1e0", -2]) == [0, 0.5, 1, -2]
    for text in ("0,,1", "0;1", "", "inf"):
        with pytest.raises(InputError, match="is not a number; give numbers with commas"):
            check_scales(text.split(","))


# ---- Files ------------------------------------------------------------------------------------------------


@pytest.fixture
def files(faces, tmp_path):
    Image.fromarray(faces[0]).save(tmp_path / "a.png")
    Image.fromarray(faces[1]).resize((40, 30)).convert("L").save(tmp_path / "b.jpg")
    return str(tmp_path / "a.png"), str(tmp_path / "b.jpg")


def test_files_in_pictures_out(model, files, tmp_path):
    out, frames, animate = tmp_path / "new" / "grid.png", tmp_path / "frames", tmp_path / "move.gif"
    lines = interpolate_files(
        model, *files, ["early", "2:4", "all"], [0, 0.5, 1], out, frames=frames, animate=animate, sampling_steps=2
    )
    text = "\n".join(lines)
    assert lines[0] == "1 of 2 images were cropped to the centre and resized to the model's 16 px (from 40×30 px)"
    assert "early: 4 of 12 dims (subsets 0-1)" in text and "2:4: 4 of 12 dims (subsets 2-3)" in text
    assert "reconstruction error (MSE, pixels in [-1, 1]): A " in text
    assert lines[-3:] == [f"wrote {out}", f"wrote 19 single images to {frames}", f"wrote {animate}"]
    assert len(list(frames.iterdir())) == 15 + 4 and (frames / "2-4_b_to_a_0.5.png").is_file()
    with Image.open(frames / "a_reconstruction.png") as frame:
        assert frame.size == (16, 16)
    assert not list(tmp_path.rglob("*.part"))


def test_cells_of_the_grid(model, faces, result, tmp_path):
    sheet = np.asarray(module.interpolation_grid(result))
    images = to_uint8(result.images)
    side, gap, caption = 96, 2, 20  # 16 px enlarged six times
    left, top = sheet.shape[1] - 5 * (side + gap) + gap, 20
    assert sheet.shape[0] == top + 6 * (side + gap + caption) - gap

    def cell(row, column):
        y, x = top + row * (side + gap + caption), left + column * (side + gap)
        return sheet[y : y + side : 6, x : x + side : 6]

    order = [[0, 1, 2], [5, 4, 3], [6, 7, 8], [11, 10, 9], [12, 13, 14]]  # rows B to A run from right to left
    for row, places in enumerate(order):
        assert np.array_equal(cell(row, 0), faces[0]) and np.array_equal(cell(row, 4), faces[1])
        for column, place in enumerate(places, 1):
            assert np.array_equal(cell(row, column), images[place])
    rebuilt = to_uint8(result.reconstructions)
    assert np.array_equal(cell(5, 0), rebuilt[0]) and np.array_equal(cell(5, 4), rebuilt[1])
    assert (cell(5, 2) == 255).all()


@pytest.mark.parametrize("name", ["move.gif", "move.webp"])
@pytest.mark.parametrize(("scales", "count"), [([0.5], 1), ([1, 0], 2), ([0, 0.3, 0.6, 1], 6)])
def test_animations_go_forth_and_back(model, faces, name, scales, count, tmp_path):
    result = interpolate(model, *faces, ["early", "all"], scales, sampling_steps=1 + 1)
    frames = module.interpolation_frames(result)
    with Image.open(module.save_animation(frames, tmp_path / name)) as movie:
        assert movie.n_frames == count and movie.size == frames[0].size
        assert count == 1 or movie.info["loop"] == 0
        for place in range(count):
            movie.seek(place)
            wanted = frames[min(place, 2 * len(frames) - 2 - place)]
            apart = np.abs(np.asarray(movie.convert("RGB"), int) - np.asarray(wanted, int))
            assert apart.mean() < (4 if name.endswith("gif") else 1e-9), "a GIF has 256 colours"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": "missing.png"}, "missing.png cannot be read as an image: file is missing"),
        ({"second": "text.png"}, "text.png cannot be read as an image: not an image"),
        ({"animate": Path("move.mp4")}, "move.mp4 does not end in .gif or .webp"),
        ({"out": Path()}, "is a folder; name a file"),
    ],
)
def test_bad_files_are_one_clear_line(model, files, tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    Path("text.png").write_text("no picture")
    given = {"first": files[0], "second": files[1], "out": Path("grid.png"), **changes}
    with pytest.raises(InputError, match=message):
        interpolate_files(model, subsets=["late"], scales=[0.5], sampling_steps=2, **given)
    assert not Path("grid.png").exists()


# ---- The authors' network ---------------------------------------------------------------------------------


def test_the_authors_network(parity):
    expected = torch.load(parity / "pdae_tiny" / "expected.pt", weights_only=True)
    network, _, _ = model_from(parity / "pdae_tiny" / "diti_checkpoint.pt", "balanced", expected["k"])
    a, b = expected["x0"][:2]
    result = interpolate(network, a, b, ["early", "all"], [0, 1], sampling_steps=2)
    assert torch.equal(image_of(result, "all", "a_to_b", 0), result.reconstructions[0])
    assert torch.equal(image_of(result, "all", "a_to_b", 1), result.reconstructions[1])
    assert torch.equal(image_of(result, "early", "b_to_a", 0), result.reconstructions[1])
    z = expected["z"][:2]  # the authors' own code of both images
    swapped = torch.where(moved_dims(network.partition, "early"), z[1], z[0])[None]
    x_T = network.infer_noise(torch.stack([a, b]), z, sampling_steps=2)
    alone = network.decode(swapped, x_T[1:], sampling_steps=2, clamp=False)
    assert close(image_of(result, "early", "a_to_b", 1), alone[0])
