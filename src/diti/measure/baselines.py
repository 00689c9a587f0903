"""What a probe finds without a trained encoder: the baselines that every table of probes carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from diti.config import EncoderConfig
from diti.core.device import AUTO, Device, decide
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset
from diti.diffusion.backbone import Backbone, load_backbone
from diti.representation.features import encoder_codes, trunk_features
from diti.representation.models.model import BATCH
from diti.representation.networks import principal
from diti.representation.networks.encoder import Encoder, build_encoder
from diti.representation.solve.look import LOOKED_AT

PIXEL_SIDE = 32  # px: larger images are averaged down first, which keeps the principal axes affordable


def require_among_baselines(wide: bool, baselines: bool) -> None:
    """InputError where all features of the backbone are asked for, but no baselines."""
    if wide and not baselines:
        raise InputError("--wide-baseline is one of those that --no-baselines leaves out; give one of the two")


def baselines(
    backbone: Backbone | str | Path | int,
    dataset: Dataset | str | Path,
    dims: int,
    seed: int,
    wide: bool = False,
    encoder: Encoder | None = None,
    device: Device = AUTO,
) -> Iterator[tuple[str, np.ndarray]]:
    """Names and features (N, F), one after the other so that only one is in memory.

    backbone: the side of the images, px, where there is none; then its own baselines are left out.
    wide: also all of the backbone's features; probes of thousands of dims take minutes.
    encoder: one that sees the image through the backbone; its features are then the baseline, not the usual ones.
    """
    backbone = load_backbone(backbone, device) if isinstance(backbone, str | Path) else backbone
    images = as_dataset(dataset, backbone if isinstance(backbone, int) else backbone.size)
    of_pixels = principal_scores(lambda rows: pixels_flat(images, rows), images, dims)
    yield f"PCA of pixels, {dims} dims", of_pixels
    place = decide(device) if isinstance(backbone, int) else backbone.device
    untrained = build_encoder(EncoderConfig(encoder="residual", code_dim=dims), backbone, seed).to(place)
    yield f"random encoder, {dims} dims", encoder_codes(untrained, images)
    if isinstance(backbone, int):
        return
    try:
        seeing = encoder or build_encoder(EncoderConfig(encoder="backbone", code_dim=1), backbone, seed).to(place)
    except InputError:  # a U-Net whose down path cannot be run on its own has no such baseline
        return
    features = trunk_features(seeing, images)
    if wide or features.shape[1] <= dims:
        yield f"backbone features, {features.shape[1]:,} dims", features
    if features.shape[1] > dims:
        components = principal_scores(lambda rows: features[rows], images, dims)
        yield f"PCA of backbone features, {dims} dims", components


def require_images_for_baselines(dataset: Dataset, dims: int) -> None:
    """InputError where the training images are too few for as many principal components as the code has dims."""
    images = len(dataset.rows("train"))
    if images <= dims:
        raise InputError(
            f"{images:,} training images are too few for the baselines of {dims} dims: give more than {dims}, or "
            "leave them out with --no-baselines"
        )


def pixels_flat(dataset: Dataset, rows: np.ndarray) -> np.ndarray:
    """float32 (B, 3·S·S) of the images of these rows, averaged down to 32 px where they are larger."""
    pixels = to_float(dataset.pixels(rows))
    if pixels.shape[-1] > PIXEL_SIDE:
        pixels = F.adaptive_avg_pool2d(pixels, PIXEL_SIDE)
    return pixels.flatten(1).numpy()


def principal_scores(read: Callable[[np.ndarray], np.ndarray], dataset: Dataset, dims: int) -> np.ndarray:
    """float32 (N, dims) of all images: standardised features on the first principal axes of the training images.

    `read` gives the features (B, F) of rows (B,); they are read twice, BATCH at a time, and held whole only where
    they are few. The axes of very many features come from some of the images, as `diti solve` finds them.
    """
    train = dataset.rows("train")
    if not len(train):
        raise InputError(f"{dataset.path} has no training image to find principal components from")
    features = read(train[:1]).shape[1]
    if features > min(principal.MANY_FEATURES, len(train)):
        some = np.sort(numpy_generator(0, "principal-components").permutation(train)[:LOOKED_AT])
        found = principal.principal_components(torch.from_numpy(read(some)), dims, dims)
        mean, std, axes = found.mean, found.std, found.axes
    else:
        moments = principal.Moments(features)
        for rows in batches(train):
            moments.add(torch.from_numpy(read(rows)))
        mean, std, correlation = moments.standardised()
        axes = principal.principal_axes(correlation, dims)[1]
    scaled, offset = (axes / std[:, None]).float().numpy(), mean.float().numpy()
    return np.concatenate([(read(rows) - offset) @ scaled for rows in batches(dataset.rows())])


def batches(rows: np.ndarray) -> Iterator[np.ndarray]:
    """The rows in order, BATCH at a time."""
    return (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))
