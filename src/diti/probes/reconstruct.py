"""How close reconstructions are to their images: MSE, PSNR, SSIM; LPIPS and FID where their networks are present.

Images are float (N, 3, H, W) in [-1, 1], torch or NumPy. All scores are taken on pixels mapped to [0, 1], so the
data range is 1. That is Diff-AE's scale; an MSE on it is a quarter of the MSE in [-1, 1].
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from diti.core.device import HOST
from diti.core.errors import InputError
from diti.core.images import to_uint8
from diti.core.rng import numpy_generator

DATA_RANGE = 1.0  # of the pixels that are compared
WINDOW, SIGMA, K1, K2 = 11, 1.5, 0.01, 0.03  # Wang et al. 2004, section III
LEVEL = 0.95  # of the bootstrap interval
CHUNK = 64  # images that are compared at once
SLACK = 1e-3  # rounding that may push a value out of [-1, 1]
WEIGHTS = {"fid": "inception-2015-12-05.pt", "lpips": "vgg16.pt"}  # TorchScript files of NVIDIA's metrics
WEIGHTS_VARIABLE = "DITI_METRICS"  # names the folder that holds them

Images = Tensor | np.ndarray


@dataclass(frozen=True)
class Score:
    """A score of each image, its mean, and the bootstrap interval of the mean over images."""

    mean: float
    low: float
    high: float
    per_image: np.ndarray  # float64 (N,)

    def record(self) -> dict[str, float | None]:
        """For JSON, which has no infinity: the PSNR of a perfect reconstruction becomes null."""
        numbers = {"mean": self.mean, "low": self.low, "high": self.high}
        return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


@dataclass(frozen=True)
class ReconstructionScores:
    """What `reconstruction_scores` found; where a network is absent, the reason replaces the number."""

    count: int
    mse: Score
    psnr: Score  # dB
    ssim: Score
    lpips: Score | str
    fid: float | str

    def record(self) -> dict[str, Any]:
        """For JSON, without the scores of single images."""
        return {
            "images": self.count,
            "data_range": DATA_RANGE,
            "interval": LEVEL,
            "mse": self.mse.record(),
            "psnr": self.psnr.record(),
            "ssim": self.ssim.record(),
            "lpips": self.lpips if isinstance(self.lpips, str) else self.lpips.record(),
            "fid": self.fid,
        }


def reconstruction_scores(
    images: Images,
    reconstructions: Images,
    *,
    seed: int = 0,
    resamples: int = 1000,
    weights: Path | None = None,
) -> ReconstructionScores:
    """All scores of a set. `weights` is the folder of the networks of LPIPS and FID, by default $DITI_METRICS."""
    if resamples < 1:
        raise InputError(f"resamples is {resamples}; use 1 or more, such as 1000")
    x, y = _pair(images, reconstructions)

    def score(values: np.ndarray) -> Score:
        return Score(float(values.mean()), *bootstrap_interval(values, seed, resamples), values)

    found = find_weights(weights)
    lpips, inception = found["lpips"], found["fid"]
    return ReconstructionScores(
        count=len(x),
        mse=score(mse(x, y)),
        psnr=score(psnr(x, y)),
        ssim=score(ssim(x, y)),
        lpips=lpips if isinstance(lpips, str) else score(lpips_distance(x, y, lpips)),
        fid=inception if isinstance(inception, str) else reconstruction_fid(x, y, inception),
    )


def mse(images: Images, reconstructions: Images) -> np.ndarray:
    """Mean squared error of each image (N,), on pixels in [0, 1]."""
    return _per_image(lambda x, y: (x - y).square().mean(dim=(1, 2, 3)), images, reconstructions)


def psnr(images: Images, reconstructions: Images) -> np.ndarray:
    """Peak signal-to-noise ratio of each image (N,), dB: 10 log10(range² / MSE); infinite for equal images."""
    with np.errstate(divide="ignore"):
        return 10 * np.log10(DATA_RANGE**2 / mse(images, reconstructions))


def ssim(images: Images, reconstructions: Images) -> np.ndarray:
    """Structural similarity of each image (N,): mean of the map over channels and places."""
    return _per_image(lambda x, y: ssim_map(x, y).mean(dim=(1, 2, 3)), images, reconstructions)


def ssim_map(x: Tensor, y: Tensor) -> Tensor:
    """Wang et al. 2004, eq. 13, wherever the whole window fits: (N, C, H, W) → (N, C, H-10, W-10)."""
    if min(x.shape[2:]) < WINDOW:
        raise InputError(
            f"SSIM needs images of {WINDOW} px or more, got {x.shape[2]}×{x.shape[3]}; "
            "use MSE and PSNR, or larger images"
        )
    c1, c2 = (K1 * DATA_RANGE) ** 2, (K2 * DATA_RANGE) ** 2
    mean_x, mean_y, mean_xx, mean_yy, mean_xy = local_means(torch.stack([x, y, x * x, y * y, x * y]))
    variances = mean_xx - mean_x**2 + mean_yy - mean_y**2
    covariance = mean_xy - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return luminance * (2 * covariance + c2) / (variances + c2)


def local_means(maps: Tensor) -> Tensor:
    """Gaussian-weighted means (..., H-10, W-10) of maps (..., H, W), rows and columns one after the other."""
    window = gaussian_window().to(maps)
    flat = maps.reshape(-1, 1, *maps.shape[-2:])
    means = functional.conv2d(functional.conv2d(flat, window.view(1, 1, -1, 1)), window.view(1, 1, 1, -1))
    return means.view(*maps.shape[:-2], *means.shape[-2:])


def gaussian_window() -> Tensor:
    """One side (11,) of the window of Wang et al. 2004: standard deviation 1.5, unit sum."""
    place = torch.arange(WINDOW, dtype=torch.float64) - WINDOW // 2
    weight = torch.exp(-place.square() / (2 * SIGMA**2))
    return weight / weight.sum()


def bootstrap_interval(values: np.ndarray, seed: int, resamples: int) -> tuple[float, float]:
    """Percentile interval of the mean of (N,): the images are redrawn, with replacement, `resamples` times."""
    rng = numpy_generator(seed, "bootstrap-images")
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(resamples)]
    tail = (1 - LEVEL) / 2
    # A value that occurred, not one between two: infinite values cannot be interpolated.
    low, high = np.quantile(means, [tail, 1 - tail], method="inverted_cdf")
    return float(low), float(high)


def find_weights(folder: Path | None = None) -> dict[str, Path | str]:
    """For "fid" and "lpips" the file of the network, else why it is not measured. Nothing is downloaded.

    Looks in `folder`, else in the folder that the environment variable DITI_METRICS names.
    """
    place = folder or os.environ.get(WEIGHTS_VARIABLE)
    absent = f"in {place}" if place else f"in any folder ({WEIGHTS_VARIABLE} is not set)"
    return {
        metric: Path(place) / file
        if place and (Path(place) / file).is_file()
        else f"not measured: {file} not found {absent}"
        for metric, file in WEIGHTS.items()
    }


def load_network(path: Path) -> torch.jit.ScriptModule:
    """A TorchScript network on the CPU. A file is only opened when the user placed it there under its known name.

    TorchScript is a program for torch's own interpreter, not a pickle of arbitrary Python code.
    """
    try:
        with warnings.catch_warnings():
            # The files exist in no other format.
            warnings.filterwarnings("ignore", r"`torch\.jit\.load` is deprecated", DeprecationWarning)
            return torch.jit.load(path, map_location=HOST).eval()
    except RuntimeError as error:
        reason = str(error).splitlines()[0][:100]
        raise InputError(f"{path} cannot be read as TorchScript ({reason}); replace or remove it") from None


def lpips_distance(images: Images, reconstructions: Images, path: Path) -> np.ndarray:
    """LPIPS of each image (N,): squared distance of the features that the network returns.

    This is LPIPS by VGG-16; numbers by AlexNet (Diff-AE's) are on another scale.
    """
    network = load_network(path)
    options = {"resize_images": False, "return_lpips": True}
    distances = [
        (_features(network, 255 * x, options, path) - _features(network, 255 * y, options, path)).square().sum(1)
        for x, y in _chunks(images, reconstructions)
    ]
    return torch.cat(distances).numpy()


def reconstruction_fid(images: Images, reconstructions: Images, path: Path) -> float | str:
    """Fréchet inception distance between the images and their reconstructions, as 8-bit pictures."""
    x, y = _pair(images, reconstructions)
    if len(x) < 2:
        return "not measured: a covariance needs two images or more"
    network = load_network(path)
    sides = []
    for side in (x, y):
        pixels = torch.from_numpy(to_uint8(side)).permute(0, 3, 1, 2)  # (N, 3, H, W)
        found = [_features(network, part, {"return_features": True}, path) for part in pixels.split(CHUNK)]
        features = torch.cat(found).numpy()  # (N, 2048)
        sides.append((features.mean(axis=0), np.atleast_2d(np.cov(features, rowvar=False))))
    return frechet_distance(*sides[0], *sides[1])


def frechet_distance(mean1: np.ndarray, cov1: np.ndarray, mean2: np.ndarray, cov2: np.ndarray) -> float:
    """Squared Fréchet distance of two Gaussians: |m1 - m2|² + tr(C1) + tr(C2) - 2 tr((C1^½ C2 C1^½)^½).

    Heusel et al. 2017, eq. 6, with tr((C1 C2)^½) in a form that takes square roots of symmetric matrices only.
    """
    values, vectors = np.linalg.eigh(cov1)
    root1 = (vectors * np.sqrt(values.clip(min=0))) @ vectors.T  # rounding makes zeros slightly negative
    shared = np.linalg.eigvalsh(root1 @ cov2 @ root1).clip(min=0)
    return float(np.square(mean1 - mean2).sum() + np.trace(cov1) + np.trace(cov2) - 2 * np.sqrt(shared).sum())


@torch.no_grad()
def _features(network: torch.jit.ScriptModule, batch: Tensor, options: dict[str, bool], path: Path) -> Tensor:
    """float64 (N, F): a network's features of a batch of 0..255 pixels."""
    try:
        features = network(batch if batch.dtype == torch.uint8 else batch.float(), **options)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1][:100]
        raise InputError(f"{path} does not take images as its name promises ({reason}); replace it") from None
    if features.ndim != 2 or len(features) != len(batch):
        raise InputError(f"{path} gives {tuple(features.shape)} for {len(batch)} images; it is another network")
    return features.double()


def _per_image(score: Callable[[Tensor, Tensor], Tensor], images: Images, reconstructions: Images) -> np.ndarray:
    """A score of pairs of images, chunk by chunk: float64 (N,)."""
    return torch.cat([score(x, y) for x, y in _chunks(images, reconstructions)]).numpy()


def _chunks(images: Images, reconstructions: Images) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of float64 batches in [0, 1]: in double precision, because SSIM takes differences of squares."""
    x, y = _pair(images, reconstructions)
    for a, b in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        yield (a.double() + 1) / 2, (b.double() + 1) / 2


def _pair(images: Images, reconstructions: Images) -> tuple[Tensor, Tensor]:
    """Both sets as tensors on the CPU, checked."""
    x, y = (  # torch has no read-only tensors: such arrays are copied
        side.detach().cpu() if isinstance(side, Tensor) else torch.from_numpy(np.require(side, requirements="W"))
        for side in (images, reconstructions)
    )
    for name, side in (("images", x), ("reconstructions", y)):
        if side.ndim != 4 or side.shape[1] != 3 or not side.is_floating_point() or side.numel() == 0:
            raise InputError(f"{name} are {side.dtype} {tuple(side.shape)}; give floats (N, 3, H, W) in [-1, 1]")
        largest = side.abs().max().item()
        if not largest <= 1 + SLACK:  # also true of NaN
            raise InputError(f"{name} reach {largest:.4g}; give values in [-1, 1], clamped where a network strays")
    if x.shape != y.shape:
        raise InputError(f"images are {tuple(x.shape)} and reconstructions {tuple(y.shape)}; give equal shapes")
    return x, y
