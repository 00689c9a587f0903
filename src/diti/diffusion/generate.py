"""What a bare backbone can do: draw new images from noise, find the noise of an image, and invert that."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from diti.config import SAMPLING_STEPS as SAMPLING_STEPS
from diti.core.device import fitted
from diti.core.errors import InputError
from diti.core.images import grid, save_picture, to_uint8
from diti.core.progress import progress_bar
from diti.core.rng import torch_generator
from diti.diffusion.backbone import Backbone
from diti.diffusion.sampler import EpsFn, OnStep, ddim, dpm_solver_2m, timesteps

MOST_IMAGES = 10_000  # of one picture
PIXELS_AT_ONCE = 2**20  # in one call: 64 images of 128 px, one of 1,024 px
SOLVERS = {"2m": dpm_solver_2m, "ddim": ddim}


def require_count(count: int) -> None:
    """InputError for a number of images that cannot be drawn as one picture."""
    if not 1 <= count <= MOST_IMAGES:
        raise InputError(f"--count (-n) is {count}; draw from 1 to {MOST_IMAGES:,} images")


def samples(
    backbone: Backbone, count: int, seed: int, sampling_steps: int = SAMPLING_STEPS, on_step: OnStep | None = None
) -> Tensor:
    """(count, *shape) x0 of new images, by the second-order solver with fresh noise in every step.

    Without it the samples of a young network are full of what it failed to remove (docs/notebook.md, "Samples of
    a young backbone").
    """
    noise = torch.randn((count, *backbone.shape), generator=torch_generator(seed, "samples"))
    noise = noise.to(backbone.device)
    steps = timesteps(backbone.schedule, sampling_steps)
    fresh = torch_generator(seed, "fresh-noise")
    together = max(1, PIXELS_AT_ONCE // backbone.size**2)

    def eps(x: Tensor, t: Tensor) -> Tensor:
        parts = zip(x.split(together), t.split(together), strict=True)
        return torch.cat([fitted(backbone.eps, *part) for part in parts])

    clamp = backbone.bounded
    return dpm_solver_2m(eps, noise, steps, backbone.schedule, clamp=clamp, fresh=fresh, on_step=on_step)


def round_trip(
    backbone: Backbone,
    images: Tensor,
    sampling_steps: int = SAMPLING_STEPS,
    solver: str = "2m",
    spacing: str = "mixed",
    eps: EpsFn | None = None,
) -> Tensor:
    """x0 of images after inversion to noise and sampling back, `sampling_steps` each way.

    `eps` is another field over the same noise schedule, such as the guided one of a model.
    """
    field, schedule = eps or backbone.eps, backbone.schedule
    steps = timesteps(schedule, sampling_steps, spacing)
    noise = SOLVERS[solver](field, images, steps[::-1], schedule)
    return SOLVERS[solver](field, noise, steps, schedule, clamp=False)


def save_samples(backbone: Backbone, count: int, seed: int, sampling_steps: int, path: Path) -> Path:
    """Draw images with a progress bar and write them as one picture."""
    require_count(count)
    timesteps(backbone.schedule, sampling_steps)  # refuses a number that is out of range before the bar starts
    with progress_bar("sampling", sampling_steps, unit="steps") as advance, torch.no_grad():
        x0 = samples(backbone.eval(), count, seed, sampling_steps, on_step=lambda index, total, x: advance())
        images = fitted(backbone.decode, x0)
    return save_picture(grid(to_uint8(images), min(8, count)), path)
