"""Directions and algorithm 3: on a tiny model, on the authors' tiny network, and as files on disk."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from diti.core.errors import InputError
from diti.core.rng import numpy_generator
from diti.data import toyfaces
from diti.data.prepared import Dataset
from diti.diffusion.files import locate, may_keep
from diti.diffusion.sampler import timesteps
from diti.edit.compose import push, strength_at
from diti.edit.direction_files import (
    direction_path,
    find_or_learn_direction,
    load_direction,
    save_direction,
    saved_direction,
)
from diti.edit.directions import (
    RIDGE,
    Direction,
    code_space_hash,
    conditional_pattern,
    fit_direction,
    pattern_of,
    standardise,
)
from diti.edit.manipulate import first_guided_step, manipulate, manipulation_picture
from diti.edit.manipulate_files import manipulate_files
from diti.edit.wishes import Wish
from diti.interop.convert import model_from
from diti.representation.features import encode_dataset

MOVED = (1, 4, 10)
SAMPLING_STEPS = 6


@pytest.fixture(scope="session")
def model(model):
    """Without the statistics of z, as a converted one."""
    return dataclasses.replace(model, mean=None, std=None)


@pytest.fixture(scope="session")
def labelled(model):
    """200 toy faces whose attributes are planted in the codes: `mark` (dims 1, 4), `amount` (dim 7); all alike."""
    images = toyfaces.render(toyfaces.sample(200, seed=5), 16)
    z = model.encode(images).numpy()
    z = (z - z.mean(0)) / z.std(0)
    noise = numpy_generator(0, "labels").standard_normal(200)
    columns = {
        "file": pa.array([f"{i}.png" for i in range(200)]),
        "split": pa.array(["train"] * 140 + ["valid"] * 60),
        "mark": pa.array((z[:, 1] - 2 * z[:, 4] + 0.1 * noise > 0).astype(np.int8)),
        "amount": pa.array((z[:, 7] + 0.1 * noise).astype(np.float32)),
        "always": pa.array(np.ones(200, np.int8)),
        "steady": pa.array(np.full(200, 2.5, np.float32)),
    }
    return Dataset(Path("faces"), images, pa.table(columns), {"name": "faces", "hash": "abc"})


def a_direction(model, dims=MOVED) -> Direction:
    rng = numpy_generator(1, "direction")
    weight = np.zeros(model.dims)
    weight[list(dims)] = rng.standard_normal(len(dims))
    pattern = weight * (0.5 + rng.random(model.dims))
    return Direction(
        attribute="mark",
        method="weight",
        dims=tuple(dims),
        weight=weight,
        pattern=pattern,
        bias=0.25,
        metric="AP",
        score=0.75,
        score_all_dims=0.875,
        chance=0.5,
        data="faces",
        data_hash="abc",
        seed=0,
        encoder=code_space_hash(model),
        mean=rng.standard_normal(model.dims).astype(np.float32),
        std=rng.random(model.dims).astype(np.float32) + 0.5,
        along="weight",
        conditional=weight + 0.1 * rng.standard_normal(model.dims),
        reading=weight / 2,
        response=pattern / 2,
    )


def test_an_edit_follows_the_weight_or_a_pattern(model):
    direction = a_direction(model)
    z = torch.zeros(1, model.dims)
    for along in ("weight", "pattern", "conditional"):
        vector = getattr(direction, along)
        followed = direction.following(along)
        step = push(z, followed, 0.5)[0].numpy()
        np.testing.assert_allclose(step, 0.5 * direction.std * vector / (direction.reading @ vector), rtol=1e-5)
        paper = push(z, followed, strength_at(followed, 0.5))[0].numpy()
        expected = 0.5 * np.sqrt(model.dims) * direction.std * vector / np.linalg.norm(vector)
        np.testing.assert_allclose(paper, expected, rtol=1e-5)
    with pytest.raises(InputError, match="allowed: conditional, pattern, weight"):
        direction.following("sideways")
    with pytest.raises(InputError, match="without labels of other attributes"):
        dataclasses.replace(direction, conditional=None).following("conditional")


def test_the_pattern_is_the_way_the_codes_move_and_the_weight_is_not():
    """Two dims share a disturbance; the attribute moves the first alone. A reader must subtract the second."""
    rng = numpy_generator(3, "pattern")
    attribute, shared = rng.standard_normal((2, 200_000))
    z = np.stack([attribute + 3 * shared, 3 * shared], axis=1)
    weight = np.array([1.0, -1.0])  # z @ weight is the attribute itself
    np.testing.assert_allclose(pattern_of(z, weight), [1, 0], atol=0.05)
    np.testing.assert_allclose(pattern_of(z, weight), np.cov(z.T) @ weight, rtol=1e-3, atol=1e-4)
    assert pattern_of(z, np.array([2.0, 0.0]))[1] == 0, "dims that were not chosen stay"


def test_the_conditional_pattern_leaves_to_other_labels_what_is_theirs():
    """Labels that go together each move a dim of their own; a missing one counts as the mean."""
    rng = numpy_generator(4, "conditional")
    shared, *own = rng.standard_normal((3, 100_000))
    labels = np.stack([10 * (shared + o) for o in own], axis=1)  # correlated, of variance 200
    noise = 0.5 * rng.standard_normal((100_000, 3))
    z = np.stack([labels[:, 0] / 10, labels[:, 1] / 10, 0 * shared], axis=1) + noise
    exact = np.sqrt(2) * np.eye(3)[:2]  # per standard deviation of a label
    for column in (0, 1):
        found = conditional_pattern(z, labels, column)
        np.testing.assert_allclose(found, exact[column], atol=0.04)
    plain = pattern_of(z, np.array([1.0, 0, 0]) + np.array([0, 1e-9, 1e-9]))
    assert plain[1] > 0.4 * plain[0], "what goes with it comes along"
    labels[::2, 1] = np.nan
    assert np.isfinite(conditional_pattern(z, labels, 0)).all()


def test_a_learned_direction_knows_its_conditional_pattern_and_keeps_it(model, labelled, tmp_path):
    learned = fit_direction(model, labelled, "amount", dims=2)
    train = labelled.rows("train")
    codes = standardise(encode_dataset(model, labelled)[train], learned.mean, learned.std)
    labels = labelled.labels(["mark", "amount"])[train].astype(np.float64)  # the others are the same everywhere
    y = np.vstack([(labels - labels.mean(0)) / labels.std(0), np.sqrt(RIDGE * len(train)) * np.eye(2)])
    slow = np.linalg.lstsq(y, np.vstack([codes, np.zeros((2, model.dims))]), rcond=None)[0][1]
    np.testing.assert_allclose(learned.conditional, slow, rtol=1e-4, atol=1e-6)
    path = save_direction(learned, tmp_path)
    np.testing.assert_array_equal(load_direction(path).conditional, learned.conditional)
    save_direction(dataclasses.replace(learned, conditional=None, reading=None), tmp_path)
    assert load_direction(path).conditional is None, "a file of an earlier version opens"
    assert saved_direction(model, tmp_path, labelled, "amount", 2, "l1", 0) is None, "and is learned again"


# ---- Algorithm 3 ------------------------------------------------------------------------------------------


def test_push_can_be_the_papers_formula_and_moves_no_other_dims(model):
    direction, z = a_direction(model), torch.randn(3, model.dims, generator=torch.Generator().manual_seed(0))
    moved = push(z, direction, strength_at(direction, 0.3))
    norm = math.sqrt(sum(w * w for w in direction.weight))
    for n in range(3):
        for i in range(model.dims):
            step = 0.3 * math.sqrt(model.dims) * direction.std[i] * direction.weight[i] / norm
            assert moved[n, i].item() == pytest.approx(z[n, i].item() + step, abs=1e-6)
    others = [i for i in range(model.dims) if i not in MOVED]
    assert torch.equal(moved[:, others], z[:, others])
    assert (moved[:, list(MOVED)] != z[:, list(MOVED)]).all()


def test_push_is_symmetric_and_raises_the_classifier_score(model):
    direction, z = a_direction(model), torch.zeros(1, model.dims)
    torch.testing.assert_close(push(z, direction, 0.2), -push(z, direction, -0.2))
    scores = [direction.scores(push(z, direction, s).numpy())[0] for s in (-0.3, 0.0, 0.3)]
    assert scores[2] - scores[1] == pytest.approx(scores[1] - scores[0], abs=1e-4)
    assert scores[2] - scores[1] == pytest.approx(0.3 * 2, abs=1e-4), "2 is the usual difference of its scores"


@pytest.mark.parametrize("masked", [True, False])
def test_scale_zero_is_the_reconstruction(model, faces, masked):
    result = manipulate(
        model, faces, a_direction(model), (-0.3, 0.0, 0.3), masked=masked, sampling_steps=SAMPLING_STEPS
    )
    torch.testing.assert_close(result.images[1], result.reconstructions, atol=1e-5, rtol=0)
    expected = model.reconstruct(faces, sampling_steps=SAMPLING_STEPS, masked=masked)
    torch.testing.assert_close(result.reconstructions, expected, atol=1e-4, rtol=0)
    error = (expected - result.originals).square().flatten(1).mean(1)
    torch.testing.assert_close(result.errors, error, atol=1e-4, rtol=1e-3)
    assert result.images.shape == (3, 2, 3, 16, 16) and result.z.shape == (3, 2, model.dims)
    assert (result.images[0] - result.images[2]).abs().max() > 0.01


def test_masks_change_the_images(model, faces):
    first, second = (
        manipulate(model, faces[:1], a_direction(model), (0.3,), masked=m, sampling_steps=SAMPLING_STEPS)
        for m in (True, False)
    )
    assert (first.images - second.images).abs().max() > 1e-3


def test_many_images_and_scales_equal_one_by_one(model, faces):
    direction, scales = a_direction(model), (-0.2, 0.4)
    together = manipulate(model, faces, direction, scales, sampling_steps=SAMPLING_STEPS)
    for s, scale in enumerate(scales):
        for n in range(2):
            alone = manipulate(model, faces[n], direction, (scale,), sampling_steps=SAMPLING_STEPS)
            torch.testing.assert_close(together.images[s, n], alone.images[0, 0], atol=1e-3, rtol=0)
            torch.testing.assert_close(together.z[s, n], alone.z[0, 0], atol=1e-5, rtol=0)


def test_parts_that_fit_in_memory_give_the_same(model, faces, monkeypatch):
    whole = manipulate(model, faces, a_direction(model), (0.3,), sampling_steps=SAMPLING_STEPS)
    monkeypatch.setattr("diti.representation.models.model.PIXELS_AT_ONCE", 1)
    parts = manipulate(model, faces, a_direction(model), (0.3,), sampling_steps=SAMPLING_STEPS)
    torch.testing.assert_close(whole.images, parts.images, atol=1e-3, rtol=0)


def test_images_may_be_of_another_size_and_steps_are_reported(model):
    sampling_steps = []
    picture = Image.new("RGB", (16, 16), (200, 120, 40))
    manipulate(
        model,
        picture,
        a_direction(model),
        (0.3,),
        sampling_steps=SAMPLING_STEPS,
        on_step=lambda i, n, x: sampling_steps.append((i, n)),
    )
    assert sampling_steps == [(i, SAMPLING_STEPS) for i in range(SAMPLING_STEPS)] * 2  # inverting, then decoding


def test_guidance_stops_at_the_last_steps():
    steps = [900, 700, 400, 100, 0]
    assert [first_guided_step(steps, share) for share in (0.0, 0.1, 0.2, 0.4, 0.8, 0.9)] == [
        0,
        0,
        1,
        101,
        701,
        701,
    ]
    for share in (-0.1, 1.0):
        with pytest.raises(InputError, match=r"--stop-guidance is .* below 1"):
            first_guided_step(steps, share)


def test_stopped_guidance_asks_for_z_at_the_high_steps_only(model, faces, monkeypatch):
    seen = []
    forward = type(model.decoder).forward
    monkeypatch.setattr(
        type(model.decoder), "forward", lambda self, x, t, z: (seen.append(int(t[0])), forward(self, x, t, z))[1]
    )
    result = manipulate(
        model, faces[:1], a_direction(model), (0.0,), stop_guidance=0.5, sampling_steps=SAMPLING_STEPS
    )
    high = timesteps(model.backbone.schedule, SAMPLING_STEPS)[: SAMPLING_STEPS // 2]
    assert seen == high[:0:-1] + high  # inverting ends at the highest step and does not leave from it
    torch.testing.assert_close(result.images[0], result.reconstructions, atol=1e-5, rtol=0)


def test_a_direction_of_another_encoder_is_refused(model, faces):
    other = dataclasses.replace(a_direction(model), encoder="0" * 64)
    with pytest.raises(InputError, match=r"'mark' .* an encoder other"):
        manipulate(model, faces, other)


def test_on_the_authors_network(parity):
    model, _, _ = model_from(parity / "pdae_tiny" / "diti_checkpoint.pt", "balanced", 8)
    direction = a_direction(model, dims=(0, 5, 40, 63))
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1
    result = manipulate(model, images, direction, (0.0, 0.3), sampling_steps=2)
    torch.testing.assert_close(result.images[0], result.reconstructions, atol=1e-3, rtol=0)
    torch.testing.assert_close(result.z[1], push(model.encode(images), direction, 0.3), atol=1e-5, rtol=1e-5)
    assert (result.images[1] - result.images[0]).abs().max() > 1e-3


# ---- Learning ---------------------------------------------------------------------------------------------


def test_a_planted_attribute_is_learned_on_the_training_rows(model, labelled):
    direction = fit_direction(model, labelled, "mark", dims=2)
    assert direction.dims == (1, 4) == tuple(np.flatnonzero(direction.weight))
    assert direction.weight[1] > 0 > direction.weight[4]
    assert (direction.metric, direction.method, direction.data, direction.data_hash) == (
        "AP",
        "l1",
        "faces",
        "abc",
    )
    assert direction.score > 0.95
    assert direction.chance == pytest.approx(labelled.labels(["mark"])[140:].mean())
    codes = model.encode(labelled.images).numpy()
    np.testing.assert_allclose(direction.std, codes[:140].std(0), rtol=1e-4)  # this model has no statistics
    again = fit_direction(model, labelled, "mark", dims=2, codes=codes)
    np.testing.assert_array_equal(again.weight, direction.weight)
    spoiled = codes.copy()
    spoiled[140:] = 0  # validation rows take no part in the fit
    other = fit_direction(model, labelled, "mark", dims=2, codes=spoiled)
    np.testing.assert_array_equal(other.weight, direction.weight)
    assert other.score == pytest.approx(direction.chance)


def test_the_models_own_statistics_are_used_where_it_has_them(model, labelled):
    own = dataclasses.replace(model, mean=torch.full((12,), 0.5), std=torch.full((12,), 2.0))
    direction = fit_direction(own, labelled, "mark", dims=2, selection="weight")
    assert (direction.mean == 0.5).all() and (direction.std == 2).all()
    assert direction.encoder != code_space_hash(model)


def test_a_continuous_attribute_gets_a_ridge_direction(model, labelled):
    direction = fit_direction(model, labelled, "amount", dims=1, selection="probmask")
    assert (direction.method, direction.metric, direction.dims, direction.chance) == ("ridge", "r", (7,), 0)
    assert direction.weight[7] > 0 and direction.score > 0.95
    assert "r 0.9" in direction.summary()


def without(dataset, split):
    kept = np.flatnonzero(dataset.table["split"].to_numpy(zero_copy_only=False) != split)
    return dataclasses.replace(dataset, images=dataset.images[kept], table=dataset.table.take(kept))


def test_what_cannot_be_learned_is_told_in_one_line(model, labelled):
    for attribute, options, message in (
        ("marc", {}, r"no attribute 'marc' .* Did you mean 'mark'"),
        ("mark", {"dims": 13}, r"dims is 13; z of this model has 12 dims: use 1 to 12"),
        ("mark", {"dims": 0}, r"dims is 0"),
        ("always", {"dims": 2}, r"'always' is 1 in all 140 train rows .* needs images with and without it"),
        ("steady", {"dims": 2}, r"'steady' is 2.5 in all 140 train rows .* needs images in which it differs"),
        ("mark", {"dims": 2, "selection": "best"}, r"selection is 'best'; allowed: "),
        ("mark", {"dims": 2, "codes": np.zeros((3, 12), np.float32)}, r"codes have shape \(3, 12\)"),
    ):
        with pytest.raises(InputError, match=message):
            fit_direction(model, labelled, attribute, **options)
    for split in ("train", "valid"):
        with pytest.raises(InputError, match=rf"has no {split} rows"):
            fit_direction(model, without(labelled, split), "mark", dims=2)


# ---- On disk ----------------------------------------------------------------------------------------------


def test_a_direction_comes_back_from_disk_as_it_was(model, tmp_path):
    direction = dataclasses.replace(a_direction(model), attribute="big/nose é")
    path = save_direction(direction, tmp_path)
    assert path == direction_path(tmp_path, "big/nose é") and path.parent == tmp_path / "attributes"
    found = load_direction(path)
    for field in dataclasses.fields(Direction):
        np.testing.assert_equal(getattr(found, field.name), getattr(direction, field.name))
    assert found.weight.dtype == np.float64 and isinstance(found.dims, tuple)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_damaged_files_are_told_apart(model, tmp_path):
    path = save_direction(a_direction(model), tmp_path)
    arrays, whole = load_file(path), path.read_bytes()
    with pytest.raises(InputError, match=r"other\.safetensors is missing"):
        load_direction(path.with_name("other.safetensors"))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"not a saved direction .* learn it again"):
        load_direction(path)
    save_file(arrays, path)
    with pytest.raises(InputError, match=r"not a saved direction"):
        load_direction(path)
    path.write_bytes(whole.replace(b"score_all_dims", b"score_any_dims"))
    with pytest.raises(InputError, match=r"another version \(score_all_dims, score_any_dims\)"):
        load_direction(path)
    save_direction(dataclasses.replace(a_direction(model), dims=(1, 4)), tmp_path)
    with pytest.raises(InputError, match=r"do not fit its dims"):
        load_direction(path)


def test_a_direction_is_learned_once_and_then_found(model, labelled, tmp_path):
    asked = []

    def codes():
        asked.append(1)
        return encode_dataset(model, labelled)

    first, new = find_or_learn_direction(model, tmp_path, labelled, "mark", 3, "weight", codes=codes)
    again, new_again = find_or_learn_direction(model, tmp_path, labelled, "mark", 3, "weight", codes=codes)
    assert (new, new_again, len(asked)) == (True, False, 1)
    plain = fit_direction(model, labelled, "mark", 3, "weight")
    for found in (first, again):
        assert found.dims == plain.dims
        np.testing.assert_array_equal(found.weight, plain.weight)
    other, newer = find_or_learn_direction(model, tmp_path, labelled, "mark", 2, "weight")
    assert newer and len(other.dims) == 2 and load_direction(direction_path(tmp_path, "mark")).dims == other.dims


def test_a_saved_direction_is_reused_only_for_the_same_question(model, labelled, tmp_path):
    assert saved_direction(model, tmp_path, labelled, "mark", 3, "weight", 0) is None
    save_direction(a_direction(model), tmp_path)
    assert saved_direction(model, tmp_path, labelled, "mark", 3, "weight", 0) is not None
    for question in ((2, "weight", 0), (3, "l1", 0), (3, "weight", 1)):
        assert saved_direction(model, tmp_path, labelled, "mark", *question) is None
    other_data = dataclasses.replace(labelled, info={"name": "faces", "hash": "xyz"})
    assert saved_direction(model, tmp_path, other_data, "mark", 3, "weight", 0) is None
    other_model = dataclasses.replace(model, std=torch.full((12,), 2.0))
    assert saved_direction(other_model, tmp_path, labelled, "mark", 3, "weight", 0) is None


def test_files_in_a_picture_out(model, faces, tmp_path):
    model.save(tmp_path / "model")
    Image.fromarray(faces[0]).save(tmp_path / "face.png")
    words = (str(tmp_path / "model"), tmp_path / "face.png", Wish("hat", "toyfaces:120"), 4, (0.3, -0.3))
    first = manipulate_files(*words, tmp_path / "out.png", sampling_steps=3)
    assert first[0].startswith("hat: 4 of 12 dims") and "kept the direction" in " ".join(first)
    again = manipulate_files(*words, tmp_path / "again.png", sampling_steps=3)
    assert again[0] == first[0] and "learned earlier" in again[1]
    assert (tmp_path / "out.png").read_bytes() == (tmp_path / "again.png").read_bytes()
    with pytest.raises(InputError, match=r"is a folder; name a file"):
        manipulate_files(*words, tmp_path)
    with pytest.raises(InputError, match=r"none\.png"):
        manipulate_files(words[0], tmp_path / "none.png", *words[2:], tmp_path / "out.png")


def test_a_kept_direction_needs_no_data_and_examples_need_no_label(model, faces, tmp_path):
    model = dataclasses.replace(model, mean=torch.zeros(12), std=torch.full((12,), 1e-3))
    model.save(tmp_path / "model")
    pixels = [np.full_like(faces[0], grey) for grey in (255, 240, 0, 15)]
    folder, files = str(tmp_path / "model"), [tmp_path / f"{index}.png" for index in range(4)]
    for face, file in zip(pixels, files, strict=True):
        Image.fromarray(face).save(file)
    wish = Wish(like=tuple(files[:2]), unlike=tuple(files[2:]), save_as="smiling")
    lines = manipulate_files(folder, files[0], wish, None, (0.3,), tmp_path / "a.png", sampling_steps=3)
    assert "no axes yet" in lines[0] and "from 2 images like it, 2 unlike" in lines[1]
    assert "kept the direction" in lines[2]
    lines = manipulate_files(folder, files[0], Wish("smiling"), None, (0.3,), tmp_path / "b.png", sampling_steps=3)
    assert "taken from the model folder" in lines[1]
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    lines = manipulate_files(
        folder, files[0], Wish(pairs=(files[0], files[2])), None, (0.3,), tmp_path / "c.png", sampling_steps=3
    )
    assert "from 1 pairs" in lines[0]
    with pytest.raises(InputError, match=r"keeps no direction of 'smilin' \(it keeps smiling\).*Did you mean"):
        manipulate_files(folder, files[0], Wish("smilin"), None, (0.3,), tmp_path / "b.png")


@pytest.mark.parametrize(
    "wish, complaint",
    [
        (Wish(), "name what to change"),
        (Wish("hat", like=(Path("a.png"),)), "name what to change"),
        (Wish(unlike=(Path("a.png"),)), "name what to change"),
        (Wish("hat", unlike=(Path("a.png"),)), "--unlike goes with --like"),
        (Wish(like=(Path("a.png"),), pairs=(Path("a.png"), Path("b.png"))), "name what to change, in one way"),
        (Wish(pairs=(Path("a.png"),) * 3), "--pairs names 3 images; give them in pairs"),
        (Wish(like=(Path("a.png"),), data="d"), "examples with --like or --pairs need none"),
        (Wish("hat", "d", save_as="x"), "--save-as is for examples"),
    ],
)
def test_a_wish_must_be_clear(wish, complaint, tmp_path):
    with pytest.raises(InputError, match=complaint):
        manipulate_files("none", tmp_path / "x.png", wish, None, (0.3,), tmp_path / "out.png")


def test_the_picture_goes_from_negative_to_positive(model, faces):
    result = manipulate(model, faces, a_direction(model), (0.4, -0.4), sampling_steps=SAMPLING_STEPS)
    picture = np.asarray(manipulation_picture(result, "mark"))
    turned = dataclasses.replace(result, images=result.images.flip(0), scales=(-0.4, 0.4))
    np.testing.assert_array_equal(picture, np.asarray(manipulation_picture(turned, "mark")))
    assert picture.shape[1] > picture.shape[0]


def test_nothing_is_kept_in_the_package_itself(tmp_path):
    assert may_keep(tmp_path) and not may_keep(locate("toyfaces32"))
