"""What the metric of the code does for few labels and for neighbours.

`python -m benchmarks metric` on the shipped model of toy faces. For the tables of docs/results.md:

    python -m benchmarks.bench_metric runs/celeba/diti-s0 runs/celeba/simclr-s0 --data data/celeba32 --split test
    python -m benchmarks.bench_metric runs/celeba/diti-s0 --data data/celeba32 --powers

Few labels: mean AP of the binary attributes (r where there are none) over five draws, the same for every row, with
the standard deviation over the draws. Neighbours: share of the ten nearest images that agree with an image in a
binary attribute, mean over attributes and 1,000 images; chance is two images drawn at random.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

import diti
from diti.config import EncoderConfig
from diti.core.images import to_float
from diti.core.rng import numpy_generator, torch_generator
from diti.measure.baselines import pixels_flat, principal_scores
from diti.measure.probing import Labels, read_labels
from diti.probes.few_shot import POWERS, draw_labels, few_shot
from diti.probes.scores import average_precision
from diti.probes.task import Splits
from diti.representation.features import encode_dataset, metric_of, trunk_features
from diti.representation.networks.encoder import build_encoder

COUNTS, REPEATS, NEIGHBOURS, ASKED = (4, 10, 32, 100, 1000), 5, 10, 1_000
EPOCHS, BATCH = 60, 64  # of the end-to-end network
Row = tuple[str, np.ndarray, np.ndarray | None, tuple[float, ...]]  # name, codes (N, D), metric (D, D), its powers


def rows_of(models: list[str], dataset: diti.Dataset, wide: bool) -> Iterator[Row]:
    """Codes of each model without and with their metric, then what its features hold without a model."""
    first = diti.load(models[0])
    for name in models:
        model = diti.load(name)
        codes = encode_dataset(model, dataset)
        yield f"{name}, z", codes, None, POWERS
        yield f"{name}, in its metric", codes, metric_of(model, dataset).numpy(), POWERS
    features = trunk_features(first.encoder, dataset)
    train = dataset.rows("train")
    for what, read in (
        ("features", lambda rows: features[rows]),
        ("pixels", lambda rows: pixels_flat(dataset, rows)),
    ):
        scores = principal_scores(read, dataset, first.dims)
        yield f"PCA of {what}, whitened", scores, None, POWERS
        yield f"PCA of {what}, with its variances", scores, np.diag(scores[train].var(0)), POWERS
    if wide:
        yield f"all {features.shape[1]:,} features", features, None, POWERS


def rows_by_power(name: str, dataset: diti.Dataset) -> Iterator[Row]:
    """Codes of a model in each power of its metric alone, and in roots of the blocks of its subsets."""
    model = diti.load(name)
    codes, metric = encode_dataset(model, dataset), metric_of(model, dataset)
    for power in (0.0, 0.25, 0.375, 0.5, 0.75, 1.0):
        yield f"power {power}", codes, metric.numpy(), (power,)
    starts = (0, *model.partition.ends[:-1])
    blocks = [metric[a:b, a:b] for a, b in zip(starts, model.partition.ends, strict=True)]
    yield "power 0.5, inside subsets only", codes, torch.block_diag(*blocks).numpy(), (0.5,)


def few_labels(row: Row, labels: Labels, splits: Splits, counts: tuple[int, ...]) -> np.ndarray:
    """(C, 2) mean over the attributes and its spread over the draws."""
    _, codes, metric, powers = row
    found = few_shot(
        codes, labels.values, labels.names, labels.binary, splits, counts,
        repeats=REPEATS, progress=True, metric=metric, powers=powers,
    )  # fmt: skip
    return found.mean_ap if labels.binary.any() else found.mean_r


def agreement(codes: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> float:
    """Share of the nearest images that have the label of the one asked about, over attributes and images."""
    found = []
    lengths = np.einsum("nd,nd->n", codes, codes)
    for row in asked:
        distances = lengths - 2 * codes @ codes[row]
        distances[row] = np.inf
        near = np.argpartition(distances, NEIGHBOURS)[:NEIGHBOURS]
        found.append((labels[near] == labels[row]).mean(0))
    return float(np.mean(found))


def searched(row: Row, train: np.ndarray) -> np.ndarray:
    """Codes (N, D) whose distances the search measures: standardised, in the metric where there is one."""
    _, codes, metric, powers = row
    standard = ((codes - codes[train].mean(0)) / codes[train].std(0).clip(1e-6)).astype(np.float32)
    if metric is None:
        return standard
    values, axes = np.linalg.eigh(metric)
    return standard @ (axes * values.clip(0) ** powers[0] @ axes.T).astype(np.float32)


def end_to_end(dataset: diti.Dataset, labels: Labels, splits: Splits, count: int, repeat: int) -> float:
    """Mean AP of a network trained on the labelled images of one draw, mirrored at random."""
    columns = np.flatnonzero(labels.binary)
    y = labels.values[splits.train][:, columns]
    rng = numpy_generator(0, f"few-shot {count}", repeat)
    rows, few = draw_labels(y, np.arange(len(y)), count, True, rng)
    x = to_float(dataset.pixels(splits.train[rows]))
    targets = torch.from_numpy(few).float()
    network = build_encoder(EncoderConfig(encoder="residual", code_dim=len(columns)), dataset.size, 0).train()
    steps = max(200, EPOCHS * len(rows) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    drawn = torch_generator(0, "end-to-end", repeat)
    for _ in range(steps):
        part = torch.randint(len(rows), (min(BATCH, len(rows)),), generator=drawn)
        flip = torch.rand(len(part), generator=drawn) < 0.5
        batch = torch.where(flip[:, None, None, None], x[part].flip(-1), x[part])
        known = torch.isfinite(targets[part])
        loss = nn.functional.binary_cross_entropy_with_logits(network(batch)[known], targets[part][known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()
    with torch.no_grad():
        parts = [network(to_float(dataset.pixels(part))) for part in np.array_split(splits.test, 20)]
    truth = labels.values[splits.test][:, columns]
    return float(np.nan_to_num(average_precision(torch.cat(parts).numpy(), truth)).mean())


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["toyfaces32-diti"])
    parser.add_argument("--data", default="toyfaces:6000")
    parser.add_argument("--split", choices=("valid", "test"), default="valid", help="images that are scored")
    parser.add_argument("--counts", type=lambda text: tuple(map(int, text.split(","))), default=COUNTS)
    parser.add_argument("--wide", action="store_true", help="also all features: minutes")
    parser.add_argument("--powers", action="store_true", help="the first model in each power of its metric")
    parser.add_argument("--end-to-end", type=int, default=0, metavar="DRAWS", help="also a network per draw")
    options = parser.parse_args(words or [])
    dataset = diti.open_data(options.data, diti.load(options.models[0]).size)
    labels = read_labels(dataset)
    scored = getattr(labels.splits, options.split)
    splits = Splits(labels.splits.train, labels.splits.train[:0], scored)
    asked = numpy_generator(0, "asked").permutation(scored)[:ASKED]
    binary = labels.values[:, labels.binary]
    share = binary[labels.splits.train].mean(0)
    chance = (share**2 + (1 - share) ** 2).mean()
    print(f"{options.data}, {options.split} images; chance of agreement {chance:.3f}")
    print(f"{'':<36}{''.join(f'{count:>15,}' for count in options.counts)}{'neighbours':>14}")
    by_power = rows_by_power(options.models[0], dataset)
    for row in by_power if options.powers else rows_of(options.models, dataset, options.wide):
        found = few_labels(row, labels, splits, options.counts)
        told = "".join(f"   {mean:.3f} ± {spread:.3f}" for mean, spread in found)
        near = agreement(searched(row, labels.splits.train), binary, asked)
        print(f"{row[0]:<36}{told}{near:>14.3f}", flush=True)
    if draws := range(options.end_to_end):
        found = np.array([[end_to_end(dataset, labels, splits, c, r) for r in draws] for c in options.counts])
        told = "".join(f"   {of.mean():.3f} ± {of.std(ddof=int(len(of) > 1)):.3f}" for of in found)
        print(f"{'an end-to-end network':<36}{told}")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
