"""A sweep of solutions: those that need the same from the images share one pass over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from diti.config import SolveConfig
from diti.core.errors import InputError
from diti.sweep.file import Runs, SweepFile, naming, runs_of
from diti.sweep.trainings import told_of

if TYPE_CHECKING:
    from diti.diffusion.backbone import Backbone


@dataclass(frozen=True)
class Solutions(Runs[SolveConfig]):
    """The solutions of a sweep."""

    def passes(self) -> list[dict[str, SolveConfig]]:
        """The runs by the pass that they share."""
        from diti.representation.solve.run import shared_pass

        found: dict[SolveConfig, dict[str, SolveConfig]] = {}
        for name, config in self.runs.items():
            found.setdefault(shared_pass(config), {})[name] = config
        return list(found.values())

    @property
    def title(self) -> str:
        passes = len(self.passes())
        return f"{len(self.runs)} solutions, {passes} pass{'es' if passes > 1 else ''} over the images"


def plan_solutions(file: SweepFile, where: str) -> Solutions:
    """The plan of a file whose verb is solve."""
    if file.preset:
        raise InputError(f"{where}: preset is for trainings; remove it, and write what you need as settings")
    runs = runs_of(file, SolveConfig(data=file.data, backbone=file.backbone), where)
    with naming(where):
        return Solutions(runs)


def check_solutions(plan: Solutions, out: Path, jobs: int | None) -> None:
    """InputError for whatever can be checked before the work starts."""
    from diti.diffusion.backbone import load_backbone
    from diti.representation.solve.run import validate

    if jobs is not None:
        raise InputError(f"--jobs is {jobs}; it is for trainings, solutions use all cores one after the other")
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder")
    backbones: dict[str, Backbone] = {}
    for name, config in plan.runs.items():
        with naming(f"run {name}"):
            if config.backbone not in backbones:
                backbones[config.backbone] = load_backbone(config.backbone)
            validate(config, backbones[config.backbone])


def run_solutions(
    plan: Solutions, out: Path, jobs: int | None = None, begun: Callable[[], None] = lambda: None
) -> list[Path]:
    """Solve what is not solved yet; returns the folders of all runs in order."""
    from diti.core.locks import locked
    from diti.representation.solve.run import solve_models

    check_solutions(plan, out, jobs)
    begun()
    out.mkdir(parents=True, exist_ok=True)
    table = Table("run", "state", "")
    with locked(out):
        for place, group in enumerate(passes := plan.passes(), 1):
            print(f"pass {place} of {len(passes)}: {', '.join(group)}")
            found = solve_models({out / name: config for name, config in group.items()})
            for folder, fresh in found.items():
                table.add_row(folder.name, "done" if fresh else "done before", told_of(folder))
    Console().print(table)
    return [out / name for name in plan.runs]
