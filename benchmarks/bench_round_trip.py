"""Round-trip error (image → noise → image) against network calls, on the shipped backbone."""

from __future__ import annotations

import torch

from diti.core.images import to_float
from diti.data import toyfaces
from diti.diffusion.backbone import load_backbone
from diti.diffusion.generate import round_trip
from diti.diffusion.sampler import SPACINGS

IMAGES, CALLS = 32, (10, 25, 50, 100)
NAMES = {"ddim": "DDIM", "2m": "DPM-Solver++ 2M"}


def main() -> None:
    backbone = load_backbone("toyfaces32")
    faces = toyfaces.sample(IMAGES, seed=1)  # seed 0 is what the backbone was trained on
    images = to_float(toyfaces.render(faces, backbone.size))
    print("mean squared round-trip error of toy faces; columns: network calls each way")
    print(f"  {'method':<16} {'spacing':<8}" + "".join(f"{f'{c}+{c}':>10}" for c in CALLS))
    with torch.inference_mode():
        for solver, name in NAMES.items():
            for spacing in SPACINGS:
                again = [round_trip(backbone, images, calls, solver, spacing) for calls in CALLS]
                errors = [(x - images).square().mean().item() for x in again]
                print(f"  {name:<16} {spacing:<8}" + "".join(f"{e:10.1e}" for e in errors))
