"""Which recipe of `diti pretrain` learns most from its images, and whether any of them falls.

`python -m benchmarks.bench_pretrain DATA OUT` trains each recipe with each seed, two at a time with one thread
each; a run that is there already is continued or kept. `--preset`, `--images`, `--seeds` and `--recipes` choose.
Printed for each: the validation loss in the end (fixed images, time-steps and noise), how often it fell, and its
speed as a share of the first recipe's. `--until` ends each run after so many images of a longer schedule, where
the rate is still high, and prints the last loss that was logged. `--purpose` adds what the backbone is for: the AP
on validation images and the loss removed of what `diti solve` finds over it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_encoder import validation_ap, validation_split
from diti.core.runs import RunFolder, read_json
from diti.data.sources import open_data
from diti.representation.features import encode_dataset
from diti.representation.models.loading import load

COSINE = "--lr-schedule cosine --learning-rate 2e-3"
RECIPES = {  # options over the preset's; first what led to it step by step, then one change each
    "before": f"--optimizer adam --adam-beta2 0.999 {COSINE}",
    "beta2 0.99": f"--optimizer adam {COSINE}",
    "muon": COSINE,
    "rate held": "--learning-rate 2e-3",
    "preset": "",
    "rate doubled": "--learning-rate 8e-3",
    "warm-up a quarter": "--lr-warmup-images 1600",
    "batches of 16": "--train-batch-size 16",
    "batches of 64": "--train-batch-size 64",
    "v": "--prediction v_prediction",
    "min-SNR": "--loss-weight min-snr",
    "P2": "--loss-weight p2",
    "no flips": "--no-flip",
    "shorter average": "--ema-decay 0.99",
}
LANES, SOLVED_ON = 2, 2_048


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    loss: float
    falls: int
    images_per_s: float


def main(words: list[str] | None = None) -> None:
    options = parser().parse_args(words)
    jobs = [(name, seed) for name in options.recipes for seed in range(options.seeds)]
    options.out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(LANES) as lanes:
        ended = dict(zip(jobs, lanes.map(lambda job: run(job[0], job[1], options), jobs), strict=True))
    length = f"{options.images:,}" if options.until is None else f"{options.until:,} of {options.images:,}"
    print(f"{options.preset} on {options.data}, {length} images, {options.seeds} seeds")
    speed = np.mean([ended[options.recipes[0], seed].images_per_s for seed in range(options.seeds)])
    for name in options.recipes:
        outcomes = [ended[name, seed] for seed in range(options.seeds)]
        losses = " ".join(f"{outcome.loss:.4f}" for outcome in outcomes)
        pace = np.mean([outcome.images_per_s for outcome in outcomes]) / speed
        falls = sum(outcome.falls for outcome in outcomes)
        line = f"{name:<30}{np.mean([o.loss for o in outcomes]):8.4f}  ({losses}){falls:4} falls{pace:6.2f} ×"
        print(line + (purpose(name, options) if options.purpose else ""), flush=True)


def short() -> None:
    """The recipe before and the preset's on few images, one seed each."""
    few = "--preset toyfaces32 --images 12800 --seeds 1 --recipes before preset"
    with tempfile.TemporaryDirectory() as out:
        main(["toyfaces:12000", out, *few.split()])


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_pretrain", description=(__doc__ or "").split("\n")[0]
    )
    found.add_argument("data")
    found.add_argument("out", type=Path)
    found.add_argument("--preset", default="celeba32")
    found.add_argument("--images", type=int, default=25_600)
    found.add_argument("--until", type=int, default=None)
    found.add_argument("--seeds", type=int, default=2)
    found.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="NAME")
    found.add_argument("--purpose", action="store_true")
    return found


def folder_of(name: str, seed: int, options: argparse.Namespace) -> Path:
    place: Path = options.out
    return place / f"{options.preset}-{name.replace(' ', '-')}-s{seed}"


def run(name: str, seed: int, options: argparse.Namespace) -> Outcome:
    """Pretrain by one recipe, and read its log."""
    folder = folder_of(name, seed, options)
    words = ["--preset", options.preset, "--data", options.data, "--out", folder, "--seed", seed]
    words += ["--images", options.images, *RECIPES[name].split()]
    run = RunFolder(folder)
    if options.until is None:
        diti("pretrain", words, folder.with_suffix(".txt"))
    elif seen(run) < options.until:
        diti("pretrain", words, folder.with_suffix(".txt"), lambda: seen(run) >= options.until)
    log = run.read_log()
    steps = [record for record in log if "images_per_s" in record]
    validated = [record["validation_loss"] for record in log if "validation_loss" in record]
    return Outcome(
        loss=validated[-1] if options.until is None else steps[-1]["loss"],
        falls=sum("fall" in record for record in log),
        images_per_s=float(np.median([record["images_per_s"] for record in steps])),
    )


def purpose(name: str, options: argparse.Namespace) -> str:
    """Of the first seed: mean AP of a linear probe on the solved code, and the loss that the code removes."""
    backbone = folder_of(name, 0, options)
    solved = backbone.with_name(f"{backbone.name}-solved")
    words = ["--data", options.data, "--backbone", backbone, "--images", SOLVED_ON, "--out", solved]
    diti("solve", words, solved.with_suffix(".txt"))
    model = load(solved)
    dataset = open_data(options.data, model.size)
    rows, splits = validation_split(dataset)
    ap = validation_ap(encode_dataset(model, dataset)[rows], dataset, rows, splits)
    return f"  AP {ap:.3f}  removed {read_json(solved / 'checks.json')['loss_removed']:.1%}"


def seen(run: RunFolder) -> int:
    """Images that the run has logged."""
    return max((record["images"] for record in run.read_log()), default=0)


def diti(verb: str, words: list[Any], log: Path, enough: Callable[[], bool] = lambda: False) -> None:
    """One command with one thread; what it says is kept. It is stopped as by hand once there is enough."""
    command = [sys.executable, "-m", "diti", verb, *map(str, words)]
    with log.open("w", encoding="utf-8") as said:
        started = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=said, stderr=said)
        while started.poll() is None and not enough():
            time.sleep(1)
        if started.poll() is None:
            started.send_signal(signal.SIGINT)
        elif started.returncode:
            raise subprocess.CalledProcessError(started.returncode, command)
        started.wait()


if __name__ == "__main__":
    main()
