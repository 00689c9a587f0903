"""From a sweep file to the plan of its runs, and from there to the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from diti.core.settings import from_mapping, load_yaml
from diti.sweep.file import SweepFile
from diti.sweep.solutions import Solutions, check_solutions, plan_solutions, run_solutions
from diti.sweep.trainings import Plan, check_trainings, plan_trainings, run_trainings


def read_plan(path: Path) -> Plan | Solutions:
    """The plan of a sweep file."""
    return _plan(load_yaml(SweepFile(), path), str(path))


def plan_from(mapping: Mapping[str, Any], where: str) -> Plan | Solutions:
    """The plan of a mapping as a sweep file holds it; `where` names it in messages."""
    return _plan(from_mapping(SweepFile(), dict(mapping), where), where)


def _plan(file: SweepFile, where: str) -> Plan | Solutions:
    return plan_solutions(file, where) if file.verb == "solve" else plan_trainings(file, where)


def check_sweep(plan: Plan | Solutions, out: Path, jobs: int | None) -> None:
    """InputError for whatever can be checked before the work starts."""
    if isinstance(plan, Solutions):
        check_solutions(plan, out, jobs)
    else:
        check_trainings(plan, out, jobs)


def run_sweep(
    plan: Plan | Solutions, out: Path, jobs: int | None = None, begun: Callable[[], None] = lambda: None
) -> list[Path]:
    """Make what does not exist yet; returns the folders of all runs in order. `begun`: called after all checks."""
    if isinstance(plan, Solutions):
        return run_solutions(plan, out, jobs, begun)
    return run_trainings(plan, out, jobs, begun)
