"""The numbers that an option allows: written beside it, checked where its record is made, shown by --help.

tau: Annotated[float, *Range(0, 1, open=(0, 1))] = 0.05
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import tyro

from diti.core.errors import InputError

_ENDLESS = 10**15  # a count that nobody will wait for


@dataclass(frozen=True)
class Range:
    """The numbers that an option allows: from `least` to `most`, without the ends that are in `open`."""

    least: float
    most: float = math.inf
    open: tuple[float, ...] = ()
    hint: str = ""

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most and number not in self.open

    def __iter__(self) -> Iterator[object]:
        """What an annotation holds: the range itself, and what tyro writes after the option's help."""
        yield self
        yield tyro.conf.arg(help_behavior_hint=lambda default: unless_none(default, self.words))

    def __str__(self) -> str:
        return self.words + (f" ({self.hint})" if self.hint else "")

    @property
    def words(self) -> str:
        """Such as `above 0 and below 1`."""
        lowest = f"above {self.least:,}" if self.least in self.open else f"{self.least:,} or more"
        highest = f"below {self.most:,}" if self.most in self.open else f"at most {self.most:,}"
        if self.most >= _ENDLESS:
            return lowest
        return f"{lowest} and {highest}" if self.open else f"from {self.least:,} to {self.most:,}"


def unless_none(default: str, words: str = "") -> str:
    """What --help says after an option: its default, where that is a value, and the numbers it allows."""
    said = [f"default: {default}"] if default not in ("None", "", "''") else []
    return f"({'; '.join([*said, *([words] if words else [])])})" if said or words else ""


COUNT, NUMBER = Range(1, _ENDLESS), Range(0, _ENDLESS, hint="0 = none")
ANY, OFF, POSITIVE = Range(0), Range(0, hint="0 = off"), Range(0, open=(0,))
INSIDE, BELOW_ONE = Range(0, 1, open=(0, 1)), Range(0, 1, open=(1,))
SIDES = Range(1, 4_096)  # px, of images
SEEDS = Range(0, 2**32 - 1)  # what NumPy and scikit-learn take
Count = Annotated[int, *COUNT]
Seed = Annotated[int, *SEEDS, tyro.conf.arg(help="of the random numbers: the same seed gives the same result")]


def check_numbers(record: Any) -> None:
    """InputError for a number in a record that is not finite or out of the range beside it."""
    kind: type = record.__class__
    for item in dataclasses.fields(record):
        value = getattr(record, item.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                check_number(item.name, number, _ranges(kind).get(item.name))


def check_number(name: str, number: float, allowed: Range | None = None) -> None:
    """InputError that names the option, for a number that is not finite or out of its range."""
    if isinstance(number, float) and not math.isfinite(number):
        raise InputError(f"{option(name)} is {number}; give a finite number" + (f", {allowed}" if allowed else ""))
    if allowed is not None and number not in allowed:
        raise InputError(f"{option(name)} is {number}; it must be {allowed}")


def option(name: str) -> str:
    """A setting as it is typed: train_batch_size → --train-batch-size."""
    return f"--{name.replace('_', '-')}"


@cache
def _ranges(kind: type) -> dict[str, Range]:
    """By the name of the field; the annotations are text until they are evaluated."""
    hints = typing.get_type_hints(kind, include_extras=True)
    beside = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: mark for name, marks in beside.items() for mark in marks if isinstance(mark, Range)}
