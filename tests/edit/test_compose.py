"""Several things moved at once and others held: against constrained least squares, in exact Gaussian cases."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import tiny_model

from diti.core.errors import InputError
from diti.core.rng import numpy_generator
from diti.edit.compose import LONGEST, Handle, composed, handle_of, held, step_for
from diti.edit.directions import Direction, code_space_hash
from diti.edit.editor import Editor
from diti.edit.manipulate import manipulate
from diti.representation.models.axes import Axes

DIMS = 16


@pytest.fixture
def gaussian():
    """Covariance (D, D) of codes and five handles with readings of it, the headings not those of the readings."""
    rng = numpy_generator(0, "handles")
    root = rng.standard_normal((DIMS, DIMS))
    covariance = root @ root.T
    found = []
    for name in "abcde":
        reading = rng.standard_normal(DIMS)
        reading /= (reading @ covariance @ reading) ** 0.5
        heading = covariance @ reading
        heading += 0.1 * np.linalg.norm(heading) * rng.standard_normal(DIMS)
        found.append(Handle(name, reading, heading, covariance @ reading))
    return covariance, found


def constrained(covariance, heading, kept):
    """The nearest step to a heading with kept readings (D, K) unchanged, the slow way: in white codes, by lstsq.

    The steps that change no kept reading are the null space of the readings; the nearest is a projection on it.
    """
    root = np.linalg.cholesky(covariance)
    white = np.linalg.solve(root, heading)
    null = np.linalg.svd((root.T @ kept).T)[2][kept.shape[1] :].T  # (D, D - K)
    return root @ null @ np.linalg.lstsq(null, white, rcond=None)[0]


def test_what_is_kept_stays_and_the_rest_is_as_near_as_can_be(gaussian):
    covariance, (a, b, c, d, _) = gaussian
    kept = [b, c, d]
    readings = np.stack([handle.reading for handle in kept], 1)
    free = held(a.heading[:, None], kept)[:, 0]
    np.testing.assert_allclose(free, constrained(covariance, a.heading, readings), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(readings.T @ free, 0, atol=1e-12 * np.linalg.norm(a.heading))
    twice = held(a.heading[:, None], [*kept, b])[:, 0]
    np.testing.assert_allclose(twice, free, rtol=1e-7, atol=1e-9, err_msg="what is kept twice counts once")


def test_each_lands_where_it_is_asked_to(gaussian):
    _, (a, b, c, d, e) = gaussian
    step = composed([a, b, c], [1.0, -2.0, 0.5], [d, e])
    landed = [step @ handle.reading for handle in (a, b, c, d, e)]
    np.testing.assert_allclose(landed, [1, -2, 0.5, 0, 0], atol=1e-9)
    free = held(np.stack([h.heading for h in (a, b, c)], 1), [d, e])
    assert np.linalg.matrix_rank(np.c_[free, step]) == 3, "a mixture of the three headings, no other way"
    alone = composed([a], [1.0])
    np.testing.assert_allclose(alone, a.heading / (a.reading @ a.heading))


def test_in_gaussian_data_holding_a_reading_gives_its_own_conditional_pattern(gaussian):
    """z moves as it does where a reading differs and another does not: the regression of z on both."""
    covariance, (a, b, *_) = gaussian
    readings = np.stack([a.reading, b.reading], 1)
    regression = covariance @ readings @ np.linalg.inv(readings.T @ covariance @ readings)
    plain = Handle("a", a.reading, a.response, a.response)
    np.testing.assert_allclose(composed([plain], [1.0], [b]), regression[:, 0], rtol=1e-9)


def test_what_cannot_be_told_apart_is_refused(gaussian):
    _, (a, b, *_) = gaussian
    near = replace(b, name="near", reading=a.reading + 1e-6 * b.reading, response=a.response + 1e-6 * b.response)
    exact = replace(a, heading=a.response)
    with pytest.raises(InputError, match="a cannot be changed while near stays"):
        composed([exact], [1.0], [near])
    with pytest.raises(InputError, match="a, near are too much alike"):
        composed([exact, replace(near, heading=near.response)], [1.0, -1.0])


# ---- With a model ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    """With two axes, whose readings are not along them."""
    found = tiny_model(subsets=6)
    std = torch.linspace(0.5, 1.5, found.dims)
    white = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(0)))[0][:2]
    shares = torch.ones(2, found.partition.subsets) / found.partition.subsets
    axes = Axes(white * std, white / std, torch.ones(2), torch.tensor([0.5, 0.3]), shares)
    return replace(found, std=std, axes=axes)


@pytest.fixture(scope="module")
def directions(model):
    rng, found = numpy_generator(1, "directions"), []
    mean, std = (s.numpy() for s in model.statistics())
    for name in ("hat", "smile"):
        weight = rng.standard_normal(12)
        about = {"bias": 0.0, "metric": "r", "score": 1.0, "score_all_dims": 1.0, "chance": 0.0, "data": "faces"}
        found.append(Direction(
            attribute=name, method="ridge", dims=tuple(range(12)), weight=weight, pattern=weight, data_hash="",
            seed=0, encoder=code_space_hash(model), mean=mean, std=std, along="conditional",
            conditional=weight + 0.3 * rng.standard_normal(12), reading=weight / 2, response=weight / 2, **about,
        ))  # fmt: skip
    return found


def test_directions_axes_and_dims_are_all_handles(model, directions):
    hat, smile = directions
    step = step_for(model, [hat, "a00", 3], [1.0, 2.0, -1.0], keep=[smile, "a01", "z005"])
    things = [hat, "a00", 3, smile, "a01", "z005"]
    landed = [step @ handle_of(model, what).reading for what in things]
    np.testing.assert_allclose(landed, [1, 2, -1, 0, 0, 0], atol=1e-6)
    places = model.axes.places(torch.from_numpy(step).float()[None], torch.zeros(12))
    torch.testing.assert_close(places, torch.tensor([[2.0, 0.0]]), atol=1e-5, rtol=0)
    assert step[5] == pytest.approx(0, abs=1e-9), "a dim is a reading, too"


def test_the_editor_and_the_method_keep_and_compose(model, directions, faces):
    hat, smile = directions
    editor = model.edit(faces, 3)
    moved = editor.moved({hat: 1.0, "a00": -1.0}, keep=[smile]) - editor.z
    expected = torch.from_numpy(step_for(model, [hat, "a00"], [1.0, -1.0], [smile])).float()
    torch.testing.assert_close(moved, expected.expand(2, -1), atol=1e-5, rtol=0)
    drawn = editor.draw({hat: 1.0, "a00": -1.0}, keep=[smile])
    again = model.manipulate(faces, {hat: 1.0, "a00": -1.0}, keep=[smile], sampling_steps=3)
    torch.testing.assert_close(drawn, again.clamp(-1, 1), atol=1e-4, rtol=0)
    torch.testing.assert_close(editor.strip(hat, [1.0], keep=[smile])[0], editor.draw({hat: 1}, keep=[smile]))
    assert isinstance(editor, Editor)


def test_a_strength_for_each_is_scaled_as_a_whole(model, directions, faces):
    hat, smile = directions
    result = manipulate(model, faces, {hat: 1.0, smile: -0.5}, (1.0, 2.0), sampling_steps=2)
    torch.testing.assert_close(
        2 * (result.z[0] - result.z[1]), -(result.z[1] - model.encode(faces)), atol=1e-4, rtol=0
    )
    assert result.scales == (1.0, 2.0)


def test_the_papers_scale_is_another_way_to_say_a_strength(model, directions, faces):
    hat, smile = directions
    paper = model.manipulate(faces[:1], hat, paper_scale=0.3, sampling_steps=2)
    z = model.encode(faces[:1])
    step = 0.3 * 12**0.5 * hat.std * hat.conditional / np.linalg.norm(hat.conditional)
    strength = float(hat.reading @ (step / hat.std))
    torch.testing.assert_close(
        paper, model.manipulate(faces[:1], hat, strength, sampling_steps=2), atol=1e-4, rtol=0
    )
    assert z.shape == (1, 12)
    with pytest.raises(InputError, match="paper_scale is for one direction"):
        model.manipulate(faces, {hat: 1.0, smile: 1.0}, paper_scale=0.3)


def test_holding_and_composing_never_make_a_step_that_leaves_the_data(model, directions, faces, caplog):
    """As from few labels, a kept reading is nearly that of what moves: the step is cut, in the deviations of z."""
    smile = directions[1]
    hat = replace(directions[0], conditional=directions[0].reading)
    aside = smile.reading - (smile.reading @ hat.reading) / (hat.reading @ hat.reading) * hat.reading
    aside *= 0.4 * np.linalg.norm(hat.reading) / np.linalg.norm(aside)
    near = replace(smile, reading=hat.reading + aside, response=hat.reading + aside)  # exact: 2.7 times as long
    std = model.std.double().numpy()
    alone = np.linalg.norm(step_for(model, [hat], [1.5]) / std)
    with caplog.at_level("WARNING"):
        held_back = step_for(model, [hat], [1.5], keep=[near])
    assert np.linalg.norm(held_back / std) == pytest.approx(LONGEST * alone)
    assert "hat: only" in caplog.text and "would leave the data" in caplog.text
    kept = handle_of(model, near)
    assert kept.reading @ held_back == pytest.approx(0, abs=1e-9), "what is kept stays all the same"
    caplog.clear()
    free = step_for(model, [hat, smile], [1.0, 1.0])
    assert np.linalg.norm(free / std) < 2 * LONGEST * alone and not caplog.text


def test_nothing_asked_is_nothing_done_without_a_word(model, directions, caplog):
    with caplog.at_level("WARNING"):
        assert not step_for(model, directions[:2], [0.0, 0.0], keep=["z003"]).any()
    assert not caplog.text
