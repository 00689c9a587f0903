"""New images of a backbone by three samplers at the same number of network calls, against validation images.

    python -m benchmarks.bench_samples BACKBONE DATA

Roughness: mean absolute difference of a pixel and its four neighbours, mean over images and its 90 % quantile.
Distance: Fréchet distance to a Gaussian fitted to the training images, on their first 48 principal axes of pixels,
each scaled to variance 1; that of as many validation images says what is usual.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import diti
from diti.core.images import grid, save_picture, to_float, to_uint8
from diti.core.rng import numpy_generator, torch_generator
from diti.diffusion.sampler import ddpm, dpm_solver_2m, timesteps

AXES, FITTED, SHOWN = 48, 4_000, 12


def roughness(images: Tensor) -> Tensor:
    """(N,) of images (N, 3, H, W)."""
    above, below = images[..., :-2, 1:-1], images[..., 2:, 1:-1]
    left, right = images[..., 1:-1, :-2], images[..., 1:-1, 2:]
    return (images[..., 1:-1, 1:-1] - torch.stack((above, below, left, right)).mean(0)).abs().mean((1, 2, 3))


def distance_to(data: Tensor) -> Callable[[Tensor], float]:
    """Fréchet distance to N(0, 1) of images on the whitened principal axes of data (M, 3, H, W)."""
    flat = data.flatten(1)
    mean = flat.mean(0)
    _, scales, axes = torch.pca_lowrank(flat - mean, q=AXES, center=False)

    def distance(images: Tensor) -> float:
        white = (images.flatten(1) - mean) @ axes / (scales / len(flat) ** 0.5)
        spread = torch.linalg.eigvalsh(torch.cov(white.T).double()).clamp(min=0).sqrt()
        return (white.mean(0).square().sum() + (spread - 1).square().sum()).item()

    return distance


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backbone")
    parser.add_argument("data")
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--sampling-steps", type=int, default=25)
    parser.add_argument("--out", type=Path, default=Path("samplers.png"))
    options = parser.parse_args(words)
    backbone = diti.load_backbone(options.backbone).eval()
    dataset, schedule = diti.open_data(options.data, backbone.size), backbone.schedule
    train, valid = (numpy_generator(0, split).permutation(dataset.rows(split)) for split in ("train", "valid"))
    distance = distance_to(to_float(dataset.pixels(np.sort(train[:FITTED]))))
    noise = torch.randn(options.count, 3, *2 * (backbone.size,), generator=torch_generator(0, "samples"))
    steps, fresh = timesteps(schedule, options.sampling_steps), torch_generator(0, "fresh-noise")
    rows: dict[str, Callable[[], Tensor]] = {
        "validation images": lambda: to_float(dataset.pixels(np.sort(valid[: options.count]))),
        "second order, deterministic": lambda: dpm_solver_2m(backbone.eps, noise, steps, schedule),
        "first order, ancestral (DDPM)": lambda: ddpm(backbone.eps, noise, schedule, fresh, steps),
        "second order, fresh noise": lambda: dpm_solver_2m(backbone.eps, noise, steps, schedule, fresh=fresh),
    }
    shown = []
    print(f"{options.count} images, {options.sampling_steps} calls each\n| | roughness | 90 % | sd | distance |")
    for name, make in rows.items():
        images = make()
        rough = roughness(images)
        found = f"{rough.mean():.4f} | {rough.quantile(0.9):.4f} | {images.std():.3f} | {distance(images):.2f}"
        print(f"| {name} | {found} |", flush=True)
        shown.append(images[:SHOWN])
    save_picture(grid(to_uint8(torch.cat(shown)), len(shown[0]), row_labels=list(rows)), options.out)


if __name__ == "__main__":
    main()
