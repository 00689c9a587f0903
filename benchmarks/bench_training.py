"""Training images/s as a share of this machine's matrix-product peak, and what the loop adds to a plain step."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from benchmarks.timing import best_seconds
from diti.config import TrainingConfig, preset
from diti.core.images import to_float
from diti.core.loop import Weights, step
from diti.core.rng import Draws
from diti.data.prepare import prepare
from diti.data.prepared import Stream
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.diffusion.backbone import build_backbone, training_flops
from diti.diffusion.pretrain import Denoising

BATCHES = {"toyfaces32": 64, "celeba32": 64, "celeba64": 16}
GOALS = {"celeba32": 0.40, "celeba64": 0.70}


def matmul_peak(size: int = 2048) -> float:
    """FLOP/s of the best of several square products."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / best_seconds({"matmul": lambda: a @ b}, rounds=20)["matmul"]


def main() -> None:
    print(f"matrix product peak {matmul_peak() / 1e9:,.0f} GFLOP/s, {torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        for name, batch in BATCHES.items():
            bench_preset(name, batch, Path(folder))


def bench_preset(name: str, batch: int, folder: Path) -> None:
    """The loop's own step on images from a dataset folder, against forward and backward on ready tensors."""
    shape = preset(name).backbone
    backbone = build_backbone(shape, 0)
    config = TrainingConfig(train_batch_size=batch)
    data = prepare(find_source("toyfaces:256", ReadOptions(size=shape.size)), folder / str(shape.size), shape.size)
    stream = Stream(data.rows(), 0, flip=True)
    accelerator = Accelerator(cpu=True)
    objective = Denoising(backbone)
    weights = Weights(objective, config)
    model, optimizer = accelerator.prepare(objective, weights.adam)
    pixels, draws = to_float(data.images[:batch]), Draws(0, 0, batch)

    def plain() -> None:
        optimizer.zero_grad()
        model(pixels, draws).total.backward()

    def loop() -> None:
        step(model, optimizer, lambda s, n: to_float(data.pixels(*stream.take(s, n))), 0, config, accelerator)
        weights.update_average(1)

    plain()
    best = best_seconds({"plain": plain, "loop": loop, "peak": _peak()}, rounds=6 if batch < 64 else 12)
    report(name, backbone, batch, best)


def _peak() -> Any:
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    return lambda: a @ b


def report(name: str, backbone: Any, batch: int, best: dict[str, float]) -> None:
    flops = training_flops(backbone)
    share = flops * batch / best["loop"] / (2 * 2048**3 / best["peak"])
    goal = f" (goal {GOALS[name]:.0%})" if name in GOALS else ""
    weights = sum(p.numel() for p in backbone.parameters())
    print(
        f"  {name:<11} {weights / 1e6:5.1f} M weights, {flops / 1e9:6.2f} GFLOP per image and step, "
        f"{batch / best['loop']:6.1f} images/s, {share:.0%} of peak{goal}; "
        f"loop overhead {best['loop'] / best['plain'] - 1:+.1%} (goal < 5 %)"
    )
