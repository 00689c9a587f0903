"""Directions from example images: against formulas, and on toy faces, where the truth is known."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.covariance import LedoitWolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from diti.cli import main
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.data import toyfaces
from diti.edit.directions import direction_path, load_direction
from diti.edit.examples import discriminant, example_direction, shrunken_difference
from diti.edit.manipulate import manipulate
from diti.representation.models.loading import load


def test_the_difference_is_shrunk_by_what_chance_gives():
    has, lacks = np.array([[3.0, 0.5, -2.0]]), np.array([[0.0, 0.0, 0.0]])
    expected = [3 * (1 - 2 / 9), 0.0, -2 * (1 - 2 / 4)]  # v = 1 + 1
    np.testing.assert_allclose(shrunken_difference(has, lacks), expected)
    alone = [3 * (1 - 1 / 9), 0.0, -2 * (1 - 1 / 4)]  # v = 1: the mean of the data is known
    np.testing.assert_allclose(shrunken_difference(has, np.zeros((0, 3))), alone)


def test_of_two_random_samples_most_dims_are_dropped_and_of_two_sides_none_that_matter():
    rng = np.random.default_rng(0)
    dropped = [
        (shrunken_difference(rng.normal(size=(4, 50)), rng.normal(size=(4, 50))) == 0).mean() for _ in range(20)
    ]
    assert 0.6 < np.mean(dropped) < 0.75  # |N(0, 1)| < 1: 68 %
    shifted = shrunken_difference(rng.normal(size=(64, 50)) + 2, rng.normal(size=(64, 50)))
    np.testing.assert_allclose(shifted, 2, atol=0.8)


def test_of_many_examples_the_plane_is_that_of_scikit_learn():
    rng = np.random.default_rng(1)
    mixing = rng.normal(size=(6, 6))
    has, lacks = rng.normal(size=(40, 6)) @ mixing + 1, rng.normal(size=(60, 6)) @ mixing
    inside = np.concatenate([has - has.mean(0), lacks - lacks.mean(0)])
    covariance = LedoitWolf(assume_centered=True).fit(inside).covariance_
    expected = np.linalg.inv(covariance) @ (has.mean(0) - lacks.mean(0))
    np.testing.assert_allclose(discriminant(has, lacks), expected, rtol=1e-8)
    judge = LinearDiscriminantAnalysis().fit(np.concatenate([lacks, has]), np.repeat([0, 1], [60, 40]))
    cosine = expected @ judge.coef_[0] / np.linalg.norm(expected) / np.linalg.norm(judge.coef_[0])
    assert cosine > 0.8, "near Fisher's without shrinkage"


def test_of_few_examples_it_is_the_difference():
    has, lacks = np.ones((3, 4)), np.zeros((50, 4))
    np.testing.assert_array_equal(discriminant(has, lacks), np.ones(4))


@pytest.fixture
def codes(model):
    """(40, D) codes whose first half has dims 1 and 2 raised by three deviations."""
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(40, model.dims, generator=rng)
    z[:20, 1:3] += 3
    mean, std = model.statistics()
    return z * std + mean


@pytest.mark.parametrize("count", [2, 20])
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
    with pytest.raises(InputError, match="do not differ by more than any two images do"):
        example_direction(model, "none", same, same)
    with pytest.raises(InputError, match="no image was given with --like"):
        example_direction(model, "none", same[:0], same)


# ---- On toy faces, of which everything is known -----------------------------------------------------------------

OTHERS = {"background", "brightness", "hat", "position", "skin", "clothes"}


def set_to(attribute, value, seed, size):
    """uint8 (4, size, size, 3): four faces with one attribute at this value."""
    return toyfaces.render(toyfaces.change(toyfaces.sample(4, seed), attribute, values=value), size)


def cosine(a, b):
    """(N,) of images (N, 3, H, W)."""
    return torch.nn.functional.cosine_similarity(a.flatten(1), b.flatten(1))


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
    moved = manipulate(model, set_to(attribute, 0.3, 13, 16), direction, [-0.3, 0.3], sampling_steps=5).images
    change = moved[1] - moved[0]

    def rendered(name):
        low, high = (0, 1) if name == "hat" else (0.05, 0.6)
        faces = toyfaces.change(toyfaces.sample(4, 13), attribute, values=0.3)
        ends = [toyfaces.render(toyfaces.change(faces, name, values=value), 16) for value in (low, high)]
        return to_float(ends[1]) - to_float(ends[0])

    assert (cosine(change, rendered(attribute)) > 0.8).all()
    assert all(cosine(change, rendered(name)).mean().abs() < 0.4 for name in OTHERS - {attribute})
