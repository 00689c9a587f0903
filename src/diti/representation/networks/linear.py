"""The linear part of the decoder, found in closed form: what z tells of the image that the frozen model lost.

Notation: B images, D length of z, P pixel axes, S stretches of time-steps, R = 1 + P + D numbers that it takes in.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from diti.core.device import on_host
from diti.core.errors import InputError
from diti.representation.networks.pixel_axes import PixelAxes


class LinearPart(nn.Module):
    """What z and u tell of x0 - u, by one matrix W_s per stretch of time-steps (docs/closed-form.md, step 5).

    Only buffers, zero until they are filled in: nothing here is trained.
    """

    times: Tensor  # (S,) rising centres of the stretches
    weights: Tensor  # (S,R,P) W_s

    def __init__(self, size: int, count: int, dims: int, stretches: int, channels: int = 3) -> None:
        super().__init__()
        for name, value in (("dims", dims), ("stretches", stretches)):
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} is {value!r}; a linear decoder needs a whole number of at least 1")
        self.dims = dims
        self.axes = PixelAxes(size, count, channels)
        self.register_buffer("times", torch.zeros(stretches))
        self.register_buffer("weights", torch.zeros(stretches, 1 + count + dims, count))

    @property
    def description(self) -> dict[str, Any]:
        """What a folder must say besides image size and dims to build this part again."""
        return {"pixel_axes": self.axes.count, "stretches": len(self.times)}

    def forward(self, u: Tensor, t: Tensor, z: Tensor) -> Tensor:
        """(B,C,H,H) u_θ, (B,), (B,D) masked z -> (B,C,H,H): V W_tᵀ (1, p, z) with p = Vᵀ(u - μ)."""
        with torch.autocast(u.device.type, enabled=False):  # half precision would lose the fine directions
            p = self.axes.coordinates(u.to(self.weights.dtype))
            rows = torch.cat([torch.ones_like(p[:, :1]), p, z.to(p.dtype)], dim=1)  # (B,R)
            return self.axes.picture(self._mapped(rows, t))

    def _mapped(self, rows: Tensor, t: Tensor) -> Tensor:
        """(B,R), (B,) -> (B,P): row i times W at t_i."""
        # Always so in sampling: one small product. A GPU does not mind the large one, and looking would stall it.
        if on_host(t) and bool((t == t[0]).all()):
            left, right, share = neighbours(self.times, t[0])
            return rows @ torch.lerp(self.weights[left], self.weights[right], share)
        mixed = hat_weights(self.times, t)[:, :, None] * rows[:, None]  # (B,S,R)
        return mixed.flatten(1) @ self.weights.flatten(0, 1)  # one product, with all matrices stacked


def hat_weights(times: Tensor, t: Tensor) -> Tensor:
    """(S,), (B,) -> (B,S): weights of linear interpolation between centres, so that nothing jumps in t."""
    left, right, share = neighbours(times, t)
    found = times.new_zeros(len(t), len(times))
    found.scatter_add_(1, left[:, None], 1 - share[:, None])
    return found.scatter_add_(1, right[:, None], share[:, None])


def neighbours(times: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The centres on both sides of each t, and the right one's share; the nearest twice where t lies outside."""
    t = t.to(times.dtype)
    above = torch.searchsorted(times, t, right=True)
    left, right = (above - 1).clamp(min=0), above.clamp(max=len(times) - 1)
    share = (t - times[left]) / (times[right] - times[left])
    return left, right, torch.where(left == right, 0.0, share)
