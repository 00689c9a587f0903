"""Do the parts of a code follow how much of a picture each reading changes?

    python -m benchmarks.bench_order runs/photos/diti-s0 runs/photos/pdae-s0 --data data/faces64

For data without pairs that differ in one attribute alone. Pixels and codes of the training images are regressed on
all labels together: the squares of a label's coefficients say how many pixels it changes, others held, and how far
each subset moves with it. Printed: the rank correlation of the two over labels, with a 95 % bootstrap interval. A
code without subsets, and principal components from small to large, are cut into SUBSETS equal ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import diti
from diti.edit.directions import conditional_pattern
from diti.measure.baselines import pixels_flat, principal_scores
from diti.representation.features import encode_dataset, trunk_features
from diti.representation.partition import Partition
from diti.theory import mean_position, movement_shares, rank_agreement

SUBSETS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="+", help="model folders")
    parser.add_argument("--data", required=True, help="images with attributes")
    options = parser.parse_args()
    models = [(Path(name).name, diti.load(name)) for name in options.models]
    dataset = diti.open_data(options.data, models[0][1].size)
    rows = dataset.rows("train")
    labels, changed = dataset.labels()[rows], pixels_flat(dataset, rows)
    pixels = [
        float(np.square(conditional_pattern(changed, labels, column)).mean())
        for column in range(len(dataset.attributes))
    ]
    print("| code | rank correlation of pixels and place | 95 % from | to |\n| --- | --- | --- | --- |")
    for name, codes, partition in all_codes(models, dataset):
        found = places(codes, labels, partition)
        agreement = rank_agreement({"pixels": pixels, "place": found}, seed=0)[0]
        print(f"| {name} | " + " | ".join(f"{agreement[key]:.2f}" for key in ("rho", "low", "high")) + " |")


def all_codes(
    models: list[tuple[str, diti.Model]], dataset: diti.Dataset
) -> Iterator[tuple[str, np.ndarray, Partition]]:
    """Name, codes (N, D) of the training images and cut of each model and of the principal components."""
    rows, first = dataset.rows("train"), models[0][1]
    steps, dims = first.partition.timesteps, first.dims
    cut = Partition.balanced(steps, SUBSETS, dims)
    for name, model in models:
        alone = model.partition.subsets == 1
        own = Partition.balanced(steps, SUBSETS, model.dims) if alone else model.partition
        yield name, encode_dataset(model, dataset)[rows], own
    features = trunk_features(first.encoder, dataset)
    reads = {
        "PCA of features": lambda rows: features[rows],
        "PCA of pixels": lambda rows: pixels_flat(dataset, rows),
    }
    for name, read in reads.items():
        yield name, principal_scores(read, dataset, dims)[rows, ::-1].copy(), cut


def places(codes: np.ndarray, labels: np.ndarray, partition: Partition) -> list[float]:
    """Mean place of the subsets that move with each label (N, A), others held, in time-steps."""
    spread = codes.std(0)
    still, unit = torch.zeros(1, codes.shape[1]), torch.ones(codes.shape[1])
    found = []
    for column in range(labels.shape[1]):
        moved = torch.from_numpy(conditional_pattern(codes / spread, labels, column))
        found.append(mean_position(movement_shares(still, moved[None], unit, partition), partition))
    return found


if __name__ == "__main__":
    main()
