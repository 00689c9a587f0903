"""From the record of a verb's options back to the words that the command line parses into it."""

from __future__ import annotations

import dataclasses
import re
import typing
from typing import Any

import tyro

_POSITIONAL = tyro.conf.Positional[str].__metadata__[0]  # type: ignore[attr-defined]


def words_of(record: Any, known: Any = None) -> list[str]:
    """What stands after `diti` for this record of a verb: the verb, positional arguments, options.

    Values that the parser would assume anyway are left out: the defaults of the record's class, or the values of
    `known`, a record of the same class that the parser starts from. Nested records have their options without
    prefix, as the verbs ask for with OmitArgPrefixes.
    """
    verb = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(record).__name__).lower()
    positional, options = _arguments(record, known)
    return [verb, *positional, *options]


def _arguments(record: Any, known: Any) -> tuple[list[str], list[str]]:
    """Words of the positional arguments, and of the options."""
    hints = typing.get_type_hints(type(record), include_extras=True)
    positional: list[str] = []
    options: list[str] = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if dataclasses.is_dataclass(value):
            options += _arguments(value, getattr(known, field.name, None))[1]
        elif _POSITIONAL in getattr(hints[field.name], "__metadata__", ()):
            positional += _values(value)
        elif field.default is dataclasses.MISSING or value != getattr(known, field.name, field.default):
            options += _option(field.name, value)
    return positional, options


def _option(name: str, value: Any) -> list[str]:
    """`--code-dim 128`, `--flip` or `--no-flip`, `--channels 64 128`."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    words = _values(value)
    if len(words) == 1 and words[0].startswith("-"):  # alone it would be taken for an option
        return [f"--{option}={words[0]}"]
    return [f"--{option}", *words]


def _values(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, tuple) else [str(value)]
