"""From a sweep file to the plan of its runs, and from there to the runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from diti.core.errors import InputError
from diti.core.locks import locked
from diti.core.runs import read_json
from diti.core.settings import load_yaml
from diti.sweep.file import LOGS, SweepFile
from diti.sweep.solutions import Solutions, plan_solutions
from diti.sweep.trainings import Plan, plan_trainings

if TYPE_CHECKING:
    from diti.diffusion.backbone import Backbone

TOLD = ("loss_removed", "reconstruction_mse", "smallest_std")  # facts shown at the end, where a method has them


def read_plan(path: Path) -> Plan | Solutions:
    """The plan of a sweep file."""
    return make_plan(load_yaml(SweepFile(), path), str(path))


def make_plan(file: SweepFile, where: str) -> Plan | Solutions:
    """The plan of what a sweep file says; `where` names it in messages."""
    return plan_solutions(file, where) if file.verb == "solve" else plan_trainings(file, where)


def check_sweep(plan: Plan | Solutions, out: Path, jobs: int | None) -> dict[str, Backbone]:
    """InputError for whatever can be checked before the work starts; the backbones by name."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out} is a file; name a folder")
    return plan.check(out, jobs)


def run_sweep(
    plan: Plan | Solutions, out: Path, jobs: int | None = None, begun: Callable[[], None] = lambda: None
) -> list[Path]:
    """Make what does not exist yet; returns the folders of all runs in order. A failure does not stop other runs.

    jobs: training runs in parallel; by default one per core, or one where there is a GPU. `begun`: called once
    everything is checked.
    """
    backbones = check_sweep(plan, out, jobs)
    begun()
    out.mkdir(parents=True, exist_ok=True)
    table = Table("run", "state", "")
    with locked(out):
        fresh, faults = plan.make(out, jobs, backbones)
        for name in plan.runs:
            if name in faults:
                table.add_row(name, "failed", Text(faults[name]))
            else:
                facts = read_json(out / name / "checks.json")
                measured = ", ".join(f"{key.replace('_', ' ')} {facts[key]:.3g}" for key in TOLD if key in facts)
                table.add_row(name, "done" if name in fresh else "done before", measured)
    Console().print(table)
    if faults:
        raise InputError(
            f"{len(faults)} of {len(plan.runs)} runs failed ({', '.join(faults)}), see {out / LOGS}; "
            "the same command tries them again"
        )
    return [out / name for name in plan.runs]
