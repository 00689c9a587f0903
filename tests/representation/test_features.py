"""Features are computed once per encoder and data, and are what the encoder says."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from diti.data.prepared import Dataset
from diti.data.sources import cache_folder, open_data
from diti.measure.baselines import baselines, pixels_flat, principal_components
from diti.representation.features import encode_dataset, encoder_hash, trunk_features


@pytest.fixture
def faces() -> Dataset:
    return open_data("toyfaces:600", 16)


def kept_files():
    return sorted((cache_folder() / "features").glob("*.npy"))


def test_codes_are_those_of_encode_in_order(model, faces):
    codes = encode_dataset(model, faces)
    assert codes.shape == (600, model.dims)
    assert_allclose(codes[590:], model.encode(np.asarray(faces.images[590:])).numpy(), atol=1e-5)


def test_second_call_reads_what_the_first_computed(model, faces):
    first = encode_dataset(model, faces)
    (path,) = kept_files()
    np.save(path, first + 1)  # only a call that reads the file can see this
    assert_allclose(encode_dataset(model, faces), first + 1)


def test_other_weights_other_data_and_mirrored_images_are_computed_anew(model, faces):
    first = encode_dataset(model, faces)
    encode_dataset(model, open_data("toyfaces:601", 16))
    mirrored = encode_dataset(model, faces, mirrored=True)
    assert_allclose(mirrored[:4], model.encode(np.asarray(faces.images[:4])[:, :, ::-1].copy()).numpy(), atol=1e-5)
    before = encoder_hash(model.encoder)
    with torch.no_grad():
        model.encoder.head.bias[0] += 1
    assert encoder_hash(model.encoder) != before
    assert_allclose(encode_dataset(model, faces)[:, 0], first[:, 0] + 1, atol=1e-5)
    trunk_features(model.encoder, faces)
    assert len(kept_files()) == 5


def test_data_of_another_size_is_resized_not_refused(model):
    assert encode_dataset(model, open_data("toyfaces:5", 32)).shape == (5, model.dims)


def test_baselines_name_their_dims_and_keep_the_order_of_the_images(backbone, faces):
    found = dict(baselines(backbone, faces, dims=8, seed=0, wide=True))
    assert [name.rpartition(",")[0] for name in found] == [
        "PCA of pixels", "random encoder", "backbone features", "PCA of backbone features",
    ]  # fmt: skip
    for name, features in found.items():
        assert len(features) == 600, name
        assert f"{features.shape[1]:,} dims" in name
        assert np.isfinite(features).all()
    narrow = dict(baselines(backbone, faces, dims=8, seed=0))
    assert all(features.shape[1] == 8 for features in narrow.values()) and len(narrow) == 3


def test_principal_components_against_a_singular_value_decomposition(faces):
    components = principal_components(lambda rows: pixels_flat(faces, rows), faces, dims=5)
    pixels = pixels_flat(faces, faces.rows()).astype(np.float64)
    train = pixels[faces.rows("train")]
    std = train.std(0)
    _, _, axes = np.linalg.svd((train - train.mean(0)) / std, full_matrices=False)
    expected = ((pixels - train.mean(0)) / std) @ axes[:5].T
    assert_allclose(np.abs(components), np.abs(expected), atol=2e-2)
    assert_allclose(components, expected * np.sign((components * expected).sum(0)), atol=2e-2)


def test_large_images_are_averaged_down_before_principal_components():
    faces = open_data("toyfaces:3", 64)
    assert pixels_flat(faces, faces.rows()).shape == (3, 3 * 32 * 32)
