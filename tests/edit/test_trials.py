"""Directions tried on pictures: what reads them, where attributes live, and how far a step must go."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny import without_decoder
from torch import Tensor

from diti.core.rng import numpy_generator
from diti.data.prepare import prepare
from diti.data.prepared import Dataset
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.edit.compose import push
from diti.edit.direction_files import direction_path, load_direction, save_direction
from diti.edit.directions import Direction, calibration, code_space_hash, fit_direction, label_weights
from diti.edit.gain import ASKED, LONGEST, MOST, with_gain
from diti.edit.places import (
    GRAIN,
    SLIGHT,
    allowed,
    blurred,
    in_pictures,
    rest_of,
    touch_of,
    touched,
    without_grain,
)
from diti.edit.reach import Trial, sides_of
from diti.edit.reader import PENALTIES, fit_reader, reader_of, ridge_chosen
from diti.edit.select import fit_few, fit_linear
from diti.edit.trials import Trials, learn_direction

SIDE = 16


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("faces")
    return prepare(find_source("toyfaces:300", ReadOptions(size=SIDE)), folder / "faces", SIDE)


# ---- What reads pictures -----------------------------------------------------------------------------------


def test_the_ridge_is_that_of_the_normal_equations():
    """Every label gets the penalty that is best on held images, and the weights of the slow way in F dims."""
    rng = numpy_generator(0, "ridge")
    x, held = rng.standard_normal((30, 12)), rng.standard_normal((20, 12))
    truth = rng.standard_normal((12, 2))
    y, y_held = x @ truth + 0.1, held @ truth
    y[:, 1] = rng.standard_normal(30)  # nothing tells it: the strongest penalty is best
    found = ridge_chosen(
        *(torch.from_numpy(a).float() if a is x else a for a in (x, y)), torch.from_numpy(held).float(), y_held
    )
    unit = np.square(x).sum(1).mean()
    slow = [np.linalg.solve(x.T @ x + p * unit * np.eye(12), x.T @ y) for p in PENALTIES]
    errors = np.array([np.square(held @ w - y_held).mean(0) for w in slow])
    for label in (0, 1):
        np.testing.assert_allclose(
            found[:, label], slow[errors[:, label].argmin()][:, label], rtol=1e-3, atol=1e-4
        )
    assert errors[:, 0].argmin() == 0


def test_it_reads_pictures_and_is_kept(model, data, monkeypatch, tmp_path):
    monkeypatch.setenv("DITI_CACHE", str(tmp_path))
    reader = reader_of(model, data)
    valid = data.rows("valid")
    told = reader(model, torch.from_numpy(data.pixels(valid)).permute(0, 3, 1, 2) / 127.5 - 1)
    truth = data.labels(["brightness", "hat"])[valid]
    brightness = told[:, data.attributes.index("brightness")]
    assert np.corrcoef(brightness, truth[:, 0])[0, 1] > 0.8
    hat = told[:, data.attributes.index("hat")]
    assert hat[truth[:, 1] == 1].mean() - hat[truth[:, 1] == 0].mean() == pytest.approx(1, abs=1e-3)
    monkeypatch.setattr("diti.edit.reader.fit_reader", lambda *a: pytest.fail("it was kept"))
    torch.testing.assert_close(reader_of(model, data).weights, reader.weights)
    assert list((tmp_path / "readers").iterdir())


def test_where_features_are_not_kept_they_are_computed(model, data, monkeypatch):
    kept = fit_reader(model, data)
    monkeypatch.setattr("diti.edit.reader.frozen_features", lambda encoder, dataset: None)
    torch.testing.assert_close(fit_reader(model, data).weights, kept.weights, atol=1e-3, rtol=1e-2)


# ---- Where it belongs --------------------------------------------------------------------------------------


def test_a_coefficient_is_that_of_least_squares():
    rng = numpy_generator(1, "labels")
    labels, x = rng.standard_normal((5_000, 3)), rng.standard_normal(5_000)
    labels[:, 1] += labels[:, 0]
    x += labels @ [1.0, 2.0, 0.0]
    y = np.c_[(labels - labels.mean(0)) / labels.std(0), np.ones(len(x))]
    slow = np.linalg.lstsq(y, x, rcond=None)[0]
    found = [label_weights(labels, column) @ x for column in range(3)]
    np.testing.assert_allclose(found, slow[:3], atol=0.05)  # but for the small penalty


def test_blurring_is_that_of_a_slow_loop():
    values, deviation = numpy_generator(2, "blur").random((9, 9)), 0.8
    bell = np.exp(-0.5 * (np.arange(-3, 4) / deviation) ** 2)
    bell /= bell.sum()
    padded = np.pad(values, 3, mode="edge")
    slow = [[(padded[i : i + 7, j : j + 7] * np.outer(bell, bell)).sum() for j in range(9)] for i in range(9)]
    np.testing.assert_allclose(blurred(values, deviation), slow, rtol=1e-10)
    several = blurred(np.stack([values, 2 * values])[None], deviation)
    np.testing.assert_allclose(several[0], [slow, 2 * np.array(slow)], rtol=1e-10)


def test_grain_is_left_out_and_what_is_seen_stays():
    """Against a slow loop over pixels; and half of a change as large as GRAIN is kept."""
    change = torch.from_numpy(numpy_generator(9, "grain").standard_normal((2, 3, SIDE, SIDE))).float() * 0.1
    found = without_grain(change)
    energy = [blurred(one.square().mean(0).numpy(), SIDE / 64) for one in change]
    for i in range(2):
        for y in range(SIDE):
            for x in range(SIDE):
                share = energy[i][y, x] / (energy[i][y, x] + GRAIN**2)
                torch.testing.assert_close(found[i, :, y, x], change[i, :, y, x] * float(share))
    for size, kept in ((GRAIN, 0.5), (GRAIN / 10, 0.0099), (10 * GRAIN, 0.9901)):
        even = torch.full((3, SIDE, SIDE), size)
        torch.testing.assert_close(without_grain(even), kept * even, rtol=1e-3, atol=0)
    assert not without_grain(torch.zeros(1, 3, 4, 4)).any()


def test_each_attribute_has_its_own_place():
    """Two attributes that go together change a patch each; one place does not hold the other's patch."""
    rng = numpy_generator(3, "places")
    both = rng.standard_normal((400, 1)) + 0.7 * rng.standard_normal((400, 2))
    pixels = np.full((400, SIDE, SIDE, 3), 128.0) + rng.standard_normal((400, SIDE, SIDE, 3))
    pixels[:, 2:6, 2:6] += 20 * both[:, 0, None, None, None]
    pixels[:, 10:14, 9:13] += 20 * both[:, 1, None, None, None]
    columns = {"file": [str(i) for i in range(400)], "split": ["train"] * 400, "a": both[:, 0], "b": both[:, 1]}
    data = Dataset(Path("x"), pixels.clip(0, 255).astype(np.uint8), pa.table(columns), {"name": "x", "hash": "x"})
    (change, a), (_, b) = in_pictures(data, "a"), in_pictures(data, "b")
    assert 0.1 < change[:, 3:5, 3:5].mean() < 0.2 and abs(change[:, 11:13, 10:12]).mean() < 0.03
    assert a[3:5, 3:5].min() > 0.9 and a[10:14, 9:13].max() < 0.3 and a.max() <= 1
    assert b[11:13, 10:12].min() > 0.9 and b[2:6, 2:6].max() < 0.3
    even = allowed(np.full((8, 8), 3.0))
    np.testing.assert_allclose(even, 1)
    spot = np.zeros((64, 64))
    spot[32, 32] = 1
    e = blurred(spot, 1.5)
    np.testing.assert_allclose(allowed(spot), e / e.max() * (1 + SLIGHT) / (e / e.max() + SLIGHT), rtol=1e-6)


def test_pictures_change_in_their_place_alone(model):
    place = np.zeros((SIDE, SIDE), np.float32)
    place[2:5] = 1
    direction = a_direction(model, place=place)
    other = replace(direction, place=np.roll(place, 8, axis=0))
    assert touch_of({direction: 1.0, "a00": 1.0}) is None and touch_of({}) is None, "an axis may change everything"
    both = touch_of({direction: 1.0, other: -1.0})
    np.testing.assert_array_equal(both.place, np.maximum(place, np.roll(place, 8, axis=0)))
    edited, unedited = torch.full((2, 3, SIDE, SIDE), 3.0), torch.zeros(2, 3, SIDE, SIDE)
    mixed = touched(edited, unedited, both)
    seen = 1 / (1 + GRAIN**2)
    inside = (both.place * seen).expand_as(mixed)
    torch.testing.assert_close(mixed, inside, atol=1e-3, rtol=0), "inside as edited, within what can be shown"
    assert touched(edited, unedited, None) is edited
    rest = np.zeros((1, SIDE, SIDE), np.float32)
    rest[0, 0, 0] = 0.2
    more = touch_of({replace(direction, rest=rest): 2.0, "a00": 1.0})
    assert more.place is None and more.rest[0, 0, 0] == pytest.approx(0.4)
    added = touched(0 * edited, unedited, more, torch.tensor([1.0, -1.0])[:, None, None, None])
    large = 0.4**2 / (0.4**2 + GRAIN**2)
    assert added[0, 0, 0, 0] == pytest.approx(0.4 * large, rel=1e-2)
    assert added[1].sum() == pytest.approx(-1.2 * large, rel=1e-2), "in all colours"


def test_the_rest_is_what_the_regression_knows_and_nobody_draws():
    """The light of what least squares leaves, and none where all of it is drawn; in its place alone."""
    rng = numpy_generator(5, "rest")
    b, unknown = rng.standard_normal((2, 3, SIDE, SIDE))
    everywhere = np.ones((SIDE, SIDE))
    np.testing.assert_allclose(rest_of(b, 0.7 * b, everywhere), 0, atol=1e-6)
    drawn = b + unknown
    rest = rest_of(b, drawn, everywhere)
    slow = np.linalg.lstsq(b.reshape(-1, 1), drawn.reshape(-1), rcond=None)[0][0]
    np.testing.assert_allclose(rest[0], (slow * b - drawn).mean(0), atol=1e-5)
    half = np.tri(SIDE)
    np.testing.assert_allclose(rest_of(b, drawn, half), half * rest, atol=1e-5)


def test_an_edit_of_a_model_stays_in_its_place(model, faces):
    place = np.zeros((SIDE, SIDE), np.float32)
    place[4:9, 3:12] = 1
    direction = a_direction(model, place=place)
    editor = model.edit(faces, 3)
    local, free = editor.draw({direction: 3.0}), editor.draw({direction: 3.0}, local=False)
    outside = torch.from_numpy(place == 0)
    assert torch.equal(local[..., outside], editor.draw({})[..., outside])
    seen = without_grain(torch.from_numpy(place) * (free - editor.draw({})))
    torch.testing.assert_close(local, editor.draw({}) + seen)
    assert (free - local)[..., ~outside].abs().max() < GRAIN, "inside all but grain"
    again = model.manipulate(faces, direction, 3.0, sampling_steps=3)
    torch.testing.assert_close(again, local, atol=1e-4, rtol=0)


# ---- How far a step goes -----------------------------------------------------------------------------------


def a_direction(model, **known) -> Direction:
    weight = numpy_generator(1, "weight").standard_normal(model.dims)
    ones = np.ones(model.dims, np.float32)
    return Direction(
        "level", "all", tuple(range(model.dims)), weight, weight, 0.0, "r", 1.0, 1.0, 0.0, "faces", "", 0,
        code_space_hash(model), 0 * ones, ones, "conditional", weight, weight, weight, **known,
    )  # fmt: skip


@dataclass
class Painter:
    """A stand-in for an inverted batch: the grey level of its pictures follows the reading of their codes."""

    model: object
    z: Tensor
    x_T: Tensor
    reading: Tensor
    response: float

    def shown(self, z: Tensor, x_T: Tensor) -> Tensor:
        level = (z.double() @ self.reading * self.response + x_T[:, 0]).float()
        return 0.01 * level[:, None, None, None].expand(-1, 3, SIDE, SIDE)


@pytest.mark.parametrize("response", [0.5, 0.8, 0.01])
def test_the_gain_makes_up_for_what_pictures_do_not_show(model, response):
    direction = a_direction(model)
    rng = torch.Generator().manual_seed(0)
    z, noise = torch.randn(6, model.dims, generator=rng), torch.randn(6, 1, generator=rng)
    sides = torch.tensor([1.0, 1, -1, 1, -1, -1])
    painter = Painter(model, z, noise, torch.from_numpy(direction.reading), response)
    trial = Trial(painter, np.arange(6), 9.0, torch.zeros(model.dims), torch.ones(model.dims))

    def reader(_, images):
        return 100 * images.mean((1, 2, 3)).double().numpy()[:, None]

    found = with_gain(direction, trial, reader, 0, sides, np.zeros((3, SIDE, SIDE)))
    assert found.gain == pytest.approx(min(1 / response, MOST), rel=1e-3)
    before, after = (painter.shown(push(z, found, s), noise) for s in (0.0, ASKED))
    shown = float((reader(None, after) - reader(None, before)).mean())
    assert shown == pytest.approx(ASKED * min(1, MOST * response), rel=1e-3)


def test_images_are_pushed_to_where_they_are_not():
    """What has a hat cannot be given one: up where it is missing or below the mean, else down."""
    assert sides_of(np.array([0, 1, 0, np.nan]), binary=True).tolist() == [1, -1, 1, 1]
    assert sides_of(np.array([3.0, 9, 5, np.nan]), binary=False).tolist() == [1, -1, 1, 1]


def test_what_cannot_be_read_leaves_the_code_as_far_as_it_says(model):
    """And no gain makes a usual difference longer than three deviations of the code."""
    direction = a_direction(model)
    z, noise = torch.zeros(4, model.dims), torch.zeros(4, 1)
    trial = Trial(
        Painter(model, z, noise, torch.from_numpy(direction.reading), 0.1), np.arange(4), 9.0, z[0], z[0] + 1
    )
    sides, blank = torch.ones(4), np.zeros((3, SIDE, SIDE))

    def reads(_, images):
        return 100 * images.mean((1, 2, 3)).double().numpy()[:, None]

    assert with_gain(direction, trial, reads, 0, sides, blank, trusted=False).gain == 1
    aside = np.roll(direction.weight, 3)
    aside -= (aside @ direction.weight) / (direction.weight @ direction.weight) * direction.weight
    long = replace(direction, conditional=direction.weight + 12 * aside)
    unit = np.linalg.norm(push(z[:1], long, 1.0))
    assert unit > LONGEST and with_gain(long, trial, reads, 0, sides, blank).gain == pytest.approx(1)


def test_more_labelled_images_win(model, data, tmp_path):
    """A direction that the folder keeps from more images is taken; unless it is said how to choose its dims."""
    trials = Trials(model, data)
    kept = replace(fit_direction(model, data, "hat"), images=10_000)
    save_direction(kept, tmp_path)
    found, new = trials.direction(tmp_path, "hat")
    assert not new and found.images == 10_000
    again, new = trials.direction(tmp_path, "hat", selection="weight")
    assert new and again.images == len(data.rows("train"))


def test_few_labels_are_read_by_cross_validation(model, data):
    """Less than ten images a dim: the reading of held images is better than that of an unheld fit."""
    rng = numpy_generator(6, "few")
    metric = np.diag(10.0 ** -np.arange(40) / 4)
    z = rng.standard_normal((260, 40)).astype(np.float32)
    y = z[:, 0] + z[:, 1] + rng.standard_normal(260)
    few, plain = fit_few(z[:60], y[:60], False, metric), fit_linear(z[:60], y[:60], False)
    r = [np.corrcoef(fit.scores(z[60:]), y[60:])[0, 1] for fit in (few, plain)]
    assert r[0] > r[1] + 0.05
    assert calibration(few.scores(z[60:]) / 3, y[60:]) > 2 and calibration(y, y) == pytest.approx(1)
    labels = (y > 0).astype(float)
    assert np.mean((fit_few(z[:60], labels[:60], True, None).scores(z[60:]) > 0) == labels[60:]) > 0.6


def test_a_learned_direction_is_tried_and_kept(model, data, monkeypatch, tmp_path):
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "cache"))
    trials = Trials(model, data)
    first, new = trials.direction(tmp_path, "brightness")
    assert new and first.place.shape == (SIDE, SIDE) and first.reach is None and first.gain != 1
    again, new = trials.direction(tmp_path, "brightness", ranged=True)
    assert not new and again.gain == first.gain and again.reach[0, 0] < 0 < again.reach[-1, 0]
    kept = load_direction(direction_path(tmp_path, "brightness"))
    np.testing.assert_array_equal(kept.reach, again.reach)
    np.testing.assert_array_equal(kept.place, again.place)
    np.testing.assert_array_equal(kept.rest, again.rest)
    assert kept.rest.shape == (1, SIDE, SIDE) and kept.following("pattern").rest is None
    assert kept.following("pattern").gain == 1 and kept.following("pattern").reach is None
    public = learn_direction(model, data, "brightness")
    assert public.gain == pytest.approx(first.gain) and public.reach is not None


def test_sparse_directions_and_models_that_only_encode_are_not_tried(model, data):
    sparse = learn_direction(model, data, "hat", dims=3)
    assert sparse.place is None and sparse.gain == 1 and sparse.along == "pattern"
    blind = without_decoder(model)
    whole = learn_direction(blind, data, "hat")
    assert whole.place is None
    np.testing.assert_array_equal(whole.weight, fit_direction(blind, data, "hat").weight)
