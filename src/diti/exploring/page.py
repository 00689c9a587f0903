"""`diti explore`: one page about what a model found: first the axes that one can see, then z from fine to coarse.

Notation: D dims of z, K subsets, X axes or dims shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.core.device import AUTO, Device
from diti.core.images import grid, save_picture, to_float
from diti.core.outputs import require_writable
from diti.core.ranges import Range, check_number
from diti.core.rng import numpy_generator
from diti.core.runs import as_path, versions, write_json
from diti.data.prepared import Dataset, require_training_images
from diti.data.sources import as_dataset, place_of
from diti.diffusion.files import locate, may_keep
from diti.exploring.axes import correlations, extremes, labels_along, removed_by, require_frozen, strongest
from diti.exploring.seen import FRAMES, LEAST, Seen, save_film, save_strip, see_axes
from diti.exploring.strips import PLACES, Strips, draw_strips, headings, save_axis_picture, strip_pictures
from diti.pages.blocks import Figure, Film, Page, Section
from diti.pages.page import save_page
from diti.representation.features import codes_in_metric, encode_dataset
from diti.representation.found_axes import axes_of
from diti.representation.models.axes import AXES, Axes, write_axes
from diti.representation.models.axis_names import axis_key, key_label
from diti.representation.models.diffusion import DiTi
from diti.representation.models.loading import as_model
from diti.representation.models.model import Model
from diti.representation.partition import THIRDS

FILES = ("index.html", "explore.json", "axes.png")
FIRST, FILMS, FACES, PER_SUBSET = 16, 6, 3, 3
AT_THE_ENDS = len(PLACES) + 1  # as many as fill a row of the picture
MOST_AXES, MOST_FACES = Range(1, 1_000), Range(1, 64)
OVERVIEW = 8  # rows of the picture from fine to coarse
SAMPLING_STEPS = 15  # enough to see what an axis does; edits take more


@dataclass(frozen=True)
class AxisFacts:
    """What is said about one axis, or about one dim of z."""

    axis: int
    name: str  # a07 or z012_t0300, and the name that a person gave it
    changed: float  # share of the pixels that visibly change from one end to the other
    lowest: list[str]  # files
    highest: list[str]
    labels: dict[str, float]  # attribute → r, the strongest, where there are labels
    removed: float | None = None  # of a dim: share of the frozen model's loss
    visibility: float | None = None  # of an axis: see Axes
    told: float | None = None
    lives: str | None = None  # of an axis: early, middle or late, where most of it lies
    reach: float = max(PLACES)  # standard deviations to either side of the mean that were drawn


@dataclass(frozen=True)
class Explored:
    """What was written."""

    page: Path
    axes: list[AxisFacts]  # that were drawn, the most visible first
    dims: list[AxisFacts]  # the strongest of each subset, from fine to coarse
    unseen: int  # axes and dims that were looked at, and nothing was seen


@dataclass(frozen=True, eq=False)
class Look:
    """What all parts of the page need."""

    model: DiTi
    dataset: Dataset
    codes: np.ndarray  # (N, D)
    measured: np.ndarray  # (N, D) the same in their metric
    pictures: Tensor  # that are pushed
    steps: int
    out: Path


def explore(
    model: Model | str | Path,
    data: Dataset | str | Path,
    out: str | Path = "explored",
    *,
    first: int = FIRST,
    axes: int = PER_SUBSET,
    faces: int = FACES,
    sampling_steps: int = SAMPLING_STEPS,
    seed: int = 0,
    overwrite: bool = False,
    device: Device = AUTO,
) -> Explored:
    """Show what a model found, without labels, as `diti explore` does: index.html, explore.json and axes/*.png.

    first: how many of the axes that one can name, the most visible. axes: how many dims of each subset, the
    strongest. faces: pictures that are pushed along each. device: where to compute, such as "cuda:1".

        diti.explore("runs/model", "data/mine").axes[0].changed
    """
    out = as_path(out, "out")
    for name, number, most in (
        ("first", first, MOST_AXES),
        ("axes", axes, MOST_AXES),
        ("faces", faces, MOST_FACES),
    ):
        check_number(name, number, most)
    require_writable({"--out": [out / name for name in FILES]}, [place_of(data)], overwrite=overwrite)
    source, model = model, require_frozen(as_model(model, device))
    dataset = require_training_images(as_dataset(data, model.size))
    model.require_size(dataset.size)
    model.validate_sampling_steps(sampling_steps)
    found = kept_axes(source, model, dataset)
    pictures = to_float(dataset.pixels(chosen_faces(dataset, faces, seed)))
    codes, measured = encode_dataset(model, dataset), codes_in_metric(model, dataset)
    look = Look(model, dataset, codes, measured, pictures, sampling_steps, out)
    seen, axis_facts = look_at_axes(look, found, min(first, len(found)))
    chosen, by_subset, dim_facts = look_at_dims(look, axes)
    unseen = min(first, len(found)) - len(seen) + sum(map(len, chosen)) - len(dim_facts)
    record = {"subsets": by_subset, "axes": [asdict(axis) for axis in axis_facts], "unseen": unseen}
    write_json(
        out / "explore.json", {**record, "dims": [asdict(dim) for dim in dim_facts], "versions": versions()}
    )
    first_section = _seen_section(look, seen, axis_facts, len(found), min(first, len(found)))
    sections = [first_section, *_dim_sections(look, chosen, by_subset, dim_facts)]
    page = Page(f"What {model.method} found in {dataset.title}", LEAD, sections, _page_facts(model, dataset))
    return Explored(save_page(page, out / "index.html"), axis_facts, dim_facts, unseen)


def kept_axes(source: Model | str | Path, model: DiTi, dataset: Dataset) -> Axes:
    """The model's axes; those of a folder that had none stay in it from now on, where it may be changed."""
    found = axes_of(model, dataset)
    if not isinstance(source, Model) and may_keep(folder := locate(source)) and not (folder / AXES).is_file():
        write_axes(found, folder / AXES)
    return found


def look_at_axes(look: Look, axes: Axes, first: int) -> tuple[list[Seen], list[AxisFacts]]:
    """The first axes drawn as far as one sees them, with a strip each and films of the very first."""
    places = axes.places(torch.from_numpy(look.codes), look.model.statistics()[0]).numpy()
    labels = correlations(places, look.dataset)
    seen = see_axes(look.model, axes, list(range(first)), look.pictures, look.steps)
    facts = []
    for rank, each in enumerate(seen):
        key, axis = axis_key(each.axis), each.axis
        given = look.model.axis_names.get(key)
        name = key_label(key) + (f"_{given.name}" if given else "")
        low, high = extremes(places[:, axis], look.dataset, AT_THE_ENDS, look.measured)
        save_strip(each, look.dataset, low, high, look.out / "axes" / f"{name}.png")
        if rank < FILMS:
            save_film(each, look.out / "films" / f"{name}.png")
        ends, known = (_files(look.dataset, low), _files(look.dataset, high)), labels_along(labels, axis)
        visibility, share = float(axes.visibility[axis]), float(axes.told[axis])
        lives = _third(look.model, axes.subsets[axis])
        facts.append(AxisFacts(axis, name, each.changed, *ends, known, None, visibility, share, lives, each.reach))
    return seen, facts


def _third(model: DiTi, shares: Tensor) -> str:
    """Early, middle or late: where most of the shares (k,) lie."""
    cut = model.partition
    of = {third: sum(float(shares[k]) for k in range(cut.subsets) if cut.third(k) == third) for third in THIRDS}
    return max(of, key=lambda third: of[third])


def look_at_dims(look: Look, per_subset: int) -> tuple[list[list[int]], list[float], list[AxisFacts]]:
    """Of each subset the strongest dims, what each subset removes, and facts of the dims that can be seen."""
    model, dataset, cut = look.model, look.dataset, look.model.partition
    groups = [*([dim] for dim in range(model.dims)), *(list(cut.dims_of(k)) for k in range(cut.subsets))]
    removed = removed_by(model, dataset, groups)
    chosen = strongest(removed[: model.dims], cut, per_subset)
    shown = [dim for group in chosen for dim in group]
    strips = draw_strips(model, look.pictures, shown, look.steps)
    labels, names, changed = correlations(look.codes, dataset), model.feature_names(), strips.share_changed()
    facts = []
    for place, dim in enumerate(shown):
        if changed[place] <= LEAST:
            continue
        low, high = extremes(look.codes[:, dim], dataset, AT_THE_ENDS, look.measured)
        path = look.out / "axes" / f"{names[dim]}.png"
        save_axis_picture(strip_pictures(strips, place), PLACES, dataset, low, high, path)
        ends, known = (_files(dataset, low), _files(dataset, high)), labels_along(labels, dim)
        facts.append(AxisFacts(dim, names[dim], float(changed[place]), *ends, known, float(removed[dim])))
    save_overview(strips, spread([group[0] for group in chosen if group]), shown, model, look.out / "axes.png")
    return chosen, removed[model.dims :].tolist(), facts


def chosen_faces(dataset: Dataset, count: int, seed: int) -> np.ndarray:
    """Rows of validation images to push along the axes, or of any where there are none."""
    rows = dataset.rows("valid")
    rows = rows if len(rows) >= count else dataset.rows()
    return np.sort(numpy_generator(seed, "explore-faces").permutation(rows)[:count])


def _files(dataset: Dataset, rows: np.ndarray) -> list[str]:
    return [dataset.table["file"][int(row)].as_py() for row in rows]


def spread(axes: Sequence[int], count: int = OVERVIEW) -> list[int]:
    """At most that many, evenly spaced from the first to the last."""
    places = np.linspace(0, len(axes) - 1, min(count, len(axes))).round().astype(int)
    return [axes[place] for place in places]


def save_overview(strips: Strips, first: Sequence[int], shown: Sequence[int], model: Model, path: Path) -> Path:
    """The strongest dims of some subsets on one picture, from fine to coarse: a row each."""
    rows = [strip_pictures(strips, list(shown).index(axis))[0] for axis in first]
    names = model.feature_names()
    columns = headings(PLACES)
    sheet = grid(
        np.concatenate(rows),
        len(columns),
        row_labels=[names[axis] for axis in first],
        column_labels=columns,
        title="the strongest dims of subsets, from fine to coarse",
    )
    return save_picture(sheet, path)


# ---- The page ----------------------------------------------------------------------------------------------

LEAD = """Each axis is a direction of the code, found without labels and turned so that it changes only a few
places of a picture. Here are those that change a picture most, the most visible first: pull a slider to move along
one; below it are the images of the data that lie lowest and highest on it. Everything else is kept.

Further down is the code itself, from fine to coarse: the order in which noise takes things away."""


def _seen_section(look: Look, seen: Sequence[Seen], facts: Sequence[AxisFacts], found: int, drawn: int) -> Section:
    blocks: list[Figure | Film] = []
    for rank, axis in enumerate(facts):
        if rank < FILMS:
            label = f"{axis.name}, {axis.reach:g} deviations down to {axis.reach:g} up"
            path = look.out / "films" / f"{axis.name}.png"
            blocks.append(Film(path, FRAMES, "", f"pictures moved along {axis.name}", label))
        blocks.append(_figure(axis, look.out))
    text = f"{len(seen)} of the {found} axes that were found."
    if more := found - drawn:
        text += (
            f" {more} more change pictures less; diti manipulate --axis {key_label(axis_key(drawn))} draws one."
        )
    return Section("What one can see", f"{text}{_unseen(drawn - len(seen), 'axes')}", blocks)


def _unseen(count: int, what: str) -> str:
    """One sentence about those that are not drawn."""
    return f" {count} {what} change nothing that can be seen in these pictures." if count else ""


def _dim_sections(
    look: Look, chosen: Sequence[Sequence[int]], by_subset: Sequence[float], facts: Sequence[AxisFacts]
) -> list[Section]:
    model, known = look.model, {dim.axis: dim for dim in facts}
    overview = Figure(
        look.out / "axes.png", "the strongest dims of subsets on one picture", "strips of one picture"
    )
    sections = [Section("From fine to coarse", "", [overview])]
    for subset, dims in enumerate(chosen):
        if not dims:
            continue
        drawn = [known[dim] for dim in dims if dim in known]
        text = (
            f"Without it, the loss would be higher by {by_subset[subset]:.1%} of the frozen model's. Of its "
            f"{len(model.partition.dims_of(subset))} dims the {len(dims)} that matter most:"
        )
        text += _unseen(len(dims) - len(drawn), "of them")
        figures = [_figure(dim, look.out) for dim in drawn]
        sections.append(Section(_title(model, subset), text, figures, folded=True))
    return sections


def _title(model: DiTi, subset: int) -> str:
    if model.partition.subsets == 1:
        return "The code, in one piece"
    start, _ = model.partition.time_range(subset)
    return f"Subset {subset} ({model.partition.third(subset)}), seen from time-step {start} on"


def _figure(axis: AxisFacts, out: Path) -> Figure:
    facts = [f"{axis.name}: {axis.changed:.0%} of the pixels change visibly"]
    if axis.removed is not None:
        facts.append(f"without it {axis.removed:+.2%} of the frozen model's loss")
    if axis.told is not None:
        facts.append(f"{axis.told:.1%} of what the code says; it lies mostly in {axis.lives} subsets")
    if axis.labels:
        listed = ", ".join(f"{name} {r:+.2f}" for name, r in axis.labels.items())
        facts.append(f"labels that go with it (r, not used to find it): {listed}")
    path = out / "axes" / f"{axis.name}.png"
    return Figure(path, "; ".join(facts), f"pictures pushed along {axis.name}, and the images at its ends")


def _page_facts(model: DiTi, dataset: Dataset) -> dict[str, Any]:
    return {
        "model": repr(model),
        "data": f"{dataset.title}, {len(dataset):,} images, sha256 {dataset.hash[:16]}",
    }
