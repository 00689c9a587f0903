"""Round-trip error (image → noise → image) against network calls.

`python -m benchmarks.bench_round_trip [MODEL]`: the shipped backbone, or the guided field of a model.
"""

from __future__ import annotations

import sys

import torch

from diti.core.images import to_float
from diti.data import toyfaces
from diti.diffusion.backbone import load_backbone
from diti.diffusion.files import locate
from diti.diffusion.generate import round_trip
from diti.diffusion.sampler import SPACINGS
from diti.representation.models.diffusion import load_diti

IMAGES, SAMPLING_STEPS = 32, (10, 25, 50, 100)
NAMES = {"ddim": "DDIM", "2m": "DPM-Solver++ 2M"}


def main(model_folder: str | None = None) -> None:
    model = load_diti(locate(model_folder)) if model_folder else None
    backbone = model.backbone if model else load_backbone("toyfaces32")
    faces = toyfaces.sample(IMAGES, seed=1)  # seed 0 is what the backbone was trained on
    images = to_float(toyfaces.render(faces, backbone.size))
    eps = model.guided_eps(model.encode(images)) if model else None
    print(f"mean squared round-trip error, {'guided and masked field' if model else 'bare backbone'}")
    print(f"  {'method':<16} {'spacing':<8}" + "".join(f"{f'{c}+{c}':>10}" for c in SAMPLING_STEPS))
    with torch.inference_mode():
        for solver, name in NAMES.items():
            for spacing in SPACINGS:
                again = [
                    round_trip(backbone, images, sampling_steps, solver, spacing, eps)
                    for sampling_steps in SAMPLING_STEPS
                ]
                errors = [(x - images).square().mean().item() for x in again]
                print(f"  {name:<16} {spacing:<8}" + "".join(f"{e:10.1e}" for e in errors))


if __name__ == "__main__":
    main(*sys.argv[1:2])
