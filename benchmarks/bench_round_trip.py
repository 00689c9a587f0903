"""Round-trip error (image → noise → image) against network calls, on the shipped backbone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diti.core.images import to_float
from diti.data import toyfaces
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.sampler import SPACINGS, ddim, dpm_solver_2m, timesteps

IMAGES, CALLS = 32, (10, 25, 50, 100)
METHODS: dict[str, Callable[..., Tensor]] = {"DDIM": ddim, "DPM-Solver++ 2M": dpm_solver_2m}


def round_trip_error(backbone: Backbone, images: Tensor, method: Any, calls: int, spacing: str) -> float:
    """Mean squared error in [-1, 1] pixels after inversion and sampling with `calls` network calls each."""
    steps = timesteps(backbone.schedule, calls, spacing)
    noise = method(backbone.eps, images, steps[::-1], backbone.schedule)
    again = method(backbone.eps, noise, steps, backbone.schedule, clamp=False)
    return (again - images).square().mean().item()


def main() -> None:
    backbone = load_backbone("toyfaces32")
    faces = toyfaces.sample(IMAGES, seed=1)  # seed 0 is what the backbone was trained on
    images = to_float(toyfaces.render(faces, backbone.size))
    print("mean squared round-trip error of toy faces; columns: network calls each way")
    print(f"  {'method':<16} {'spacing':<8}" + "".join(f"{f'{c}+{c}':>10}" for c in CALLS))
    with torch.inference_mode():
        for name, method in METHODS.items():
            for spacing in SPACINGS:
                errors = [round_trip_error(backbone, images, method, calls, spacing) for calls in CALLS]
                print(f"  {name:<16} {spacing:<8}" + "".join(f"{e:10.1e}" for e in errors))
