"""Frozen, typed, closed records of settings, from and to mappings: unknown keys are errors with a hint."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from diti.core.errors import InputError, nearest
from diti.core.ranges import check_numbers

RENAMED = {"decoder_start": "start"}  # settings of earlier versions, whose run folders are still read
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one kind: every number in them is finite and in its range."""

    def __post_init__(self) -> None:
        check_numbers(self)

    def fitted_to(self, values: Mapping[str, Any]) -> Self:
        """The same, with the sections that these values may fill."""
        return self


def from_mapping(base: T, values: Any, where: str, whole: str = "") -> T:
    """`base` with the values of a mapping; unknown keys and wrong types raise with the nearest valid name.

    whole: the source of the outermost mapping, when this one is a section.
    """
    if not isinstance(values, dict):
        raise InputError(f"{where} must be a mapping of settings, got {type(values).__name__}")
    base = _fitted_to(base, values)
    hints = typing.get_type_hints(type(base))
    changes = {}
    for given, value in values.items():
        key = RENAMED.get(given, given)
        if key not in hints:
            raise unknown_setting(where, key, hints)
        current = getattr(base, key)
        if dataclasses.is_dataclass(current):
            changes[key] = from_mapping(current, value, f"{where}: {key}", whole or where)
        else:
            changes[key] = _checked(value, hints[key], f"{where}: {key}")
    try:
        return dataclasses.replace(base, **changes)  # type: ignore[type-var]
    except InputError as error:
        raise InputError(f"{whole or where}: {error}") from None


def from_options(base: T, options: Mapping[str, Any], where: str) -> T:
    """`base` with options by their plain names, as on the command line: the section of each is looked up."""
    places = sections(base := _fitted_to(base, options))
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in places:
            raise unknown_setting(where, name, places)
        (values.setdefault(places[name], {}) if places[name] else values)[name] = value
    return from_mapping(base, values, where)


def unknown_setting(where: str, key: Any, valid: Collection[str]) -> InputError:
    """What is said of a setting that does not exist, with the nearest that does."""
    said = f"valid: {', '.join(valid)}" if valid else "only a registered or installed method has its own"
    return InputError(f"{where}: unknown setting {key!r}; {said}.{nearest(str(key), valid)}")


def sections(config: Any) -> dict[str, str]:
    """Plain name of a setting → the section of config.yaml that holds it; empty for the outermost."""
    found: dict[str, str] = {}
    for item in dataclasses.fields(config):
        section = getattr(config, item.name)
        if dataclasses.is_dataclass(section):
            found |= {inner.name: item.name for inner in dataclasses.fields(section)}
        else:
            found[item.name] = ""
    return found


def _fitted_to(base: T, values: Mapping[str, Any]) -> T:
    return base.fitted_to(values) if isinstance(base, Settings) else base


def _checked(value: Any, wanted: Any, where: str) -> Any:
    """The value in the wanted type; whole numbers pass as floats, lists as tuples; nothing else is converted."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        return value if value is None else _checked(value, arguments[0], where)
    if origin is tuple and isinstance(value, int):  # one number where a list is allowed
        value = (value,)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_checked(item, arguments[0], where) for item in value)
    if origin is Literal and value in arguments:
        return value
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(wanted, type) and isinstance(value, wanted) and not (wanted is int and isinstance(value, bool)):
        return value
    allowed = " or ".join(map(repr, arguments)) if origin is Literal else getattr(wanted, "__name__", wanted)
    raise InputError(f"{where} must be {allowed}, got {value!r}")


def load_yaml(base: T, path: Path) -> T:
    """`base` with the settings of a YAML file."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads 1e-3 as a number, as YAML 1.2 and people do; PyYAML needs 1.0e-3."""

    exponent = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; name a YAML file of settings") from None
    except (yaml.YAMLError, ValueError, OSError) as error:  # ValueError: bytes that are not text, 2024-13-45
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    return from_mapping(base, values or {}, str(path))


def to_yaml(config: Any, leave_out: Collection[str] = ()) -> str:
    """The resolved settings as text that `load_yaml` reads back, without empty or omitted sections."""
    import yaml

    kept = {k: v for k, v in dataclasses.asdict(config).items() if k not in leave_out and v != {}}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True)


def differences(before: Any, now: Any, skip: frozenset[str] = frozenset()) -> list[str]:
    """Names of the settings in which two configs differ, nested ones as outer.inner."""
    found = []
    for item in dataclasses.fields(before):
        old, new = getattr(before, item.name), getattr(now, item.name)
        if item.name in skip or old == new:
            continue
        if dataclasses.is_dataclass(old) and type(old) is type(new):
            found += [f"{item.name}.{inner}" for inner in differences(old, new, skip)]
        else:
            found.append(item.name)
    return found
