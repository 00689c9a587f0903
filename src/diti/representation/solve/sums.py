"""What the solution needs of the images: sums of products per stretch of time-steps, in float64.

Sums of several processes, machines or days add up, and memory does not grow with the images. Every image goes
through every stretch, so the products of the features with themselves are summed once for all.
Letters: S stretches, P pixel axes, R = 1 + P (the columns of a = (1, p)), F features φ, B images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from diti.core.processes import add_up


@dataclass(frozen=True, eq=False)
class Means:
    """Means over images and draws in one stretch: the normal equations of every regression in it."""

    a_a: Tensor  # (R, R) of a = (1, p), p the frozen model's reconstruction û in pixel coordinates
    a_phi: Tensor  # (R, F)
    a_rho: Tensor  # (R, P) of ρ, what the frozen model lost, in pixel coordinates
    phi_phi: Tensor  # (F, F) of the clean image's features
    phi_rho: Tensor  # (F, P)
    rho_square: Tensor  # () mean of |ρ|²
    lost: Tensor  # () mean of |x0 - û|² over all pixels, also what the pixel axes do not hold


class Sums:
    """Sums over images, each seen once in every stretch."""

    def __init__(self, stretches: int, axes: int, features: int) -> None:
        s, p, f, r = stretches, axes, features, axes + 1
        self.images = 0
        self.tensors: dict[str, Tensor] = {
            name: torch.zeros(shape, dtype=torch.float64)
            for name, shape in {
                "a_a": (s, r, r), "a_phi": (s, r, f), "a_rho": (s, r, p), "phi_rho": (s, f, p),
                "rho_square": (s,), "lost": (s,), "phi_phi": (f, f),
            }.items()
        }  # fmt: skip

    def add_images(self, phi: Tensor) -> None:
        """Take in the features (B, F) of new images; `add_stretch` follows for each stretch."""
        phi = phi.double()
        self.images += len(phi)
        self.tensors["phi_phi"] += phi.T @ phi

    def add_stretch(self, stretch: int, p: Tensor, phi: Tensor, rho: Tensor, lost: Tensor) -> None:
        """Take in p (B, P), φ (B, F), ρ (B, P) and |x0 - û|² (B,) of the same images at draws from one stretch."""
        p, phi, rho = p.double(), phi.double(), rho.double()
        a = torch.cat([torch.ones(len(p), 1, dtype=p.dtype), p], dim=1)
        mine = {name: tensor[stretch] for name, tensor in self.tensors.items() if name != "phi_phi"}
        mine["a_a"].addmm_(a.T, a)
        mine["a_phi"].addmm_(a.T, phi)
        mine["a_rho"].addmm_(a.T, rho)
        mine["phi_rho"].addmm_(phi.T, rho)
        mine["rho_square"] += rho.square().sum()
        mine["lost"] += lost.double().sum()

    def add(self, other: Sums) -> None:
        """Take in the sums of other images."""
        self.images += other.images
        for name, tensor in self.tensors.items():
            tensor += other.tensors[name]

    def over_processes(self) -> Sums:
        """These sums with those of all other processes in them; every process must call it."""
        counted = torch.tensor(self.images)
        add_up([*self.tensors.values(), counted])
        self.images = int(counted)
        return self

    def means(self, stretch: int) -> Means:
        """Of one stretch."""
        divided = {
            name: (tensor if name == "phi_phi" else tensor[stretch]) / self.images
            for name, tensor in self.tensors.items()
        }
        return Means(**divided)

    def __iter__(self) -> Iterator[Means]:
        return (self.means(stretch) for stretch in range(len(self.tensors["lost"])))

    def state(self) -> dict[str, Tensor]:
        """Everything, by name."""
        return {**self.tensors, "images": torch.tensor(self.images)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave."""
        self.images = int(state["images"])
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])
