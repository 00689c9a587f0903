"""`diti explore`: one page about the axes of a model, from fine to coarse, with a PNG per axis and JSON.

Notation: D dims of z, K subsets, X axes shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diti.core.images import grid, save_picture, to_float
from diti.core.outputs import require_writable
from diti.core.ranges import Range, check_number
from diti.core.rng import numpy_generator
from diti.core.runs import as_path, versions, write_json
from diti.data.prepared import Dataset, require_training_images
from diti.data.sources import as_dataset, place_of
from diti.exploring.axes import correlations, extremes, removed_by, require_frozen, strongest, told_labels
from diti.exploring.strips import PLACES, Strips, draw_strips, strip_pictures
from diti.pages.blocks import Figure, Page, Section
from diti.pages.page import save_page
from diti.representation.features import encode_dataset
from diti.representation.models.diffusion import DiTi
from diti.representation.models.loading import as_model
from diti.representation.models.model import Model

FILES = ("index.html", "explore.json", "axes.png")
FACES, PER_SUBSET, AT_THE_ENDS = 3, 3, len(PLACES) + 1  # AT_THE_ENDS: as many as fill a row of the picture
MOST_AXES, MOST_FACES = Range(1, 1_000), Range(1, 64)
OVERVIEW = 8  # rows of the first picture
SAMPLING_STEPS = 15  # enough to see what an axis does; edits take more


@dataclass(frozen=True)
class AxisFacts:
    """What is said about one axis."""

    axis: int
    name: str
    removed: float  # share of the frozen model's loss
    changed: float  # share of the pixels that visibly change from one end to the other
    lowest: list[str]  # files
    highest: list[str]
    labels: dict[str, float]  # attribute → r, the strongest, where there are labels


@dataclass(frozen=True)
class Explored:
    """What was written."""

    page: Path
    axes: list[AxisFacts]


def explore(
    model: Model | str | Path,
    data: Dataset | str | Path,
    out: str | Path = "explored",
    *,
    axes: int = PER_SUBSET,
    faces: int = FACES,
    sampling_steps: int = SAMPLING_STEPS,
    seed: int = 0,
    overwrite: bool = False,
) -> Explored:
    """Show what a model found, without labels, as `diti explore` does: index.html, explore.json and axes/*.png.

    axes: of each subset the strongest so many. faces: images that are pushed along each.

        diti.explore("runs/model", "data/mine").axes[0].changed
    """
    out = as_path(out, "out")
    for name, number, most in (("axes", axes, MOST_AXES), ("faces", faces, MOST_FACES)):
        check_number(name, number, most)
    require_writable({"--out": [out / name for name in FILES]}, [place_of(data)], overwrite=overwrite)
    model = require_frozen(as_model(model))
    dataset = require_training_images(as_dataset(data, model.size))
    model.require_size(dataset.size)
    model.validate_sampling_steps(sampling_steps)
    codes, cut = encode_dataset(model, dataset), model.partition
    groups = [*([dim] for dim in range(model.dims)), *(list(cut.dims_of(k)) for k in range(cut.subsets))]
    removed = removed_by(model, dataset, groups)
    chosen = strongest(removed[: model.dims], cut, axes)
    shown = [axis for group in chosen for axis in group]
    pixels = to_float(dataset.pixels(chosen_faces(dataset, faces, seed)))
    strips = draw_strips(model, pixels, shown, sampling_steps)
    labels, names = correlations(codes, dataset), model.feature_names()
    facts = []
    for place, axis in enumerate(shown):
        low, high = extremes(codes[:, axis], dataset, AT_THE_ENDS)
        path = out / "axes" / f"{names[axis]}.png"
        save_axis_picture(strip_pictures(strips, place), dataset, low, high, path)
        changed = float(strips.share_changed()[place])
        lowest, highest = (_files(dataset, rows) for rows in (low, high))
        told = told_labels(labels, axis)
        facts.append(AxisFacts(axis, names[axis], float(removed[axis]), changed, lowest, highest, told))
    save_overview(strips, spread([group[0] for group in chosen if group]), shown, model, out / "axes.png")
    by_subset = removed[model.dims :].tolist()
    record = {"subsets": by_subset, "axes": [asdict(axis) for axis in facts], "versions": versions()}
    write_json(out / "explore.json", record)
    return Explored(save_page(_page(model, dataset, chosen, by_subset, facts, out), out / "index.html"), facts)


def chosen_faces(dataset: Dataset, count: int, seed: int) -> np.ndarray:
    """Rows of validation images to push along the axes, or of any where there are none."""
    rows = dataset.rows("valid")
    rows = rows if len(rows) >= count else dataset.rows()
    return np.sort(numpy_generator(seed, "explore-faces").permutation(rows)[:count])


def _files(dataset: Dataset, rows: np.ndarray) -> list[str]:
    return [dataset.table["file"][int(row)].as_py() for row in rows]


def save_axis_picture(pushed: np.ndarray, dataset: Dataset, low: np.ndarray, high: np.ndarray, path: Path) -> Path:
    """Rows of pushed faces (N, S + 1, H, W, 3), then the images lowest and highest on the axis."""
    columns = pushed.shape[1]
    ends = [_filled(dataset.pixels(rows), columns) for rows in (low, high)]
    labels = [*(f"picture {n + 1}" for n in range(len(pushed))), "lowest", "highest"]
    pictures = np.concatenate([pushed.reshape(-1, *pushed.shape[2:]), *ends])
    headings = [*(f"{place:+g} sd" if place else "mean" for place in PLACES), "change"]
    return save_picture(grid(pictures, columns, row_labels=labels, column_labels=headings), path)


def _filled(pixels: np.ndarray, count: int) -> np.ndarray:
    """A row of images, with white where there are too few."""
    blank = np.full((count - len(pixels), *pixels.shape[1:]), 255, np.uint8)
    return np.concatenate([pixels, blank])


def spread(axes: Sequence[int], count: int = OVERVIEW) -> list[int]:
    """At most that many, evenly spaced from the first to the last."""
    places = np.linspace(0, len(axes) - 1, min(count, len(axes))).round().astype(int)
    return [axes[place] for place in places]


def save_overview(strips: Strips, first: Sequence[int], shown: Sequence[int], model: Model, path: Path) -> Path:
    """The strongest axes of some subsets on one face, from fine to coarse: a row each."""
    rows = [strip_pictures(strips, list(shown).index(axis))[0] for axis in first]
    names = model.feature_names()
    headings = [*(f"{place:+g} sd" if place else "mean" for place in PLACES), "change"]
    sheet = grid(
        np.concatenate(rows),
        len(headings),
        row_labels=[names[axis] for axis in first],
        column_labels=headings,
        title="the strongest axes of subsets, from fine to coarse",
    )
    return save_picture(sheet, path)


# ---- The page ----------------------------------------------------------------------------------------------

LEAD = """Each axis of the code is drawn on a few pictures, from three standard deviations below its mean to three
above, with everything else kept; under them the images of the data that lie lowest and highest on it. Labels
played no part: the order from fine to coarse is that in which noise takes things away.

Scroll down: the first subsets should change small things, the last ones light, background and colour."""


def _page(
    model: DiTi,
    dataset: Dataset,
    chosen: Sequence[Sequence[int]],
    by_subset: Sequence[float],
    facts: Sequence[AxisFacts],
    out: Path,
) -> Page:
    known = {axis.axis: axis for axis in facts}
    sections = [
        Section(
            _title(model, subset),
            f"Without it, the loss would be higher by {by_subset[subset]:.1%} of the frozen model's. Of its "
            f"{len(model.partition.dims_of(subset))} axes the {len(axes)} that matter most:",
            [_figure(known[axis], out) for axis in axes],
        )
        for subset, axes in enumerate(chosen)
        if axes
    ]
    overview = Section(
        "From fine to coarse",
        "",
        [Figure(out / "axes.png", "the strongest axes of subsets on one picture", "strips of one picture")],
    )
    title = f"What {model.method} found in {dataset.title}"
    return Page(title, LEAD, [overview, *sections], _page_facts(model, dataset))


def _title(model: DiTi, subset: int) -> str:
    if model.partition.subsets == 1:
        return "The code, which is not cut"
    start, _ = model.partition.time_range(subset)
    return f"Subset {subset} ({model.partition.third(subset)}), seen from time-step {start} on"


def _figure(axis: AxisFacts, out: Path) -> Figure:
    told = [
        f"{axis.name}: without it {axis.removed:+.2%} of the frozen model's loss",
        f"{axis.changed:.0%} of the pixels change visibly",
    ]
    if axis.labels:
        listed = ", ".join(f"{name} {r:+.2f}" for name, r in axis.labels.items())
        told.append(f"labels that go with it (r, not used to find it): {listed}")
    path = out / "axes" / f"{axis.name}.png"
    return Figure(path, "; ".join(told), f"pictures pushed along {axis.name}, and the images at its ends")


def _page_facts(model: DiTi, dataset: Dataset) -> dict[str, Any]:
    return {
        "model": repr(model),
        "data": f"{dataset.title}, {len(dataset):,} images, sha256 {dataset.hash[:16]}",
    }
