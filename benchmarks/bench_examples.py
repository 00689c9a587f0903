"""Directions from 1 to 64 example images a side against the difference of their means, and against all labels.

`python -m benchmarks.bench_examples MODEL DATA` draws the examples from the training images: with and without a
binary attribute, the highest and the lowest quarter of a continuous one. Test faces are inverted once and pushed
along every direction; a classifier of pixels says what changed, as in `diti counterfactuals`. Means over
attributes, ± half the 95 % interval over draws of the examples. Directions from all labels are those of `diti
manipulate --attribute --selection l1`, and are kept in the model folder. DATA has attributes: toyfaces:12000, or a
dataset folder such as CelebA's. Axes are found in it where the model has none. With --pairs, for toy faces alone,
also directions from faces that are drawn twice, with the attribute and without.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor

from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.core.runs import versions, write_json
from diti.data import toyfaces
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.sampler import OnStep
from diti.edit.directions import Direction, checked_dims, standardise
from diti.edit.examples import example_direction, pair_direction
from diti.edit.manipulate import SCALE
from diti.edit.select import DEFAULT_SELECTION, largest
from diti.measure.attribute_classifier import IMAGES, train_classifier
from diti.measure.counterfactual_scores import (
    Unedited,
    edit_scores,
    editing_steps,
    leak_per_change,
    means,
    resamples,
    strengths_of,
)
from diti.measure.counterfactuals import CounterfactualOptions, EditStudy, check_data, spread_over
from diti.probes.scores import mean_over_attributes
from diti.reporting.scores import seed_interval
from diti.representation.found_axes import axes_of
from diti.representation.models.loading import load_with_decoder

SIZES = (1, 2, 4, 8, 16, 64)  # examples a side
END = 0.25  # share of the training images that count as examples of each side of a continuous attribute
TITLES = {"flips": "flips", "change": "change, sd", "leak_per_change": "leakage per change"}
ALL = "all labels"
PAIRS_SEED = 1_000  # the data's own faces have seed 0
FISHER_FROM = 8  # examples of each side, for the difference of means

Scores = dict[str, float | None]
Make = Callable[[Direction, np.ndarray, np.ndarray], Direction | None]


def main(words: Sequence[str] | None = None) -> None:
    options = parser().parse_args(words)
    began = time.perf_counter()
    study = new_study(options)
    names = spread_over(study.learnable(), options.attributes)
    runs = 1 + (len(options.methods) + options.pairs) * len(options.sizes) * options.draws
    sizes = len(study.rows), len(names), study.options.sampling_steps
    before = editing_steps(study.model, sizes[0], 0, sizes[2])
    steps = before + runs * (editing_steps(study.model, *sizes) - before)
    rows: dict[str, list[Scores]] = {}
    with progress_bar("pushing faces", steps, unit="steps") as advance:

        def on_step(index: int, total: int, x: Tensor) -> None:
            advance()

        pixels = study.pixels(study.rows)
        unedited = Unedited.of(study.model, study.classifier, pixels, sizes[2], on_step=on_step)
        for name, directions in planned(study, names, options):
            far = options.scale, options.paper_scale
            rows.setdefault(name, []).append(scores(unedited, names, directions, far, on_step))
    settings = {key: str(value) for key, value in vars(options).items()}
    write_json(options.out, {"settings": settings, "attributes": names, "rows": rows, "versions": versions()})
    seconds = time.perf_counter() - began
    print(f"{options.model} on {options.data}: {sizes[0]} faces × {len(names)} attributes, {seconds:,.0f} s")
    print_table(rows)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_examples", description=(__doc__ or "").split("\n")[0]
    )
    found.add_argument("model", help="model folder")
    found.add_argument("data", help="images with attributes")
    found.add_argument("--faces", type=int, default=24, help="test faces pushed along every direction")
    found.add_argument("--attributes", type=int, default=1_000, help="of those that can be read, spread evenly")
    found.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="examples a side")
    found.add_argument("--pairs", action="store_true", help="toy faces: also the same faces with and without")
    found.add_argument("--draws", type=int, default=5, help="of the examples, for each number of them")
    found.add_argument("--scale", type=float, default=SCALE, help="strength, in usual differences")
    found.add_argument(
        "--paper-scale", type=float, help="the paper's s instead: the code moves by s √D deviations"
    )
    found.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    found.add_argument("--sampling-steps", type=int, default=15)
    found.add_argument("--classifier-images", type=int, default=IMAGES, help="length of its training")
    found.add_argument("--out", type=Path, default=Path("runs/bench-examples.json"))
    return found


def new_study(options: argparse.Namespace) -> EditStudy:
    """Model, data and classifier; images are encoded once, when the first direction asks for their codes."""
    model = load_with_decoder(options.model)
    dataset = open_data(options.data, model.size)
    model.require_size(dataset.size)
    check_data(dataset)
    chosen = CounterfactualOptions(
        images=options.faces, sampling_steps=options.sampling_steps, classifier_images=options.classifier_images,
        selection=DEFAULT_SELECTION,
    )  # fmt: skip
    classifier = train_classifier(dataset, images=options.classifier_images)
    study = EditStudy(
        options.model, model, dataset, classifier, checked_dims(model, None), options.out.parent, chosen
    )
    study.classifier_quality()  # says so where nothing can be read
    return study


def planned(
    study: EditStudy, names: Sequence[str], options: argparse.Namespace
) -> Iterator[tuple[str, list[Direction | None]]]:
    """Rows of the table, one after the other, and a direction per attribute for each; None where there is none."""
    yield ALL, list(study.directions_of(names))
    axes_of(study.model, study.dataset)
    for size in options.sizes:
        for draw in range(options.draws):
            for method in options.methods:
                made = [from_examples(study, name, size, draw, METHODS[method]) for name in names]
                yield f"{size}, {method}", made
            if options.pairs:
                yield f"{size}, pairs", [from_pairs(study, name, size, draw) for name in names]


def from_examples(study: EditStudy, name: str, size: int, draw: int, make: Make) -> Direction | None:
    """The direction of so many training images a side, drawn at random; None where they do not differ enough."""
    rng = numpy_generator(draw, f"examples-{name}")
    like, unlike = (rng.permutation(rows)[:size] for rows in sides(study.dataset, name))
    codes = torch.from_numpy(study.codes)
    made = example_direction(study.model, name, codes[like], codes[unlike], codes=codes)
    return make(made, *(standardise(study.codes[rows], made.mean, made.std) for rows in (like, unlike)))


def from_pairs(study: EditStudy, name: str, size: int, draw: int) -> Direction:
    """The direction of so many new toy faces, drawn with the attribute high and low and all else the same."""
    ends = [np.median(study.dataset.labels([name])[rows]) for rows in sides(study.dataset, name)]
    faces = toyfaces.sample(size, seed=PAIRS_SEED + draw)
    drawn = (toyfaces.render(toyfaces.change(faces, name, values=value), study.model.size) for value in ends)
    return pair_direction(study.model, name, *(study.model.encode(pixels) for pixels in drawn))


def as_made(made: Direction, has: np.ndarray, lacks: np.ndarray) -> Direction:
    """What `diti manipulate --like` follows."""
    return made


def difference_of_means(made: Direction, has: np.ndarray, lacks: np.ndarray) -> Direction | None:
    """What it followed before: the difference of the means of standardised codes (P, D), (Q, D) in 32 dims.

    Each dim is shrunk by what chance gives, Δ max(0, 1 - v / Δ²) with v = 1/P + 1/Q (James and Stein's estimate);
    the dims are those in which a plane between the sides, Fisher's where there are enough examples, is steepest.
    """
    difference = has.mean(0, dtype=np.float64) - lacks.mean(0, dtype=np.float64)
    chance = (1 / len(has) + 1 / len(lacks)) / np.maximum(difference**2, 1e-30)
    shrunk, plane = difference * np.maximum(0.0, 1 - chance), difference
    if min(len(has), len(lacks)) >= FISHER_FROM:
        inside = np.concatenate([has - has.mean(0), lacks - lacks.mean(0)])
        plane = np.linalg.solve(ledoit_wolf(inside, assume_centered=True)[0], difference)
    kept = largest(np.abs(plane) * (shrunk != 0), max(1, min(32, len(plane) // 4)))
    heading = np.zeros_like(shrunk)
    heading[kept] = shrunk[kept]
    return replace(made, pattern=heading, reading=heading, response=heading) if heading.any() else None


METHODS: dict[str, Make] = {"difference of means": difference_of_means, "axes": as_made}


def sides(dataset: Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Training rows that have the attribute, or most of it, and rows that lack it."""
    rows = dataset.rows("train")
    values = dataset.labels([name])[rows, 0]
    low, high = (0.0, 1.0) if dataset.is_binary(name) else np.nanquantile(values, [END, 1 - END])
    return rows[values >= high], rows[values <= low]


def scores(
    unedited: Unedited,
    names: Sequence[str],
    directions: Sequence[Direction | None],
    far: tuple[float, float | None],
    on_step: OnStep,
) -> Scores:
    """Means over attributes, None where nothing is defined; where there is no direction nothing is edited."""
    classifier, found = unedited.classifier, []
    given = [direction for direction in directions if direction is not None]
    edits = unedited.edits(given, strengths_of(given, *far), on_step)
    for name, direction in zip(names, directions, strict=True):
        upward, edited = next(edits) if direction is not None else (np.zeros(len(unedited.seen), bool), None)
        after = unedited.before if edited is None else classifier(edited)
        found.append(edit_scores(classifier, name, unedited.before, after, upward))
    stacked = {key: np.stack([row[key] for row in found]) for key in ("flips", "change", "leakage")}  # (A, N)
    ratio = leak_per_change(stacked["leakage"], stacked["change"], resamples(len(unedited.seen), 0))
    mean = {key: mean_over_attributes(means(stacked[key])[None]).item() for key in ("flips", "change")}
    mean["leak_per_change"] = float("nan") if ratio is None else ratio["value"]
    return {key: value if np.isfinite(value) else None for key, value in mean.items()}


def print_table(rows: dict[str, list[Scores]]) -> None:
    """A row per number of examples and method, all labels last."""
    print(f"| examples a side | {' | '.join(TITLES.values())} |\n|{' --- |' * (len(TITLES) + 1)}")
    for name in [*(row for row in rows if row != ALL), ALL]:
        print(f"| {name} | {' | '.join(cell([row[score] for row in rows[name]]) for score in TITLES)} |")


def cell(values: list[float | None]) -> str:
    """Mean ± half of its 95 % interval; draws whose edits gained nothing have no leakage per change."""
    defined = [value for value in values if value is not None]
    if not defined:
        return "–"
    found = seed_interval(defined)
    missing = f" ({len(defined)} of {len(values)})" if len(defined) < len(values) else ""
    half = "" if found.high is None else f" ± {found.high - found.value:.3f}"
    return f"{found.value:.3f}{half}{missing}"


if __name__ == "__main__":
    main()
