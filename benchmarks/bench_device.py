"""What a step asks of a device: kernels, and transfers to the host, for each of which a GPU's queue would run dry.

Counted on the pretend device of the tests. `BEFORE=/path/to/an/older/src python -m benchmarks device` counts and
times the same there, in turns with this version.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
ROUNDS, STEPS, BATCH = 3, 4, 16
CHUNK = 512  # images of a step of the pass


def main() -> None:
    sources = {"now": str(REPOSITORY / "src")}
    if before := os.environ.get("BEFORE"):
        sources = {"before": before, **sources}
    counts = {name: run_child(source, "pretend") for name, source in sources.items()}
    print(f"{'a step of':<12} " + " ".join(f"{f'{name}: kernels, up, down':>32}" for name in sources))
    for path in counts["now"]:
        cells = (
            f"{o[path]['kernels']:>18.0f}, {o[path]['uploads']:.0f}, {o[path]['downloads']:>8.1f}"
            for o in counts.values()
        )
        print(f"{path:<12} " + " ".join(cells))
    if before:
        rounds = [{name: run_child(source, "cpu") for name, source in sources.items()} for _ in range(ROUNDS)]
        for path in counts["now"]:
            best = {name: min(one[name][path]["seconds"] for one in rounds) for name in sources}
            print(f"{path:<12} on the CPU: speed now / before {best['before'] / best['now']:.2f}")


def run_child(source: str, device: str) -> dict[str, dict[str, float]]:
    """The counts or seconds of a step on the device, by path, of the package in that folder."""
    paths = os.pathsep.join([source, str(REPOSITORY), str(REPOSITORY / "tests")])
    known = {"PYTHONPATH": paths, "ACCELERATE_TORCH_DEVICE": device, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.bench_device", device]
    done = subprocess.run(command, env={**os.environ, **known}, check=True, capture_output=True, text=True)
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(device: str, folder: Path, steps: int = STEPS) -> dict[str, dict[str, float]]:
    """Of each path: what so many more steps cost, divided by their number."""
    import_module("pretend")  # of the tests; it must be there before the first backward pass
    found = {}
    for path, work in make_paths(device, folder).items():
        work(1)  # what is made once
        short, long = cost(work, steps), cost(work, 2 * steps)
        found[path] = {name: (long[name] - short[name]) / steps for name in long}
    return found


def cost(work: Callable[[int], object], steps: int) -> dict[str, float]:
    pretend: Any = import_module("pretend")
    began = time.process_time()
    with pretend.counting() as counted:
        work(steps)
    seconds = time.process_time() - began
    return {name: counted[name] for name in ("kernels", "uploads", "downloads", "waits")} | {"seconds": seconds}


def make_paths(device: str, folder: Path) -> dict[str, Callable[[int], object]]:
    """Work by name, each a function of the number of its steps."""
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    import diti
    from diti.config import SolutionConfig, SolveConfig, TrainingConfig
    from diti.core.loop import train
    from diti.core.objective import Objective
    from diti.core.runs import RunFolder
    from diti.data.prepared import training_batches
    from diti.diffusion.pretrain import Denoising
    from diti.representation.methods.diti import Reconstruction
    from diti.representation.solve.evidence import gather_evidence, unsolved_encoder
    from diti.representation.solve.solved import solve_networks

    tiny: Any = import_module("tiny")  # of the tests
    data = diti.open_data("toyfaces:128", 16)
    backbone, model = tiny.tiny_backbone().to(device), tiny.tiny_model().to(device)
    solution = SolutionConfig(pixel_axes=12, stretches=2, whitened=16)
    config = SolveConfig(code_dim=model.dims, subsets=2, images=CHUNK, solution=solution)
    model.decoder.linear = solve_networks(config, tiny.tiny_backbone(), data).linear.to(device)
    runs = iter(range(1_000))

    def trained(objective: Objective, steps: int) -> None:
        config = TrainingConfig(images=BATCH * steps, train_batch_size=BATCH)
        AcceleratorState._reset_state(reset_partial_state=True)
        run = RunFolder(folder / str(next(runs)))
        batches = training_batches(data, 0, flip=True)
        accelerator = Accelerator(cpu=device == "cpu")
        train(objective, batches, config, run, label="", evaluate=lambda images: {}, accelerator=accelerator)

    def passed(steps: int) -> None:
        own = tiny.tiny_backbone().to(device)
        longer = dataclasses.replace(config, images=CHUNK * steps)
        gather_evidence(longer, own, data, unsolved_encoder(longer, own).to(device))

    noise = torch.zeros(2, 3, 16, 16)
    objective = Reconstruction(model.encoder, model.decoder, model.partition, detach=True)
    return {
        "pretrain": lambda steps: trained(Denoising(backbone), steps),
        "train": lambda steps: trained(objective, steps),
        "sampler": lambda steps: model.decode(torch.zeros(2, model.dims), noise, steps + 1),
        "encode": lambda steps: model.encode(data.images[: BATCH * steps], BATCH),
        "pass": passed,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(json.dumps(measure(sys.argv[1], Path(place))))
