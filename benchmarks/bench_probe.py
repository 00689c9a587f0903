"""The linear probe against the authors' way of doing it, on the same encoder and images; and its memory.

`python -m benchmarks.bench_probe DATA`: 64 px images with binary attributes. The authors encode every image again
in each of 15 epochs; one epoch is timed here and counted 15 times.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

from diti.config import EncoderConfig
from diti.core.images import to_float
from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.unet import build_backbone
from diti.presets import preset
from diti.probes.linear import probe
from diti.probes.scores import average_precision
from diti.probes.task import Splits
from diti.representation.networks.encoder import Encoder, build_encoder

SIZE, EPOCHS, BATCH = 64, 15, 128
LARGE = (200_000, 512, 40)  # images, dims, attributes


def main(data: str) -> None:
    dataset = open_data(data, SIZE)
    splits = Splits(*(dataset.rows(name) for name in ("train", "valid", "test")))
    shape = EncoderConfig(encoder="authors", code_dim=512)
    encoder = build_encoder(shape, build_backbone(preset("celeba64").backbone, 0), 0).eval()
    labels, binary = dataset.labels(), [dataset.is_binary(name) for name in dataset.attributes]
    print(f"{len(binary)} attributes, {len(splits.train):,} training images, the authors' encoder, random weights")

    start = time.perf_counter()
    authors_epoch(encoder, dataset, labels, splits)
    authors = EPOCHS * (time.perf_counter() - start)
    start = time.perf_counter()
    codes = encode(encoder, dataset, dataset.rows())
    encoding = time.perf_counter() - start
    start = time.perf_counter()
    ours = probe(codes, labels, dataset.attributes, binary, splits)
    fitting = time.perf_counter() - start
    mirrored = encode(encoder, dataset, splits.train, mirrored=True)
    theirs = probe(
        codes, labels, dataset.attributes, binary, splits, protocol="paper", mirrored=mirrored, resamples=1
    )
    print(f"authors' protocol: {authors:7.0f} s, mean AP {theirs.mean_ap:.4f} ({EPOCHS} × one epoch)")
    whole = encoding + fitting
    faster = f"{authors / whole:.1f} times faster (goal 8)"
    print(f"ours:              {whole:7.0f} s, mean AP {ours.mean_ap:.4f}; {faster}")
    print(f"ours, features kept: {fitting:5.0f} s; {authors / fitting:.1f} times faster (goal 15)")
    process = multiprocessing.get_context("spawn").Process(target=large)
    process.start()
    process.join()


@torch.no_grad()
def encode(encoder: Encoder, dataset: Dataset, rows: np.ndarray, *, mirrored: bool = False) -> np.ndarray:
    """Codes (N, D) of rows."""
    parts = []
    for start in range(0, len(rows), BATCH):
        images = to_float(dataset.pixels(rows[start : start + BATCH]))
        parts.append(encoder(images.flip(-1) if mirrored else images).numpy())
    return np.concatenate(parts)


def authors_epoch(encoder: Encoder, dataset: Dataset, labels: np.ndarray, splits: Splits) -> None:
    """One of their epochs: every training image encoded, half of them mirrored, a step of Adam per batch.

    Then the validation images, to choose the best epoch.
    """
    layer = torch.nn.Linear(encoder.dims, labels.shape[1])
    adam = torch.optim.Adam(layer.parameters(), 1e-3)
    rng = numpy_generator(0, "bench-probe")
    order = rng.permutation(splits.train)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        with torch.no_grad():
            codes = encoder(to_float(dataset.pixels(rows, rng.random(len(rows)) < 0.5)))
        loss = F.binary_cross_entropy_with_logits(layer(codes), torch.from_numpy(labels[rows]))
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        scores = layer(torch.from_numpy(encode(encoder, dataset, splits.valid))).numpy()
    average_precision(scores, labels[splits.valid])


def large() -> None:
    """Peak memory of a probe on 200,000 × 512 codes, in a process of its own."""
    images, dims, attributes = LARGE
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((images, dims), np.float32)
    labels = (codes @ rng.standard_normal((dims, attributes), np.float32) > 20).astype(np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = np.arange(images)
    splits = Splits(
        rows[: int(0.8 * images)], rows[int(0.8 * images) : int(0.9 * images)], rows[int(0.9 * images) :]
    )
    start = time.perf_counter()
    probe(codes, labels, [f"a{i}" for i in range(attributes)], [True] * attributes, splits)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{images:,} × {dims}, {attributes} attributes: {time.perf_counter() - start:.0f} s, peak memory "
        f"{peak / 2**20:.2f} GB (goal 2), of which codes and the interpreter {before / 2**20:.2f} GB"
    )


if __name__ == "__main__":
    main(*sys.argv[1:2])
