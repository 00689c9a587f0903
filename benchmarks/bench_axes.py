"""`python -m benchmarks.bench_axes DATA FOLDER ...`: do single axes serve single factors? DATA has known factors.

DCI disentanglement of z's own dims, of the leading eigenvectors of the metric, and of rotations of them: by
forests that are fitted on half of the validation images, as in bench_solve, and by such as see training images.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor

from benchmarks.bench_solve import single_dims
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.probes.disentangle import dci_disentanglement, dci_importance
from diti.representation.features import encode_dataset, kept_features, metric_of
from diti.representation.found_axes import axes_over
from diti.representation.models.axes import varimax, white_basis
from diti.representation.models.loading import load
from diti.representation.models.model import Model
from diti.representation.solve.order import independent_rotation

LEADING = 32
ROWS = 2_000  # training images for the second score


def codes_of(model: Model, dataset: Dataset) -> dict[str, Tensor]:
    """Name of a row → codes (N, K)."""
    z, (mean, std) = torch.from_numpy(encode_dataset(model, dataset)), model.statistics()
    u, train = ((z - mean) / std).double(), dataset.rows("train")
    white = u @ white_basis(metric_of(model, dataset), u[train].T @ u[train] / len(train))[1]
    images = torch.from_numpy(np.asarray(dataset.images[train])).permute(0, 3, 1, 2).double().flatten(1) / 255
    changes = white[train].T @ (images - images.mean(0)) / len(train)
    pixels = changes.unflatten(1, (3, dataset.size, dataset.size))
    first, found = white[:, :LEADING], axes_over(model, dataset).places(z, mean)
    rows = {
        "z as it comes": z,
        f"{LEADING} eigenvectors of M": first,
        "ICA of those": first @ independent_rotation(first[train], 0),
        "varimax of those, pixel by pixel": first @ varimax(pixels[:LEADING]),
        "all eigenvectors": white,
        "ICA of all": white @ independent_rotation(white[train], 0),
        "varimax of all, pixel by pixel": white @ varimax(pixels),
        f"the axes ({found.shape[1]})": found,
        "the first 48 axes": found[:, :48],
    }
    if (seen := kept_features(model.encoder, dataset)) is not None:
        rows["varimax of all in features"] = white @ varimax(
            _loadings(white[train], torch.from_numpy(seen[train]))
        )
    return rows


def _loadings(white: Tensor, features: Tensor) -> Tensor:
    """(K, 1, 1, F) how standardised features (N, F) change by one deviation of each direction of white (N, K)."""
    centred = features.double() - features.double().mean(0)
    return (white.T @ (centred / centred.std(0).clamp(min=1e-6)) / len(white))[:, None, None]


def with_more_rows(codes: np.ndarray, dataset: Dataset, seed: int) -> float:
    """DCI disentanglement by forests that are fitted on training images: fewer splits by chance."""
    train, valid = dataset.rows("train")[:ROWS], dataset.rows("valid")
    rows, discrete = np.concatenate([train, valid]), [dataset.is_binary(name) for name in dataset.attributes]
    fitted = np.arange(len(rows)) < len(train)
    importance, _ = dci_importance(codes[rows], dataset.labels()[rows], np.array(discrete), fitted, seed)
    return dci_disentanglement(importance)


def main(data: str, folders: list[str]) -> None:
    for seed, folder in enumerate(folders):
        model = load(folder)
        dataset = open_data(data, model.size)
        for name, codes in codes_of(model, dataset).items():
            scores = [score(codes.numpy(), dataset, seed) for score in (single_dims, with_more_rows)]
            print(f"{seed} {name}: {scores[0]:.3f}, with more rows {scores[1]:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
