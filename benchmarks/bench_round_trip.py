"""Round-trip error (image → noise → image) against network calls.

`python -m benchmarks.bench_round_trip [BACKBONE | MODEL]`: a bare backbone, by default the shipped one, or the
guided field of a model. What an autoencoder loses is told apart: the trip starts at what it makes of the faces.
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
from diti.representation.checks import STEP
from diti.representation.models.diffusion import load_diti

IMAGES, SAMPLING_STEPS = 32, (10, 25, 50, 100)
NAMES = {"ddim": "DDIM", "2m": "DPM-Solver++ 2M"}


@torch.inference_mode()
def main(source: str = "toyfaces32") -> None:
    solved = ":" not in source and (locate(source) / "model.json").is_file()
    model = load_diti(locate(source)) if solved else None
    backbone = model.backbone if model else load_backbone(source)
    faces = toyfaces.sample(IMAGES, seed=1)  # seed 0 is what the backbone was trained on
    images = to_float(toyfaces.render(faces, backbone.size))
    eps = model.guided_eps(model.encode(images)) if model else None
    x0 = backbone.encode(images)
    held = backbone.decode(x0)
    if not torch.allclose(held, images, rtol=0, atol=STEP):
        print(f"mean squared error of the way to x0 and back alone: {(held - images).square().mean().item():.1e}")
    print(f"mean squared round-trip error, {'guided and masked field' if model else 'bare backbone'}")
    print(f"  {'method':<16} {'spacing':<8}" + "".join(f"{f'{c}+{c}':>10}" for c in SAMPLING_STEPS))
    for solver, name in NAMES.items():
        for spacing in SPACINGS:
            again = [
                backbone.decode(round_trip(backbone, x0, sampling_steps, solver, spacing, eps))
                for sampling_steps in SAMPLING_STEPS
            ]
            errors = [(pixels - held).square().mean().item() for pixels in again]
            print(f"  {name:<16} {spacing:<8}" + "".join(f"{e:10.1e}" for e in errors))


if __name__ == "__main__":
    main(*sys.argv[1:2])
