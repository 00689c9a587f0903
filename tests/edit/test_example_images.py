"""Directions from example images: against formulas, and on toy faces, where the truth is known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import multivariate_normal

from diti.cli import main
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.data import toyfaces
from diti.edit.direction_files import direction_path, load_direction
from diti.edit.examples import (
    FEW,
    LARGE_FIRST,
    NOISE,
    POWER,
    ROUNDS,
    Basis,
    bases_of,
    example_direction,
    pair_direction,
    regression,
    relevant_axes,
)
from diti.edit.manipulate import manipulate
from diti.representation.models.axes import Axes
from diti.representation.models.loading import load


def cosine(a, b):
    """(...) of the last axes of a and b."""
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def test_the_regression_is_that_of_a_slow_loop():
    """The posterior of the weights by the inverse of its precision, the evidence as the density of the sides."""
    rng = np.random.default_rng(0)
    places, side, prior = rng.normal(size=(6, 9)), np.repeat([1.0, -1.0], [4, 2]), rng.uniform(0.1, 1, 9)
    variance, total = prior / prior.sum(), 0
    for _ in range(ROUNDS):
        density = multivariate_normal(cov=places @ np.diag(variance) @ places.T + NOISE * np.eye(6))
        covariance = np.linalg.inv(places.T @ places / NOISE + np.diag(1 / variance))
        weight = covariance @ places.T @ side / NOISE
        variance = np.array([weight[j] ** 2 + covariance[j, j] for j in range(9)])
        total += weight / ROUNDS
    found, evidence = relevant_axes(places, side, prior)
    np.testing.assert_allclose(found, total, rtol=1e-6)
    assert evidence == pytest.approx(density.logpdf(side) + 3 * np.log(2 * np.pi))


def drawn(truth, rng, count=8):
    """Gaussian codes (count, D) of each side of a wanted direction (D,): above and below its middle."""
    u = rng.normal(size=(40 * count, len(truth)))
    return u[u @ truth > 0.5][:count], u[u @ truth < -0.5][:count]


@pytest.mark.parametrize("known", ["axes", "metric"])
def test_where_axes_or_their_metric_are_known_eight_examples_find_the_direction(known):
    """The wanted direction of 64 dims lies on two axes; told which axes there are, or which eight tell much."""
    rng, found, plain = np.random.default_rng(1), [], []
    for _ in range(20):
        axes = np.linalg.qr(rng.normal(size=(64, 64)))[0]
        truth = axes[:, :2] @ [0.8, 0.6]
        told = np.where(np.arange(64) < 8, 1.0, 1.0 if known == "axes" else 1e-4)
        has, lacks = drawn(truth, rng)
        places = np.concatenate([has, lacks]) @ axes
        found.append(cosine(axes @ relevant_axes(places, np.repeat([1.0, -1.0], 8), told)[0], truth))
        plain.append(cosine(has.mean(0) - lacks.mean(0), truth))
    assert np.mean(plain) < 0.5 and np.mean(found) > np.mean(plain) + 0.25


def test_the_basis_that_explains_the_examples_counts_most():
    """The wanted direction is a column of one of two bases: the other is hardly heard."""
    rng, found, other = np.random.default_rng(2), [], []
    for _ in range(10):
        bases = [Basis(axes, axes, np.ones(64)) for axes in np.linalg.qr(rng.normal(size=(2, 64, 64)))[0]]
        has, lacks = drawn(bases[0].directions[:, 0], rng)
        weight, heading = regression(bases, has, lacks)
        np.testing.assert_array_equal(weight, heading)
        found.append(cosine(weight, bases[0].directions[:, 0]))
        other.append(cosine(regression(bases[1:], has, lacks)[0], bases[0].directions[:, 0]))
    assert np.mean(found) > 0.8 and np.mean(found) > np.mean(other) + 0.2


def test_the_bases_are_the_axes_and_those_for_examples_else_the_metric_else_z(model):
    rng, std = torch.Generator().manual_seed(0), torch.full((model.dims,), 2.0)
    directions, readings = torch.randn(2, 3, model.dims, generator=rng)
    shares = torch.ones(3, model.partition.subsets) / model.partition.subsets
    axes = Axes(directions, readings, torch.ones(3), torch.tensor([0.5, 0.3, 0.2]), shares)
    z, metric = torch.randn(5, model.dims, generator=rng), torch.diag(torch.arange(1.0, 1 + model.dims))
    metric[0, 1] = metric[1, 0] = 0.5
    model = replace(model, metric=metric)
    model.axes = axes
    (basis,) = bases_of(model, std.numpy())
    np.testing.assert_allclose((z / std).numpy() @ basis.readings, axes.places(z, torch.zeros(())), atol=1e-5)
    np.testing.assert_allclose(basis.directions.T * std.numpy(), directions, rtol=1e-6)
    told = np.array([float(d / 2 @ metric @ d / 2) for d in directions])
    np.testing.assert_array_equal(basis.prior, np.ones(3))
    whole = torch.randn(2, model.dims, model.dims, generator=rng)
    for count, of_all in ((1, 1), (2, 3)):
        model.axes = replace(axes, bases=whole[:count])
        bases = bases_of(model, std.numpy())
        assert len(bases) == of_all
        for part, basis in zip(whole[:count], bases[:count], strict=True):
            np.testing.assert_allclose((z / std).numpy() @ basis.readings, z @ part.T, atol=1e-4)
            np.testing.assert_allclose(basis.readings.T @ basis.directions, np.eye(model.dims), atol=1e-6)
    np.testing.assert_allclose(bases[-1].prior, told**POWER, rtol=1e-5)
    few = bases_of(model, std.numpy(), FEW - 1)
    assert len(few) == 4 and len(bases_of(model, std.numpy(), FEW)) == 3, "with few examples large axes count, too"
    np.testing.assert_array_equal(few[3].directions, few[2].directions)
    np.testing.assert_allclose(few[3].prior, told**LARGE_FIRST, rtol=1e-5)
    model.axes = None
    (basis,) = bases_of(model, std.numpy())
    told = basis.prior ** (1 / LARGE_FIRST)
    np.testing.assert_allclose(basis.directions * told @ basis.readings.T, metric, atol=1e-5)
    (basis,) = bases_of(replace(model, metric=None), std.numpy())
    np.testing.assert_array_equal(basis.directions, np.eye(model.dims))


@pytest.fixture
def codes(model):
    """(40, D) Gaussian codes: the 20 of 400 in which dims 1 and 2 together are highest, then the 20 lowest."""
    z = torch.randn(400, model.dims, generator=torch.Generator().manual_seed(0))
    z = z[z[:, 1:3].sum(1).argsort(descending=True)]
    mean, std = model.statistics()
    return torch.cat([z[:20], z[-20:]]) * std + mean


@pytest.mark.parametrize("count", [8, 20])
def test_it_moves_the_dims_in_which_the_examples_differ(model, codes, count):
    found = example_direction(model, "raised", codes[:count], codes[20 : 20 + count], dims=2)
    assert found.dims == (1, 2) and found.method == "examples"
    assert (found.heading[[1, 2]] > 0).all() and np.count_nonzero(found.heading) == 2
    assert found.score == 1.0 and "raised: 2 of" in found.summary()


def test_it_keeps_to_the_subsets_that_are_asked_for(model, codes):
    owned = model.partition.subset_mask("late").numpy()
    found = example_direction(model, "raised", codes[:20], codes[20:], subset="coarse")
    assert set(found.dims) <= set(np.flatnonzero(owned).tolist())


def test_examples_that_do_not_differ_are_told(model):
    mean, _ = model.statistics()
    same = mean.repeat(3, 1)
    with pytest.raises(InputError, match="the examples do not differ"):
        example_direction(model, "none", same, same)
    with pytest.raises(InputError, match="no image was given with --like"):
        example_direction(model, "none", same[:0], same)


def test_alone_they_are_compared_with_the_mean_of_the_data(model):
    mean, std = model.statistics()
    raised = torch.zeros(2, model.dims)
    raised[:, 1:3] = 3
    alone, empty = (example_direction(model, "raised", raised * std + mean, u) for u in (None, raised[:0]))
    np.testing.assert_array_equal(alone.heading, empty.heading)
    assert cosine(alone.heading, raised[0].numpy()) > 0.99 and "2 images like it, 0 unlike" in alone.summary()


def test_pairs_give_the_mean_of_their_differences(model, codes):
    std = model.statistics()[1]
    found = pair_direction(model, "raised", codes[:20], codes[20:])
    np.testing.assert_allclose(found.heading, ((codes[:20] - codes[20:]) / std).mean(0), rtol=1e-4, atol=1e-5)
    assert found.method == "pairs" and "from 20 pairs" in found.summary()
    assert pair_direction(model, "raised", codes[:20], codes[20:], dims=2).dims == (1, 2)
    with pytest.raises(InputError, match="as many images with it as without; given 3 and 2"):
        pair_direction(model, "raised", codes[:3], codes[:2])


# ---- On toy faces, of which everything is known -----------------------------------------------------------------

OTHERS = {"background", "brightness", "hat", "position", "skin", "clothes"}


def set_to(attribute, value, seed, size):
    """uint8 (4, size, size, 3): four faces with one attribute at this value."""
    return toyfaces.render(toyfaces.change(toyfaces.sample(4, seed), attribute, values=value), size)


@pytest.mark.parametrize("attribute", ["background", "brightness"])
def test_a_direction_named_from_eight_examples_moves_that_attribute(
    attribute, solved_folder, tmp_path, monkeypatch
):
    """What changes in the picture is what changes when the renderer draws the same faces with it changed."""
    monkeypatch.chdir(tmp_path)
    files = {}
    for side, value, seed in (("like", 0.6, 11), ("unlike", 0.05, 12)):  # other faces on each side
        files[side] = [f"{side}{index}.png" for index in range(4)]
        for file, pixels in zip(files[side], set_to(attribute, value, seed, 16), strict=True):
            Image.fromarray(pixels).save(file)
    examples = [word for side, names in files.items() for word in (f"--{side}", ",".join(names))]
    words = ["manipulate", str(solved_folder), "like0.png", "--sampling-steps", "2", "--save-as", "mine"]
    assert main([*words, *examples, "--out", "out.png"]) == 0
    direction, model = load_direction(direction_path(solved_folder, "mine")), load(solved_folder)
    moved = manipulate(model, set_to(attribute, 0.3, 13, 16), direction, [-1, 1], sampling_steps=5).images
    change = (moved[1] - moved[0]).flatten(1).numpy()

    def rendered(name):
        low, high = (0, 1) if name == "hat" else (0.05, 0.6)
        faces = toyfaces.change(toyfaces.sample(4, 13), attribute, values=0.3)
        ends = [toyfaces.render(toyfaces.change(faces, name, values=value), 16) for value in (low, high)]
        return (to_float(ends[1]) - to_float(ends[0])).flatten(1).numpy()

    assert cosine(change, rendered(attribute)).mean() > 0.8
    assert all(abs(cosine(change, rendered(name)).mean()) < 0.4 for name in OTHERS - {attribute})
