"""What the metric of the code does for few labels and for neighbours.

`python -m benchmarks metric` on the shipped model of toy faces. For the tables of docs/results.md:

    python -m benchmarks.bench_metric runs/celeba/diti-s0 runs/celeba/simclr-s0 --data data/celeba32 --split test
    python -m benchmarks.bench_metric runs/celeba/diti-s0 --data data/celeba32 --powers

Few labels: mean AP of the binary attributes (r where there are none) over five draws, the same for every row, with
half of its 95 % interval over draws. Neighbours: share of the ten nearest images that agree with an image in a
binary attribute, mean over attributes and 1,000 images; chance is two images drawn at random.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy import stats
from torch import nn

import diti
from diti.config import EncoderConfig
from diti.core.images import to_float
from diti.core.rng import numpy_generator, torch_generator
from diti.measure.baselines import pixels_flat, principal_scores
from diti.measure.probing import Labels, read_labels
from diti.probes.few_shot import POWERS, draw_labels, few_shot
from diti.probes.fit import Standard
from diti.probes.scores import average_precision
from diti.probes.task import Splits
from diti.representation.features import encode_dataset, metric_of, trunk_features
from diti.representation.models.metric import metric_root
from diti.representation.networks.encoder import build_encoder

COUNTS, REPEATS, NEIGHBOURS, ASKED, AT_ONCE = (4, 10, 32, 100, 1000), 5, 10, 1_000, 100
EPOCHS, BATCH = 60, 64  # of the end-to-end network


@dataclass(frozen=True)
class Row:
    """Codes to be scored in their metric, or as they are."""

    name: str
    codes: np.ndarray  # (N, D)
    metric: np.ndarray | None = None  # (D, D) of standardised codes
    powers: tuple[float, ...] = POWERS  # of the metric, for few labels; distances are measured in the first
    few: bool = True  # also with few labels; else only neighbours

    def for_distances(self, train: np.ndarray) -> np.ndarray:
        """Codes (N, D) whose distances a search measures: standardised, in the metric where there is one."""
        codes = Standard.of(self.codes, train).apply(self.codes, np.arange(len(self.codes)))
        if self.metric is not None:
            codes = codes @ metric_root(torch.from_numpy(self.metric), self.powers[0])
        return codes.numpy()


def rows_of(models: list[str], dataset: diti.Dataset, wide: bool) -> Iterator[Row]:
    """Codes of each model without and with their metric, then what its features hold without a model."""
    first = diti.load(models[0])
    for name in models:
        model = diti.load(name)
        codes = encode_dataset(model, dataset)
        yield Row(f"{name}, z", codes)
        yield Row(f"{name}, in its metric", codes, metric_of(model, dataset).numpy())
    features = trunk_features(first.encoder, dataset)
    pixels = pixels_flat(dataset, dataset.rows())
    for what, seen in (("features", features), ("pixels", pixels)):
        scores = principal_scores(seen.__getitem__, dataset, first.dims)
        yield Row(f"PCA of {what}, whitened", scores)
        yield Row(f"PCA of {what}, with its variances", scores, np.diag(scores[dataset.rows("train")].var(0)))
    yield Row("pixels", pixels, few=False)
    yield Row(f"all {features.shape[1]:,} features", features, few=wide)


def rows_by_power(name: str, dataset: diti.Dataset) -> Iterator[Row]:
    """Codes of a model in each power of its metric alone, and in roots of the blocks of its subsets."""
    model = diti.load(name)
    codes, metric = encode_dataset(model, dataset), metric_of(model, dataset)
    for power in (0.0, 0.25, 0.375, 0.5, 0.75, 1.0):
        yield Row(f"power {power}", codes, metric.numpy(), (power,))
    blocks = [metric[a:b, a:b] for a, b in pairwise((0, *model.partition.ends)) if b > a]
    yield Row("power 0.5, inside subsets only", codes, torch.block_diag(*blocks).numpy(), (0.5,))


def few_labels(row: Row, labels: Labels, splits: Splits, options: argparse.Namespace) -> np.ndarray:
    """(C, 2) mean over the attributes and its spread over the draws."""
    found = few_shot(
        row.codes, labels.values, labels.names, labels.binary, splits, options.counts, seed=options.seed,
        repeats=REPEATS, progress=True, metric=row.metric, powers=row.powers,
    )  # fmt: skip
    return found.mean_ap if labels.binary.any() else found.mean_r


def agreement(codes: np.ndarray, labels: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """(A,) share of the nearest images that have the label of the one asked about."""
    found, lengths = [], np.einsum("nd,nd->n", codes, codes)
    for rows in np.array_split(asked, -(-len(asked) // AT_ONCE)):
        distances = lengths - 2 * codes[rows] @ codes.T
        distances[np.arange(len(rows)), rows] = np.inf
        near = np.argpartition(distances, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        found.append((labels[near] == labels[rows][:, None]).mean(1))
    return np.concatenate(found).mean(0)


def end_to_end(dataset: diti.Dataset, labels: Labels, splits: Splits, count: int, seed: int, repeat: int) -> float:
    """Mean AP of a network trained on the labelled images of one draw, mirrored at random."""
    columns = np.flatnonzero(labels.binary)
    y = labels.values[splits.train][:, columns]
    rng = numpy_generator(seed, f"few-shot {count}", repeat)
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
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--wide", action="store_true", help="few labels also with all features: minutes")
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
    near = {"chance": share**2 + (1 - share) ** 2}
    print(f"{options.data}, {options.split} images; chance of agreement {near['chance'].mean():.3f}")
    print(f"{'':<36}{''.join(f'{count:>16,}' for count in options.counts)}{'neighbours':>14}")
    by_power = rows_by_power(options.models[0], dataset)
    for row in by_power if options.powers else rows_of(options.models, dataset, options.wide):
        found = few_labels(row, labels, splits, options) if row.few else np.zeros((0, 2))
        near[row.name] = agreement(row.for_distances(labels.splits.train), binary, asked)
        print(f"{row.name:<36}{told(found):<{16 * len(options.counts)}}{near[row.name].mean():>14.3f}", flush=True)
    if draws := range(options.end_to_end):
        scores = [[end_to_end(dataset, labels, splits, c, options.seed, r) for r in draws] for c in options.counts]
        found = np.array([(np.mean(of), np.std(of, ddof=1)) for of in scores])
        print(f"{'an end-to-end network':<36}{told(found, len(draws))}")
    print("\nshare of the ten nearest images that agree: " + ", ".join(near))
    names = np.array(labels.names)[labels.binary]
    for name, *values in zip(names, *near.values(), strict=True):
        print(f"{name:<24}" + "".join(f"{value:8.3f}" for value in values))


def told(found: np.ndarray, draws: int = REPEATS) -> str:
    """(C, 2) means and their spread over the draws, in columns: means and half of their 95 % intervals, by t."""
    half = stats.t.ppf(0.975, draws - 1) / draws**0.5
    return "".join(f"   {mean:.3f} ± {half * spread:.3f}" for mean, spread in found)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
