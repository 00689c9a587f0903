"""How much of what is lost in features to weigh in: loss removed and AP against α, on validation images.

`python -m benchmarks.bench_features_weight DATA BACKBONE PICTURE.png [DIMS ...]`, and `--times 0 50`,
`--path whole` or `--mirror` for other features: one pass over the images, then a solution without masks for each α
and D, beside as many principal components of the features. The test images are not touched.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.bench_encoder import TRAIN, validation_ap, validation_split
from diti.config import SolutionConfig, SolveConfig
from diti.core.images import save_figure
from diti.data.sources import open_data
from diti.diffusion.backbone import load_backbone
from diti.representation.features import trunk_features
from diti.representation.partition import Partition
from diti.representation.solve.evidence import gather_evidence, unsolved_encoder
from diti.representation.solve.keep import not_known_yet
from diti.representation.solve.order import lost_in_pixels, whiten
from diti.representation.solve.solution import KNOWN_PENALTY, Evidence, fitted, kept_in_order

WEIGHTS = (0.0, 0.3, 0.5, 1.0, 2.0, 3.0)
PCA = "PCA"


def main(words: Sequence[str]) -> None:
    parser = ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("backbone")
    parser.add_argument("picture", type=Path)
    parser.add_argument("dims", type=int, nargs="*", default=[128])
    parser.add_argument("--times", type=int, nargs="+", default=[50])
    parser.add_argument("--path", choices=("down", "whole"), default="down")
    parser.add_argument("--mirror", action="store_true")
    parser.add_argument("--images", type=int)
    parser.add_argument("--whitened", type=int, default=SolutionConfig().whitened)
    parser.add_argument("--probed", type=int, default=TRAIN, help="training images of the probe")
    parser.add_argument("--state", type=Path, help="folder in which a stopped pass is kept, and continued from")
    given = parser.parse_args(words)
    backbone = load_backbone(given.backbone)
    dataset = open_data(given.data, backbone.size)
    config = SolveConfig(
        code_dim=max(given.dims),
        encoder_time=tuple(given.times),
        encoder_path=given.path,
        encoder_mirror=given.mirror,
        images=given.images,
        solution=SolutionConfig(whitened=given.whitened),
    )
    encoder = unsolved_encoder(config, backbone)
    evidence = gather_evidence(config, backbone, dataset, encoder, state=given.state)
    rows, splits = validation_split(dataset, given.probed)
    phi = evidence.look.whitening(torch.from_numpy(trunk_features(encoder, dataset)[rows])).numpy()
    seen = f"features at t = {given.times}, {given.path}{', and mirrored' if given.mirror else ''}"
    print(f"{evidence.train.images:,} images, {seen}; mean AP on validation images")
    curves: dict[int, list[tuple[float, float]]] = {}
    for dims in given.dims:
        for weight in (PCA, *WEIGHTS):
            removed, directions = solution(evidence, dims, weight)
            ap = validation_ap((phi @ directions).astype(np.float32), dataset, rows, splits)
            print(f"D = {dims}, α = {weight}: loss removed {removed:.3f}, AP {ap:.4f}", flush=True)
            curves.setdefault(dims, []).append((removed, ap))
    draw(curves, given.picture, dataset.name)


def solution(evidence: Evidence, dims: int, weight: float | str) -> tuple[float, np.ndarray]:
    """Share of the validation loss removed without a mask, and the code's directions (E, D)."""
    unknown = [not_known_yet(means, KNOWN_PENALTY) for means in evidence.train]
    if isinstance(weight, str):
        first = torch.eye(len(evidence.look.whitening.variance), dtype=torch.float64)[:, :dims]
        directions = whiten(first, evidence.train.means(0).phi_phi)
    else:
        directions = kept_in_order(unknown, lost_in_pixels(unknown), evidence, dims, weight)
    single = Partition.single(evidence.stretches.bounds[-1], dims)
    return fitted(evidence, directions, single, torch.zeros(1, dims)).removed, directions.numpy()


def draw(curves: dict[int, list[tuple[float, float]]], path: Path, name: str) -> None:
    """The trade as a curve per D, with the principal components as a cross."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for dims, (components, *points) in curves.items():
        removed, ap = zip(*points, strict=True)
        (line,) = axes.plot(
            removed, ap, marker="o", label=f"D = {dims}, α = {', '.join(f'{w:g}' for w in WEIGHTS)}"
        )
        axes.plot(
            *components, marker="x", markersize=9, color=line.get_color(), linestyle="", label="PCA of features"
        )
        for weight, point in zip(WEIGHTS, points, strict=True):
            axes.annotate(f"{weight:g}", point, textcoords="offset points", xytext=(4, 4), fontsize=8)
    axes.set(xlabel="share of the loss removed, nothing masked", ylabel="mean AP, validation", title=name)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


if __name__ == "__main__":
    main(sys.argv[1:])
