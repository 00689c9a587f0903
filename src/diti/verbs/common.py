"""What the verbs share: types of options, and the lines printed before and after the work."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Protocol

import tyro

from diti.config import PretrainConfig, SolveConfig, TrainConfig
from diti.core.errors import InputError
from diti.core.ranges import unless_none
from diti.core.settings import to_yaml

WHERE = "where to compute: cpu, cuda, cuda:1, mps; auto: DITI_DEVICE, else a GPU where torch finds one"
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint=unless_none)]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint=unless_none)]
Number = Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint=unless_none)]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint=unless_none)]
CommaList = Annotated[str, tyro.conf.arg(metavar="A,B,...", help_behavior_hint=unless_none)]
Model = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
Given = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SRC")]
Overwrite = Annotated[bool, tyro.conf.arg(help="also replace files that diti did not write")]
ComputeOn = Annotated[str, tyro.conf.arg(metavar="DEVICE", help=WHERE)]
Picture = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="IMAGE")]


class Verb(Protocol):
    def run(self) -> None: ...


def require(settings: PretrainConfig | SolveConfig | TrainConfig, *required: str) -> None:
    """InputError for a setting that must have been given."""
    allowed = {
        "data": "a dataset folder, a folder of images, faces or toyfaces",
        "backbone": "a folder, a hub id, faces64 or toyfaces32",
    }
    for name in required:
        if not getattr(settings, name):
            raise InputError(f"--{name} is missing; name {allowed[name]}")


def show(settings: PretrainConfig | SolveConfig | TrainConfig, idle: Sequence[str] = ()) -> None:
    """Print the resolved settings, but `idle` ones."""
    print_once(to_yaml(settings, idle), end="")


def options_of(verb: Any) -> dict[str, Any]:
    """The options of a verb by name, for the function of that name."""
    return {item.name: getattr(verb, item.name) for item in fields(verb)}


def print_once(text: str, end: str = "\n") -> None:
    """Print in the first process only, however many torchrun started."""
    if os.environ.get("RANK", "0") == "0":
        print(text, end=end)


def next_command(*words: object) -> None:
    """What a person would type now, ready for the shell, by the name under which this command can be found."""
    typed = Path(sys.argv[0])  # such as .venv/bin/diti, which need not be on the PATH
    program = (
        ["diti"] if shutil.which("diti") else [str(typed)] if typed.name == "diti" else ["python", "-m", "diti"]
    )
    print_once(f"next: {shlex.join([*program, *map(str, words)])}")


def whole_numbers(option: str, text: str) -> list[int]:
    """The whole numbers of a comma list; none of an empty one."""
    found = numbers(option, text) if text else []
    if odd := [number for number in found if not number.is_integer()]:
        raise InputError(f"{option} {odd[0]:g} is not a whole number; write them as 10,100,1000")
    return [int(number) for number in found]


def words(text: str) -> tuple[str, ...]:
    """The words of a comma list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(option: str, text: str) -> list[float]:
    """The numbers of a comma list."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text!r} is not a list of numbers; write them as 0,0.5,1") from None
