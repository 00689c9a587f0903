"""The first look: axes of pixels against an exact decomposition, whitened features, and what is asked of data."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import normal
from scipy.linalg import subspace_angles
from tiny import tiny_backbone

from diti.config import SolutionConfig, SolveConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.machine import cache_folder
from diti.data.prepared import Stream
from diti.data.sources import open_data
from diti.representation.features import trunk_features
from diti.representation.networks.pixel_axes import PixelAxes
from diti.representation.solve.evidence import (
    feature_map,
    gather_evidence,
    require_features,
    require_images,
    split_rows,
    unsolved_encoder,
)
from diti.representation.solve.look import Walk, first_look, set_pixel_axes, whitened


def test_pixel_axes_are_the_principal_ones():
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.normal(size=(300, 192)) * 0.9 ** np.arange(192) + 0.3).float()
    axes = PixelAxes(8, 10)
    set_pixel_axes(axes, images, seed=0)
    centred = images.double() - images.double().mean(0)
    exact = torch.linalg.svd(centred, full_matrices=False)[2][:10].T
    torch.testing.assert_close(axes.mean, images.mean(0))
    assert subspace_angles(axes.axes.double().numpy(), exact.numpy()).max() < 0.02
    torch.testing.assert_close(axes.axes.T @ axes.axes, torch.eye(10), atol=1e-5, rtol=0)
    again = PixelAxes(8, 10)
    before = torch.random.get_rng_state()
    set_pixel_axes(again, images, seed=0)
    assert torch.equal(again.axes, axes.axes) and torch.equal(torch.random.get_rng_state(), before)


def test_whitened_features_have_unit_variance_and_know_what_they_had():
    features = normal(400, 6, seed=1) @ normal(6, 6, seed=2) + 5
    found = whitened(features.float(), most=4, least=2)
    phi = found(features.float())
    torch.testing.assert_close(phi.T @ phi / 400, torch.eye(4, dtype=torch.float64), atol=1e-4, rtol=0)
    standard = (features - features.mean(0)) / features.std(0, correction=0)
    values = torch.linalg.eigvalsh(standard.T @ standard / 400).flip(0)
    torch.testing.assert_close(found.variance, values[:4], atol=1e-4, rtol=1e-4)


def test_features_that_vary_in_few_directions_are_cut_or_refused():
    flat = normal(100, 3, seed=1) @ normal(3, 8, seed=2)
    assert whitened(flat.float(), most=8, least=2).axes.shape == (8, 3)
    with pytest.raises(InputError, match="vary in 3 directions over the given images, the code has 4 dims"):
        whitened(flat.float(), most=8, least=4)
    with pytest.raises(InputError, match="vary in 0 directions"):
        whitened(torch.full((50, 4), 2.5), most=4, least=1)


@pytest.fixture
def look():
    """Of toy faces through the tiny backbone, and the dataset."""
    dataset, backbone = open_data("toyfaces:200", 16), tiny_backbone()
    encoder = unsolved_encoder(SolveConfig(code_dim=8, subsets=2), backbone)
    stream = Stream(dataset.rows("train"), 0, flip=True)
    walk = Walk(dataset, stream, feature_map(encoder, None), torch.device("cpu"), "solve-train")
    return first_look(walk, 150, (3, 16, 16), pixels=12, features=20, dims=8, seed=0), dataset, encoder


def test_what_was_looked_at_is_not_run_again(look):
    found, dataset, encoder = look
    assert found.phi.shape == (150, 20) and found.pixel_axes.count == 12
    x, rows = found.walk.clean(30, 40)
    again = found.whitening(encoder.features(x))
    torch.testing.assert_close(found.phi_of(found.walk, 30, x, rows), again, atol=1e-3, rtol=1e-3)
    assert torch.equal(found.phi_of(found.walk, 30, x, rows), found.phi[30:70].double())
    x, rows = found.walk.clean(130, 40)  # beyond what was looked at
    torch.testing.assert_close(found.phi_of(found.walk, 130, x, rows), found.whitening(encoder.features(x)))
    other = Walk(dataset, found.walk.stream, found.walk.features, found.walk.device, "solve-valid")
    x, rows = other.clean(0, 5)
    torch.testing.assert_close(found.phi_of(other, 0, x, rows), found.whitening(encoder.features(x)))


def test_the_walk_shows_training_images_some_of_them_mirrored(look):
    found, dataset, _ = look
    x, rows = found.walk.clean(0, 100)
    assert set(rows) <= set(dataset.rows("train")) and len(set(rows)) == 100
    plain = to_float(dataset.pixels(rows))
    mirrored = sum(torch.equal(a, b.flip(-1)) for a, b in zip(x, plain, strict=True))
    same = sum(torch.equal(a, b) for a, b in zip(x, plain, strict=True))
    assert mirrored > 25 and same > 25


def test_features_that_are_no_numbers_are_refused():
    dataset = open_data("toyfaces:60", 16)
    walk = Walk(
        dataset, Stream(dataset.rows("train"), 0, flip=False),
        lambda x, rows: torch.full((len(x), 9), torch.nan), torch.device("cpu"), "solve-train",
    )  # fmt: skip
    with pytest.raises(InputError, match="the features of some images are not finite; check the weights"):
        first_look(walk, 40, (3, 16, 16), pixels=3, features=9, dims=4, seed=0)


@pytest.mark.parametrize("mirrored", [True, False])
def test_kept_features_are_used_where_mirror_images_have_the_same(mirrored):
    dataset, backbone = open_data("toyfaces:200", 16), tiny_backbone()
    config = SolveConfig(
        code_dim=8, subsets=2, images=64, encoder_mirror=mirrored, solution=SolutionConfig(pixel_axes=12)
    )
    encoder = unsolved_encoder(config, backbone)
    before = gather_evidence(config, backbone, dataset, encoder).look
    features = trunk_features(encoder, dataset)
    kept = gather_evidence(config, backbone, dataset, encoder).look
    torch.testing.assert_close(kept.whitening.mean, before.whitening.mean, atol=1e-4, rtol=1e-4)
    (path,) = (cache_folder() / "features").glob("*.npy")
    np.save(path, features + 1)  # only a look at the file can see this
    wrong = gather_evidence(config, backbone, dataset, encoder).look
    torch.testing.assert_close(wrong.whitening.mean, before.whitening.mean + mirrored, atol=1e-4, rtol=1e-4)


# ---- What is asked of the data -----------------------------------------------------------------------------


def test_penalties_are_chosen_on_validation_images_or_on_some_held_out():
    dataset = open_data("toyfaces:100", 16)
    train, valid = split_rows(dataset, 0)
    assert np.array_equal(train, dataset.rows("train")) and np.array_equal(valid, dataset.rows("valid"))

    class Unsplit:
        """All images are for training, as in a folder of them."""

        def rows(self, split):
            return np.arange(100, 200) if split == "train" else np.arange(0)

    train, valid = split_rows(Unsplit(), 0)
    assert len(valid) == 10 and sorted([*train, *valid]) == list(range(100, 200))
    assert np.array_equal(valid, split_rows(Unsplit(), 0)[1])
    assert not np.array_equal(valid, split_rows(Unsplit(), 1)[1])


def test_too_few_images_name_a_length_that_they_suffice_for():
    config = SolveConfig(code_dim=12)
    require_images(config, 48, (3, 16, 16))
    with pytest.raises(InputError, match=r"47 training images are too few .*--code-dim 11 or less, .*at least 48"):
        require_images(config, 47, (3, 16, 16))
    with pytest.raises(InputError, match=r"3 training images are too few .* dims: give at least 48"):
        require_images(config, 3, (3, 16, 16))


def test_a_pass_has_twice_as_many_images_as_regressors():
    config = SolveConfig(code_dim=12, images=199)  # 1 + 87 pixel axes, of 696 images, + 12 dims
    require_images(replace(config, images=None), 696, (3, 16, 16))
    require_images(replace(config, images=200), 696, (3, 16, 16))
    with pytest.raises(InputError, match=r"--images 199 is too short: .* 100 regressors .* at least 200"):
        require_images(config, 696, (3, 16, 16))


def test_given_features_are_looked_up_by_row():
    dataset = open_data("toyfaces:50", 16)
    given = np.arange(100.0).reshape(50, 2)
    encoder = unsolved_encoder(SolveConfig(code_dim=2, subsets=1), tiny_backbone(), given)
    assert encoder.description["kind"] == "given" and encoder.trunk.features == 2
    found = feature_map(encoder, require_features(given, dataset))(torch.zeros(3, 1), np.array([7, 0, 49]))
    assert found.dtype == torch.float32 and found.tolist() == [[14, 15], [0, 1], [98, 99]]


@pytest.mark.parametrize(
    ("features", "complaint"),
    [
        (np.zeros((49, 3)), r"float64 of shape \(49, 3\); give floats \(50, F\)"),
        (np.zeros(50), r"shape \(50,\)"),
        (np.zeros((50, 3), int), "int64 of shape"),
        (np.full((50, 3), np.nan), "not finite"),
        ([[1.0, np.inf]] * 50, "not finite"),
        ("features.npy", "give floats"),
    ],
)
def test_given_features_that_do_not_fit_are_refused(features, complaint):
    with pytest.raises(InputError, match=complaint):
        require_features(features, open_data("toyfaces:50", 16))


def test_very_many_features_are_whitened_to_the_same_components(monkeypatch):
    rng = torch.Generator().manual_seed(3)
    features = torch.randn(400, 6, generator=rng) * torch.tensor([9.0, 5, 3, 2, 1, 0.5])
    features = features @ torch.randn(6, 60, generator=rng) + 0.01 * torch.randn(400, 60, generator=rng)
    exact = whitened(features, most=6, least=2)
    monkeypatch.setattr("diti.representation.networks.principal.MANY_FEATURES", 50)
    quick = whitened(features, most=6, least=2)
    torch.testing.assert_close(quick.variance, exact.variance, rtol=1e-4, atol=0)
    torch.testing.assert_close(quick(features), exact(features), rtol=0, atol=2e-3)
    with pytest.raises(InputError, match="vary in 0 directions"):
        whitened(torch.full((50, 60), 2.5), most=4, least=1)
