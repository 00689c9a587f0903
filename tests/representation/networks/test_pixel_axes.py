"""Principal axes of images: orthonormal in the full image at any size, and each map the adjoint of the other."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from diti.core.errors import InputError
from diti.representation.networks.pixel_axes import PixelAxes, spread_matrix

SIZES = (16, 64, 96, 128)
every_size = pytest.mark.parametrize("size", SIZES)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(size: int, count: int = 7) -> PixelAxes:
    """Random orthonormal axes and a random mean."""
    axes = PixelAxes(size, count)
    axes.mean.copy_(random(len(axes.mean), seed=1))
    axes.axes.copy_(torch.linalg.qr(random(len(axes.mean), count, seed=2))[0])
    return axes


@every_size
def test_axes_are_orthonormal_in_the_full_image(size):
    axes = filled(size)
    full = axes.picture(torch.eye(7)).flatten(1)  # (P,3HH)
    assert full.shape == (7, 3 * size * size)
    torch.testing.assert_close(full @ full.T, torch.eye(7), atol=1e-5, rtol=0)
    spread = spread_matrix(size, min(size, 64))
    torch.testing.assert_close(spread.T @ spread, torch.eye(min(size, 64)), atol=1e-6, rtol=0)
    assert torch.equal(axes.spread, spread)


@every_size
def test_picture_is_the_adjoint_of_difference(size):
    axes, x, y = filled(size).double(), random(2, 3, size, size).double(), random(2, 7, seed=3).double()
    inside = (axes.picture(y) * x).sum((1, 2, 3))
    torch.testing.assert_close(inside, (y * axes.difference(x)).sum(1))


@every_size
def test_coordinates_are_those_of_the_image_without_its_mean(size):
    axes, x = filled(size), random(2, 3, size, size)
    mean = axes.mean.reshape(3, axes.grid, axes.grid)
    image = torch.stack([axes.spread @ channel @ axes.spread.T for channel in mean])
    assert axes.coordinates(image[None]).abs().max() < 1e-4
    torch.testing.assert_close(axes.coordinates(x), axes.difference(x - image), atol=1e-4, rtol=1e-4)


@every_size
def test_a_smooth_image_survives_the_grid(size):
    image = F.interpolate(random(1, 3, 8, 8), (size, size), mode="bicubic", align_corners=False)
    axes = PixelAxes(size, 1)
    on_grid = axes.on_grid(image).reshape(1, 3, axes.grid, axes.grid)
    again = axes.spread @ on_grid @ axes.spread.T
    assert (again - image).square().mean() < 1e-3 * image.square().mean()
    columns = axes.on_grid(image)[0] / axes.on_grid(image).norm()
    axes.axes.copy_(columns[:, None])  # an axis along the image itself
    torch.testing.assert_close(axes.picture(axes.difference(image)), again, atol=1e-4, rtol=1e-4)


def test_the_spread_is_the_polar_factor_of_interpolation():
    """R (RᵀR)^(-1/2) by hand: R from the formula of align_corners=False, the root from the eigenvalues."""
    size, grid = 96, 64
    r = torch.zeros(size, grid, dtype=torch.float64)
    for row in range(size):
        place = min(max((row + 0.5) * grid / size - 0.5, 0), grid - 1)
        left = int(place)
        r[row, left] += 1 - (place - left)
        r[row, min(left + 1, grid - 1)] += place - left
    values, vectors = torch.linalg.eigh(r.T @ r)
    expected = r @ (vectors * values.rsqrt()) @ vectors.T
    torch.testing.assert_close(spread_matrix(size, grid).double(), expected, atol=1e-6, rtol=0)
    assert torch.equal(spread_matrix(32, 32), torch.eye(32))


def test_files_hold_mean_and_axes_alone():
    assert PixelAxes(96, 5).state_dict().keys() == {"mean", "axes"}
    assert [tuple(b.shape) for b in PixelAxes(96, 5).buffers()] == [(96, 64), (12288,), (12288, 5)]


def test_more_axes_than_pixels_are_refused():
    for count in (0, 3 * 16 * 16 + 1, "many"):
        with pytest.raises(InputError, match="give a whole number from 1 to 768"):
            PixelAxes(16, count)
