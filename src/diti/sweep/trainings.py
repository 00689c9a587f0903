"""A sweep of trainings, in parallel.

DIR then holds a folder per run as `diti train` writes it (with log_images lowered where the bar needs it) and
logs/NAME.txt (what each printed). Every training is a process of its own with one thread, so that the result does
not depend on how many run in parallel.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from diti.config import DEFAULT_PRESET, TrainConfig
from diti.core.errors import InputError
from diti.core.jobs import Child, Job, run_jobs, usual_jobs
from diti.core.progress import progress_bar
from diti.core.runs import RunFolder
from diti.core.settings import differences, load_yaml
from diti.presets import preset, train_preset
from diti.representation.registry import find_method
from diti.representation.settings import effective, resolve
from diti.sweep.file import LOGS, Runs, SweepFile, naming, runs_of

if TYPE_CHECKING:
    from diti.diffusion.backbone import Backbone

LOG_LINES = 200  # per run, at least: the bar moves with them


@dataclass(frozen=True)
class Plan(Runs[TrainConfig]):
    """The trainings of a sweep."""

    def needed(self, config: TrainConfig) -> tuple[str, ...]:
        return ("data", "backbone") if find_method(config.method).wants_backbone(config) else ("data",)

    def computed(self, config: TrainConfig) -> TrainConfig:
        return effective(resolve(config))

    @property
    def images(self) -> int:
        """Images seen by all runs together, except those with a length in minutes."""
        lengths = [config.training for config in self.runs.values()]
        return sum(length.images for length in lengths if length.minutes is None)

    @property
    def title(self) -> str:
        minutes = sum(config.training.minutes or 0 for config in self.runs.values())
        lengths = [f"{self.images:,} images"] if self.images else []
        lengths += [f"{minutes:g} minutes of training"] if minutes else []
        return ", ".join([f"{len(self.runs)} runs", *lengths])

    def check(self, out: Path, jobs: int | None) -> dict[str, Backbone]:
        if jobs is not None and jobs < 1:
            raise InputError(f"--jobs is {jobs}; it must be at least 1")
        if not (todo := self._todo(out)):
            return {}
        backbones = check_plan(rest := Plan(todo))
        _check_data(rest, backbones)
        return backbones

    def make(self, out: Path, jobs: int | None, backbones: dict[str, Backbone]) -> tuple[set[str], dict[str, str]]:
        """Train what is not done yet; returns the names of these runs, and why some of them failed."""
        if not (todo := self._todo(out)):
            return set(), {}
        prepare_data(Plan(todo), backbones)
        jobs = jobs or usual_jobs()
        print(f"{len(todo)} of {len(self.runs)} runs to train, {jobs} at a time; their output: {out / LOGS}")
        return set(todo), _train_all(self, list(todo), out, jobs)

    def _todo(self, out: Path) -> dict[str, TrainConfig]:
        return {name: config for name, config in self.runs.items() if not _is_done(out / name, config)}


def plan_trainings(file: SweepFile, where: str) -> Plan:
    """The plan of a file whose verb is train."""
    with naming(where):
        base = train_preset(file.preset or DEFAULT_PRESET)
    base = dataclasses.replace(base, data=file.data, backbone=file.backbone)
    runs = runs_of(file, base, where, resolve)
    with naming(where):
        return Plan(runs)


def check_plan(plan: Plan) -> dict[str, Backbone]:
    """Build the networks of every run once, so that no settings fail later; the backbones by name."""
    from diti.core.loop import check_batch

    def buildable(config: TrainConfig, backbone: Backbone | None) -> None:
        check_batch(config.training, processes=1)
        find_method(config.method).validate(config, backbone or _image_size(config, None))

    different = {  # apart from the seed
        dataclasses.replace(config, training=dataclasses.replace(config.training, seed=0)): name
        for name, config in plan.runs.items()
    }
    return Plan({name: config for config, name in different.items()}).with_backbones(buildable)


def _check_data(plan: Plan, backbones: Mapping[str, Backbone]) -> None:
    """Whether the data of every run can be opened at its size, without preparing it."""
    from diti.data.prepared import is_dataset, open_dataset
    from diti.data.source import ReadOptions
    from diti.data.sources import find_source

    for name, config in {(c.data, c.backbone): (n, c) for n, c in plan.runs.items()}.values():
        with naming(f"run {name}"):
            backbone, path = backbones.get(config.backbone), Path(config.data).expanduser()
            if not is_dataset(path):
                find_source(config.data, ReadOptions(size=_image_size(config, backbone)))
            elif backbone:
                backbone.require_size(open_dataset(path).size)
            else:
                open_dataset(path)


def _image_size(config: TrainConfig, backbone: Backbone | None) -> int:
    return backbone.size if backbone else preset(config.preset).backbone.size


def prepare_data(plan: Plan, backbones: Mapping[str, Backbone]) -> None:
    """Prepare what is not a dataset folder yet into the cache, before several runs would do it at once."""
    from diti.data.prepared import require_training_images
    from diti.data.sources import open_data

    for config in {(c.data, c.backbone): c for c in plan.runs.values()}.values():
        backbone = backbones.get(config.backbone)
        dataset = require_training_images(open_data(config.data, _image_size(config, backbone)))
        if backbone:
            backbone.require_size(dataset.size)


def _is_done(folder: Path, config: TrainConfig) -> bool:
    """Whether the run is complete; a folder that holds something else is refused."""
    saved = folder / "config.yaml"
    if not saved.is_file():
        if folder.exists() and not (folder.is_dir() and all(p.name.startswith(".") for p in folder.iterdir())):
            raise InputError(f"{folder} is not a run; remove it, or choose another --out")
        return False
    from diti.diffusion.start_run import settled

    before = resolve(load_yaml(TrainConfig(), saved))
    config = dataclasses.replace(config, training=settled(config, folder))
    if changed := differences(effective(before), effective(resolve(config))):
        raise InputError(
            f"{folder} holds a run with other settings ({', '.join(changed)}); "
            "remove it, name the run differently, or choose another --out"
        )
    return not RunFolder(folder).missing(config.training.sure_images)


def _saved(folder: Path, config: TrainConfig) -> int:
    """Where a stopped run will continue, images; 0 for one with a length in minutes, where it is unknown."""
    if config.training.minutes is not None:
        return 0
    return max((int(p.name) for p in (folder / "state").glob("*") if p.name.isdigit()), default=0)


def _train_all(plan: Plan, todo: list[str], out: Path, jobs: int) -> dict[str, str]:
    """Run the trainings, `jobs` at a time, under one bar; returns why runs failed, by name."""
    length = {name: _length(config) for name, config in plan.runs.items()}
    seen = length | {name: _saved(out / name, plan.runs[name]) for name in todo}
    faults: dict[str, str] = {}
    done = set(plan.runs) - set(todo)
    unit = "images" if plan.images else "s"
    with progress_bar("sweep", sum(length.values()), unit, start=sum(seen.values())) as advance:

        def follow(child: Child) -> None:
            name = child.job.name
            if child.ended and (fault := _fault(child, out / name, plan.runs[name])):
                faults[name] = fault
            elif child.ended:
                done.add(name)
            now = min(length[name], _progress_of(child, out / name, plan.runs[name], seen[name]))
            advance(now - seen[name], note=f"{len(done)} of {len(plan.runs)} runs done, {len(faults)} failed")
            seen[name] = now

        run_jobs([_job(name, plan.runs[name], out) for name in todo], jobs, follow)
    return faults


def _job(name: str, config: TrainConfig, out: Path) -> Job:
    """The training, with log lines often enough to follow it, which does not change the result."""
    from diti.representation.train import train_model

    length = config.training
    often = max(length.train_batch_size, length.images // LOG_LINES)
    length = dataclasses.replace(length, log_images=min(length.log_images, often))
    call = partial(train_model, dataclasses.replace(config, training=length), out / name)
    return Job(name, call, out / LOGS / f"{name}.txt")


def _length(config: TrainConfig) -> int:
    """What the bar counts for a run: its images, or seconds where its length is in minutes."""
    length = config.training
    return length.images if length.minutes is None else round(60 * length.minutes)


def _progress_of(child: Child, folder: Path, config: TrainConfig, before: int) -> int:
    """Images seen according to the log, once this process wrote to it: before, it may describe a killed run.

    Seconds for a run with a length in minutes.
    """
    if config.training.minutes is not None:
        return before if child.ended and child.fault else round(time.time() - child.began)
    run = RunFolder(folder)
    fresh = run.log_path.is_file() and run.log_path.stat().st_mtime >= child.began
    return run.images_seen() if fresh else before


def _fault(child: Child, folder: Path, config: TrainConfig) -> str:
    """Why the run that ended failed; empty when it is done."""
    if child.fault or _is_done(folder, config):
        return child.fault
    return f"{folder} is not complete although the training succeeded"
