"""What a report needs to know about runs and has not measured yet: measured side by side, kept in the runs.

Each stage is one call in a process of its own with one thread. Its record says that it is done; `measured.json`
says by which options and version of the package, and of which weights and data, so that what changed is measured
again and nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from diti.core.errors import InputError
from diti.core.jobs import Child, Job, run_jobs, usual_jobs
from diti.core.progress import progress_bar
from diti.core.ranges import COUNT, NUMBER, check_number
from diti.core.runs import sha256_parts, versions, write_json
from diti.data.prepared import Dataset
from diti.diffusion.files import read_settings
from diti.exploring.page import explore
from diti.measure.analysis import analyze
from diti.measure.baselines import require_among_baselines
from diti.measure.counterfactuals import CounterfactualOptions, measure_counterfactuals
from diti.measure.probing import ProbeOptions, probe
from diti.reporting.runs import MEASURED, measured_folder

NOTES = "measured.json"  # stage → what it was measured with
ENCODING = ("encoder", "partition.json", "stats.safetensors")  # parts of a model folder that z comes from
NETWORKS = ("unet", "transformer", "backbone.json")  # what tells one backbone from another
DECODING = (
    "decoder",
    *NETWORKS,
    "vae",
    "vqvae",
    "scheduler",
)  # and those that make images, where a model has them


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured; more images make intervals narrower and the wait longer."""

    faces: int = 24  # test images edited per attribute; 0: no image is edited or reconstructed
    pairs: int = 16  # test pairs interpolated
    changes: int = 12  # pairs per attribute for the time-step at which it is lost
    classifier_images: int = 32_000  # images that the attribute classifier is trained on
    reconstructed: int = 64  # test images reconstructed
    axes: int = 1  # axes drawn of each subset
    disentanglement: bool = True  # also DCI, FactorVAE score, MIG, SAP, TAD
    baselines: bool = True  # also probe what is known without a trained encoder
    wide_baseline: bool = False  # and all of the backbone's features
    transfer: bool = False  # only read the code, by a k-fold: of images that the runs were not trained on
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("faces", self.faces, NUMBER)
        for name in ("pairs", "changes", "classifier_images", "reconstructed", "axes"):
            check_number(name, getattr(self, name), COUNT)
        require_among_baselines(self.wide_baseline, self.baselines)


@dataclass(frozen=True)
class Stage:
    """One call that measures one thing about one run."""

    name: str  # key of MEASURED
    run: Path
    folder: Path  # of the run, for this dataset
    call: partial[Any]
    options: dict[str, Any]  # how it is measured
    seconds: float  # expected on one core, for the time left
    inputs: dict[str, Any]  # what the result depends on besides the options: weights, data, version

    @property
    def key(self) -> dict[str, Any]:
        """All that the result depends on, as it is read back from a file."""
        return json.loads(json.dumps({"options": self.options, **self.inputs}))

    @property
    def is_done(self) -> bool:
        """Whether it was measured like this; extra baselines do no harm."""
        key, noted = self.key, self._notes().get(self.name)
        more = [{}, {"baselines": True}, {"baselines": True, "wide_baseline": True}]
        enough = [key | {"options": key["options"] | added} for added in more]
        return self._read(MEASURED[self.name]) is not None and noted in enough

    def _notes(self) -> dict[str, Any]:
        return self._read(NOTES) or {}

    def _read(self, name: str) -> dict[str, Any] | None:
        """A file of the folder; None where it is missing or damaged: then it is measured again."""
        try:
            return read_settings(self.folder / name)
        except InputError:
            return None

    def forget(self) -> None:
        """Before it is measured again: what is there belongs to other settings."""
        (self.folder / MEASURED[self.name]).unlink(missing_ok=True)

    def note(self) -> None:
        """After it was measured."""
        write_json(self.folder / NOTES, self._notes() | {self.name: self.key})


def measure_runs(runs: Sequence[Path], dataset: Dataset, data: str, effort: Effort, logs: Path) -> None:
    """Bring every run's records on the dataset up to date; what was measured before is kept."""
    stages = [stage for stage in plan_stages(runs, dataset, data, effort) if not stage.is_done]
    least = replace(effort, baselines=False, wide_baseline=False)
    possible = [stage for run in runs for stage in stages_of(run, dataset, data, least)]
    for stage in [*stages, *(stage for stage in possible if not stage.is_done)]:
        stage.forget()
    if not stages:
        return
    labels = distinct_names(runs)
    by_name = {f"{labels[stage.run]}-{stage.name}": stage for stage in stages}
    jobs = [Job(name, stage.call, logs / f"{name}.txt") for name, stage in by_name.items()]
    faults: dict[str, str] = {}
    with progress_bar("measuring", round(sum(stage.seconds for stage in stages)), unit="s") as advance:
        shown = dict.fromkeys(by_name, 0.0)

        def follow(child: Child) -> None:
            name, stage = child.job.name, by_name[child.job.name]
            if child.ended and child.fault:
                faults[name] = child.fault
            elif child.ended:
                stage.note()
            # A stage that takes longer than expected waits just before its end.
            now = stage.seconds if child.ended else min(time.time() - child.began, 0.95 * stage.seconds)
            advance(now - shown[name], note=name)
            shown[name] = now

        run_jobs(jobs, usual_jobs(), follow)
    for name, fault in faults.items():
        raise InputError(f"measuring {name} failed ({fault}); see {logs}; the same command tries again")


def distinct_names(runs: Sequence[Path]) -> dict[Path, str]:
    """A name for each run: its folder's, with those above it where runs of several folders are named alike."""
    found: dict[Path, str] = {}
    for run in runs:
        parts = run.resolve().parts
        others = [other.resolve().parts for other in runs if other.resolve() != run.resolve()]
        length = next(n for n in range(1, len(parts) + 1) if all(o[-n:] != parts[-n:] for o in others))
        found[run] = "-".join(part.strip("/") for part in parts[-length:])
    return found


def plan_stages(runs: Sequence[Path], dataset: Dataset, data: str, effort: Effort) -> list[Stage]:
    """All stages of all runs; axes and theory once, with the first run that holds each backbone.

    So are baselines, for each length of the code, the wide one once; where no run holds a backbone, the first run
    gets those that need none. The first counterfactuals come first: they train the classifier that the others wait
    for; those come when that should be done.
    """
    stages: list[Stage] = []
    with_baselines: set[tuple[str, Any]] = set()
    shown: dict[str, set[str]] = {"analysis": set(), "explored": set()}  # stage → backbones
    holders = [run for run in runs if any((run / name).exists() for name in NETWORKS)] or runs[:1]
    for run in runs:
        backbone = str(sha256_parts(run, NETWORKS))
        floor = (backbone, read_settings(run / "encoder" / "config.json").get("dims"))
        baselines = effort.baselines and run in holders and floor not in with_baselines
        known = backbone in {held for held, _ in with_baselines}
        with_baselines |= {floor} if baselines else set()
        own = replace(effort, baselines=baselines, wide_baseline=effort.wide_baseline and baselines and not known)
        found = stages_of(run, dataset, data, own)
        stages += [stage for stage in found if backbone not in shown.get(stage.name, ())]
        for stage in found:
            shown.get(stage.name, set()).add(backbone)
    edits = [stage for stage in stages if stage.name == "counterfactuals"]
    others = sorted((stage for stage in stages if stage not in edits), key=lambda stage: -stage.seconds)
    meanwhile, seconds = 0, 0.0
    while edits and meanwhile < len(others) and seconds < edits[0].seconds:
        seconds += others[meanwhile].seconds
        meanwhile += 1
    return [*edits[:1], *others[:meanwhile], *edits[1:], *others[meanwhile:]]


def stages_of(run: Path, dataset: Dataset, data: str, effort: Effort) -> list[Stage]:
    """What can be measured about a run: all of it with labels; without, the losses by time-step and the axes."""
    folder = measured_folder(run, dataset.name, dataset.hash)
    draws = (run / "decoder").is_dir() and effort.faces > 0
    reconstructed = effort.reconstructed if draws and not effort.transfer else 0
    hashes = sha256_parts(run, [*ENCODING, *DECODING])
    outs = {name: folder / file for name, file in MEASURED.items()}

    def stage(name: str, call: partial[Any], options: dict[str, Any], seconds: float) -> Stage:
        # A probe looks at z, unless it reconstructs; the backbone of its baselines comes with a decoder.
        unused = DECODING if name == "probe" and not reconstructed else ()
        weights = {part: digest for part, digest in hashes.items() if part not in unused}
        inputs = {"weights": weights, "data": dataset.hash, "diti": versions()["diti"]}
        return Stage(name, run, folder, call, options, seconds, inputs)

    # Files that an earlier version left in the folder, which is ours, may be unsigned: they are replaced.
    own: dict[str, Any] = {"seed": effort.seed, "overwrite": True}
    about = (str(run), data)
    call: partial[Any]
    found = []
    if dataset.attributes:
        probed = ProbeOptions(
            disentanglement=effort.disentanglement and not effort.transfer, reconstruct=reconstructed,
            baselines=effort.baselines, wide_baseline=effort.wide_baseline, subsets=not effort.transfer,
            folds=effort.transfer, **own,
        )  # fmt: skip
        call = partial(probe, *about, outs["probe"], **asdict(probed))
        found.append(stage("probe", call, asdict(probed), 30 + 30 * effort.baselines + 300 * effort.wide_baseline))
    if effort.transfer:
        return found
    if dataset.attributes and draws:
        edited = CounterfactualOptions(
            images=effort.faces, pairs=effort.pairs, classifier_images=effort.classifier_images, **own
        )
        call = partial(measure_counterfactuals, *about, outs["counterfactuals"].parent, edited)
        found.append(stage("counterfactuals", call, asdict(edited), 80))
    if read_settings(run / "partition.json").get("subsets", 1) != 1:
        options: dict[str, Any] = {"count": effort.changes, **own}
        call = partial(analyze, *about, outs["analysis"].parent, **options)
        found.append(stage("analysis", call, options, 40))
        options = {"axes": effort.axes, "faces": 1, **own}
        call = partial(explore, *about, outs["explored"].parent, **options)
        found.append(stage("explored", call, options, 40))
    return found
