"""Figure 5's grid of one pair against the authors' procedure on the same networks, in one run.

`python -m benchmarks.bench_edit [MODEL]`: a toyfaces32 model, and networks of the celeba64 preset. The authors
invert with 1000 calls and decode each variant alone with 100; where that would take long, some calls are timed and
counted as often as they occur.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor

from diti.config import EncoderConfig
from diti.core.images import to_float
from diti.data import toyfaces
from diti.diffusion.files import locate
from diti.diffusion.sampler import ddim, timesteps
from diti.diffusion.unet import build_backbone
from diti.edit.interpolate import interpolate
from diti.presets import preset
from diti.representation.models.diffusion import DiTi, load_diti
from diti.representation.networks.encoder import build_encoder
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.partition import Partition

INVERT, DECODE, VARIANTS = 1000, 100, 18  # the authors' calls; 3 groups × 2 directions × 3 scales
TIMED = 30  # calls of the authors' procedure that are timed with large networks


def main(folder: str | None = None) -> None:
    if folder:
        compare(f"{folder} (32 px)", load_diti(locate(folder)), goal=20, whole=True)
    compare("celeba64 networks, random weights", untrained(), goal=7, whole=False)


def untrained() -> DiTi:
    """The celeba64 preset's networks; their speed does not depend on the weights."""
    backbone = build_backbone(preset("celeba64").backbone, 0).eval()
    encoder = build_encoder(EncoderConfig(encoder="authors", code_dim=512), backbone, 0).eval()
    partition = Partition.staged_even(backbone.timesteps, 64, 512)
    return DiTi(
        encoder, partition, torch.zeros(512), torch.ones(512), "diti", decoder=ShiftDecoder(backbone, 512).eval()
    )


def compare(name: str, model: DiTi, goal: int, whole: bool) -> None:
    pair = to_float(toyfaces.render(toyfaces.sample(2, seed=3), model.size))
    start = time.perf_counter()
    ours = interpolate(model, pair[:1], pair[1:])
    seconds = time.perf_counter() - start
    print(f"{name}: {len(ours.variants)} images")
    if whole:
        start = time.perf_counter()
        again = authors_round_trip(model, pair)
        one_way_and_back = time.perf_counter() - start  # two inversions, two decodings
        start = time.perf_counter()
        for _ in range(VARIANTS - len(pair)):
            authors_decode(model, pair[:1], model.encode(pair[:1]))
        theirs = one_way_and_back + time.perf_counter() - start
        error = (again - pair).square().mean().item()
        print(f"  round-trip error: authors' {error:.1e}, ours {sum(ours.errors) / 2:.1e}")
    else:
        steps = timesteps(model.backbone.schedule, TIMED, "uniform")
        start = time.perf_counter()
        walk(model, pair[:1], model.encode(pair[:1]), steps)
        theirs = (time.perf_counter() - start) / TIMED * (len(pair) * INVERT + VARIANTS * DECODE)
    times = f"{theirs / seconds:.1f} times faster (goal {goal})"
    print(f"  authors' procedure {theirs:.1f} s, ours {seconds:.1f} s: {times}")


def authors_round_trip(model: DiTi, pair: Tensor) -> Tensor:
    """Each image to noise in 1000 calls and back in 100, one after the other."""
    up = timesteps(model.backbone.schedule, INVERT, "uniform")[::-1]
    found = []
    for image in pair.split(1):
        z = model.encode(image)
        found.append(authors_decode(model, walk(model, image, z, up), z))
    return torch.cat(found)


def authors_decode(model: DiTi, x_T: Tensor, z: Tensor) -> Tensor:
    return walk(model, x_T, z, timesteps(model.backbone.schedule, DECODE, "uniform"))


@torch.no_grad()
def walk(model: DiTi, x: Tensor, z: Tensor, steps: list[int]) -> Tensor:
    return ddim(model.guided_eps(z), x, steps, model.backbone.schedule, clamp=False)


if __name__ == "__main__":
    main(*sys.argv[1:2])
