"""A sweep of solutions: those that need the same from the images share one pass over them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diti.config import SolveConfig
from diti.core.errors import InputError
from diti.sweep.file import Runs, SweepFile, naming, runs_of

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

    def check(self, out: Path, jobs: int | None) -> dict[str, Backbone]:
        from diti.representation.solve.run import validate

        if jobs is not None:
            raise InputError(f"--jobs is {jobs}; it is for training runs; each solution uses all cores")

        def solvable(config: SolveConfig, backbone: Backbone | None) -> None:
            assert backbone is not None  # every solution needs one
            validate(config, backbone)

        return self.with_backbones(solvable)

    def make(self, out: Path, jobs: int | None, backbones: dict[str, Backbone]) -> tuple[set[str], dict[str, str]]:
        """Solve what is not solved yet; returns the names of the new solutions, and no faults."""
        from diti.representation.solve.run import solve_models

        fresh: set[str] = set()
        for place, group in enumerate(passes := self.passes(), 1):
            print(f"pass {place} of {len(passes)}: {', '.join(group)}")
            found = solve_models({out / name: config for name, config in group.items()})
            fresh |= {folder.name for folder, new in found.items() if new}
        return fresh, {}


def plan_solutions(file: SweepFile, where: str) -> Solutions:
    """The plan of a file whose verb is solve."""
    if file.preset:
        raise InputError(f"{where}: preset is for training runs; remove it, and write what you need as settings")
    runs = runs_of(file, SolveConfig(data=file.data, backbone=file.backbone), where)
    with naming(where):
        return Solutions(runs)
