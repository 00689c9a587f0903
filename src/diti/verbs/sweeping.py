"""The verb that trains a list of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from diti.verbs.common import ComputeOn, Number, next_command

if TYPE_CHECKING:
    from diti.sweep.solutions import Solutions
    from diti.sweep.trainings import Plan


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Train or solve a list of runs (methods × seeds × settings) from one YAML file; it continues when stopped."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE.yaml")]  # such as sweeps/toyfaces.yaml
    out: Path  # folder for the runs, one folder each; runs that are done in it are skipped
    jobs: Number = None  # runs side by side; by default one per core, or one where there is a GPU
    dry_run: bool = False  # check everything, print the runs and stop
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.sweep.plans import check_sweep, read_plan, run_sweep

        plan = read_plan(self.file)
        if self.dry_run:
            check_sweep(plan, self.out, self.jobs)
            show_plan(plan)
            return
        run_sweep(plan, self.out, self.jobs, begun=lambda: show_plan(plan))
        data = plan.data
        next_command("report", self.out, "--data", data, "--out", "report")


def show_plan(plan: Plan | Solutions) -> None:
    """The runs and what they differ in."""
    from rich.console import Console
    from rich.table import Table

    from diti.sweep.file import varied

    settings = varied(plan.runs)
    table = Table("run", *settings, title=plan.title)
    for name, config in plan.runs.items():
        table.add_row(name, *(str(_value(config, setting)) for setting in settings))
    Console().print(table)


def _value(config: object, setting: str) -> object:
    """The value of training.seed and the like."""
    for part in setting.split("."):
        config = getattr(config, part)
    return config
