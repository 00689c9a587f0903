"""Draw commands for every verb from the types of its options and from nasty values; damage every file in turn.

    python tests/fuzz.py --minutes 10            # look for so long and print what was found
    python tests/fuzz.py --case '[["encode", "run", "data"], "run/model.json", "null"]'   # repeat one

tests/test_fuzz.py does a part of it in the suite.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import shlex
import sys
import tempfile
import time
import types
import typing
from pathlib import Path
from typing import Any, Literal

import tyro
from fuzz_world import COMMANDS, Case, Outcome, World

from diti.verbs import VERBS

SECONDS = 3.0  # a command that works so long has passed its checks
POSITIONAL = tyro.conf.Positional[str].__metadata__[0]  # type: ignore[attr-defined]
NASTY = (
    "", " ", "nan", "inf", "-inf", "-1", "0", "1", "2", "3", "20", "0.5", "1e308", "1e-308", "-1e308", "1e-3",
    "1000000000000", "99999999999999999999999", "../x", "/proc", "/proc/none/x", "a\nb", "ünicode-😀", "\udcff",
    "--", "-", "-n", "photos", "photos/0.png", "run", "data", "backbone", "missing/path", "missing", "sweep.yaml",
    "toyfaces", "toyfaces:_", "toyfaces:0", "toyfaces:-5", "toyfaces:99999999999999", "toyfaces32", "probe.json",
    "x" * 300, "a,b", ",", "1,nan", "0,0.5,inf", "None", "true", "{}", "[]", "%s", "$HOME", "~", "~x",
    "C:\\x",
    "a/b", "a/b/c", "smile", "hat", "early", "0:99", "all", "out.mp4", "out.txt", "out", "٣", "0x10", "1_000",
    "1,000",
)  # fmt: skip
SLOW = {"--compile"}  # making code for this machine takes a minute
PLAIN = {int: ("0", "1", "2", "4", "7", "16", "32", "33", "1000"), float: ("0", "0.1", "0.5", "1", "2.5", "-0.1")}
LISTED = (NASTY[:16], ("8", "16"), ("8", "8", "8", "8", "8", "8"), (), ("16",), ("7", "9"), ("4", "0"))


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a verb, or a positional argument, as its record declares it."""

    name: str  # as typed; empty for a positional argument
    kind: Any


def options_of(record: Any) -> list[Option]:
    """The options of a verb, those of nested records too, in the order of its positional arguments."""
    found = []
    hints = typing.get_type_hints(record, include_extras=True)
    for field in dataclasses.fields(record):
        marks, kind = (), hints[field.name]
        if typing.get_origin(kind) is typing.Annotated:
            kind, *marks = typing.get_args(kind)
        if dataclasses.is_dataclass(kind):
            found += options_of(kind)
        else:
            found.append(Option("" if POSITIONAL in marks else f"--{field.name.replace('_', '-')}", kind))
    return found


def draw_value(kind: Any, draw: random.Random) -> list[str]:
    """Words for an option of this type: sensible ones, or whatever."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return draw_value(arguments[0], draw)
    if origin in (types.UnionType, typing.Union):
        return draw_value(arguments[0], draw)
    if origin is tuple:
        return list(draw.choice(LISTED)) if draw.random() < 0.4 else [draw.choice(NASTY)]
    if draw.random() < 0.3:
        if origin is Literal:
            return [str(draw.choice(arguments))]
        if kind in PLAIN:
            return [draw.choice(PLAIN[kind])]
    return [draw.choice(NASTY)]


def draw_words(verb: str, draw: random.Random) -> tuple[str, ...]:
    """The quick command of a verb with up to three of its words or options replaced."""
    options = [option for option in options_of(VERBS[verb]) if option.name not in SLOW]
    positional, given = _split(COMMANDS[verb].split())
    for option in draw.sample(options, min(len(options), draw.choice((1, 1, 2, 3)))):
        if not option.name:
            place = draw.randrange(len(positional))
            positional[place : place + 1] = draw_value(option.kind, draw)
        elif option.kind is bool:
            given[option.name] = []
            if draw.random() < 0.5:
                given[f"--no-{option.name[2:]}"] = given.pop(option.name)
        else:
            given[option.name] = draw_value(option.kind, draw)
    words = [verb, *positional]
    for name, values in given.items():
        joined = len(values) == 1 and draw.random() < 0.5  # --seed=-1, which is no option of its own
        words += [f"{name}={values[0]}"] if joined else [name, *values]
    if verb == "sweep" and draw.random() < 0.9 and "--dry-run" not in words:
        words.append("--dry-run")
    return tuple(words)


def _split(words: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The words before the options, and the values of each option."""
    given: dict[str, list[str]] = {}
    first = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    for word in words[first:]:
        if word.startswith("-"):
            given[name := {"-n": "--count"}.get(word, word)] = []
        else:
            given[name].append(word)
    return words[:first], given


def told(case: Case, outcome: Outcome) -> str:
    """What was found, for people, with the command that repeats it."""
    lines = [f"{'; '.join(outcome.faults(case))}"]
    lines += [f"    repeat: python tests/fuzz.py --case {shlex.quote(str(case))}"]
    shown = [outcome.place, *outcome.error.strip().splitlines()[-3:]]
    return "\n".join(lines + [f"    {line}" for line in shown if line])


def look(world: World, minutes: float, seed: int) -> dict[str, tuple[Case, Outcome]]:
    """What is found in so many minutes, each kind of fault once."""
    draw, deadline = random.Random(seed), time.monotonic() + 60 * minutes
    damaged = list(world.cases())
    draw.shuffle(damaged)
    found: dict[str, tuple[Case, Outcome]] = {}
    tried = 0
    while time.monotonic() < deadline:
        if damaged and draw.random() < 0.5:
            case = damaged.pop()
        else:
            case = Case(draw_words(draw.choice(list(VERBS)), draw))
        outcome = world.try_out(case, SECONDS)
        tried += 1
        if faults := outcome.faults(case):
            key = outcome.place or f"{case.words[0]} {faults[0].split('/')[0]}"
            if key not in found:
                found[key] = (case, outcome)
                print(told(case, outcome), flush=True)
    print(
        f"{tried} commands, {len(found)} kinds of fault, {len(damaged)} damaged files were not tried", flush=True
    )
    return found


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", help="repeat this one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = World.build(Path(folder))
        if given.case is None:
            print(f"seed {given.seed}")
            return 1 if look(world, given.minutes, given.seed) else 0
        case = Case.parse(given.case)
        outcome = world.try_out(case, seconds=60)
        print(f"exit code {outcome.code}\n{outcome.out}{outcome.error}{outcome.traceback}{outcome.changed}")
        print("\n".join(outcome.faults(case)) or "no fault")
        return 1 if outcome.faults(case) else 0


if __name__ == "__main__":
    sys.exit(run())
