"""What the solution needs of the images: sums of products per stretch of time-steps, in float64.

Sums of several processes, machines or days add up, and memory does not grow with the images. Every image goes
through every stretch, so the products of the features with themselves are summed once for all.
Notation: S stretches, P pixel axes, R = 1 + P (the columns of a = (1, p)), F features φ, B images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from diti.core.device import HOST, on_host, widest
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


@dataclass(frozen=True, eq=False)
class Shown:
    """Covariances in one stretch of the features of clean images, φ, and of their reconstructions û, φ̂."""

    phi_phi: Tensor  # (F, F)
    hat_hat: Tensor  # (F, F)
    hat_phi: Tensor  # (F, F)


class Sums:
    """Sums over images, each seen once in every stretch. shown: with room for the features of reconstructions."""

    def __init__(
        self, stretches: int, axes: int, features: int, shown: bool = False, device: torch.device | None = None
    ) -> None:
        s, p, f, r = stretches, axes, features, axes + 1
        self.images = 0
        shapes: dict[str, tuple[int, ...]] = {
            "a_a": (s, r, r), "a_phi": (s, r, f), "a_rho": (s, r, p), "phi_rho": (s, f, p),
            "rho_square": (s,), "lost": (s,), "phi_phi": (f, f),
        }  # fmt: skip
        if shown:  # of fewer images than the rest, hence with their own count and their own φ
            shapes |= {
                "shown_images": (), "shown_phi": (f,), "shown_phi_phi": (f, f),
                "hat": (s, f), "hat_hat": (s, f, f), "hat_phi": (s, f, f),
            }  # fmt: skip
        device = device or torch.device(HOST)
        dtype = widest(device)
        self.tensors = {name: torch.zeros(shape, dtype=dtype, device=device) for name, shape in shapes.items()}

    def home(self) -> Sums:
        """These sums in main memory and float64."""
        if not on_host(self.tensors["lost"]):
            self.tensors = {name: tensor.cpu().double() for name, tensor in self.tensors.items()}
        return self

    @property
    def has_shown(self) -> bool:
        """Whether there is room for the features of reconstructions."""
        return "hat" in self.tensors

    def add_images(self, phi: Tensor) -> None:
        """Take in the features (B, F) of new images; `add_stretch` follows for each stretch."""
        phi = phi.to(self.tensors["lost"].dtype)
        self.images += len(phi)
        self.tensors["phi_phi"] += phi.T @ phi

    def add_stretch(self, stretch: int, p: Tensor, phi: Tensor, rho: Tensor, lost: Tensor) -> None:
        """Take in p (B, P), φ (B, F), ρ (B, P) and |x0 - û|² (B,) of the same images at draws from one stretch."""
        p, phi, rho, lost = (one.to(self.tensors["lost"].dtype) for one in (p, phi, rho, lost))
        a = torch.cat([torch.ones_like(p[:, :1]), p], dim=1)
        self.tensors["a_a"][stretch].addmm_(a.T, a)
        self.tensors["a_phi"][stretch].addmm_(a.T, phi)
        self.tensors["a_rho"][stretch].addmm_(a.T, rho)
        self.tensors["phi_rho"][stretch].addmm_(phi.T, rho)
        self.tensors["rho_square"][stretch] += rho.square().sum()
        self.tensors["lost"][stretch] += lost.sum()

    def add_shown_images(self, phi: Tensor) -> None:
        """Take in the features (B, F) of images whose reconstructions are looked at; `add_shown` follows."""
        self.tensors["shown_images"] += len(phi)
        self.tensors["shown_phi"] += phi.sum(0)
        self.tensors["shown_phi_phi"].addmm_(phi.T, phi)

    def add_shown(self, stretch: int, hat: Tensor, phi: Tensor) -> None:
        """Take in the features of reconstructions (B, F), and φ (B, F), at draws from one stretch."""
        self.tensors["hat"][stretch] += hat.sum(0)
        self.tensors["hat_hat"][stretch].addmm_(hat.T, hat)
        self.tensors["hat_phi"][stretch].addmm_(hat.T, phi)

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
        of_stretch = ("a_a", "a_phi", "a_rho", "phi_rho", "rho_square", "lost")
        divided = {name: self.tensors[name][stretch] / self.images for name in of_stretch}
        return Means(phi_phi=self.tensors["phi_phi"] / self.images, **divided)

    def shown(self, stretch: int) -> Shown:
        """Of one stretch, where reconstructions were looked at."""
        count, of = self.tensors["shown_images"], self.tensors
        phi, hat = of["shown_phi"] / count, of["hat"][stretch] / count
        return Shown(
            phi_phi=of["shown_phi_phi"] / count - torch.outer(phi, phi),
            hat_hat=of["hat_hat"][stretch] / count - torch.outer(hat, hat),
            hat_phi=of["hat_phi"][stretch] / count - torch.outer(hat, phi),
        )

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
