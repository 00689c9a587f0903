"""lerp and slerp of algorithm 2: codes mix along the straight line, noises along the sphere."""

from __future__ import annotations

import torch
from torch import Tensor

_FLAT = 1e-7  # sine of an angle below which the arc is a straight line (0), or is not determined (180 degrees)


def lerp(start: Tensor, end: Tensor, scale: Tensor, moved: Tensor) -> Tensor:
    """start + scale (end - start) where `moved` is True, start elsewhere: lerp(z, z', S; λ) of algorithm 2.

    start, end (N, D); scale (N,), beyond 0..1 it extrapolates; moved bool (D,) or (N, D). Exact at both ends.
    """
    weight = scale.to(start.dtype)[:, None].expand_as(start)
    return torch.where(moved, torch.lerp(start, end, weight), start)


def slerp(start: Tensor, end: Tensor, scale: Tensor) -> Tensor:
    """(sin((1-λ)θ) start + sin(λθ) end) / sin θ: slerp(x_T, x'_T; λ) of algorithm 2, over each flattened row.

    start, end (N, ...); scale (N,). Exact at both ends, and equal lengths stay so on the way: the mix of two
    Gaussian noises is as long as they are. Parallel rows are mixed along the straight line, which is their arc;
    so are opposite ones, between which no arc is the shortest.
    """
    angle = angle_between(start.flatten(1).double(), end.flatten(1).double())  # (N,)
    scale = scale.double()
    sine = torch.sin(angle)
    flat = sine < _FLAT
    sine = torch.where(flat, 1.0, sine)
    of_start = torch.where(flat, 1 - scale, torch.sin((1 - scale) * angle) / sine)
    of_end = torch.where(flat, scale, torch.sin(scale * angle) / sine)
    shape = (-1, *[1] * (start.ndim - 1))
    mixed = of_start.view(shape) * start.double() + of_end.view(shape) * end.double()
    return mixed.to(start.dtype)


def angle_between(a: Tensor, b: Tensor) -> Tensor:
    """(N,) angle in 0..π between the rows of a and b (N, D): 2 atan2(|â - b̂|, |â + b̂|).

    Kahan's form: unlike the arc cosine it keeps its precision where rows are nearly parallel. A row of zeros has
    no direction and counts as perpendicular.
    """
    unit_a, unit_b = (torch.nn.functional.normalize(x, dim=1, eps=1e-300) for x in (a, b))
    return 2 * torch.atan2((unit_a - unit_b).norm(dim=1), (unit_a + unit_b).norm(dim=1))
