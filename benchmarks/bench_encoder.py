"""Which features of the frozen backbone know most: mean AP on validation images by time-step, grid and level.

`python -m benchmarks.bench_encoder DATA BACKBONE`: a linear probe on training images, its penalty chosen on some
of them held out; the test images are not touched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diti.config import EncoderConfig
from diti.core.images import to_float
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.backbone import Backbone, load_backbone
from diti.measure.baselines import pixels_flat
from diti.probes.linear import probe
from diti.probes.task import Splits
from diti.representation.features import trunk_features
from diti.representation.networks.encoder import build_encoder
from diti.representation.networks.trunks import BackboneTrunk
from diti.representation.solve.look import whitened

TIMES = (0, 50, 200)
TRAIN, HELD_OUT, BATCH = 16_000, 2_000, 256
DIMS = (512, 128)  # principal components: the probe with all features would be slow and tells no more
Pooling = Callable[[list[Tensor]], Tensor]


def averaged(grid: int, levels: slice = slice(None)) -> Pooling:
    """Each level averaged over the cells of a grid."""
    return lambda maps: torch.cat([F.adaptive_avg_pool2d(h, grid).flatten(1) for h in maps[levels]], 1)


def with_spread(maps: list[Tensor]) -> Tensor:
    """2×2 averages and the standard deviation of each channel."""
    return torch.cat([averaged(2)(maps), *(h.flatten(2).std(2) for h in maps)], 1)


POOLINGS: dict[str, Pooling] = {
    "4×4": averaged(4),
    "2×2": averaged(2),
    "2×2 and spread": with_spread,
    "4×4, last level": averaged(4, slice(-1, None)),
}


def main(data: str, backbone_folder: str) -> None:
    backbone = load_backbone(backbone_folder).eval()
    dataset = open_data(data, backbone.size)
    rows, splits = validation_split(dataset)
    print(f"mean AP on {len(splits.test):,} validation images, {len(splits.train):,} training images")
    print(f"{'features':<34}{'dims':>6}" + "".join(f"{f'PCA to {dims}':>12}" for dims in DIMS))
    show("pixels", pixels_flat(dataset, rows), dataset, rows, splits)
    for mirror, name in ((False, "whole U-Net"), (True, "whole U-Net, and mirrored")):
        config = EncoderConfig(encoder_path="whole", encoder_mirror=mirror, code_dim=1)
        whole = build_encoder(config, backbone, 0).eval()
        show(f"t = 50, {name}", trunk_features(whole, dataset)[rows], dataset, rows, splits)
    for time in TIMES:
        for name, features in pooled(backbone, time, dataset, rows).items():
            show(f"t = {time}, {name}", features, dataset, rows, splits)


def validation_split(dataset: Dataset, most: int = TRAIN) -> tuple[np.ndarray, Splits]:
    """Rows of a dataset and their parts: at most so many training images, some held out, all validation images."""
    train = numpy_generator(0, "bench-encoder").permutation(dataset.rows("train"))[: most + HELD_OUT]
    fitted = len(train) - HELD_OUT
    rows = np.concatenate([train, dataset.rows("valid")])
    places = np.arange(len(rows))
    return rows, Splits(places[:fitted], places[fitted : len(train)], places[len(train) :])


def validation_ap(features: np.ndarray, dataset: Dataset, rows: np.ndarray, splits: Splits) -> float:
    """Mean AP over the attributes of a probe on features (N, F) of the rows."""
    binary = [dataset.is_binary(name) for name in dataset.attributes]
    found = probe(features, dataset.labels()[rows], dataset.attributes, binary, splits, resamples=1)
    return found.mean_ap or float("nan")


@torch.no_grad()
def pooled(backbone: Backbone, time: int, dataset: Dataset, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Features (N, F) of the rows by way of pooling, the network run once."""
    trunk = build_encoder(EncoderConfig(encoder_time=(time,), code_dim=1), backbone, 0).eval().trunk
    assert isinstance(trunk, BackboneTrunk)
    parts: dict[str, list[np.ndarray]] = {name: [] for name in POOLINGS}
    with progress_bar(f"t = {time}", len(rows)) as advance:
        for start in range(0, len(rows), BATCH):
            maps = trunk.maps(to_float(dataset.pixels(rows[start : start + BATCH])))
            for name, pool in POOLINGS.items():
                parts[name].append(pool(maps).numpy())
            advance(len(maps[0]))
    return {name: np.concatenate(part) for name, part in parts.items()}


def show(name: str, features: np.ndarray, dataset: Dataset, rows: np.ndarray, splits: Splits) -> None:
    """One line: AP with the first principal components of the features."""
    whitening = whitened(torch.from_numpy(features[splits.train]), max(DIMS), max(DIMS))
    components = whitening(torch.from_numpy(features)).float().numpy()
    line = f"{name:<34}{features.shape[1]:>6}"
    for dims in DIMS:
        line += f"{validation_ap(components[:, :dims], dataset, rows, splits):12.3f}"
    print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
