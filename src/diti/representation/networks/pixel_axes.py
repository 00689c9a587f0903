"""Images as coordinates on their principal axes, which live on a small grid so that large images stay cheap.

What holds for RGB pixels holds for the latents of an autoencoder. Notation: B images, C channels, H side of an
image, h side of the grid, P axes, V = `axes`, Q = `spread`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diti.core.errors import InputError

GRID = 64  # px: finer detail has so little variance that no principal axis would hold it


class PixelAxes(nn.Module):
    """P orthonormal axes of images (B,C,H,H), given on a grid of at most 64 px; `mean` and `axes` start at zero.

    Q has orthonormal columns, so that orthonormal axes on the grid are orthonormal in the full image too.
    """

    spread: Tensor  # (H,h) Q; it follows from the sizes, so no file holds it
    mean: Tensor  # (Chh,) of the images, on the grid
    axes: Tensor  # (Chh,P) V

    def __init__(self, size: int, count: int, channels: int = 3) -> None:
        super().__init__()
        self.size, self.grid, self.count, self.channels = size, min(size, GRID), count, channels
        pixels = most_axes(channels, size)
        if not isinstance(count, int) or not 1 <= count <= pixels:
            raise InputError(f"{count!r} axes of images at {size} px; give a whole number from 1 to {pixels}")
        self.register_buffer("spread", spread_matrix(size, self.grid), persistent=False)
        self.register_buffer("mean", torch.zeros(pixels))
        self.register_buffer("axes", torch.zeros(pixels, count))

    def on_grid(self, x: Tensor) -> Tensor:
        """(B,C,H,H) -> (B,Chh): Qᵀ x Q of each channel."""
        small = x if self.size == self.grid else self.spread.T @ x @ self.spread
        return small.flatten(1)

    def coordinates(self, x: Tensor) -> Tensor:
        """(B,C,H,H) images -> (B,P): p = Vᵀ(x - μ)."""
        return (self.on_grid(x) - self.mean) @ self.axes

    def difference(self, r: Tensor) -> Tensor:
        """(B,C,H,H) differences of two images, from which the mean drops out -> (B,P): ρ = Vᵀ r."""
        return self.on_grid(r) @ self.axes

    def picture(self, y: Tensor) -> Tensor:
        """(B,P) -> (B,C,H,H): V y, the adjoint of `difference`. No mean is added."""
        small = (y @ self.axes.T).reshape(-1, self.channels, self.grid, self.grid)
        return small if self.size == self.grid else self.spread @ small @ self.spread.T


def most_axes(channels: int, size: int) -> int:
    """How many axes there can be: numbers on the grid."""
    return int(channels * min(size, GRID) ** 2)


def spread_matrix(size: int, grid: int) -> Tensor:
    """(H,h) Q = R (RᵀR)^(-1/2), R being bilinear interpolation from h to H pixels: the nearest orthonormal one."""
    if size == grid:
        return torch.eye(size)
    rows = F.interpolate(torch.eye(grid, dtype=torch.float64)[None], size, mode="linear", align_corners=False)[0]
    u, _, v = torch.linalg.svd(rows.T, full_matrices=False)  # the polar factor of R is u v
    return (u @ v).float()
