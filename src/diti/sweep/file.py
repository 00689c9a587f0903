"""The file of a sweep: what all runs share, and how each differs.

Only `data`, `backbone` (for methods that need one) and `runs` are required:

    verb: train                   # or solve
    preset: toyfaces32            # where the settings of training runs start from
    data: toyfaces:60000
    backbone: toyfaces32
    settings: {images: 100000}    # over the preset, for all runs
    seeds: [0, 1, 2]              # every run is made with each
    grid: {subsets: [4, 8]}       # every run is made with each value (with several keys: each combination)
    runs:                         # name: the settings of this run alone
      diti: {}
      diti-detach: {detach: true}

A setting is any option of `diti train` or `diti solve`, by its plain name (train_batch_size) or nested as in
config.yaml (training: {train_batch_size: 32}). Runs are named run[-key-value ...]-s<seed>, such as
diti-subsets-4-s0.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from diti.config import SolveConfig, TrainConfig
from diti.core.device import HOST
from diti.core.errors import InputError
from diti.core.settings import differences, from_options, sections, unknown_setting

if TYPE_CHECKING:
    from diti.diffusion.backbone import Backbone

LOGS = "logs"  # folder beside the runs
AT_THE_TOP = {"seed": "list them at the top as seeds: [0, 1]", "preset": "name it at the top"}
Config = TypeVar("Config", TrainConfig, SolveConfig)


@dataclass(frozen=True)
class SweepFile:
    """The keys of a sweep file; the module's docstring explains them."""

    verb: Literal["train", "solve"] = "train"
    preset: str = ""
    data: str = ""
    backbone: str = ""
    settings: dict = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    grid: dict = field(default_factory=dict)
    runs: dict = field(default_factory=dict)


def runs_of(
    file: SweepFile, base: Config, where: str, completed: Callable[[Config], Config] = lambda config: config
) -> dict[str, Config]:
    """By name; settings, grid, run and seed, each overriding the one before and all `base`, then `completed`."""
    if not file.seeds:
        raise InputError(f"{where}: seeds is empty; write at least one, such as [0]")
    base = _over(base, _flat(base, file.settings, f"{where}: settings"), f"{where}: settings")
    cells = _cells(base, file.grid, f"{where}: grid")
    runs: dict[str, Config] = {}
    for run, values in file.runs.items():
        own = _flat(base, values or {}, place := f"{where}: runs: {run}")
        if twice := [key for key in own if key in file.grid]:
            raise InputError(f"{place}: {twice[0]} is set here and in the grid; remove one of them")
        for cell, seed in itertools.product(cells, file.seeds):
            config = _over(_over(base, cell, f"{where}: grid"), {**own, "seed": seed}, place)
            name = _name_of(str(run), cell, seed)
            if name in runs:
                raise InputError(f"{where}: two runs would be called {name}; name each once")
            with naming(place):
                runs[name] = completed(config)
    return runs


def _name_of(run: str, cell: dict[str, Any], seed: int) -> str:
    return "-".join([run, *(f"{key}-{_as_name(value)}" for key, value in cell.items()), f"s{seed}"])


@dataclass(frozen=True)
class Runs(Generic[Config]):
    """The runs of a sweep by name, each with all its settings; no two compute the same."""

    runs: dict[str, Config]

    def __post_init__(self) -> None:
        if not self.runs:
            raise InputError("the sweep has no runs; name at least one, such as runs: {diti: {method: diti}}")
        equal: dict[Config, str] = {}
        for name, config in self.runs.items():
            if not re.fullmatch(r"\w[\w.-]*", name) or name == LOGS:
                raise InputError(f"a run cannot be called {name!r}; use letters, digits, '.', '-' and '_'")
            with naming(f"run {name}"):
                needed = self.needed(config)
            if missing := [part for part in needed if not getattr(config, part)]:
                raise InputError(f"run {name}: {missing[0]} is missing; name it at the top of the sweep")
            if (other := equal.setdefault(self.computed(config), name)) != name:
                raise InputError(f"the runs {other} and {name} would compute the same; remove one of them")

    def needed(self, config: Config) -> tuple[str, ...]:
        """What a run must have."""
        return ("data", "backbone")

    def computed(self, config: Config) -> Config:
        """The settings as far as they have an effect."""
        return config

    def with_backbones(self, check: Callable[[Config, Backbone | None], object]) -> dict[str, Backbone]:
        """Check each run with its backbone, which is loaded once; the backbones by name."""
        from diti.diffusion.backbone import load_backbone

        found: dict[str, Backbone] = {}
        for name, config in self.runs.items():
            with naming(f"run {name}"):
                if config.backbone and config.backbone not in found:
                    found[config.backbone] = load_backbone(config.backbone, HOST)
                check(config, found.get(config.backbone))
        return found

    @property
    def data(self) -> str:
        """The one of the first run."""
        return next(iter(self.runs.values())).data


def varied(runs: Mapping[str, Any]) -> list[str]:
    """The settings in which the runs differ, nested ones as outer.inner."""
    first, *others = runs.values()
    return list(dict.fromkeys(name for other in others for name in differences(first, other)))


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Put the place before messages that do not name it, such as one about a value out of range."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None


def _flat(base: TrainConfig | SolveConfig, values: Any, where: str) -> dict[str, Any]:
    """Settings by their plain names, from plain or nested ones; each once."""
    if not isinstance(values, dict):
        raise InputError(f"{where} must be a mapping of settings, got {values!r}")
    places = sections(base.fitted_to(values))
    pairs: list[tuple[Any, Any]] = []
    for key, value in values.items():
        inner = [name for name, section in places.items() if section and section == key]
        if inner and isinstance(value, dict):
            pairs += [(_known(name, inner, f"{where}: {key}"), item) for name, item in value.items()]
        else:
            pairs.append((_known(key, places, where), value))
    for key, _ in pairs:
        if sum(key == other for other, _ in pairs) > 1:
            raise InputError(f"{where}: {key} is given twice; remove one of them")
    return dict(pairs)


def _known(key: Any, allowed: Mapping[str, str] | list[str], where: str) -> str:
    """The key, if it is a setting that is allowed here."""
    if key in AT_THE_TOP:
        raise InputError(f"{where}: {key} is not allowed here; {AT_THE_TOP[key]}")
    if key not in allowed:
        raise unknown_setting(where, key, [name for name in allowed if name not in AT_THE_TOP])
    return str(key)


def _over(base: Config, flat: dict[str, Any], where: str) -> Config:
    """`base` with settings given by their plain names, checked as a YAML file of settings is."""
    with naming(where):
        return from_options(base, flat, where)


def _cells(base: TrainConfig | SolveConfig, grid: dict, where: str) -> list[dict[str, Any]]:
    """All combinations of the values of the grid; one empty cell without a grid."""
    for key, values in grid.items():
        _known(key, sections(base), where)
        if not isinstance(values, list) or not values:
            raise InputError(f"{where}: {key} must be a list of at least one value, got {values!r}")
    return [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*grid.values())]


def _as_name(value: Any) -> str:
    """A value as a part of a folder's name."""
    text = "x".join(map(str, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^\w.-]+", "-", text.lower() if isinstance(value, bool) else text)
