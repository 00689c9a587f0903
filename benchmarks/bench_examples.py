"""Directions from 1, 4, 16 and 64 example images a side against directions from all labels.

`python -m benchmarks.bench_examples MODEL DATA` draws the examples from the training images: with and without a
binary attribute, the highest and the lowest quarter of a continuous one. Test faces are inverted once and pushed
along every direction; a classifier of pixels says what changed, as in `diti counterfactuals`. Means over
attributes, ± half the 95 % interval over draws of the examples. Directions from all labels are those of `diti
manipulate --attribute`, and are kept in the model folder. DATA has attributes: toyfaces:12000, or a dataset folder
such as CelebA's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.core.runs import versions, write_json
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.sampler import OnStep
from diti.edit.directions import Direction, checked_dims
from diti.edit.examples import example_direction
from diti.edit.manipulate import SCALE
from diti.measure.attribute_classifier import IMAGES, train_classifier
from diti.measure.counterfactual_scores import (
    Unedited,
    edit_scores,
    editing_steps,
    leak_per_change,
    means,
    resamples,
)
from diti.measure.counterfactuals import CounterfactualOptions, EditStudy, check_data, spread_over
from diti.probes.scores import mean_over_attributes
from diti.reporting.scores import seed_interval
from diti.representation.models.loading import load_with_decoder

SIZES = (1, 4, 16, 64)  # examples a side
END = 0.25  # share of the training images that count as examples of each side of a continuous attribute
TITLES = {"flips": "flips", "change": "change, sd", "leak_per_change": "leakage per change"}
ALL = "all labels"

Scores = dict[str, float | None]


def main(words: Sequence[str] | None = None) -> None:
    options = parser().parse_args(words)
    began = time.perf_counter()
    study = new_study(options)
    names = spread_over(study.learnable(), options.attributes)
    runs = 1 + len(SIZES) * options.draws
    sizes = len(study.rows), len(names), study.options.sampling_steps
    before = editing_steps(study.model, sizes[0], 0, sizes[2])
    steps = before + runs * (editing_steps(study.model, *sizes) - before)
    rows: dict[str, list[Scores]] = {}
    with progress_bar("pushing faces", steps, unit="steps") as advance:

        def on_step(index: int, total: int, x: Tensor) -> None:
            advance()

        pixels = study.pixels(study.rows)
        unedited = Unedited.of(study.model, study.classifier, pixels, sizes[2], on_step=on_step)
        for name, directions in planned(study, names, options.draws):
            rows.setdefault(name, []).append(scores(unedited, names, directions, on_step))
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
    found.add_argument("--draws", type=int, default=5, help="of the examples, for each number of them")
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
        images=options.faces, sampling_steps=options.sampling_steps, classifier_images=options.classifier_images
    )
    classifier = train_classifier(dataset, images=options.classifier_images)
    study = EditStudy(
        options.model, model, dataset, classifier, checked_dims(model, None), options.out.parent, chosen
    )
    study.classifier_quality()  # says so where nothing can be read
    return study


def planned(study: EditStudy, names: Sequence[str], draws: int) -> Iterator[tuple[str, list[Direction | None]]]:
    """Rows of the table, one after the other, and a direction per attribute for each; None where there is none."""
    yield ALL, list(study.directions_of(names))
    for size in SIZES:
        for draw in range(draws):
            yield str(size), [from_examples(study, name, size, draw) for name in names]


def from_examples(study: EditStudy, name: str, size: int, draw: int) -> Direction | None:
    """The direction of so many training images a side, drawn at random; None where they do not differ enough."""
    rng = numpy_generator(draw, f"examples-{name}")
    like, unlike = (rng.permutation(rows)[:size] for rows in sides(study.dataset, name))
    codes = torch.from_numpy(study.codes)
    try:
        return example_direction(study.model, name, codes[like], codes[unlike], dims=study.dims, codes=codes)
    except InputError:
        return None


def sides(dataset: Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Training rows that have the attribute, or most of it, and rows that lack it."""
    rows = dataset.rows("train")
    values = dataset.labels([name])[rows, 0]
    low, high = (0.0, 1.0) if dataset.is_binary(name) else np.nanquantile(values, [END, 1 - END])
    return rows[values >= high], rows[values <= low]


def scores(
    unedited: Unedited, names: Sequence[str], directions: Sequence[Direction | None], on_step: OnStep
) -> Scores:
    """Means over attributes, None where nothing is defined; where there is no direction nothing is edited."""
    classifier, found = unedited.classifier, []
    given = [direction for direction in directions if direction is not None]
    edits = unedited.edits(given, SCALE, on_step)
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
    """A row per number of examples, all labels last."""
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
