"""Images/s of each method's step, with the preset's encoder and with one trained from scratch, in one run.

`python -m benchmarks methods`: the toyfaces32 preset, one thread, batches of 32, the loop's own step; methods take
turns. The ratio is to diti of the same encoder.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator

from benchmarks.timing import best_seconds
from diti.config import TrainConfig
from diti.core.ahead import Ahead
from diti.core.loop import step
from diti.core.weights import Weights
from diti.data.prepare import prepare
from diti.data.prepared import Dataset, training_batches
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.diffusion.backbone import load_backbone
from diti.presets import train_preset
from diti.representation.methods.method import Method
from diti.representation.registry import METHODS, find_method

PRESET, SIZE, ROUNDS = "toyfaces32", 32, 12


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        data = prepare(find_source("toyfaces:600", ReadOptions(size=SIZE)), Path(folder) / "data", SIZE)
        for encoder in ("backbone", "residual"):
            config = train_preset(PRESET)
            config = dataclasses.replace(config, code=dataclasses.replace(config.code, encoder=encoder))
            steps = {name: one_step(find_method(name), config, data) for name in METHODS}
            for run in steps.values():
                run()  # the first step also sets things up
            report(encoder, config.training.train_batch_size, best_seconds(steps, ROUNDS))


def one_step(method: Method, config: TrainConfig, data: Dataset) -> Callable[[], object]:
    """The loop's step for this method: images, loss, gradient, Adam."""
    config = dataclasses.replace(config, method=method.name)
    objective = method.build(config, load_backbone(PRESET), data)
    accelerator = Accelerator(cpu=True)
    weights = Weights(objective, config.training)
    model, optimizer = accelerator.prepare(objective, weights.optimizer)
    batches = training_batches(data, 0, flip=True)
    ahead = Ahead(batches)
    return lambda: step(model, optimizer, ahead, 0, config.training, accelerator)


def report(encoder: str, batch: int, best: dict[str, float]) -> None:
    """A line for each method."""
    print(f"encoder {encoder}:")
    for name, seconds in best.items():
        print(f"  {name:<8} {batch / seconds:7.1f} images/s, {best['diti'] / seconds:.2f} × diti", flush=True)


if __name__ == "__main__":
    main()
