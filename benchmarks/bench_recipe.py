"""How many images a recipe needs, and what its code knows in the end.

`python -m benchmarks.bench_recipe DATA BACKBONE OUT [IMAGES]` trains DiTi once per recipe, two at a time with one
thread each; a run that is there already is continued or kept. Printed: the share of the frozen model's loss that z
removes against images seen (validation images, uniform time-steps, fixed noise), and the mean AP of a linear probe
on validation images. The test images are not touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.bench_encoder import validation_ap, validation_split
from diti.core.runs import RunFolder
from diti.data.sources import open_data
from diti.representation.features import encode_dataset
from diti.representation.models.loading import load

AUTHORS = (
    "--encoder residual --start random --time-sampling uniform --train-batch-size 128 "
    "--learning-rate 1e-4 --lr-schedule constant --lr-warmup-images 0 --ema-decay 0.9999"
)
FULL_RATE = "--encoder-rate 1"
RECIPES = {  # options over the preset's; ours, then one thing less each, then three variants of uniform time-steps
    "authors": AUTHORS,
    "ours": "",
    "encoder at full rate": FULL_RATE,
    "uniform time-steps": f"{FULL_RATE} --time-sampling uniform",
    "trunk fine-tuned": f"{FULL_RATE} --time-sampling uniform --trunk fine-tuned",
    "random decoder": f"{FULL_RATE} --time-sampling uniform --start random",
    "residual encoder": f"{FULL_RATE} --time-sampling uniform --encoder residual",
}
POINTS, LANES = 8, 2
Curve = Sequence[tuple[int, float]]  # images seen, share of the loss removed


def main(data: str, backbone: str, out: str, images: str = "51200") -> None:
    Path(out).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(LANES) as lanes:
        curves = list(lanes.map(lambda name: run(name, data, backbone, Path(out), int(images)), RECIPES))
    goal = curves[0][-1][1]
    seen = "".join(f"{images:>9,}" for images, _ in curves[0][1::2])
    print(f"{'recipe':<20}{seen}{'AP':>8}  images to the authors' loss")
    for name, curve in zip(RECIPES, curves, strict=True):
        shares = "".join(f"{share:9.1%}" for _, share in curve[1::2])
        reached = first_reaching(curve, goal)
        when = f"{reached:,.0f}" if reached else "not reached"
        print(f"{name:<20}{shares}{code_ap(Path(out) / folder_of(name), data):8.3f}  {when}", flush=True)


def folder_of(name: str) -> str:
    return name.replace(" ", "-")


def run(name: str, data: str, backbone: str, out: Path, images: int) -> Curve:
    """Train one recipe, and read its log."""
    folder = out / folder_of(name)
    options = ["--preset", "celeba32", "--data", data, "--backbone", backbone, "--out", str(folder)]
    length = ["--images", str(images), "--validate-images", str(images // POINTS)]
    with folder.with_suffix(".txt").open("w", encoding="utf-8") as log:
        subprocess.run(
            [sys.executable, "-m", "diti", "train", *options, *length, *RECIPES[name].split()],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, stdout=log, stderr=log,
        )  # fmt: skip
    return [(r["images"], r["loss_removed"]) for r in RunFolder(folder).read_log() if "loss_removed" in r]


def first_reaching(curve: Curve, goal: float) -> float | None:
    """Images after which this share of the loss is removed, on a straight line between two validations."""
    before = (0, 0.0)
    for seen, share in curve:
        if share >= goal:
            return before[0] + (seen - before[0]) * (goal - before[1]) / (share - before[1])
        before = (seen, share)
    return None


def code_ap(folder: Path, data: str) -> float:
    """Mean AP of a linear probe on z."""
    model = load(folder)
    dataset = open_data(data, model.size)
    rows, splits = validation_split(dataset)
    return validation_ap(encode_dataset(model, dataset)[rows], dataset, rows, splits)


if __name__ == "__main__":
    main(*sys.argv[1:5])
