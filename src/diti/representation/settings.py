"""What the settings of a training mean for its method: which count, and what `auto` stands for."""

from __future__ import annotations

import dataclasses
from typing import Any

from diti.config import WITHOUT_EFFECT, TrainConfig, enough_looked_at
from diti.core.errors import InputError
from diti.representation.registry import fitted, look_up

OF_SOME = ("subsets", "partition", "detach", "solution", "views", "vae", "gan")  # that not every method uses
FROM_ELSEWHERE = OF_SOME[3:]  # one that does not say may use what it likes of these


def resolve(config: TrainConfig) -> TrainConfig:
    """The settings with every `auto` decided, and as many features as a solution needs."""
    method = look_up(config.method)
    solvable = method is not None and method.solvable and config.code.encoder == "backbone"
    start = config.start if config.start != "auto" else "solved" if solvable else "copy"
    cut = config.partition if config.partition != "auto" else "matched" if start == "solved" else "staged-even"
    if not solvable and (start == "solved" or cut == "matched"):
        raise InputError(
            f"start {start!r} and partition {cut!r} need what is measured on the backbone's features: "
            "use --method diti or pdae with --encoder backbone, or another --start and --partition"
        )
    solved = start == "solved" or cut == "matched"
    solution = enough_looked_at(config.solution, config.code.code_dim) if solved else config.solution
    return dataclasses.replace(config, start=start, partition=cut, solution=solution)


def idle_settings(method: str) -> list[str]:
    """Settings and sections of settings that change nothing of what a method computes."""
    found = look_up(method)
    used = found.uses if found else FROM_ELSEWHERE
    return [name for name in OF_SOME if name not in used]


def effective(config: TrainConfig) -> TrainConfig:
    """The settings with all that change nothing of the result at their defaults: equal ones compute the same."""
    plain = TrainConfig()
    usual: dict[str, Any] = {name: getattr(plain.training, name) for name in WITHOUT_EFFECT}
    idle: dict[str, Any] = {name: getattr(plain, name) for name in idle_settings(config.method)}
    training = dataclasses.replace(config.training, **usual)
    return dataclasses.replace(fitted(config, config.method), training=training, **idle)
