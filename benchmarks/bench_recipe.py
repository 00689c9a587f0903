"""How many images a recipe needs: share of the frozen model's loss that z removes, against images seen.

`python -m benchmarks.bench_recipe DATA BACKBONE OUT [IMAGES]` trains DiTi once per recipe, two at a time with one
thread each; a run that is there already is continued or kept. Validation images, uniform time-steps, fixed noise.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from diti.core.runs import RunFolder

AUTHORS = (
    "--encoder residual --decoder-start random --train-batch-size 128 --learning-rate 1e-4 "
    "--lr-schedule constant --lr-warmup-images 0 --ema-decay 0.9999"
)
RECIPES = {  # options over the preset's; each but the first differs from ours in one thing
    "authors": AUTHORS,
    "ours": "",
    "random decoder": "--decoder-start random",
    "residual encoder": "--encoder residual",
    "trunk fine-tuned": "--trunk fine-tuned",
    "time-steps by loss": "--time-sampling loss",
    "batch 128": "--train-batch-size 128",
    "rate 1e-4": "--learning-rate 1e-4",
}
POINTS, LANES = 16, 2


def main(data: str, backbone: str, out: str, images: str = "51200", only: str = "") -> None:
    names = [name for name in RECIPES if name in only.split(",")] if only else list(RECIPES)
    with ThreadPoolExecutor(LANES) as lanes:
        curves = dict(zip(names, lanes.map(lambda n: run(n, data, backbone, Path(out), int(images)), names)))  # noqa: B905
    report(curves)


def run(name: str, data: str, backbone: str, out: Path, images: int) -> list[tuple[int, float]]:
    """Train one recipe; (images seen, share of the loss removed) at each validation."""
    folder = out / name.replace(" ", "-")
    options = ["--preset", "celeba32", "--data", data, "--backbone", backbone, "--out", str(folder)]
    length = ["--images", str(images), "--validate-images", str(images // POINTS)]
    with (out / f"{folder.name}.txt").open("w", encoding="utf-8") as log:
        subprocess.run(
            [sys.executable, "-m", "diti", "train", *options, *length, *RECIPES[name].split()],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True, stdout=log, stderr=log,
        )  # fmt: skip
    return [(r["images"], r["loss_removed"]) for r in RunFolder(folder).read_log() if "loss_removed" in r]


def report(curves: dict[str, list[tuple[int, float]]]) -> None:
    goal = curves["authors"][-1][1] if "authors" in curves else None
    print(
        f"{'recipe':<20}" + "".join(f"{seen:>9,}" for seen, _ in next(iter(curves.values()))[3::4]) + "  same loss"
    )
    for name, curve in curves.items():
        reached = None if goal is None else first_reaching(curve, goal)
        when = "" if goal is None else f"{reached:,} images" if reached else "not reached"
        print(f"{name:<20}" + "".join(f"{share:9.1%}" for _, share in curve[3::4]) + f"  {when}")


def first_reaching(curve: Sequence[tuple[int, float]], goal: float) -> int | None:
    """Images seen at the first validation at which at least this share of the loss is removed."""
    return next((seen for seen, share in curve if share >= goal), None)


if __name__ == "__main__":
    main(*sys.argv[1:])
