"""`diti sweep FILE.yaml --out DIR`: train a list of runs; what is done is skipped, what was stopped continues.

The file, of which only `data`, `backbone` (for methods that need one) and `runs` are required:

    preset: toyfaces32            # what all settings start from
    data: toyfaces:60000
    backbone: toyfaces32
    settings: {images: 100000}    # over the preset, for all runs
    seeds: [0, 1, 2]              # every run is trained with each
    grid: {subsets: [4, 8]}       # every run is trained with each value (with several keys: each combination)
    runs:                         # name: what this run has of its own
      diti: {}
      diti-detach: {detach: true}

A setting is any option of `diti train`, by its plain name (train_batch_size) or nested as in config.yaml
(training: {train_batch_size: 32}). Runs are named run[-key-value ...]-s<seed>, such as diti-subsets-4-s0.

DIR then holds a folder per run as `diti train` writes it, plan/NAME.yaml (the resolved settings of each, with
log_images lowered where the bar needs it) and logs/NAME.txt (what each printed). Every training is a process
of its own with one thread, so that the result does not depend on how many run side by side.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diti.config import (
    DEFAULT_PRESET,
    TrainConfig,
    differences,
    from_mapping,
    load_yaml,
    preset,
    resolve,
    to_yaml,
    train_preset,
)
from diti.core.errors import InputError, nearest
from diti.core.jobs import Child, Job, lanes, run_jobs
from diti.core.progress import progress_bar
from diti.core.runs import RunFolder, read_json, write_text
from diti.representation.methods.registry import effective, find_method

if TYPE_CHECKING:
    from diti.diffusion.backbone import Backbone

PLANS, LOGS = "plan", "logs"  # folders beside the runs
AT_THE_TOP = {"seed": "list them at the top as seeds: [0, 1]", "preset": "name it at the top"}
TOLD = ("loss_removed", "reconstruction_mse", "smallest_std")  # facts shown at the end, where a method has them
LOG_LINES = 200  # per run, at least: the bar moves with them


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep by name, each with all its settings."""

    runs: dict[str, TrainConfig]

    def __post_init__(self) -> None:
        if not self.runs:
            raise InputError("the sweep has no runs; name at least one, such as runs: {diti: {method: diti}}")
        equal: dict[TrainConfig, str] = {}
        for name, config in self.runs.items():
            if not re.fullmatch(r"\w[\w.-]*", name) or name in (PLANS, LOGS):
                raise InputError(f"a run cannot be called {name!r}; use letters, digits, '.', '-' and '_'")
            with _naming(f"run {name}"):
                method = find_method(config.method)
            for needed in ("data", "backbone") if method.wants_backbone(config) else ("data",):
                if not getattr(config, needed):
                    raise InputError(f"run {name}: {needed} is missing; name it at the top of the sweep")
            other = equal.setdefault(effective(resolve(config)), name)
            if other != name:
                raise InputError(f"the runs {other} and {name} would compute the same; remove one of them")

    @property
    def images(self) -> int:
        """Images seen by all runs together."""
        return sum(config.training.images for config in self.runs.values())

    def varied(self) -> list[str]:
        """The settings in which the runs differ, nested ones as outer.inner."""
        first, *others = self.runs.values()
        return list(dict.fromkeys(name for other in others for name in differences(first, other)))


@dataclass(frozen=True)
class SweepFile:
    """The keys of a sweep file; the module's docstring explains them."""

    preset: str = DEFAULT_PRESET
    data: str = ""
    backbone: str = ""
    settings: dict = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    grid: dict = field(default_factory=dict)
    runs: dict = field(default_factory=dict)


def read_plan(path: Path) -> Plan:
    """The plan of a sweep file."""
    return _resolved(load_yaml(SweepFile(), path), str(path))


def plan_from(mapping: Mapping[str, Any], where: str) -> Plan:
    """The plan of a mapping as a sweep file holds it; `where` names it in complaints."""
    return _resolved(from_mapping(SweepFile(), dict(mapping), where), where)


def _resolved(file: SweepFile, where: str) -> Plan:
    """Preset, then settings, grid, run and seed, each over the one before."""
    if not file.seeds:
        raise InputError(f"{where}: seeds is empty; write at least one, such as [0]")
    with _naming(where):
        base = dataclasses.replace(train_preset(file.preset), data=file.data, backbone=file.backbone)
    base = _over(base, _flat(file.settings, f"{where}: settings"), f"{where}: settings")
    cells = _cells(file.grid, f"{where}: grid")
    runs: dict[str, TrainConfig] = {}
    for run, values in file.runs.items():
        own = _flat(values or {}, place := f"{where}: runs: {run}")
        if twice := [key for key in own if key in file.grid]:
            raise InputError(f"{place}: {twice[0]} is set here and in the grid; remove one of them")
        for cell, seed in itertools.product(cells, file.seeds):
            config = _over(_over(base, cell, f"{where}: grid"), {**own, "seed": seed}, place)
            name = "-".join([str(run), *(f"{key}-{_as_name(value)}" for key, value in cell.items()), f"s{seed}"])
            if name in runs:
                raise InputError(f"{where}: two runs would be called {name}; name each once")
            with _naming(place):
                runs[name] = resolve(config)
    with _naming(where):
        return Plan(runs)


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Put the place before complaints that do not name it, such as that of a value out of range."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None


def _sections() -> dict[str, str]:
    """Plain name of a setting → the section of config.yaml that holds it; empty for the outermost."""
    found: dict[str, str] = {}
    for item in dataclasses.fields(default := TrainConfig()):
        section = getattr(default, item.name)
        inner = dataclasses.fields(section) if dataclasses.is_dataclass(section) else ()
        found |= {i.name: item.name for i in inner} if inner else {item.name: ""}
    return found


def _flat(values: Any, where: str) -> dict[str, Any]:
    """Settings by their plain names, from plain or nested ones; each once."""
    if not isinstance(values, dict):
        raise InputError(f"{where} must be a mapping of settings, got {values!r}")
    sections = _sections()
    pairs: list[tuple[Any, Any]] = []
    for key, value in values.items():
        inner = [name for name, section in sections.items() if section and section == key]
        if inner and isinstance(value, dict):
            pairs += [(_known(name, inner, f"{where}: {key}"), item) for name, item in value.items()]
        else:
            pairs.append((_known(key, sections, where), value))
    for key, _ in pairs:
        if sum(key == other for other, _ in pairs) > 1:
            raise InputError(f"{where}: {key} is given twice; remove one of them")
    return dict(pairs)


def _known(key: Any, allowed: Mapping[str, str] | list[str], where: str) -> str:
    """The key, if it is a setting that may stand here."""
    if key in AT_THE_TOP:
        raise InputError(f"{where}: {key} cannot stand here; {AT_THE_TOP[key]}")
    if key not in allowed:
        valid = [name for name in allowed if name not in AT_THE_TOP]
        raise InputError(f"{where}: unknown setting {key!r}; valid: {', '.join(valid)}.{nearest(str(key), valid)}")
    return str(key)


def _over(base: TrainConfig, flat: dict[str, Any], where: str) -> TrainConfig:
    """`base` with settings given by their plain names, checked as a YAML file of settings is."""
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        section = _sections()[key]
        (nested.setdefault(section, {}) if section else nested)[key] = value
    with _naming(where):
        return from_mapping(base, nested, where)


def _cells(grid: dict, where: str) -> list[dict[str, Any]]:
    """All combinations of the values of the grid; one empty cell without a grid."""
    for key, values in grid.items():
        _known(key, _sections(), where)
        if not isinstance(values, list) or not values:
            raise InputError(f"{where}: {key} must be a list of at least one value, got {values!r}")
    return [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*grid.values())]


def _as_name(value: Any) -> str:
    """A value as a part of a folder's name."""
    text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^\w.-]+", "-", text.lower() if isinstance(value, bool) else text)


def _with_lively_log(config: TrainConfig) -> TrainConfig:
    """Lines of the log often enough to follow the run by them, which changes nothing of the result."""
    length = config.training
    often = max(length.train_batch_size, length.images // LOG_LINES)
    length = dataclasses.replace(length, log_images=min(length.log_images, often))
    return dataclasses.replace(config, training=length)


def check_plan(plan: Plan) -> dict[str, Backbone]:
    """Build the networks of every run once, so that none fails later for its settings; the backbones by name."""
    from diti.diffusion.backbone import load_backbone

    different = {  # apart from the seed
        dataclasses.replace(config, training=dataclasses.replace(config.training, seed=0)): name
        for name, config in plan.runs.items()
    }
    backbones: dict[str, Backbone] = {}
    for config, name in different.items():
        with _naming(f"run {name}"):
            if config.backbone and config.backbone not in backbones:
                backbones[config.backbone] = load_backbone(config.backbone)
            _check_buildable(config, backbones.get(config.backbone))
    return backbones


def _check_buildable(config: TrainConfig, backbone: Backbone | None) -> None:
    from diti.core.loop import check_batch

    check_batch(config.training, processes=1)
    find_method(config.method).validate(config, backbone or _image_size(config, None))


def check_sweep(plan: Plan, out: Path, jobs: int | None) -> dict[str, Backbone]:
    """InputError for whatever can be told before the first second of work; the backbones by name."""
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs is {jobs}; it must be at least 1")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder")
    todo = {name: config for name, config in plan.runs.items() if not _is_done(out / name, config)}
    if not todo:
        return {}
    backbones = check_plan(rest := Plan(todo))
    _check_data(rest, backbones)
    return backbones


def _check_data(plan: Plan, backbones: Mapping[str, Backbone]) -> None:
    """Whether the data of every run can be opened at its size, without preparing it."""
    from diti.data.prepared import is_dataset, open_dataset
    from diti.data.source import ReadOptions
    from diti.data.sources import find_source

    for name, config in {(c.data, c.backbone): (n, c) for n, c in plan.runs.items()}.values():
        with _naming(f"run {name}"):
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
    from diti.data.sources import open_data

    for config in {(c.data, c.backbone): c for c in plan.runs.values()}.values():
        backbone = backbones.get(config.backbone)
        dataset = open_data(config.data, _image_size(config, backbone))
        if backbone:
            backbone.require_size(dataset.size)


def run_sweep(
    plan: Plan, out: Path, jobs: int | None = None, begun: Callable[[], None] = lambda: None
) -> list[Path]:
    """Train what is not done yet, `jobs` runs side by side; returns the folders of all runs in order.

    By default as many as there are cores, or one where there is a GPU. A run that fails does not stop the others.
    `begun` is called once everything is checked.
    """
    from diti.core.locks import locked

    backbones = check_sweep(plan, out, jobs)
    begun()
    out.mkdir(parents=True, exist_ok=True)
    with locked(out):
        todo = [name for name, config in plan.runs.items() if not _is_done(out / name, config)]
        faults: dict[str, str] = {}
        if todo:
            prepare_data(Plan({name: plan.runs[name] for name in todo}), backbones)
            jobs = jobs or lanes()
            print(f"{len(todo)} of {len(plan.runs)} runs to train, {jobs} at a time; their output: {out / LOGS}")
            faults = _train_all(plan, todo, out, jobs)
        _print_outcome(plan, todo, faults, out)
    if faults:
        raise InputError(
            f"{len(faults)} of {len(plan.runs)} runs failed ({', '.join(faults)}), see {out / LOGS}; "
            "the same command tries them again"
        )
    return [out / name for name in plan.runs]


def _is_done(folder: Path, config: TrainConfig) -> bool:
    """Whether the run is complete; a folder that holds something else is refused."""
    saved = folder / "config.yaml"
    if not saved.is_file():
        if folder.exists() and not (folder.is_dir() and all(p.name.startswith(".") for p in folder.iterdir())):
            raise InputError(f"{folder} is not a run; remove it, or choose another --out")
        return False
    before = resolve(load_yaml(TrainConfig(), saved))
    if changed := differences(effective(before), effective(resolve(config))):
        raise InputError(
            f"{folder} holds a run with other settings ({', '.join(changed)}); "
            "remove it, name the run differently, or choose another --out"
        )
    return not RunFolder(folder).missing(config.training.sure_images)


def _saved_images(folder: Path) -> int:
    """Where a stopped run will continue."""
    return max((int(p.name) for p in (folder / "state").glob("*") if p.name.isdigit()), default=0)


def _train_all(plan: Plan, todo: list[str], out: Path, jobs: int) -> dict[str, str]:
    """Run the trainings, `jobs` at a time, under one bar; returns why runs failed, by name."""
    seen = {name: config.training.images for name, config in plan.runs.items()}
    seen |= {name: _saved_images(out / name) for name in todo}
    faults: dict[str, str] = {}
    done = set(plan.runs) - set(todo)
    with progress_bar("sweep", plan.images, start=sum(seen.values())) as advance:

        def follow(child: Child) -> None:
            name = child.job.name
            if child.ended and (fault := _fault(child, out / name, plan.runs[name])):
                faults[name] = fault
            elif child.ended:
                done.add(name)
            now = min(plan.runs[name].training.images, _progress_of(child, out / name, seen[name]))
            advance(now - seen[name], note=f"{len(done)} of {len(plan.runs)} runs done, {len(faults)} failed")
            seen[name] = now

        run_jobs(plan_jobs(plan, todo, out), jobs, follow)
    return faults


def plan_jobs(plan: Plan, todo: Sequence[str], out: Path) -> list[Job]:
    """`diti train` for each of these runs, with the settings of its file in plan/, which is written here."""
    from diti.verbs.making import Train

    jobs = []
    for name in todo:
        settings = _with_lively_log(plan.runs[name])
        write_text(file := out / PLANS / f"{name}.yaml", to_yaml(settings))
        command = Train(out=out / name, settings=settings, config=file)
        told_by_file = Train(out=out / name, settings=settings)
        jobs.append(Job(name, command, out / LOGS / f"{name}.txt", told_by_file))
    return jobs


def _progress_of(child: Child, folder: Path, before: int) -> int:
    """Images seen by the log, once this process wrote to it: until then it may tell of a run that was killed."""
    run = RunFolder(folder)
    fresh = run.log_path.is_file() and run.log_path.stat().st_mtime >= child.began
    return run.images_seen() if fresh else before


def _fault(child: Child, folder: Path, config: TrainConfig) -> str:
    """Why the run that ended failed; empty when it is done."""
    if child.fault or _is_done(folder, config):
        return child.fault
    return f"{folder} is not complete although the training ended well"


def _print_outcome(plan: Plan, todo: list[str], faults: dict[str, str], out: Path) -> None:
    table = Table("run", "state", "")
    for name in plan.runs:
        if name in faults:
            table.add_row(name, "failed", Text(faults[name]))
            continue
        facts = read_json(out / name / "checks.json")
        told = [f"{key.replace('_', ' ')} {facts[key]:.3g}" for key in TOLD if key in facts]
        table.add_row(name, "done" if name in todo else "done before", ", ".join(told))
    Console().print(table)
