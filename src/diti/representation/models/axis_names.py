"""Names that people give to axes and dims of z, kept in the model folder as names.json.

Two kinds of things have names, and a key stands for each: a number for a dim of z, and a word such as "a7" for
one of the axes of `axes.py`. People write 37 or z037 for a dim, and a07 for an axis.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from diti.core.errors import InputError, nearest
from diti.core.runs import read_mapping, write_json

NAMES = "names.json"
ALLOWED = re.compile(r"\w[\w +-]{0,39}")  # also part of column and file names
RESERVED = re.compile(r"all|fine|coarse|early|middle|late|[az]?\d+(_t\d+)?", re.IGNORECASE)  # mean something else

Key: TypeAlias = int | str  # a dim of z by its number, or one of its axes as axis_key writes it


@dataclass(frozen=True)
class AxisName:
    """What grows along an axis and, where it has a word of its own, what is at the other end."""

    name: str
    negative: str = ""


def axis_key(axis: int) -> str:
    """The key of an axis."""
    return f"a{axis}"


def axis_of(key: Key) -> int | None:
    """The number of the axis that a key stands for; None for a dim."""
    return int(key[1:]) if isinstance(key, str) else None


def key_label(key: Key) -> str:
    """How people read it: a07, z037."""
    return f"{key[0]}{int(key[1:]):02d}" if isinstance(key, str) else f"z{key:03d}"


def read_names(folder: Path, dims: int) -> dict[Key, AxisName]:
    """Axis or dim → its name, of a model folder with that many dims; empty where none was given."""
    path = folder / NAMES
    if not path.is_file():
        return {}
    names: dict[Key, AxisName] = {}
    for word, given in read_mapping(path).items():
        known = isinstance(given, dict) and given.keys() <= {"name", "negative"} and "name" in given
        key = axis_number(word) if re.fullmatch(r"a?\d+", word) else None
        if (
            not known
            or key is None
            or not all(_fits(end) for end in given.values())
            or (isinstance(key, int) and key >= dims)
        ):
            raise InputError(f"{path} is damaged at {word!r}; delete it and name the axes again")
        names[key] = AxisName(**given)
    return names


def write_names(folder: Path, names: Mapping[Key, AxisName]) -> None:
    """Replace the names of a model folder."""
    write_json(folder / NAMES, {str(key): asdict(names[key]) for key in in_order(names)})


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Axes first, each kind by number."""
    return sorted(keys, key=lambda key: (isinstance(key, int), key if isinstance(key, int) else int(key[1:])))


def with_name(
    names: Mapping[Key, AxisName], dims: int, axis: Key, name: str, negative: str = "", axes: int = 0
) -> dict[Key, AxisName]:
    """The names with that of one axis or dim set; InputError for one that z lacks, or a word that cannot be.

    axes: how many axes z has, besides its dims.
    """
    require_axis(axis, dims, axes)
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
            raise InputError(f"{_told(other)} is already called {clash.pop()!r}; choose another name")
    return {**others, axis: AxisName(name, negative)}


def find_axis(names: Mapping[Key, AxisName], dims: int, word: str, axes: int = 0) -> tuple[Key, float]:
    """The axis or dim that a word stands for, by number or name, and its sign: -1 for the name of its other end.

    axes: how many axes z has, besides its dims.
    """
    if re.fullmatch(r"-?\d+", word):
        require_axis(int(word), dims)
        return int(word), 1.0
    for key, given in names.items():
        for end, sign in ((given.name, 1.0), (given.negative, -1.0)):
            if end and end.lower() == word.lower():
                require_axis(key, dims, axes)
                return key, sign
    if (found := axis_number(word)) is not None:
        require_axis(found, dims, axes)
        return found, 1.0
    known = words_of(names)
    in_use = f"names in use: {', '.join(known)}" if known else "none has a name yet: give one with diti name"
    raise InputError(
        f"no axis is called {word!r}; use {f'a00 to {key_label(axis_key(axes - 1))}, ' if axes else ''}"
        f"a number from 0 to {dims - 1}; {in_use}.{nearest(word, known)}"
    )


def axis_number(word: str) -> Key | None:
    """The axis written as a07, or the dim written as 37 or, as in the names of features, z037; None for others."""
    found = re.fullmatch(r"a(\d+)|z(\d+)|(-?\d+)", word.strip())
    if found is None:
        return None
    return axis_key(int(found[1])) if found[1] else int(found[2] or found[3])


def words_of(names: Mapping[Key, AxisName]) -> list[str]:
    """The names of both ends of all axes."""
    return [end for given in names.values() for end in (given.name, given.negative) if end]


def is_named(names: Mapping[Key, AxisName], word: str) -> bool:
    """Whether an axis, or its other end, has this name."""
    return word.lower() in (end.lower() for end in words_of(names))


def require_axis(key: Key, dims: int, axes: int = 0) -> None:
    """InputError for an axis or a dim that z does not have."""
    if isinstance(key, int) and not 0 <= key < dims:
        raise InputError(f"axis {key} does not exist; z of this model has the axes 0 to {dims - 1}")
    if isinstance(key, str) and int(key[1:]) >= axes:
        last = key_label(axis_key(max(axes - 1, 0)))
        has = f"has the axes a00 to {last}" if axes else "has none yet: diti explore finds them"
        raise InputError(f"axis {key_label(key)} does not exist; this model {has}")


def _told(key: Key) -> str:
    return f"axis {key if isinstance(key, int) else key_label(key)}"


def with_names(features: Sequence[str], names: Mapping[Key, AxisName]) -> list[str]:
    """Feature names, such as z037_t0300, followed by the name of the axis where it has one."""
    return [f"{feature}_{names[axis].name}" if axis in names else feature for axis, feature in enumerate(features)]


def _fits(word: object) -> bool:
    return isinstance(word, str) and (word == "" or ALLOWED.fullmatch(word) is not None)
