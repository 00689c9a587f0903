"""Mode collapse: measured as a slow loop would, and found where it is."""

import pytest
import torch

from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import torch_generator
from diti.data import toyfaces
from diti.representation.methods.coverage import (
    cell_colours,
    coverage,
    expected_coverage,
    mean_distance,
    nearest_distance,
    variety,
)

FACES = to_float(toyfaces.render(toyfaces.sample(600, seed=1), 16))
REAL, OTHER = FACES[:300], FACES[300:]


def points(count, seed):
    return torch.randn(count, 3, generator=torch_generator(seed, "points"))


def test_coverage_equals_a_slow_loop():
    real, generated, k, covered = points(20, 0), points(15, 1), 3, 0
    for i, here in enumerate(real):
        others = sorted((here - other).norm().item() for j, other in enumerate(real) if j != i)
        covered += min((here - there).norm().item() for there in generated) <= others[k - 1]
    assert coverage(real, generated, k) == pytest.approx(covered / 20)
    assert 0.2 < covered / 20 < 1


def test_coverage_of_the_same_distribution_is_as_expected():
    assert coverage(points(1000, 0), points(1000, 1), 5) == pytest.approx(expected_coverage(5), abs=0.02)


def test_mean_distance_is_over_pairs():
    assert mean_distance(torch.tensor([[0.0], [1.0], [3.0]])) == pytest.approx((1 + 3 + 2) / 3)


def test_nearest_distance_is_the_median_over_points():
    assert nearest_distance(torch.tensor([[0.0], [1.0], [3.0]])) == pytest.approx(1)  # of 1, 1 and 2


def test_cells_are_means_of_squares_of_pixels():
    cells = cell_colours(REAL[:2]).unflatten(1, (3, 8, 8))
    assert cells[1, 2, 3, 5] == pytest.approx(REAL[1, 2, 6:8, 10:12].mean().item(), abs=1e-6)


def test_other_real_images_are_not_a_collapse():
    found = variety(REAL, OTHER)
    assert not found.collapsed and found.coverage > 0.8
    assert found.diversity == pytest.approx(1, abs=0.1) and found.novelty == pytest.approx(1, abs=0.1)
    assert found.sentence().startswith("no mode collapse: ")


@pytest.mark.parametrize("modes", [1, 3])
def test_few_images_drawn_again_and_again_are_a_collapse(modes):
    slightly = 0.01 * torch.randn(REAL.shape, generator=torch_generator(0, "noise"))
    found = variety(REAL, OTHER[torch.arange(len(REAL)) % modes] + slightly)
    assert found.collapsed and found.coverage < 0.2
    assert found.sentence().startswith("mode collapse: ") and f"{found.coverage:.0%}" in found.sentence()


def test_different_images_that_are_not_like_the_real_ones_cover_few_but_are_no_collapse():
    found = variety(REAL, OTHER.flip(2).roll(1, dims=1))  # upside down, colours exchanged
    assert found.coverage < 0.2 and not found.collapsed


def test_nearly_equal_images_are_a_collapse_however_real():
    assert variety(REAL, 0.2 * OTHER + 0.8 * REAL.mean(0)).collapsed


def test_one_image_tells_nothing():
    with pytest.raises(InputError, match=r"1 real and 300 generated images"):
        variety(REAL[:1], OTHER)
