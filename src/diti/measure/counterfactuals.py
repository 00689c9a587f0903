"""Counterfactual images of a model, measured and drawn: do edits show what was wanted, and what else do they move?

A classifier trained on the pixels of the same data, or a judge from elsewhere, says what an image shows. It knows
no model, and all models that are compared on the data share it.

Notation: N images, A attributes, D dims of z, d' of which an edit moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from torch import Tensor

from diti.core.device import AUTO, Device
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.outputs import require_writable
from diti.core.progress import progress_bar
from diti.core.ranges import COUNT, Count, Range
from diti.core.rng import numpy_generator
from diti.core.runs import as_path, command_line, sha256_parts, versions, write_json
from diti.core.settings import Settings
from diti.data.predicted import predicted_columns
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset, place_of
from diti.diffusion.files import locate
from diti.diffusion.generate import SAMPLING_STEPS
from diti.edit.directions import ALL, Direction, check_along, checked_dims, standardise
from diti.edit.interpolate import FARTHEST, cut_of
from diti.edit.manipulate import SCALE
from diti.edit.select import check_selection, compare_selections, fit_linear
from diti.edit.trials import Trials
from diti.measure.attribute_classifier import IMAGES, AttributeClassifier, train_classifier
from diti.measure.counterfactual_pictures import save_moves, save_pushes, save_swaps, save_transfers, save_ways
from diti.measure.counterfactual_scores import (
    DIFFERENT,
    SCORES,
    interpolation_scores,
    manipulation_scores,
    strengths_of,
)
from diti.measure.judge import Embed, Judge, judged_by, recognised_by
from diti.measure.moves import check_named, moves_lines, save_moves_table
from diti.measure.reference import make_reference
from diti.probes.scores import average_precision
from diti.representation.features import encode_dataset, encoder_hash
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.loading import load_with_decoder
from diti.representation.partition import THIRDS, Partition

Item = TypeVar("Item")

FILES = (
    "counterfactuals.json", "figure2a.png", "figure5.png", "figure7.png", "moves.png", "moves.csv",
    "transfers.png",
)  # fmt: skip
SHOWN = 6  # attributes of figure 2a
ROWS = 4  # pairs of figure 7
COMPARED = 4  # binary attributes on which the ways to choose dims are compared
COMPARED_ROWS = 10_000  # training images for that


@dataclass(frozen=True, kw_only=True)
class CounterfactualOptions(Settings):
    """How much is measured, and with which edits."""

    images: Count = 64  # test images edited along every attribute
    pairs: Count = 48  # test pairs interpolated
    classifier_images: Annotated[int | None, *COUNT] = None  # length of its training; None: the usual one
    dims: Annotated[int | None, *COUNT] = None  # d'; None: 32, or a quarter of a short code
    scale: Annotated[float, *Range(0, FARTHEST, open=(0,), hint=f"such as {SCALE}")] = SCALE  # strength
    paper_scale: Annotated[float | None, *Range(0, FARTHEST, open=(0,), hint="such as 0.3")] = None
    selection: str | None = None  # how the dims are chosen; None: they are not, unless there are dims
    along: str | None = None  # what an edit follows; None: what is best known
    edits: tuple[str, ...] = ()  # attributes that are edited; none: all that can be read
    fixed: tuple[str, ...] = ()  # readings that should stay when others are edited
    compare_selections: bool = True
    random_groupings: Count = 3  # of dims, to say what chance gives
    sampling_steps: Count = SAMPLING_STEPS  # network calls from image to noise, and back
    seed: int = 0
    overwrite: bool = False  # also replace files that diti did not write

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selection not in (None, ALL):
            check_selection(str(self.selection))
        if self.along is not None:
            check_along(self.along)


def counterfactuals(
    model: str | Path,
    data: Dataset | str | Path,
    out: str | Path = "counterfactuals",
    *,
    images: int = 64,
    pairs: int = 48,
    classifier_images: int | None = None,
    dims: int | None = None,
    scale: float = SCALE,
    paper_scale: float | None = None,
    selection: Literal["all", "l1", "weight", "probmask"] | None = None,
    along: Literal["conditional", "pattern", "weight"] | None = None,
    edits: Sequence[str] = (),
    judge: str | Judge | None = None,
    fixed: Sequence[str] = (),
    identity: str | Judge | None = None,
    seed: int = 0,
    overwrite: bool = False,
    device: Device = AUTO,
) -> dict[str, Any]:
    """Measure and draw edits of a model on labelled data, as `diti counterfactuals` does.

    model: folder, shipped name or hub id; directions that are learned are kept in a folder. scale: strength, in
    usual differences (1: from the mean of those without to that of those with it, or one standard deviation);
    paper_scale: the paper's s instead. dims, selection, along: as in `learn_direction`. judge: reads pictures
    instead of a classifier trained on the data; a function or the command of a program, see `measure/judge.py`.
    edits: attributes that are edited, by default all that can be read; fixed: readings that should stay when
    others are edited; identity: like a judge, but its numbers together say who a face is.
    device: where to compute, such as "cuda:1".
    """
    options = CounterfactualOptions(
        images=images, pairs=pairs, dims=dims, scale=scale, paper_scale=paper_scale, selection=selection,
        along=along, edits=tuple(edits), fixed=tuple(fixed), classifier_images=classifier_images, seed=seed,
        overwrite=overwrite,
    )  # fmt: skip
    return measure_counterfactuals(model, data, as_path(out, "out"), options, judge, device, identity)


def measure_counterfactuals(
    source: str | Path,
    data: Dataset | str | Path,
    out: Path,
    options: CounterfactualOptions,
    judge: str | Judge | None = None,
    device: Device = AUTO,
    identity: str | Judge | None = None,
) -> dict[str, Any]:
    """The same with all options; `out`/counterfactuals.json holds the record."""
    require_writable({"--out": [out / name for name in FILES]}, [place_of(data)], overwrite=options.overwrite)
    model = load_with_decoder(source, device)
    dataset = as_dataset(data, model.size)
    model.require_size(dataset.size)
    check_data(dataset)
    dims = checked_dims(model, options.dims)
    model.validate_sampling_steps(options.sampling_steps)
    if judge is not None and options.classifier_images is not None:
        raise InputError("--classifier-images is for a classifier that is trained; a judge needs no training")
    classifier = (
        train_classifier(dataset, images=options.classifier_images or IMAGES, device=model.device)
        if judge is None
        else judged_by(judge, dataset)
    )
    known = [trait.name for trait in classifier.traits if trait.readable]
    check_named("--edits", options.edits, known)
    check_named("--fixed", options.fixed, known)
    who = None if identity is None else recognised_by(identity)
    study = EditStudy(str(source), model, dataset, classifier, dims, out, options, who)
    record = study.measure() | {"command": command_line(), "versions": versions()}
    write_json(out / "counterfactuals.json", record)  # last: it says that all is there
    return record


def check_data(dataset: Dataset) -> None:
    """InputError for data on which edits cannot be measured."""
    if not dataset.attributes:
        raise InputError(
            f"{dataset.path} has no attributes to measure edits by; "
            "add some with diti prepare --attributes TABLE.csv"
        )
    for split in ("train", "valid"):
        if len(dataset.rows(split)) == 0:
            raise InputError(f"{dataset.path} has no {split} rows; prepare data with train and valid images")


@dataclass(frozen=True, eq=False)
class EditStudy:
    """One model on one labelled dataset, seen through one classifier."""

    source: str
    model: DecodingModel
    dataset: Dataset
    classifier: AttributeClassifier
    dims: int  # d' of sparse directions
    out: Path
    options: CounterfactualOptions
    identity: Embed | None = None
    left_out: list[str] = field(default_factory=list)  # what could not be measured, and why
    figures: list[str] = field(default_factory=list)

    def measure(self) -> dict[str, Any]:
        """Everything, as one JSON-able record. What it is about first, so that a fault shows early."""
        record: dict[str, Any] = {
            "model": self.source, "method": self.model.method, "subsets": self.model.partition.subsets,
            "encoder": encoder_hash(self.model.encoder),
            "weights": sha256_parts(locate(self.source), ("encoder", "decoder", "unet", "transformer")),
            "data": {"name": self.dataset.name, "hash": self.dataset.hash, "images": len(self.dataset)},
            "predicted": sorted(predicted_columns(self.dataset)), "split": self.split,
            "settings": self.settings, "classifier": self.classifier_quality(), "left_out": self.left_out,
            "figures": self.figures,
        }  # fmt: skip
        record["directions"] = {
            d.attribute: {
                key: getattr(d, key) for key in ("method", "metric", "score", "score_all_dims", "chance")
            }
            for d in self.directions
        }
        record["manipulation"] = self.manipulation()
        if len(self.groups) > 1:
            record["interpolation"] = self.interpolation()
        else:
            self.left_out.append("interpolation: all dims of z belong to one third of the time-steps")
        if self.options.compare_selections:
            record["selections"] = self.selections()
        self.draw(record)
        return record

    @property
    def settings(self) -> dict[str, Any]:
        kept = {name: value for name, value in asdict(self.options).items() if name != "overwrite"}
        kept |= {name: list(kept[name]) for name in ("edits", "fixed")}
        return kept | {"dims": self.dims, "classifier_images": self.options.classifier_images or IMAGES}

    # ---- What is measured on -------------------------------------------------------------------------------

    @property
    def split(self) -> str:
        """Edits are measured on test images, or on validation images where there are none."""
        return "test" if len(self.dataset.rows("test")) else "valid"

    @cached_property
    def rows(self) -> np.ndarray:
        """(N,) of the edited images: the same for every model."""
        return self._drawn("edited")[: self.options.images]

    @cached_property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows (N,) of the images A and of the images B."""
        order = self._drawn("pairs")
        count = min(self.options.pairs, len(order) // 2)
        if count < 1:
            raise InputError(f"{self.dataset.path} has {len(order)} {self.split} rows; a pair needs 2")
        return order[:count], order[count : 2 * count]

    def _drawn(self, what: str) -> np.ndarray:
        return numpy_generator(self.options.seed, f"counterfactuals-{what}").permutation(
            self.dataset.rows(self.split)
        )

    def pixels(self, rows: np.ndarray) -> Tensor:
        """(N, 3, H, W) in [-1, 1]."""
        return to_float(self.dataset.pixels(rows))

    @cached_property
    def codes(self) -> np.ndarray:
        """(N, D) of all images of the data."""
        return encode_dataset(self.model, self.dataset)

    # ---- What is measured with -----------------------------------------------------------------------------

    def classifier_quality(self) -> dict[str, Any]:
        """How well the classifier tells each attribute on images it was not trained on."""
        traits = self.classifier.traits
        if not any(trait.readable for trait in traits):
            raise InputError(
                f"no attribute of {self.dataset.path} can be read well enough from pixels to measure edits by; "
                f"train it on more than {self.settings['classifier_images']:,} images, or use other labels"
            )
        return {
            "attributes": {t.name: {"binary": t.binary, "readable": t.readable, **t.quality} for t in traits},
            "readable": [trait.name for trait in traits if trait.readable],
            "unreadable": [trait.name for trait in traits if not trait.readable],
        }

    @cached_property
    def directions(self) -> list[Direction]:
        """Of the readable attributes in their order: from the model folder, else learned and kept there."""
        return self.directions_of(self.learnable())

    def directions_of(self, names: Sequence[str]) -> list[Direction]:
        """The same for chosen attributes."""
        found, folder, options = [], locate(self.source), self.options
        trials = Trials(self.model, self.dataset, lambda: self.codes)
        with progress_bar("directions", len(names), unit="attributes") as advance:
            for name in names:
                direction, _ = trials.direction(folder, name, options.dims, options.selection, options.seed)
                found.append(direction.following(options.along))
                advance()
        return found

    def learnable(self) -> list[str]:
        """The readable attributes that vary among training and among validation images."""
        wanted = self.options.edits or self.classifier.attributes
        names = [trait.name for trait in self.classifier.traits if trait.readable and trait.name in wanted]
        values = self.dataset.labels(names)
        varies = [np.ptp(values[self.dataset.rows(split)], axis=0) > 0 for split in ("train", "valid")]
        kept = np.logical_and(*varies)
        if not kept.any():
            raise InputError(
                f"{', '.join(names)} can be read in {self.dataset.path}, but none varies among both its training "
                "and its validation images; prepare more images"
            )
        if not kept.all():
            constant = ", ".join(name for name, varied in zip(names, kept, strict=True) if not varied)
            self.left_out.append(f"the same in all training or validation images: {constant}")
        return [name for name, varied in zip(names, kept, strict=True) if varied]

    @cached_property
    def groups(self) -> list[str]:
        """Those of early, middle and late that own dims; a model of one subset borrows a split."""
        return groups_with_dims(cut_of(self.model, None)[0])

    # ---- The measurements ----------------------------------------------------------------------------------

    def manipulation(self) -> dict[str, Any]:
        """Algorithm 3 on every image and attribute."""
        options = self.options
        reference = make_reference(self.classifier.trunk_is, self.classifier.trunk, self.dataset)
        return manipulation_scores(
            self.model, self.classifier, self.directions, self.pixels(self.rows), reference,
            scale=options.scale, paper_scale=options.paper_scale, fixed=options.fixed, identity=self.identity,
            sampling_steps=options.sampling_steps, seed=options.seed, progress=True,
        )  # fmt: skip

    def interpolation(self) -> dict[str, Any]:
        """Algorithm 2 on every pair: which group of dims carries which attribute."""
        options, (a, b) = self.options, self.pairs
        return interpolation_scores(
            self.model, self.classifier, self.pixels(a), self.pixels(b), self.groups,
            random_groupings=options.random_groupings, sampling_steps=options.sampling_steps,
            seed=options.seed, progress=True,
        )  # fmt: skip

    def selections(self) -> dict[str, Any]:
        """Validation AP of the ways to choose d' dims, each with a refitted classifier, and of all dims."""
        binary = [d for d in self.directions if self.dataset.is_binary(d.attribute)]
        train, valid = (self.dataset.rows(split) for split in ("train", "valid"))
        train = np.sort(numpy_generator(self.options.seed, "selections").permutation(train)[:COMPARED_ROWS])
        found: dict[str, dict[str, float]] = {}
        for d in spread_over(binary, COMPARED):
            labels = self.dataset.labels([d.attribute])[:, 0]
            z_train, z_valid = (standardise(self.codes[rows], d.mean, d.std) for rows in (train, valid))
            compared = compare_selections(
                z_train, labels[train], z_valid, labels[valid], self.dims, self.options.seed
            )
            whole = fit_linear(z_train, labels[train], binary=True).scores(z_valid)
            found[d.attribute] = {row.method: row.ap for row in sorted(compared, key=lambda row: row.method)}
            found[d.attribute]["all dims"] = float(average_precision(whole[:, None], labels[valid][:, None])[0])
        methods = list(next(iter(found.values()), {}))
        mean = {method: float(np.mean([row[method] for row in found.values()])) for method in methods}
        return {"dims": self.dims, "rows": len(train), "metric": "AP on valid", "attributes": found, "mean": mean}

    def draw(self, record: dict[str, Any]) -> None:
        """Figures 2a, 5 and 7. What they show is chosen by seed and labels, never by how well the model does.

        Then which edit and which swapped third moves what, of what was measured.
        """
        model, sampling_steps, (a, b) = self.model, self.options.sampling_steps, self.pairs
        shown, first = spread_over(self.directions, SHOWN), self.pixels(self.rows[:1])
        strengths = strengths_of(shown, self.options.scale, self.options.paper_scale)
        drawn = [save_pushes(model, shown, first, strengths, sampling_steps, self.out / "figure2a.png")]
        if len(self.groups) > 1:
            pair = [most_different(self.dataset.labels(), a, b)]
            one, other = self.pixels(a[pair]), self.pixels(b[pair])
            drawn.append(save_swaps(model, one, other, self.groups, sampling_steps, self.out / "figure5.png"))
        firsts, seconds = self.pixels(a[:ROWS]), self.pixels(b[:ROWS])
        drawn.append(save_ways(model, firsts, seconds, sampling_steps, self.out / "figure7.png"))
        if moves := record["manipulation"]["moves"]:
            drawn.append(save_moves(moves, self.out / "moves.png"))
            save_moves_table(moves, self.out / "moves.csv")
        if "interpolation" in record:
            drawn.append(save_transfers(record["interpolation"], self.out / "transfers.png"))
        self.figures.extend(path.name for path in drawn)


# ---- Choices that do not look at the model ------------------------------------------------------------------


def spread_over(items: Sequence[Item], count: int) -> list[Item]:
    """Up to `count` of them evenly spaced from the first to the last (toy faces: from coarse to fine)."""
    places = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[place] for place in places]


def most_different(labels: np.ndarray, a: np.ndarray, b: np.ndarray) -> int:
    """The pair of rows a, b (N,) whose labels (M, A) differ, by one standard deviation or more, most often."""
    spread = np.maximum(labels.std(0), 1e-12)
    return int((np.abs(labels[a] - labels[b]) >= DIFFERENT * spread).sum(1).argmax())


def groups_with_dims(partition: Partition) -> list[str]:
    """Those of early, middle and late that own dims."""
    filled = [i for i in range(partition.subsets) if partition.dims_of(i)]
    owned = {partition.third(i) for i in filled}
    return [third for third in THIRDS if third in owned]


# ---- For the reader at the terminal -------------------------------------------------------------------------


def print_record(record: dict[str, Any], out: Path) -> None:
    """A table of attributes with their mean, and a line for each further result."""
    from rich.console import Console
    from rich.table import Table

    edits = record["manipulation"]
    settings = edits["settings"]
    how_far = (
        f"strength {settings['scale']:g}" if settings["scale"] else f"the paper's s {settings['paper_scale']:g}"
    )
    title = f"{edits['images']} {record['split']} images, edited by {how_far}"
    table = Table(title=title)
    table.add_column("attribute", no_wrap=True)
    for heading in SCORES:
        table.add_column(heading, justify="right")
    for name, scores in edits["attributes"].items():
        table.add_row(name, *(_number(scores[score]) for score in SCORES))
    table.add_section()
    for label, end in (("mean", "value"), ("95 % from", "low"), ("to", "high")):
        table.add_row(label, *(_number(edits["mean"].get(score), end) for score in SCORES))
    Console().print(table)
    print(
        "\n".join([*result_lines(record), f"wrote {out / 'counterfactuals.json'}, {', '.join(record['figures'])}"])
    )


def result_lines(record: dict[str, Any]) -> list[str]:
    """What the table of attributes does not say."""
    edits = record["manipulation"]
    per_change = edits["mean"].get("leak_per_change")
    lines = [
        f"leakage per change: {_both(per_change) if per_change else 'not defined, the edits changed nothing'}",
        f"distance: {edits['distance_is']}; without an edit {_number(edits['reconstruction']['distance'])}",
    ]
    lines += moves_lines(edits["moves"]) if edits["moves"] else []
    if "identity" in edits["mean"]:
        lines.append(
            f"the same face: cosine {_both(edits['mean']['identity'])} of before and after, "
            f"{edits['strangers']:.2f} of different faces"
        )
    for kind, found in record.get("interpolation", {}).get("x_t", {}).items():
        values = (_both(found[key]) for key in ("mean_concentration", "mean_above_random"))
        lines.append("swapped subsets, x_T {}: concentration {}, above random groups {}".format(kind, *values))
    if means := record.get("selections", {}).get("mean"):
        aps = ", ".join(f"{method} AP {ap:.1%}" for method, ap in means.items())
        lines.append(f"{record['settings']['dims']} dims chosen by {aps}")
    if unreadable := record["classifier"]["unreadable"]:
        lines.append(f"not readable from pixels, not measured: {', '.join(unreadable)}")
    if record["predicted"]:
        lines.append(f"labels predicted by a network, not true ones: {', '.join(record['predicted'])}")
    return lines + [f"left out: {reason}" for reason in record["left_out"]]


def _number(score: dict[str, Any] | None, end: str = "value") -> str:
    """One number of a score; a missing end is infinite."""
    if score is None:
        return "–"
    return "∞" if score[end] is None else f"{score[end]:.2f}"


def _both(score: dict[str, Any] | None) -> str:
    return f"{_number(score)} ({_number(score, 'low')} to {_number(score, 'high')})"
