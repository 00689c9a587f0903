"""Edits of several methods side by side, with the same code for directions, before and after they are tried.

`python -m benchmarks edits` solves DiTi, PDAE and the principal components of the features over the backbone of
toy faces and judges edits with a classifier of pixels. For the tables of docs/results.md, models as folders:

    python -m benchmarks.bench_edits runs/faces/diti runs/faces/pdae --data data/faces64 \\
        --judge "judge/bin/python tools/judge_faces.py" --fixed background_light,background_blue \\
        --identity "identity/bin/python tools/identify_faces.py"

Rows of each model: as before, the pattern of 32 dims at the paper's s of 0.3; the conditional pattern as it is
learned; the same tried on pictures, which is the default: followed by its gain, in its place. A model that only
draws from its code, such as a VAE, is judged alike. Test faces are inverted once for all rows of a model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

import diti
from diti.core.progress import progress_bar
from diti.core.runs import versions, write_json
from diti.data.sources import open_data
from diti.diffusion.sampler import OnStep
from diti.edit.directions import Direction, checked_dims, fit_direction
from diti.edit.manipulate import SCALE
from diti.edit.select import DEFAULT_SELECTION
from diti.edit.strength import PAPER_SCALE
from diti.measure.attribute_classifier import IMAGES, AttributeClassifier, train_classifier
from diti.measure.counterfactual_scores import (
    Unedited,
    edit_scores,
    editing_steps,
    leak_per_change,
    means,
    resamples,
    rms_change,
    signed_moves,
    strengths_of,
)
from diti.measure.counterfactuals import CounterfactualOptions, EditStudy, check_data, spread_over
from diti.measure.judge import Embed, judged_by, recognised_by
from diti.measure.moves import Moves, check_named, likeness, strangers
from diti.probes.scores import mean_over_attributes
from diti.representation.models.loading import load_with_decoder

METHODS: dict[str, dict[str, Any]] = {  # of the models that are solved where none is given
    "diti": {"method": "diti"},
    "pdae": {"method": "pdae"},
    "features": {"method": "pdae", "features_weight": 1_000.0},  # in effect principal components, with a linear g
}
DATA, BACKBONE, SOLVED = "toyfaces:4000", "toyfaces32", Path("runs/bench-edits")
TITLES = ("change, sd", "leakage per change", "fixed, sd", "found", "least of asked", "pixels", "same face")


@dataclass(frozen=True)
class Row:
    """A way to make directions: of each attribute one, and how far it is followed."""

    name: str
    directions: list[Direction]
    strengths: list[float]


def main(words: Sequence[str] | None = None) -> None:
    options = parser().parse_args([] if words is None else words)
    models = options.models or solved()
    dataset = open_data(options.data, load_with_decoder(models[0]).size)
    check_data(dataset)
    judged = {"judge": options.judge} if options.judge else {"classifier_images": options.classifier_images}
    classifier = (
        judged_by(options.judge, dataset)
        if options.judge
        else train_classifier(dataset, images=options.classifier_images)
    )
    check_named("--fixed", options.fixed, [trait.name for trait in classifier.traits if trait.readable])
    identity = recognised_by(options.identity) if options.identity else None
    print(f"| model | direction | {' | '.join(TITLES)} |\n|{' --- |' * (len(TITLES) + 2)}")
    records = []
    for model in models:
        began = time.perf_counter()
        for record in judged_rows(str(model), dataset, classifier, options, identity):
            cells = ("–" if record[title] is None else f"{record[title]:.3f}" for title in TITLES)
            print(f"| {Path(model).name} | {record['row']} | {' | '.join(cells)} |", flush=True)
            records.append({"model": str(model), **record})
        others = "" if records[-1]["strangers"] is None else f"; different faces: {records[-1]['strangers']:.3f}"
        print(f"# {model}: {time.perf_counter() - began:,.0f} s{others}", flush=True)
    settings = {"faces": options.faces, "scale": options.scale, "fixed": list(options.fixed), **judged}
    settings |= {"sampling_steps": options.sampling_steps, "identity": options.identity}
    write_json(options.out, {"settings": settings, "data": options.data, "rows": records, "versions": versions()})


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_edits", description=(__doc__ or "").split("\n")[0]
    )
    found.add_argument("models", nargs="*", help="model folders; by default three are solved")
    found.add_argument("--data", default=DATA, help="images with attributes")
    found.add_argument("--faces", type=int, default=12, help="test images pushed along every direction")
    found.add_argument("--attributes", type=int, default=1_000, help="of those that can be read, spread evenly")
    found.add_argument("--scale", type=float, default=SCALE, help="strength, in usual differences")
    found.add_argument("--judge", help="program that reads pictures, instead of a classifier")
    found.add_argument("--classifier-images", type=int, default=IMAGES, help="length of its training")
    found.add_argument(
        "--fixed", type=lambda text: tuple(text.split(",")), default=(), help="readings that should stay"
    )
    found.add_argument("--identity", help="program whose numbers say who a face is: their cosine is told")
    found.add_argument("--sampling-steps", type=int, default=25)
    found.add_argument("--out", type=Path, default=Path("runs/bench-edits.json"))
    return found


def solved() -> list[Path]:
    """The three models of toy faces, solved where they are not there yet."""
    for name, settings in METHODS.items():
        if not (SOLVED / name / "model.json").is_file():
            diti.solve(DATA, BACKBONE, out=SOLVED / name, code_dim=64, images=2_048, **settings)
    return [SOLVED / name for name in METHODS]


def judged_rows(
    source: str,
    dataset: diti.Dataset,
    classifier: AttributeClassifier,
    options: argparse.Namespace,
    identity: Embed | None,
) -> Iterator[dict[str, Any]]:
    """A record per row of a model."""
    model = load_with_decoder(source)
    model.require_size(dataset.size)
    chosen = CounterfactualOptions(
        images=options.faces, sampling_steps=options.sampling_steps, scale=options.scale
    )
    study = EditStudy(source, model, dataset, classifier, checked_dims(model, None), options.out.parent, chosen)
    names = spread_over(study.learnable(), options.attributes)
    before = editing_steps(model, len(study.rows), 0, options.sampling_steps)
    each = editing_steps(model, len(study.rows), len(names), options.sampling_steps) - before
    with progress_bar("pushing faces", before + 3 * each, unit="steps") as advance:

        def on_step(index: int, total: int, x: Tensor) -> None:
            advance()

        unedited = Unedited.of(
            model, classifier, study.pixels(study.rows), options.sampling_steps, on_step=on_step
        )
        who = None if identity is None else identity(unedited.rebuilt)
        for row in rows_of(study, names, options.scale):
            record = scores(unedited, row, options.fixed, on_step, identity, who)
            yield record | {"strangers": None if who is None else strangers(who)}


def rows_of(study: EditStudy, names: Sequence[str], scale: float) -> Iterator[Row]:
    """The rows of a model, one after the other."""
    fitted = {
        kind: [
            fit_direction(study.model, study.dataset, name, selection=kind, codes=study.codes) for name in names
        ]
        for kind in (DEFAULT_SELECTION, None)
    }
    sparse, plain = fitted[DEFAULT_SELECTION], fitted[None]
    yield Row("before: pattern, 32 dims, s = 0.3", sparse, strengths_of(sparse, scale, PAPER_SCALE))
    yield Row("conditional", plain, strengths_of(plain, scale))
    tried = study.directions_of(names)
    yield Row("conditional, tried", tried, strengths_of(tried, scale))


def scores(
    unedited: Unedited,
    row: Row,
    fixed: Sequence[str],
    on_step: OnStep,
    identity: Embed | None = None,
    who: np.ndarray | None = None,
) -> dict[str, Any]:
    """Means over attributes; None where nothing is defined. who (N, V): the faces as `identity` tells them."""
    classifier, moves = unedited.classifier, Moves(unedited.classifier, tuple(fixed))
    found = []
    edits = unedited.edits(row.directions, row.strengths, on_step)
    for direction, strength, (upward, edited) in zip(row.directions, row.strengths, edits, strict=True):
        after = classifier(edited)
        moves.add(direction.attribute, strength, signed_moves(unedited.before, after, upward, classifier.spread))
        found.append(
            edit_scores(classifier, direction.attribute, unedited.before, after, upward)
            | {"pixels": rms_change(unedited.rebuilt, edited)}
            | ({} if identity is None or who is None else {"same": likeness(who, identity(edited))})
        )
    stacked = {key: np.stack([each[key] for each in found]) for key in found[0]}  # (A, N)
    record = moves.record() or {}
    ratio = leak_per_change(stacked["leakage"], stacked["change"], resamples(len(unedited.seen), 0))
    shares = [got / asked for asked, got in zip(record["asked"], record["got"], strict=True) if asked and got]
    kept = record["fixed"]
    values = (
        *(mean_over_attributes(means(stacked["change"])[None]), ratio and ratio["value"]),
        kept and kept["absolute"],
        record["found"],
        min(shares, default=None),
        mean_over_attributes(means(stacked["pixels"])[None]),
        mean_over_attributes(means(stacked["same"])[None]) if "same" in stacked else None,
    )
    told = {
        title: None if value is None else float(np.squeeze(value))
        for title, value in zip(TITLES, values, strict=True)
    }
    return {"row": row.name, **told, "moves": record}


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
