"""`python -m benchmarks.bench_axes FOLDER ...`: do single axes serve single factors? Models of toy faces.

DCI disentanglement of z's own dims, of the leading eigenvectors of the metric, and of rotations of them.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from benchmarks.bench_solve import single_dims
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.representation.features import encode_dataset, metric_of
from diti.representation.found_axes import axes_over
from diti.representation.models.axes import varimax, white_basis
from diti.representation.models.loading import load
from diti.representation.models.model import Model
from diti.representation.solve.order import independent_rotation

DATA, LEADING = "toyfaces:12000", 32


def codes_of(model: Model, dataset: Dataset) -> dict[str, Tensor]:
    """Name of a row → codes (N, K)."""
    z, (mean, std) = torch.from_numpy(encode_dataset(model, dataset)), model.statistics()
    u, train = ((z - mean) / std).double(), dataset.rows("train")
    white = u @ white_basis(metric_of(model, dataset), u[train].T @ u[train] / len(train))[1]
    images = torch.from_numpy(np.asarray(dataset.images[train])).permute(0, 3, 1, 2).double().flatten(1) / 255
    changes = white[train].T @ (images - images.mean(0)) / len(train)
    pixels = changes.unflatten(1, (3, dataset.size, dataset.size))
    first, found = white[:, :LEADING], axes_over(model, dataset).places(z, mean)
    return {
        "z as it comes": z,
        f"{LEADING} eigenvectors of M": first,
        "ICA of those": first @ independent_rotation(first[train], 0),
        "varimax of those, pixel by pixel": first @ varimax(pixels[:LEADING]),
        "all eigenvectors": white,
        "varimax of all, pixel by pixel": white @ varimax(pixels),
        f"the axes ({found.shape[1]})": found,
        "the first 48 axes": found[:, :48],
    }


def main(folders: list[str]) -> None:
    dataset = open_data(DATA, 32)
    for seed, folder in enumerate(folders):
        for name, codes in codes_of(load(folder), dataset).items():
            print(f"{seed} {name}: {single_dims(codes.numpy(), dataset, seed):.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
