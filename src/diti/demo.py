"""`diti demo`: the whole path on the built-in faces, from pixels to one page, trained for real."""

from __future__ import annotations

import dataclasses
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from diti.config import COUNT, DEFAULT_PRESET, TrainConfig, check_number, resolve, train_preset
from diti.core.errors import InputError
from diti.core.images import grid, save_picture
from diti.core.runs import atomic_path
from diti.data import toyfaces
from diti.data.prepare import prepare
from diti.data.prepared import Dataset
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.data.summary import save_sheet
from diti.report.blocks import Figure, Section
from diti.report.build import Report, report
from diti.report.evidence import Effort
from diti.report.terminal import print_table
from diti.sweep import Plan, check_plan, run_sweep

SHIPPED = "toyfaces32-diti"  # a DiTi model that was trained longer, in the box
METHODS = ("diti", "pdae")
SIZE = 32  # px, of the faces that are learned from
FEWEST_FACES = 500
SHOWN_SIZE = 64  # px, of the faces that explain the attributes


@dataclass(frozen=True, kw_only=True)
class Length:
    """How much a demo does, and what its numbers are worth."""

    faces: int  # toy faces to draw
    images: int  # seen by each training
    seeds: tuple[int, ...] = (0,)
    effort: Effort = field(default_factory=Effort)
    remark: str


LENGTHS = {
    "quick": Length(
        faces=4_000,
        images=3_200,
        effort=Effort(faces=4, pairs=4, changes=2, classifier_images=9_600, reconstructed=16),
        remark="A quick look: hardly trained, scored on few images, so the numbers are rough.",
    ),
    "normal": Length(
        faces=12_000,
        images=40_000,
        effort=Effort(faces=12, pairs=6),
        remark="One seed: the intervals say how much other test images change a score, not another training.",
    ),
    "full": Length(
        faces=12_000,
        images=40_000,
        seeds=(0, 1, 2),
        remark="Three seeds: the intervals are over trainings.",
    ),
}


def choose_length(quick: bool, full: bool, faces: int | None, images: int | None) -> tuple[str, Length]:
    """The name of the demo's folder, and its length with the given numbers in place of its own."""
    if quick and full:
        raise InputError("--quick and --full were given; choose one")
    name = "quick" if quick else "full" if full else "normal"
    if faces is not None and faces < FEWEST_FACES:
        raise InputError(f"--faces is {faces}; the probes need {FEWEST_FACES} faces or more")
    if images is not None:
        check_number("images", images, COUNT)
    usual = LENGTHS[name]
    length = dataclasses.replace(usual, faces=faces or usual.faces, images=images or usual.images)
    return "demo" if name == "normal" else f"demo-{name}", length


def run_demo(out: Path, length: Length) -> Report:
    """Data, trainings, measurements, page. The same command continues a stopped demo."""
    data = out / "data"
    check_plan(plan := plan_training(data, length))
    source = find_source(f"toyfaces:{length.faces}", ReadOptions(size=SIZE))
    dataset = prepare(source, data, SIZE)
    save_faces(dataset, out / "faces")
    runs = train_methods(out / "runs", plan)
    runs.append(copy_shipped(out / "runs"))
    built = report(
        runs,
        out / "report",
        data=str(data),
        effort=length.effort,
        title="DiTi on toy faces",
        lead=lead(length),
        opening=[about_data(dataset, out)],
        overwrite=True,  # in the demo's own folder
    )
    print_table(built.tables[0])
    print("\n".join([*built.verdicts, length.remark, f"the page: {built.page}"]))
    return built


def train_methods(out: Path, plan: Plan) -> list[Path]:
    """DiTi and PDAE for the same images and seeds, side by side."""
    trained = run_sweep(plan, out)
    return sorted(trained, key=lambda path: METHODS.index(path.name.split("-")[0]))


def plan_training(data: Path, length: Length) -> Plan:
    """The runs by name."""
    runs = {
        f"{method}-s{seed}": settings(method, seed, data, length.images)
        for seed in length.seeds
        for method in METHODS
    }
    return Plan(runs)


def settings(method: str, seed: int, data: Path, images: int) -> TrainConfig:
    """The preset's recipe, trained from the backbone: `diti train --method METHOD --start copy`."""
    usual = train_preset(DEFAULT_PRESET)
    training = dataclasses.replace(usual.training, images=images, seed=seed)
    return resolve(
        dataclasses.replace(
            usual, method=method, start="copy", data=str(data), backbone=DEFAULT_PRESET, training=training
        )
    )


def copy_shipped(out: Path) -> Path:
    """The longer-trained model as a run of its own, so that its measurements have a place."""
    from diti.diffusion.files import locate

    copied = out / SHIPPED
    if not copied.is_dir():
        with atomic_path(copied) as temporary:
            shutil.copytree(locate(SHIPPED), temporary)
    return copied


def lead(length: Length) -> str:
    """What was done, in a few sentences."""
    return (
        f"DiTi and PDAE were trained on {length.faces:,} toy faces of {SIZE} px with 22 known attributes, each "
        f"for {length.images:,} images over the same frozen diffusion model, without looking at a label. Beside "
        f"them stands {SHIPPED}, the DiTi model in the package, trained longer: not a fair comparison, but a look "
        f"at where more training leads. {length.remark}"
    )


# ---- The faces ----------------------------------------------------------------------------------------------


def save_faces(dataset: Dataset, folder: Path) -> None:
    """Two test faces as files, to edit."""
    for name, row in zip("ab", dataset.rows("test")[:2], strict=True):
        save_picture(Image.fromarray(np.asarray(dataset.images[row])), folder / f"{name}.png")


def about_data(dataset: Dataset, out: Path) -> Section:
    """What the faces look like and what can change about them."""
    sheet = save_sheet(dataset, out / "toyfaces.png")
    changes = save_changes(out / "changes.png")
    return Section(
        "The data",
        "Faces drawn by a program: each of 22 attributes can be changed alone, so it is known what should move.",
        [
            Figure(changes, "One face, and the same face with exactly one attribute changed.", "23 drawn faces"),
            Figure(sheet, "Faces as the models see them.", "a sheet of drawn faces"),
        ],
    )


def save_changes(path: Path, seed: int = 19741) -> Path:
    """One face, and the same face with exactly one attribute changed, for each attribute."""
    face = toyfaces.sample(1, seed)
    faces = [face] + [toyfaces.change(face, a.name, values=_far_end(face, a)) for a in toyfaces.ATTRIBUTES]
    images = toyfaces.render(np.concatenate(faces), SHOWN_SIZE)
    captions = ["this face", *(name.replace("_", " ") for name in toyfaces.NAMES)]
    title = "the same face with exactly one attribute changed"
    return save_picture(grid(images, 8, captions=captions, title=title), path)


def _far_end(face: np.ndarray, attribute: toyfaces.Attribute) -> float:
    """The end of the attribute's range that is farther from the face, so that the change shows."""
    middle = (attribute.low + attribute.high) / 2
    return attribute.low if face[attribute.name][0] > middle else attribute.high
