"""Axes that one can name: known mixtures, a case with known factors, and what a model folder keeps of them."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file

import diti
from diti.core.errors import InputError
from diti.representation.found_axes import axes_of, axes_over, find_key
from diti.representation.models import axes as axes_module
from diti.representation.models.axes import (
    AXES,
    Axes,
    flatness,
    independent,
    read_axes,
    varimax,
    visible_axes,
    white_basis,
)
from diti.representation.models.axis_names import AxisName
from diti.representation.models.metric import regressed_metric
from diti.representation.partition import Partition

SIDE, BLOCK = 16, 4  # a picture of 4 × 4 blocks


def drawn(rng, *shape):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def blocks(count):
    """(count, 3, SIDE, SIDE): each a block of the picture of its own, in two of the channels."""
    images = torch.zeros(count, 3, SIDE, SIDE, dtype=torch.float64)
    for index in range(count):
        row, column = divmod(index, SIDE // BLOCK)
        across = slice(column * BLOCK, (column + 1) * BLOCK)
        images[index, :2, row * BLOCK : (row + 1) * BLOCK, across] = 1.0
    return images


@pytest.mark.parametrize("place", [0.0, 0.2])
def test_varimax_undoes_a_rotation_of_local_changes(place):
    """Nine axes that change a block each, mixed at random: each is found again, as it was or with its sign."""
    mix = torch.linalg.qr(drawn(torch.Generator().manual_seed(0), 9, 9))[0]
    mixed = torch.einsum("ij,jchw->ichw", mix, blocks(9))
    rotation = varimax(mixed, place)
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(9, dtype=torch.float64))
    overlap = (mix.T @ rotation).abs()  # a permutation, up to signs
    assert (overlap.amax(0) > 0.999).all() and (overlap.amax(1) > 0.999).all()
    assert (mix.abs().amax(0) < 0.9).all(), "the mixture itself would not pass"


def test_what_has_no_place_is_told_apart_by_its_spread():
    """Two heaps, an even spread and a normal one that change the whole picture, and two local ones, mixed."""
    rng = torch.Generator().manual_seed(4)
    even = (torch.rand(4000, generator=rng) - 0.5) * 12**0.5
    heaps = torch.randint(0, 2, (4000,), generator=rng) * 2.0 - 1
    sources = torch.stack([even.double(), heaps.double(), *drawn(rng, 4000, 3).T], 1)
    changes = torch.cat([torch.ones(3, 3, SIDE, SIDE, dtype=torch.float64) * 0.1, blocks(2)])
    mix = torch.linalg.qr(drawn(rng, 5, 5))[0]
    mixed, codes = torch.einsum("ij,jchw->ichw", mix, changes), sources @ mix.T
    overlap = (mix.T @ varimax(mixed, 0.2, codes)).abs()
    assert (overlap.amax(0) > 0.98).all() and (overlap.amax(1) > 0.98).all()
    assert ((mix.T @ varimax(mixed, 0.2)).abs().amax(1)[:3] < 0.95).any(), "by places alone they stay mixed"


@pytest.fixture(scope="module")
def known():
    """Ten factors that change a block each, the last one invisibly; codes are a mixture of them, not white."""
    rng = torch.Generator().manual_seed(1)
    factors, mixing = drawn(rng, 4000, 10), drawn(rng, 10, 10)
    strength = torch.tensor([0.2, 0.18, 0.16, 0.14, 0.12, 0.1, 0.09, 0.08, 0.07, 0.001], dtype=torch.float64)
    images = 0.5 + torch.einsum("nk,k,kchw->nchw", factors, strength, blocks(10))
    z = factors @ mixing + 3
    mean, std = z.mean(0), z.std(0, correction=0)
    u = (z - mean) / std
    metric = regressed_metric([(factors, u)])
    found = visible_axes(metric, u, images, Partition.balanced(1000, 2, 10), std)
    return factors, mixing, strength, z, mean, found


def test_places_on_the_axes_are_the_factors(known):
    factors, _, _, z, mean, found = known
    assert len(found) == 9, "of the last nothing can be seen"
    places = found.places(z, mean)
    torch.testing.assert_close(places.std(0), torch.ones(9, dtype=torch.float64), rtol=0.02, atol=0)
    r = torch.corrcoef(torch.cat([places, factors], 1).T)[:9, 9:].abs()
    assert (r.diagonal() > 0.99).all(), "the most visible first"


def test_a_deviation_along_an_axis_moves_its_factor_by_one_and_no_other(known):
    _, mixing, _, _, _, found = known
    moved = found.directions.double() @ torch.linalg.inv(mixing)  # (9, 10) by how much each factor moves
    torch.testing.assert_close(moved[:, :9].abs(), torch.eye(9, dtype=torch.float64), rtol=0, atol=0.08)


def test_each_axis_knows_how_many_pixels_it_moves_what_it_tells_and_where_it_lives(known):
    *_, strength, _, _, found = known
    share = 2 / 3 * BLOCK**2 / SIDE**2  # of the values of a picture, those of a block
    expected = strength[:9] * share**0.5
    torch.testing.assert_close(found.visibility.double(), expected, rtol=0.05, atol=0)
    torch.testing.assert_close(found.told, torch.full((9,), 0.1), rtol=0.05, atol=0)
    assert found.subsets.shape == (9, 2)
    torch.testing.assert_close(found.subsets.sum(1), torch.ones(9))


def test_the_basis_is_white_and_its_metric_diagonal():
    rng = torch.Generator().manual_seed(2)
    a, b = drawn(rng, 6, 6), drawn(rng, 6, 6)
    covariance, metric = a @ a.T, b @ b.T
    directions, readings, told = white_basis(metric, covariance)
    eye = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(readings.T @ covariance @ readings, eye)
    torch.testing.assert_close(directions.T @ readings, eye)
    torch.testing.assert_close(directions.T @ metric @ directions, torch.diag(told))
    assert (told.diff() <= 0).all()


def test_there_are_never_too_few_and_never_too_many(monkeypatch):
    rng = torch.Generator().manual_seed(3)
    u, images = drawn(rng, 500, 12), 0.1 * torch.rand(500, 3, 8, 8, generator=rng)
    cut = Partition.balanced(1000, 2, 12)
    given = torch.eye(12), u, images, cut, torch.ones(12)
    assert len(visible_axes(*given)) == axes_module.FEWEST, "the pictures do not depend on the code"
    monkeypatch.setattr(axes_module, "VISIBLE", 0.0)
    assert len(visible_axes(*given)) == 12
    monkeypatch.setattr(axes_module, "MOST", 10)
    assert len(visible_axes(*given)) == 10


# ---- In a model folder ---------------------------------------------------------------------------------------


def test_a_solved_model_keeps_its_axes(solved_folder, solved_faces):
    kept, model = load_file(solved_folder / AXES), diti.load(solved_folder)
    assert kept["directions"].shape == (len(model.axes), 12) and kept["subsets"].shape == (len(model.axes), 3)
    again = axes_over(model, solved_faces)
    torch.testing.assert_close(again.directions, model.axes.directions, rtol=1e-3, atol=1e-4)
    assert (model.axes.visibility.diff() <= 0).all()


def test_a_folder_of_an_earlier_version_gets_them_when_they_are_needed(solved_folder, solved_faces, caplog):
    kept = diti.load(solved_folder).axes
    (solved_folder / AXES).unlink()
    model = diti.load(solved_folder)
    assert model.axes is None
    with pytest.raises(InputError, match="has no axes yet, such as a07: diti explore finds them"):
        find_key(model, "a01")
    assert find_key(model, "z003") == (3, 1.0), "dims need none"
    found = axes_of(model, solved_faces)
    assert "has no axes yet" in caplog.text
    torch.testing.assert_close(found.directions, kept.directions, rtol=1e-3, atol=1e-4)
    other = diti.load(solved_folder)
    assert torch.equal(axes_of(other).directions, found.directions), "found once, kept in the cache"
    assert find_key(other, "a01") == ("a1", 1.0)


def test_independent_codes_are_found_where_there_are_any():
    """Coins thrown at random and turned: each is found again; of normal codes there is no such basis."""
    rng = torch.Generator().manual_seed(3)
    turn, start = (torch.linalg.qr(drawn(rng, 6, 6))[0] for _ in range(2))
    coins, normal = drawn(rng, 4000, 6).sign(), drawn(rng, 4000, 6)
    (found,) = independent(coins @ turn.T, start)
    assert (turn.T @ found).abs().amax(0).min() > 0.99
    torch.testing.assert_close(found.T @ found, torch.eye(6, dtype=torch.float64))
    assert independent(drawn(rng, 400, 60), torch.eye(60, dtype=torch.float64)) == []
    assert flatness(coins) == pytest.approx(1, abs=0.01) and flatness(normal) == pytest.approx(0, abs=0.05)


def test_axes_of_an_earlier_version_have_no_bases(solved_folder):
    kept = load_file(solved_folder / AXES)
    assert kept["bases"].shape[1:] == (12, 12) and len(kept["bases"]) in (1, 2)
    save_file({name: tensor for name, tensor in kept.items() if name != "bases"}, solved_folder / AXES)
    model = diti.load(solved_folder)
    assert len(model.axes.bases) == 0
    model.save(solved_folder)
    assert "bases" not in load_file(solved_folder / AXES)


def test_axes_survive_saving(solved_folder, tmp_path):
    model = diti.load(solved_folder)
    model.save(tmp_path / "copy")
    again = diti.load(tmp_path / "copy").axes
    for field in dataclasses.fields(Axes):
        assert torch.equal(getattr(again, field.name), getattr(model.axes, field.name))


@pytest.mark.parametrize(
    "change, shape", [("directions", (3, 3)), ("told", (2,)), ("more", (2,)), ("bases", (2, 3, 3))]
)
def test_axes_of_another_shape_are_refused(solved_folder, change, shape):
    save_file(load_file(solved_folder / AXES) | {change: torch.ones(shape)}, solved_folder / AXES)
    with pytest.raises(InputError, match=r"axes\.safetensors holds .*expected axes of 12 dims; delete it"):
        diti.load(solved_folder)


def test_damaged_numbers_are_refused(solved_folder):
    kept = load_file(solved_folder / AXES)
    kept["readings"][0, 0] = float("nan")
    save_file(kept, solved_folder / AXES)
    with pytest.raises(InputError, match="not finite"):
        read_axes(solved_folder / AXES, Partition.balanced(1000, 3, 12))


def test_words_stand_for_axes_and_dims(solved_folder):
    model = diti.load(solved_folder)
    model.axis_names = {"a2": AxisName("wall", "night"), 2: AxisName("beard")}
    assert find_key(model, " a02 ") == find_key(model, "Wall") == ("a2", 1.0)
    assert find_key(model, "night") == ("a2", -1.0)
    assert find_key(model, "2") == find_key(model, "beard") == (2, 1.0)
    last = len(model.axes) - 1
    with pytest.raises(InputError, match=f"axis a99 does not exist; this model has the axes a00 to a{last:02d}"):
        find_key(model, "a99")
    with pytest.raises(InputError, match=f"no axis is called 'hat'; use a00 to a{last:02d}, a number from"):
        find_key(model, "hat")
