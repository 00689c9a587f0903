"""What an axis removes, against a slow loop; its ends and labels against sorting by hand."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny import tiny_diffae

from diti.core.errors import InputError
from diti.data.prepared import Dataset
from diti.diffusion.pretrain import denoising_loss
from diti.diffusion.schedule import gather, lambda_eps
from diti.diffusion.validation import fixed_batches
from diti.exploring.axes import correlations, extremes, find_axes, removed_by, strongest
from diti.representation.features import encode_dataset
from diti.representation.methods.diti import reconstruction_loss
from diti.representation.models.loading import load
from diti.representation.partition import Partition


@pytest.fixture
def solved(solved_once):
    return load(solved_once)


def test_what_a_group_removes_is_what_is_missing_without_it(solved, solved_faces):
    groups = [[0], [3, 4], list(range(12))]
    found = removed_by(solved, solved_faces, groups, images=16)
    ((pixels, t, noise),) = list(fixed_batches(solved_faces, solved.partition.timesteps, torch.device("cpu"), 16))
    mean, cut = solved.statistics()[0], solved.partition

    def loss(z):
        return reconstruction_loss(solved.decoder, pixels, t, noise, cut.mask(z, t)).double().sum().item()

    with torch.no_grad():
        z = solved.encode(pixels)
        lam_t = gather(lambda_eps(solved.schedule), t, pixels).flatten()
        frozen = (lam_t * denoising_loss(solved.backbone, pixels, t, noise)).double().sum().item()
        slow = []
        for group in groups:
            held = z.clone()
            for dim in group:
                held[:, dim] = mean[dim]
            slow.append((loss(held) - loss(z)) / frozen)
    np.testing.assert_allclose(found, slow, rtol=1e-4, atol=1e-6)


def test_the_strongest_of_each_subset_come_first():
    cut = Partition.balanced(10, 2, 6)
    removed = np.array([0.1, 0.3, 0.2, 0.0, 0.5, 0.4])
    assert strongest(removed, cut, 2) == [[1, 2], [4, 5]]
    assert strongest(removed, cut, 9) == [[1, 2, 0], [4, 5, 3]]


def with_people(people):
    """A dataset of which only the table matters."""
    table = pa.table({"file": [str(n) for n in range(len(people))], "identity": people})
    return Dataset(None, np.zeros((len(people), 1, 1, 3), np.uint8), table, {})


def test_the_ends_of_an_axis_have_one_image_of_a_person(solved_faces):
    values = np.array([5.0, 1, 4, 2, 3])
    low, high = extremes(values, with_people(["a", "b", "a", "b", "c"]), 2)
    assert low.tolist() == [1, 4] and high.tolist() == [0, 4]
    low, high = extremes(np.arange(300.0), solved_faces, 3)
    assert low.tolist() == [0, 1, 2] and high.tolist() == [299, 298, 297]


def test_the_ends_of_an_axis_have_no_near_copies(solved_faces):
    values, measured = np.arange(300.0), np.random.default_rng(0).normal(size=(300, 64))
    measured[1:4] = measured[0] + 0.1  # frames of one film
    measured[297] = measured[299]
    low, high = extremes(values, solved_faces, 2, measured)
    assert low.tolist() == [0, 4] and high.tolist() == [299, 298]
    assert extremes(values, solved_faces, 3, measured)[1].tolist() == [299, 298, 296]


def test_correlations_are_those_of_numpy(solved_faces):
    codes = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    labels = solved_faces.labels()
    found = correlations(codes, solved_faces)
    assert list(found) == solved_faces.attributes
    for place, name in enumerate(solved_faces.attributes):
        slow = [np.corrcoef(codes[:, dim], labels[:, place])[0, 1] for dim in range(4)]
        np.testing.assert_allclose(found[name], slow, atol=1e-6)


def test_axes_are_found_from_fine_to_coarse_with_what_goes_with_them(solved, solved_faces):
    found = find_axes(solved, solved_faces, 2, images=16)
    removed = removed_by(solved, solved_faces, [[dim] for dim in range(12)], images=16)
    assert [(axis.subset, axis.axis) for axis in found] == [
        (subset, axis) for subset, axes in enumerate(strongest(removed, solved.partition, 2)) for axis in axes
    ]
    assert all(axis.removed == pytest.approx(removed[axis.axis]) for axis in found)
    assert [axis.name for axis in found] == [solved.feature_names()[axis.axis] for axis in found]
    labels = correlations(encode_dataset(solved, solved_faces), solved_faces)
    assert any(axis.labels for axis in found)
    for axis in found:
        most = max(abs(r[axis.axis]) for r in labels.values())
        assert max(map(abs, axis.labels.values()), default=0) == pytest.approx(
            most if most >= 0.15 else 0, abs=1e-3
        )


def test_axes_of_what_has_none_are_refused(solved, solved_faces):
    with pytest.raises(InputError, match="a diffae model has no frozen diffusion model"):
        find_axes(tiny_diffae(), solved_faces)
    with pytest.raises(InputError, match="give 1 or more of each"):
        find_axes(solved, solved_faces, 0)
