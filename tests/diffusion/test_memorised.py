import numpy as np
import pytest
import torch
from PIL import Image

from diti.core.images import to_float
from diti.data.sources import open_data
from diti.diffusion.memorised import FEW, nearest_images, save_nearest, warning


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_training_image_is_its_own_nearest_and_so_is_its_mirror_image(mirrored):
    dataset = open_data("toyfaces:60", 16)
    rows = dataset.rows("train")[[3, 17]]
    samples = to_float(dataset.pixels(rows)) + 0.02 * torch.randn(
        2, 3, 16, 16, generator=torch.Generator().manual_seed(0)
    )
    found, pixels = nearest_images(dataset, samples.flip(-1) if mirrored else samples, mirrored)
    assert found.tolist() == rows.tolist()
    expected = np.asarray(dataset.images[rows])
    assert np.array_equal(pixels, expected[:, :, ::-1] if mirrored else expected)


def test_the_nearest_is_that_of_a_slow_search_and_never_a_test_image():
    dataset = open_data("toyfaces:60", 16)
    samples = to_float(np.asarray(dataset.images))
    found, _ = nearest_images(dataset, samples, mirrored=False)
    train = dataset.rows("train")
    for sample, row in zip(np.asarray(dataset.images, float), found, strict=True):
        slow = min(train, key=lambda r: ((np.asarray(dataset.images[r], float) - sample) ** 2).sum())
        assert row == slow


def test_the_sheet_has_two_rows_for_eight_samples(tmp_path):
    dataset = open_data("toyfaces:60", 16)
    path = save_nearest(dataset, to_float(np.asarray(dataset.images[:16])), True, tmp_path / "nearest.png")
    with Image.open(path) as sheet:
        assert sheet.height > 4 * 96


def test_few_images_are_told():
    assert "100 training images are few" in warning(100) and warning(FEW) == ""
