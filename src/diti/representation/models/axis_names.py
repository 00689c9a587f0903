"""Names that people give to axes of z, kept in the model folder as names.json."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from diti.core.errors import InputError, nearest
from diti.core.runs import read_mapping, write_json

NAMES = "names.json"
ALLOWED = re.compile(r"\w[\w +-]{0,39}")  # also part of column and file names
RESERVED = re.compile(r"all|fine|coarse|early|middle|late|[az]?\d+(_t\d+)?", re.IGNORECASE)  # mean something else


@dataclass(frozen=True)
class AxisName:
    """What grows along an axis and, where it has a word of its own, what is at the other end."""

    name: str
    negative: str = ""


def read_names(folder: Path, dims: int) -> dict[int, AxisName]:
    """Axis → its name, of a model folder with so many dims; empty where none was given."""
    path = folder / NAMES
    if not path.is_file():
        return {}
    names = {}
    for axis, given in read_mapping(path).items():
        known = isinstance(given, dict) and given.keys() <= {"name", "negative"} and "name" in given
        if not known or not axis.isdigit() or int(axis) >= dims or not all(_fits(word) for word in given.values()):
            raise InputError(f"{path} is damaged at {axis!r}; delete it and name the axes again")
        names[int(axis)] = AxisName(**given)
    return names


def write_names(folder: Path, names: Mapping[int, AxisName]) -> None:
    """Replace the names of a model folder."""
    write_json(folder / NAMES, {str(axis): asdict(names[axis]) for axis in sorted(names)})


def with_name(
    names: Mapping[int, AxisName], dims: int, axis: int, name: str, negative: str = ""
) -> dict[int, AxisName]:
    """The names with that of one axis set; InputError for an axis or a word that cannot be."""
    require_axis(axis, dims)
    for word in (name, negative) if negative else (name,):
        if not word or not _fits(word) or word.isdigit():
            raise InputError(
                f"the name {word!r} cannot be used; use up to 40 letters, digits, spaces, - and _, not a number"
            )
        if RESERVED.fullmatch(word):
            raise InputError(
                f"the name {word!r} cannot be used: commands take it for a part of the code or the number of an "
                "axis; choose another"
            )
    others = {other: given for other, given in names.items() if other != axis}
    for other, given in others.items():
        if clash := {name.lower(), negative.lower()} & {given.name.lower(), given.negative.lower()} - {""}:
            raise InputError(f"axis {other} is already called {clash.pop()!r}; choose another name")
    return {**others, axis: AxisName(name, negative)}


def find_axis(names: Mapping[int, AxisName], dims: int, word: str) -> tuple[int, float]:
    """The axis that a word names, by number or by name, and its sign: -1 for the name of its other end."""
    if re.fullmatch(r"-?\d+", word):
        require_axis(int(word), dims)
        return int(word), 1.0
    for axis, given in names.items():
        for end, sign in ((given.name, 1.0), (given.negative, -1.0)):
            if end and end.lower() == word.lower():
                return axis, sign
    if (number := axis_number(word)) is not None:
        require_axis(number, dims)
        return number, 1.0
    known = words_of(names)
    told = f"names in use: {', '.join(known)}" if known else "none has a name yet: give one with diti name"
    raise InputError(
        f"no axis is called {word!r}; use a number from 0 to {dims - 1}; {told}.{nearest(word, known)}"
    )


def axis_number(word: str) -> int | None:
    """The number of an axis written as 37, or as z037, as in the names of features."""
    found = re.fullmatch(r"z(\d+)|(-?\d+)", word.strip())
    return int(found[1] or found[2]) if found else None


def words_of(names: Mapping[int, AxisName]) -> list[str]:
    """The names of both ends of all axes."""
    return [end for given in names.values() for end in (given.name, given.negative) if end]


def is_named(names: Mapping[int, AxisName], word: str) -> bool:
    """Whether an axis, or its other end, has this name."""
    return word.lower() in (end.lower() for end in words_of(names))


def require_axis(axis: int, dims: int) -> None:
    """InputError for an axis that z does not have."""
    if not 0 <= axis < dims:
        raise InputError(f"axis {axis} does not exist; z of this model has the axes 0 to {dims - 1}")


def with_names(features: Sequence[str], names: Mapping[int, AxisName]) -> list[str]:
    """Feature names, such as z037_t0300, followed by the name of the axis where it has one."""
    return [f"{feature}_{names[axis].name}" if axis in names else feature for axis, feature in enumerate(features)]


def _fits(word: object) -> bool:
    return isinstance(word, str) and (word == "" or ALLOWED.fullmatch(word) is not None)
