"""Problems whose answer is known, for the tests of the closed-form solution.

Gaussian images x = U y with y ~ N(0, diag(s²)) and the exact denoiser: û = E[x0 | x_t] is U k y_t / √ᾱ with
k = SNR s² / (1 + SNR s²), so that a share 1 - k = 1 / (1 + SNR s²) of each component is lost. Features are the
pixels, whitened and turned by an arbitrary rotation R that the solution has to undo.
Notation: N images, P pixels (12 of a 2 px image), S stretches.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from diti.config import SolutionConfig
from diti.core.rng import Draws, torch_generator
from diti.diffusion.schedule import Schedule, snr
from diti.representation.networks.pixel_axes import PixelAxes
from diti.representation.solve.collect import Pass
from diti.representation.solve.look import Look, Whitening
from diti.representation.solve.solution import Evidence
from diti.representation.solve.stretches import Stretches, make_stretches
from diti.representation.solve.sums import Sums

SIZE, PIXELS = 2, 12
PLAIN = SolutionConfig(features_weight=0.0, axes="ordered")  # eq. 6 to the letter


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch_generator(seed, "test"), dtype=dtype)


def rotation(size: int, seed: int) -> Tensor:
    """(size, size) a random rotation."""
    return torch.linalg.qr(normal(size, size, seed=seed))[0]


@dataclass(eq=False)
class Gaussian:
    """The images, and the frozen model that knows their distribution: an oracle with `x0` and `schedule`."""

    schedule: Schedule = field(default_factory=lambda: Schedule.linear(15, 0.02, 0.5))
    variance: Tensor = field(default_factory=lambda: 0.02 * 1.8 ** torch.arange(PIXELS, dtype=torch.float64))  # s²
    axes: Tensor = field(default_factory=lambda: rotation(PIXELS, 1))  # U, columns are principal axes
    turn: Tensor = field(default_factory=lambda: rotation(PIXELS, 2))  # R

    def known(self, t: Tensor) -> Tensor:
        """(..., P) k: the share of each component that x_t tells."""
        ratio = snr(self.schedule)[t][..., None] * self.variance
        return ratio / (1 + ratio)

    def x0(self, x_t: Tensor, t: Tensor) -> Tensor:
        """E[x0 | x_t], exactly."""
        components = x_t.flatten(1).double() @ self.axes / self.schedule.alpha_bar[t].sqrt()[:, None]
        return (self.known(t) * components @ self.axes.T).reshape(x_t.shape).to(x_t.dtype)

    def within(self, x0: Tensor) -> Tensor:
        """As pixels are."""
        return x0.clamp(-1, 1)

    @property
    def whitening(self) -> Whitening:
        zero, one = torch.zeros(PIXELS, dtype=torch.float64), torch.ones(PIXELS, dtype=torch.float64)
        return Whitening(zero, one, self.axes / self.variance.sqrt() @ self.turn.T, self.variance)

    def look(self, images: int = 0) -> Look:
        """All pixels as pixel axes; φ of the first images of the walk."""
        pixel_axes = PixelAxes(SIZE, PIXELS)
        pixel_axes.axes.copy_(torch.eye(PIXELS))
        walk = GaussianWalk(self, "train")
        phi = self.whitening(walk.clean(0, images)[0].flatten(1)) if images else torch.zeros(0, PIXELS)
        return Look(pixel_axes, self.whitening, phi.float(), walk)


@dataclass(eq=False)
class GaussianWalk:
    """Images at the positions of an endless walk."""

    of: Gaussian
    purpose: str
    device = torch.device("cpu")
    at_once = 2**15

    def clean(self, start: int, count: int) -> tuple[Tensor, np.ndarray]:
        drawn = Draws(0, start, count).normal(f"{self.purpose}-images", (PIXELS,)).double()
        x = drawn * self.of.variance.sqrt() @ self.of.axes.T
        return x.float().reshape(count, 3, SIZE, SIZE), np.arange(start, start + count)

    def features(self, pixels: Tensor, rows: np.ndarray) -> Tensor:
        return pixels.flatten(1)


def every_step(schedule: Schedule) -> Stretches:
    """A stretch of its own for each time-step."""
    return make_stretches(schedule, schedule.timesteps)


def exact_sums(problem: Gaussian) -> Sums:
    """The expected products at every time-step, as if of one image."""
    sums = Sums(problem.schedule.timesteps, PIXELS, PIXELS)
    sums.images = 1
    s, u, r = problem.variance.sqrt(), problem.axes, problem.turn
    sums.tensors["phi_phi"] += torch.eye(PIXELS, dtype=torch.float64)
    for t, k in enumerate(problem.known(torch.arange(problem.schedule.timesteps))):
        lost = (s**2 * (1 - k)).sum()  # E x² - E û²
        at = {name: tensor[t] for name, tensor in sums.tensors.items() if name != "phi_phi"}
        at["a_a"][0, 0] = 1
        at["a_a"][1:, 1:] = u * (k * s**2) @ u.T  # E ûûᵀ; E ûρᵀ stays 0: û is the posterior mean
        at["a_phi"][1:] = u * (k * s) @ r.T
        at["phi_rho"].copy_(r * (s * (1 - k)) @ u.T)
        at["rho_square"] += lost
        at["lost"] += lost
    return sums


def exact_evidence(problem: Gaussian) -> Evidence:
    """Endlessly many images, at every time-step."""
    sums = exact_sums(problem)
    return Evidence(every_step(problem.schedule), problem.look(512), sums, sums)


def sampled_evidence(problem: Gaussian, stretches: Stretches, train: int, valid: int, shown: int = 0) -> Evidence:
    """What the pass of `diti solve` finds in drawn images. shown: of so many reconstructions are looked at."""
    look = problem.look(min(train, 1024))
    job = Pass(problem, stretches, look, 0, lambda u: u.flatten(1), shown)
    found = []
    for walk, count in ((look.walk, train), (GaussianWalk(problem, "valid"), valid)):
        found.append(job.new_sums(shown=shown > 0 and walk is look.walk))
        for _ in job.extend(found[-1], walk, count, lambda count: None):
            pass
    return Evidence(stretches, look, *found)


@dataclass(eq=False)
class Explicit:
    """Drawn numbers of each stretch, for slow loops: p (S,N,P), φ (N,F), ρ (S,N,P), |x0 - û|² (S,N)."""

    p: Tensor
    phi: Tensor
    rho: Tensor
    lost: Tensor

    def sums(self, first: int = 0, stop: int | None = None) -> Sums:
        """Over some of the images."""
        part = slice(first, stop)
        sums = Sums(len(self.p), self.p.shape[2], self.phi.shape[1])
        sums.add_images(self.phi[part])
        for s in range(len(self.p)):
            sums.add_stretch(s, self.p[s, part], self.phi[part], self.rho[s, part], self.lost[s, part])
        return sums

    def a(self, stretch: int) -> np.ndarray:
        """(N, 1+P) columns (1, p)."""
        return np.concatenate([np.ones((len(self.phi), 1)), self.p[stretch].numpy()], 1)


def explicit(images: int = 300, stretches: int = 3, axes: int = 4, features: int = 7, seed: int = 5) -> Explicit:
    """φ, p and ρ that depend on each other, with means that are not 0."""
    phi = normal(images, features, seed=seed) @ normal(features, features, seed=seed + 1) + 0.3
    told = phi[:, :axes] + 0.5
    p = torch.stack([told / (1 + s) + normal(images, axes, seed=seed + 2 + s) for s in range(stretches)])
    mixed = phi @ normal(features, axes, seed=seed + 20)
    noise = normal(stretches, images, axes, seed=seed + 21)
    rho = torch.stack([mixed * (s + 1) / 3 - 0.7 * p[s] + 0.2 for s in range(stretches)]) + noise
    outside = normal(stretches, images, seed=seed + 22).square()  # what the pixel axes do not hold
    return Explicit(p, phi, rho, rho.square().sum(2) + outside)
