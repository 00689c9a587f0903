"""Training: images/s, share of this machine's matrix-product peak, what the loop adds to a plain step, memory."""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator

from benchmarks.timing import best_seconds
from diti.config import TrainingConfig
from diti.core.ahead import Ahead
from diti.core.images import to_float
from diti.core.loop import one_thread_for_small, step
from diti.core.objective import Objective
from diti.core.rng import Draws
from diti.core.weights import Weights
from diti.data.prepare import prepare
from diti.data.prepared import Dataset, training_batches
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.diffusion.backbone import training_flops
from diti.diffusion.pretrain import Denoising
from diti.diffusion.unet import build_backbone
from diti.presets import preset, train_preset
from diti.representation.registry import find_method

BATCHES = {"toyfaces32": 32, "celeba32": 32, "celeba64": 16}
GOALS = {"celeba32": 0.40, "celeba64": 0.70}
PEAK_SIDE = 2048


def main() -> None:
    print(f"{torch.get_num_threads()} threads; peak: a {PEAK_SIDE}×{PEAK_SIDE} matrix product in the same run")
    with tempfile.TemporaryDirectory() as folder:
        for name in BATCHES:
            for verb in ("pretrain", "train"):
                # A process each, so that its peak memory is its own.
                process = multiprocessing.get_context("spawn").Process(target=bench, args=(name, verb, folder))
                process.start()
                process.join()


def bench(name: str, verb: str, folder: str) -> None:
    """The loop's own step on images from a dataset folder, and how much of it is not forward and backward."""
    size, batch = preset(name).backbone.size, BATCHES[name]
    source = find_source("toyfaces:600", ReadOptions(size=size))
    data = prepare(source, Path(folder) / str(size), size)
    objective, flops = make_objective(name, verb, data)
    config = TrainingConfig(train_batch_size=batch)
    accelerator = Accelerator(cpu=True)
    weights = Weights(objective, config)
    model, optimizer = accelerator.prepare(objective, weights.optimizer)
    batches = training_batches(data, 0, flip=True)
    pixels, draws = to_float(data.images[:batch]), Draws(0, 0, batch)

    def forward_backward() -> None:
        optimizer.zero_grad()
        model(pixels, draws).total.backward()

    def rest() -> None:
        batches(0, batch)
        trained = list(weights.params.values())
        with one_thread_for_small(trained):
            accelerator.clip_grad_norm_(trained, config.max_grad_norm)
            optimizer.step()
        weights.update_average(1)

    ahead = Ahead(batches)

    def loop() -> None:
        step(model, optimizer, ahead, 0, config, accelerator)
        weights.update_average(1)

    forward_backward()
    candidates = {"forward and backward": forward_backward, "rest": rest, "loop": loop, "peak": _product()}
    best = best_seconds(candidates, rounds=4 if size > 32 else 30)
    report(name, verb, batch, best, flops)


def make_objective(name: str, verb: str, data: Dataset) -> tuple[Objective, int | None]:
    """What the preset trains, and its FLOP per image and step where they are known exactly."""
    backbone = build_backbone(preset(name).backbone, 0)
    if verb == "pretrain":
        return Denoising(backbone), training_flops(backbone)
    return find_method("diti").build(train_preset(name), backbone, data), None


def _product() -> Callable[[], object]:
    a, b = torch.randn(PEAK_SIDE, PEAK_SIDE), torch.randn(PEAK_SIDE, PEAK_SIDE)
    return lambda: a @ b


def report(name: str, verb: str, batch: int, best: dict[str, float], flops: int | None) -> None:
    """One line of results."""
    outside = best["rest"] / (best["rest"] + best["forward and backward"])
    parts = [
        f"{batch / best['loop']:7.1f} images/s",
        f"{outside:.1%} of a step outside forward and backward (goal < 5 %)",
    ]
    if flops is not None:
        share = flops * batch / best["loop"] / (2 * PEAK_SIDE**3 / best["peak"])
        goal = f" (goal {GOALS[name]:.0%})" if name in GOALS else ""
        parts.append(f"{flops / 1e9:.3g} GFLOP per image and step, {share:.0%} of peak{goal}")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"  {verb:<8} {name:<10} batch {batch}: " + "; ".join([*parts, f"peak memory {memory:.1f} GB"]), flush=True
    )
