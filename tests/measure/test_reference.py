"""Distance to the data: against a slow loop, and what is near and far."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from diti.core.errors import InputError
from diti.core.rng import numpy_generator
from diti.data import toyfaces
from diti.data.prepared import Dataset
from diti.measure.reference import encode, make_reference, nearest_distance


@pytest.fixture(scope="module")
def data() -> Dataset:
    pixels = np.concatenate([toyfaces.render(toyfaces.sample(n, seed=s), 16) for n, s in ((40, 9), (8, 4))])
    table = pa.table({"file": [f"{i}" for i in range(48)], "split": ["train"] * 40 + ["valid"] * 8})
    return Dataset(Path("faces"), pixels, table, {"name": "faces", "hash": "abc"})


def test_nearest_distance_against_a_slow_loop():
    rng = numpy_generator(0, "codes")
    codes, data = rng.standard_normal((7, 3)), rng.standard_normal((40, 3))
    expected = []
    for code in codes:
        order = sorted(data, key=lambda other: float(np.linalg.norm(other - code)))
        expected.append(np.linalg.norm(code - np.mean(order[:5], axis=0)))
    found = nearest_distance(torch.from_numpy(codes), torch.from_numpy(data))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    corners = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 9.0]])
    assert (
        nearest_distance(torch.tensor([[0.0, 2.0]]), corners, 2).item() == 2
    )  # to the mean, not the mean distance


def test_a_reference_is_one_for_validation_images_and_more_for_noise(model, data):
    reference = make_reference("the tiny encoder", model.encoder, data)
    unseen = torch.from_numpy(data.images[40:]).permute(0, 3, 1, 2) / 127.5 - 1
    assert reference.distances(unseen).mean() == pytest.approx(1, rel=1e-4)
    noise = torch.from_numpy(numpy_generator(0, "noise").choice([-1.0, 1.0], (8, 3, 16, 16))).float()
    assert reference.distances(noise).mean() > 1.3


def test_a_network_without_weights_can_be_the_encoder():
    pixels = torch.linspace(-1, 1, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)
    assert torch.equal(encode(torch.nn.Flatten(), pixels), pixels.reshape(2, -1))


def test_too_few_images_are_refused(model, data):
    with pytest.raises(InputError, match="has 4 train rows"):
        make_reference("the tiny encoder", model.encoder, data, count=4)
