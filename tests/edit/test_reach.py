"""The safe range of a direction: each criterion by hand, then on a model that draws what its code says."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from diti.core.rng import numpy_generator
from diti.data.prepare import prepare
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.edit.compose import Handle
from diti.edit.directions import Direction, code_space_hash
from diti.edit.invert import Inverted
from diti.edit.manipulate import manipulate
from diti.edit.reach import CLIPPED, GRID, RANGED, Drawn, Trial, beyond, ends_of, even_strengths, reach_of, within
from diti.representation.features import encode_dataset

STILL = Drawn(reading=5.0, distance=1.0, clipped=0.1, seen=0.0)


def series(readings=None, distances=None, clipped=None):
    """Drawn at each strength of the grid, ideal but for what is given."""
    count = len(GRID)
    readings = readings or [5 + s for s in GRID]
    columns = zip(readings, distances or [1.0] * count, clipped or [0.1] * count, GRID, strict=True)
    return [Drawn(reading, distance, burnt, s / 10) for reading, distance, burnt, s in columns]


def test_all_is_safe_while_all_goes_well():
    assert within(STILL, series(), 1, 1.2) == [(s, s / 10) for s in GRID]
    falling = series([5 - s for s in GRID])
    assert within(STILL, falling, -1, 1.2) == [(s, s / 10) for s in GRID]


@pytest.mark.parametrize(
    "drawn",
    [
        series(readings=[5.5, 6.0, 6.5, 6.55, 6.6, 6.7, 6.8]),  # from 1.5 on it hardly rises
        series(distances=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]),  # from 2 on codes are strange
        series(clipped=[0.1, 0.11, 0.1 + CLIPPED, 0.3, 0.3, 0.3, 0.3]),  # from 2 on pixels burn
    ],
)
def test_each_criterion_ends_the_range(drawn):
    assert [strength for strength, _ in within(STILL, drawn, 1, 1.25)] == [0.5, 1.0, 1.5]


def test_the_first_step_is_always_allowed_and_what_is_seen_only_grows():
    strange = series(distances=[9.0] * 7)
    assert within(STILL, strange, 1, 1.25) == [(0.5, 0.05)]
    dipping = [replace(drawn, seen=seen) for drawn, seen in zip(series(), [1, 3, 2, 4, 4, 5, 6], strict=True)]
    assert [seen for _, seen in within(STILL, dipping, 1, 1.25)] == [1, 3, 3, 4, 4, 5, 6]


def test_default_strengths_look_even_and_stay_inside():
    reach = np.array([(-1.0, -0.4), (-0.5, -0.1), (0, 0), (1, 0.1), (2, 0.3), (4, 0.5)])
    low, half_low, half, high = even_strengths(reach)
    assert (low, high) == (-1, 2), "the end of the range, and the usual end"
    seen = np.interp([half_low, half], reach[:, 0], reach[:, 1])
    np.testing.assert_allclose(seen, [-0.2, 0.15], atol=1e-6)
    assert even_strengths(None) == [-2, -1, 1, 2] and ends_of(None) is None


def test_a_strength_beyond_it_is_told(model, faces, caplog):
    weight = numpy_generator(0, "reach").standard_normal(model.dims)
    ones = np.ones(model.dims, np.float32)
    direction = Direction(
        "hat", "all", tuple(range(model.dims)), weight, weight, 0.0, "AP", 1.0, 1.0, 0.5, "faces", "", 0,
        code_space_hash(model), 0 * ones, ones, "pattern", None, weight, weight,
        np.array([(-1.0, -1), (0, 0), (1.5, 1)]),
    )  # fmt: skip
    assert beyond(direction, [-1, 1.5]) == "" and beyond(replace(direction, reach=None), [9]) == ""
    with caplog.at_level(logging.WARNING):
        manipulate(model, faces[:1], direction, (-0.5, 1.6), sampling_steps=2)
    (line,) = caplog.messages
    assert line.startswith("hat: from -1 to +1.5 pictures stay")


def test_what_is_measured_is_what_the_model_draws(model, faces):
    """The reading is that of the code of the drawn picture; what is seen is its change; the limit holds."""
    images = torch.from_numpy(faces).permute(0, 3, 1, 2) / 127.5 - 1
    mean, std = torch.zeros(model.dims), torch.ones(model.dims)
    trial = Trial(Inverted.of(model, images, 2), np.arange(2), 1e9, mean, std)
    rng = numpy_generator(3, "handle")
    handle = Handle("it", rng.standard_normal(model.dims), *rng.standard_normal((2, model.dims)))
    handle = replace(handle, heading=handle.reading + 0.1 * handle.heading)
    reach = reach_of(trial, handle)
    assert (np.diff(reach[:, 0]) > 0).all() and (np.diff(reach[:, 1]) >= 0).all() and (0, 0) in map(tuple, reach)
    step = handle.heading / (handle.reading @ handle.heading)
    start = Inverted.of(model, images, 2)
    unchanged, moved = (
        start.shown(start.z + torch.from_numpy(s * step).float(), start.x_T) for s in (0.0, reach[-1, 0])
    )
    assert reach[-1, 1] >= float((moved - unchanged).square().mean().sqrt()) - 1e-5
    drawn, picture = trial.drawn(handle, step, 1.0, unchanged)
    z = model.encode(picture).double().numpy()
    assert drawn.reading == pytest.approx((z @ handle.reading).mean(), rel=1e-5)
    assert drawn.distance == pytest.approx(np.median(np.sqrt((z**2).mean(1))), rel=1e-5)


def test_a_trial_is_made_of_training_images_and_their_codes(model, tmp_path):
    data = prepare(find_source("toyfaces:120", ReadOptions(size=16)), tmp_path / "faces", 16)
    codes = encode_dataset(model, data)
    train = codes[data.rows("train")]
    trial = Trial.of(model, data, codes)
    mean, std = (s.numpy() for s in model.statistics())
    distances = np.sqrt((((train - mean) / std) ** 2).mean(1))
    assert trial.limit == pytest.approx(np.quantile(distances, 0.99), rel=1e-5)
    np.testing.assert_allclose(codes[trial.rows], trial.start.z, atol=1e-4)
    few = trial.few(torch.arange(len(trial.rows)) >= 5)
    torch.testing.assert_close(few.start.z, trial.start.z[5 : 5 + RANGED])
    assert len(trial.few(torch.zeros(len(trial.rows), dtype=torch.bool)).start.z) == RANGED
    near = [np.abs(train - z.numpy()).max(1).min() for z in trial.start.z]
    assert max(near) < 1e-4, "they are training images"
