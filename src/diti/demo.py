"""`diti demo`: photographs edited by the model in the box, then the whole path on toy faces, all on one page.

What is measured is measured on toy faces, whose attributes are known exactly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from diti.config import DEFAULT_PRESET, SolutionConfig, SolveConfig, TrainConfig
from diti.core.errors import InputError
from diti.core.images import grid, save_picture
from diti.data import toyfaces
from diti.data.prepare import prepare
from diti.data.prepared import Dataset
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.data.summary import save_sheet
from diti.pages.blocks import Figure, Section
from diti.photographs import photographs
from diti.presets import train_preset
from diti.reporting.build import Report, build_report
from diti.reporting.runs import Run
from diti.reporting.stages import Effort
from diti.reporting.terminal import print_table
from diti.representation.settings import resolve
from diti.sweep.plans import run_sweep
from diti.sweep.trainings import Plan, check_plan

Solvable = Literal["diti", "pdae"]
METHODS: tuple[Solvable, ...] = ("diti", "pdae")
SIZE = 32  # px, of the faces that are learned from
FEWEST_FACES = 2_000
SHOWN_SIZE = 64  # px, of the faces that explain the attributes


@dataclass(frozen=True, kw_only=True)
class Length:
    """How much a demo does, and what its numbers are worth."""

    faces: int  # toy faces to draw
    images: int | None = None  # that the closed form passes over; None: as many as its rule asks for
    solution: SolutionConfig = field(default_factory=SolutionConfig)
    trained: int = 0  # images that each training from the solution sees; 0: none
    seeds: tuple[int, ...] = (0,)
    effort: Effort = field(default_factory=Effort)
    remark: str


LENGTHS = {
    "quick": Length(
        faces=2_400,
        images=896,
        solution=SolutionConfig(stretches=8),
        effort=Effort(
            faces=4, pairs=2, changes=1, classifier_images=4_800, reconstructed=8, disentanglement=False
        ),
        remark="A quick look: solved from few images and scored on few, so the numbers are rough.",
    ),
    "normal": Length(
        faces=12_000,
        images=4_096,
        effort=Effort(
            faces=8, pairs=4, changes=6, classifier_images=24_000, reconstructed=16, disentanglement=False
        ),
        remark="One seed: the intervals say how much other test images change a score, not other training images.",
    ),
    "full": Length(faces=12_000, seeds=(0, 1, 2), remark="Three seeds: the intervals are over them."),
}
TRAINED = 40_000  # images of `--train`


def choose_length(quick: bool, full: bool, faces: int | None, train: int) -> tuple[str, Length]:
    """The name of the demo's folder, and its length with the given numbers instead of the usual ones."""
    if quick and full:
        raise InputError("--quick and --full were given; choose one")
    name = "quick" if quick else "full" if full else "normal"
    if faces is not None and faces < FEWEST_FACES:
        raise InputError(f"--faces is {faces}; 128 dims and their probes need {FEWEST_FACES} faces or more")
    usual = LENGTHS[name]
    length = dataclasses.replace(usual, faces=faces or usual.faces, trained=train)
    if train:  # it starts from a solution by the rule; otherwise its gain would not be known
        length = dataclasses.replace(length, images=None, solution=SolutionConfig())
    folder = "demo" if name == "normal" else f"demo-{name}"
    return f"{folder}-train" if train else folder, length


def run_demo(out: Path, length: Length) -> Report:
    """Photographs, data, solutions, measurements, page. The same command continues a stopped demo."""
    data = out / "data"
    plan = plan_training(data, length)
    if plan:
        check_plan(plan)
    source = find_source(f"toyfaces:{length.faces}", ReadOptions(size=SIZE))
    edits = photographs(out / "photographs")
    dataset = prepare(source, data, SIZE)
    runs = solve_methods(out / "runs", data, length)
    if plan:
        runs += sorted(run_sweep(plan, out / "runs"), key=lambda run: run.name.startswith("pdae"))
    built = build_report(
        runs,
        out / "report",
        data=str(data),
        effort=length.effort,
        title="DiTi on photographs and toy faces",
        lead=lead(length),
        first=[edits],
        more=[about_data(dataset, out)],
        overwrite=True,  # in the demo's own folder
    )
    measured = [run for group in built.groups for run in group.runs]
    print_table(built.tables[0])
    print("\n".join([*built.headline, *training_adds(measured), length.remark, f"the page: {built.page}"]))
    return built


def solve_methods(out: Path, data: Path, length: Length) -> list[Path]:
    """DiTi and PDAE in closed form, from one pass over the images for each seed; all of DiTi first."""
    from diti.representation.solve.run import solve_models

    for seed in length.seeds:
        solve_models({_solved(out, method, seed): settings(method, seed, data, length) for method in METHODS})
    return [_solved(out, method, seed) for method in METHODS for seed in length.seeds]


def _solved(out: Path, method: str, seed: int) -> Path:
    return out / f"{method}-solved-s{seed}"


def settings(method: Solvable, seed: int, data: Path, length: Length) -> SolveConfig:
    """`diti solve --method METHOD --images N` on the shipped backbone."""
    return SolveConfig(
        method=method, data=str(data), backbone=DEFAULT_PRESET, images=length.images, seed=seed,
        solution=length.solution,
    )  # fmt: skip


def plan_training(data: Path, length: Length) -> Plan | None:
    """The preset's training runs from the solutions, `diti train --method METHOD`; None unless asked for."""
    if not length.trained:
        return None
    usual = train_preset(DEFAULT_PRESET)
    runs: dict[str, TrainConfig] = {}
    for seed in length.seeds:
        training = dataclasses.replace(usual.training, images=length.trained, seed=seed)
        shared = dataclasses.replace(usual, data=str(data), backbone=DEFAULT_PRESET, training=training)
        runs |= {f"{method}-s{seed}": resolve(dataclasses.replace(shared, method=method)) for method in METHODS}
    return Plan(runs)


def training_adds(runs: Sequence[Run]) -> list[str]:
    """What a training adds to the solution it started from, a sentence each; empty where nothing was trained."""
    sentences = []
    for solved in runs:
        for trained in runs:
            if trained.path.name == solved.path.name.replace("-solved", "") != solved.path.name:
                before, after = (100 * run.checks["loss_removed"] for run in (solved, trained))
                sentences.append(
                    f"{trained.path.name}: training for {trained.images:,} more images removes {after:.1f} % "
                    f"of the frozen model's loss instead of {before:.1f} %."
                )
    return sentences


def lead(length: Length) -> str:
    """What was done, in a sentence or two."""
    trained = f", then trained for {length.trained:,} images each" if length.trained else ", without training"
    return (
        "First what the model in the box does to photographs. Below, measured: DiTi and PDAE, solved in closed "
        f"form over one frozen diffusion model on {length.faces:,} drawn faces{trained}. No label was used. "
        f"{length.remark}"
    )


# ---- The faces ----------------------------------------------------------------------------------------------


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
        folded=True,
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
