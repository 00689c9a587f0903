"""Scores of edited images: each on arrays worked out by hand, then all of them on a tiny real model."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny import tiny_model

from diti.core.errors import InputError
from diti.core.rng import numpy_generator
from diti.data import toyfaces
from diti.data.prepared import Dataset
from diti.edit.directions import Direction, code_space_hash
from diti.edit.interpolate import interpolate
from diti.edit.manipulate import manipulate
from diti.measure.attribute_classifier import AttributeClassifier, Trait
from diti.measure.counterfactual_scores import (
    Unedited,
    concentration_over_groups,
    concentrations,
    editing_steps,
    flips,
    interpolation_scores,
    interval,
    leak_per_change,
    leakage,
    manipulation_scores,
    means,
    opposite,
    resampled_means,
    resamples,
    rms_change,
    shuffled_dims,
    transfer_record,
    transfer_shares,
    wanted_change,
)
from diti.measure.reference import make_reference
from diti.representation.models.diffusion import DiTi
from diti.representation.models.inputs import as_batch
from diti.representation.partition import Partition

SAMPLING_STEPS = 4
NAN = np.nan

# ---- On arrays ---------------------------------------------------------------------------------------------


def test_flips_count_only_what_was_still_to_flip():
    before = np.array([0.1, 0.2, 0.9, 0.8, 0.7])
    after = np.array([0.6, 0.4, 0.3, 0.9, 0.9])
    upward = np.array([True, True, False, False, True])  # the last reconstruction is read as wanted already
    np.testing.assert_array_equal(flips(before, after, upward), [1, 0, 1, 0, NAN])


def test_wanted_change_is_signed_by_what_was_wanted():
    before, after = np.array([1.0, 1.0, 1.0]), np.array([2.0, 2.0, 0.0])
    upward = np.array([True, False, False])
    np.testing.assert_array_equal(wanted_change(before, after, upward, 0.5), [2, -2, 2])


def test_leakage_is_over_the_others_in_their_spreads():
    before, after = np.zeros((2, 4)), np.array([[9.0, 1.0, -2.0, 50.0], [9.0, 0.0, 1.0, 50.0]])
    spread, others = np.array([1.0, 0.5, 4.0, 1.0]), np.array([False, True, True, False])
    np.testing.assert_array_equal(leakage(before, after, spread, others), [(2 + 0.5) / 2, 0.125])
    assert np.isnan(leakage(before, after, spread, np.zeros(4, bool))).all()


def test_rms_change_is_the_root_mean_square():
    before = torch.zeros(2, 3, 2, 2)
    after = before.clone()
    after[0, 0, 0, 0] = 1.2  # one of twelve numbers
    after[1] = -0.3
    np.testing.assert_allclose(rms_change(before, after), [1.2 / 12**0.5, 0.3], rtol=1e-6)


def test_transfer_shares_by_hand():
    read_a, read_b = np.array([[0.0], [0.0], [1.0], [0.0]]), np.array([[1.0], [2.0], [-1.0], [0.1]])
    edited = np.array([[0.25], [5.0], [0.0], [0.1]])  # a quarter; beyond B; half; A and B are too alike
    np.testing.assert_array_equal(
        transfer_shares(edited, read_a, read_b, np.array([0.5]))[:, 0], [0.25, 1.5, 0.5, NAN]
    )
    backwards = transfer_shares(np.array([[[-9.0]] * 4]), read_a, read_b, np.array([0.5]))  # (1, 4, 1)
    np.testing.assert_array_equal(backwards[0, :, 0], [-0.5, -0.5, 1.5, NAN])


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.8, 0.0, 0.0), 1),
        ((0.8, -0.4, -0.1), 1),  # what moves the other way does not count
        ((0.3, 0.3, 0.3), 0),
        ((0.4, 0.4, 0.0), 1 - np.log(2) / np.log(3)),
        ((0.05, 0.02, 0.0), NAN),  # nothing moves it
        ((NAN, NAN, NAN), NAN),
    ],
)
def test_concentration(shares, expected):
    np.testing.assert_allclose(concentration_over_groups(np.array([shares])), [expected], atol=1e-12)


def test_concentration_does_not_depend_on_how_much_moves():
    np.testing.assert_allclose(
        concentration_over_groups(np.array([0.2, 0.1, 0.0])), concentration_over_groups(np.array([0.8, 0.4, 0.0]))
    )


def test_means_leave_out_what_is_not_defined():
    values = np.array([[1.0, NAN, 3.0], [NAN, NAN, NAN]])
    np.testing.assert_array_equal(means(values), [2, NAN])
    counts = np.array([[2.0, 0.0], [1.0, 3.0], [1.0, 0.0]])  # two resamples of three images
    np.testing.assert_allclose(resampled_means(values, counts), [[5 / 3, NAN], [NAN, NAN]])


def test_interval_of_a_mean_matches_its_standard_error():
    values = numpy_generator(0, "values").standard_normal((1, 400))
    counts = numpy_generator(1, "counts").multinomial(400, np.full(400, 1 / 400), size=2000).T.astype(float)
    found = interval(means(values), resampled_means(values, counts)[:, 0])
    error = values.std() / 20
    assert found["low"] == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert found["high"] == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    assert interval(np.array(NAN), np.zeros(3)) is None


def test_leak_per_change_is_a_ratio_of_means():
    leaked = np.array([[0.1, 0.3, 0.2], [0.5, 0.7, 0.3]])
    changed = np.array([[2.0, 1.0, NAN], [0.5, 0.1, 0.6]])  # means 1.5 and 0.4
    counts = resamples(3, seed=0)
    found = leak_per_change(leaked, changed, counts)
    assert found["value"] == pytest.approx((0.2 + 0.5) / (1.5 + 0.4))
    ratios = []
    for count in counts.T:  # slowly, image by image
        rows = [[values[n] for n in range(3) for _ in range(int(count[n]))] for values in (*leaked, *changed)]
        each = [np.mean([v for v in row if np.isfinite(v)]) if np.isfinite(row).any() else NAN for row in rows]
        ratios.append(np.nanmean(each[:2]) / np.nanmean(each[2:]))
    assert [found["low"], found["high"]] == pytest.approx(np.quantile(ratios, [0.025, 0.975]), rel=0.02)


def test_leak_per_change_of_edits_that_gain_nothing():
    counts = resamples(4, seed=0)
    leaked = np.full((1, 4), 0.2)
    assert leak_per_change(leaked, np.array([[-1.0, -2.0, 0.5, 0.0]]), counts) is None
    assert leak_per_change(np.full((1, 4), NAN), np.ones((1, 4)), counts) is None
    unsure = leak_per_change(leaked, np.array([[3.0, -1.0, -1.0, 0.5]]), counts)
    assert unsure["value"] == pytest.approx(0.2 / 0.375) and unsure["high"] is None and unsure["low"] > 0


def test_random_groups_have_as_many_dims_and_stay_apart():
    groups = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0]]).bool()
    drawn = [shuffled_dims(groups, seed=0, index=i) for i in range(20)]
    assert all(d.sum(1).tolist() == [3, 2] and not (d[0] & d[1]).any() for d in drawn)
    assert len({tuple(d.flatten().tolist()) for d in drawn}) > 10
    assert torch.equal(drawn[3], shuffled_dims(groups, seed=0, index=3))


def test_concentrations_of_own_and_random_groups():
    noise, own, first, second = [0.1], [0.9, 0.1], [0.5, 0.5], [0.7, 0.0]  # the noise alone is not theirs
    found = concentrations(np.array([noise + own + first + second])[:, :, None], groups=2)
    values = [found[name].item() for name in ("concentration", "concentration_random", "above_random")]
    assert values == pytest.approx([1, 0.5, 0.5])


def test_transfer_record_by_hand():
    shares = np.zeros((1 + 2 + 2, 2, 2))  # no swap, 2 own groups, 2 random ones; 2 pairs; 2 attributes
    shares[0], shares[1, :, 0], shares[2, :, 1] = 0.1, [0.6, 1.0], [0.5, NAN]
    shares[3:] = 0.3
    record = transfer_record(shares, 2, np.array([[1.0, 2.0, 0.0], [1.0, 0.0, 2.0]]))
    values = [[cell["value"] for cell in row] for row in record["transfer"]]
    np.testing.assert_allclose(values, [[0.8, 0], [0, 0.5]])
    assert 0.6 <= record["transfer"][0][0]["low"] < 0.8 < record["transfer"][0][0]["high"] <= 1.0
    assert [cell["value"] for cell in record["noise_alone"]] == pytest.approx([0.1, 0.1])
    assert record["mean_concentration"]["value"] == record["mean_above_random"]["value"] == 1
    assert record["mean_concentration_random"]["value"] == pytest.approx(0)


# ---- On a tiny model ---------------------------------------------------------------------------------------

NAMES = ("level", "bright", "red", "hidden")


def reads(x: torch.Tensor) -> torch.Tensor:
    """Mean level, the probability that the upper half is the brighter one, redness, and something unreadable."""
    level, red = x.mean((1, 2, 3)), x[:, 0].mean((1, 2)) - x[:, 2].mean((1, 2))
    upper = x[:, :, :8].mean((1, 2, 3)) - x[:, :, 8:].mean((1, 2, 3))
    return torch.stack([level, torch.sigmoid(40 * upper), red, 1000 * level], dim=1)


@pytest.fixture(scope="module")
def model() -> DiTi:
    return tiny_model(subsets=6)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return toyfaces.render(toyfaces.sample(8, seed=4), 16)


@pytest.fixture(scope="module")
def classifier(images) -> AttributeClassifier:
    seen = AttributeClassifier(reads, 16, ())(images)
    facts = zip(NAMES, (False, True, False, False), seen.mean(0), seen.std(0), strict=True)
    return AttributeClassifier(reads, 16, tuple(Trait(n, b, m, s, readable=n != "hidden") for n, b, m, s in facts))


@pytest.fixture(scope="module")
def data(images) -> Dataset:
    pixels = np.concatenate([toyfaces.render(toyfaces.sample(40, seed=9), 16), images])
    table = pa.table({"file": [f"{i}" for i in range(48)], "split": ["train"] * 40 + ["valid"] * 8})
    return Dataset(Path("faces"), pixels, table, {"name": "faces", "hash": "abc"})


def direction(model, attribute: str) -> Direction:
    weight = numpy_generator(1, attribute).standard_normal(model.dims)
    about = {"method": "l1", "metric": "AP", "score": 0.9, "score_all_dims": 0.9, "chance": 0.5, "bias": 0.0}
    return Direction(
        attribute=attribute, dims=tuple(range(model.dims)), weight=weight, pattern=weight,
        reading=weight, response=weight, data="faces", data_hash="abc", seed=0,
        encoder=code_space_hash(model), mean=np.zeros(model.dims, np.float32), std=np.ones(model.dims, np.float32),
        **about,
    )  # fmt: skip


def test_manipulation_scores_of_a_model(model, classifier, images, data):
    reference = make_reference("the tiny encoder", model.encoder, data)
    chosen = [direction(model, name) for name in ("bright", "level", "hidden")]
    record = manipulation_scores(
        model, classifier, chosen, images, reference, scale=2.0, sampling_steps=SAMPLING_STEPS
    )
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["unreadable"] == ["hidden"] and record["leakage_over"] == ["level", "bright", "red"]
    assert "distance in the code of the tiny encoder" in record["distance_is"]
    assert list(record["attributes"]) == ["bright", "level"]
    for column, name in ((1, "bright"), (0, "level")):
        scores = record["attributes"][name]
        upward = opposite(classifier, name, classifier(images))
        pushed = manipulate(model, images, direction(model, name), (2.0, -2.0), sampling_steps=SAMPLING_STEPS)
        edited = torch.where(torch.from_numpy(upward)[:, None, None, None], *pushed.images).clamp(-1, 1)
        rebuilt = pushed.reconstructions.clamp(-1, 1)
        before, after, others = classifier(rebuilt), classifier(edited), [i for i in range(3) if i != column]
        changes = np.abs(after - before) / classifier.spread
        assert scores["raised"] == upward.sum() and scores["lowered"] == 8 - upward.sum()
        assert scores["leakage"]["value"] == pytest.approx(changes[:, others].mean(), rel=1e-3)
        signed = np.where(upward, 1, -1) * (after - before)[:, column] / classifier.spread[column]
        assert scores["change"]["value"] == pytest.approx(signed.mean(), rel=1e-3)
        assert scores["change"]["low"] <= signed.mean() <= scores["change"]["high"]
        assert scores["pixels"]["value"] == pytest.approx(rms_change(rebuilt, edited).mean(), rel=1e-3)
        assert scores["pixels"]["value"] > 0
        assert scores["distance"]["value"] == pytest.approx(reference.distances(edited).mean(), rel=1e-3)
    assert record["attributes"]["level"]["flips"] is None and record["attributes"]["level"]["flippable"] == 0
    assert record["attributes"]["bright"]["flippable"] > 0
    both = [record["attributes"][name]["leakage"]["value"] for name in ("bright", "level")]
    assert record["mean"]["leakage"]["value"] == pytest.approx(np.mean(both))
    for scores in (record["mean"], *record["attributes"].values()):
        leak, change = scores["leakage"]["value"], scores["change"]["value"]
        assert (scores["leak_per_change"] or {}).get("value") == (
            pytest.approx(leak / change) if change > 0 else None
        )


def test_few_images_are_pushed_along_several_directions_in_one_batch(model, classifier, images, monkeypatch):
    chosen = [direction(model, name) for name in ("bright", "level", "red")]
    monkeypatch.setattr("diti.representation.models.model.PIXELS_AT_ONCE", 16 * 16 * 16)  # two directions
    batches = []

    def on_step(index, total, x):
        batches.append(len(x))

    pixels = as_batch(images, 16)
    unedited = Unedited.of(model, classifier, pixels, 2, on_step=on_step)
    together = list(unedited.edits(chosen, [0.3, 0.1, 0.3], on_step))
    assert batches == [8, 8, 8, 8, 16, 16, 8, 8] and len(batches) == editing_steps(model, 8, 3, 2)
    for one, strength, (upward, edited) in zip(chosen, [0.3, 0.1, 0.3], together, strict=True):
        ((alone, slow),) = unedited.edits([one], [strength])
        assert (upward == alone).all() and torch.allclose(edited, slow, atol=2e-3)


def test_no_push_is_no_edit_however_bad_the_reconstruction(model, classifier, images, data):
    reference = make_reference("the tiny encoder", model.encoder, data)
    record = manipulation_scores(
        model, classifier, [direction(model, "level")], images, reference, scale=0, sampling_steps=SAMPLING_STEPS
    )
    scores = record["attributes"]["level"]
    assert [scores[name]["value"] for name in ("change", "leakage", "pixels")] == pytest.approx(
        [0, 0, 0], abs=1e-5
    )
    assert scores["distance"] == pytest.approx(record["reconstruction"]["distance"], rel=1e-4)
    assert record["reconstruction"]["pixels"]["value"] > 1e-3


def test_interpolation_scores_of_a_model(model, classifier, images):
    a, b = images[:4], images[4:]
    record = interpolation_scores(model, classifier, a, b, random_groupings=2, sampling_steps=SAMPLING_STEPS)
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert record["groups"] == ["early", "middle", "late"] and record["group_dims"] == [4, 4, 4]
    assert record["attributes"] == ["level", "bright", "red"] and record["unreadable"] == ["hidden"]
    level = {}
    for kind in ("keep", "slerp"):
        shares = []
        for first, second in zip(a, b, strict=True):
            result = interpolate(
                model, first, second, scales=[1.0], directions=["a_to_b"], x_t=kind, sampling_steps=SAMPLING_STEPS
            )
            read_a, read_b = classifier(result.reconstructions.clamp(-1, 1))
            shares.append(
                transfer_shares(classifier(result.images.clamp(-1, 1))[:, None], read_a, read_b, classifier.spread)
            )
        level[kind] = means(np.stack(shares)[:, :, 0].transpose(1, 2, 0))[:, :3]  # (G, A)
        found = [[cell and cell["value"] for cell in row] for row in record["x_t"][kind]["transfer"]]
        np.testing.assert_allclose(np.array(found, float), level[kind], atol=1e-3)
    assert not np.allclose(level["keep"], level["slerp"], atol=1e-2, equal_nan=True)
    alone = {
        kind: [abs(cell["value"]) for cell in found["noise_alone"] if cell]
        for kind, found in record["x_t"].items()
    }
    assert alone["keep"] and max(alone["keep"]) < 1e-4 and max(alone["slerp"]) > 1e-2
    assert [count > 0 for count in record["differing_pairs"]] == [
        bool(c) for c in record["x_t"]["keep"]["noise_alone"]
    ]


def test_swapping_everything_with_the_noise_becomes_b(model, classifier, images):
    record = interpolation_scores(
        model,
        classifier,
        images[:4],
        images[4:],
        ["all", "early"],
        x_t=["slerp"],
        random_groupings=1,
        sampling_steps=SAMPLING_STEPS,
    )
    whole = record["x_t"]["slerp"]["transfer"][0]
    assert [cell["value"] for cell in whole if cell] == pytest.approx([1] * sum(map(bool, whole)), abs=1e-3)
    assert any(whole)


def test_a_model_of_one_subset_borrows_a_split(model, classifier, images):
    single = replace(model, partition=Partition.single(1000, model.dims))
    record = interpolation_scores(
        single,
        classifier,
        images[:2],
        images[2:4],
        x_t=["keep"],
        random_groupings=1,
        sampling_steps=SAMPLING_STEPS,
    )
    assert record["partition"] == "balanced" and record["group_dims"] == [4, 4, 4]
    assert "the model has one subset" in record["notes"][0]


def test_what_cannot_be_measured_is_refused(model, classifier, images, data):
    reference = make_reference("the tiny encoder", model.encoder, data)
    strange = replace(direction(model, "level"), encoder="another")
    with pytest.raises(InputError, match="learned from an encoder other"):
        manipulation_scores(model, classifier, [strange], images, reference)
    with pytest.raises(InputError, match="does not know the attribute 'smile'"):
        manipulation_scores(model, classifier, [direction(model, "smile")], images, reference)
    with pytest.raises(InputError, match="3 images A and 2 images B"):
        interpolation_scores(model, classifier, images[:3], images[:2])
    with pytest.raises(InputError, match="two or more"):
        interpolation_scores(model, classifier, images, images, ["early"])
    with pytest.raises(InputError, match=r"x_t is \['random'\]; allowed: keep, slerp"):
        interpolation_scores(model, classifier, images, images, x_t=["random"])
    with pytest.raises(InputError, match="random_groupings is 0"):
        interpolation_scores(model, classifier, images, images, random_groupings=0)
