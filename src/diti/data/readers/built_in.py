"""How built-in data is named: `NAME`, or `NAME:N` for the first N images."""

from __future__ import annotations

import re

from diti.core.errors import InputError


def count_of(location: str, name: str, *, usual: int, most: int) -> int:
    """The number of images that a location asks for; InputError for one that cannot be had."""
    match = re.fullmatch(rf"{name}(?::(\d(?:_?\d){{0,20}}))?", location)
    count = int(match[1] or usual) if match else 0
    if not 1 <= count <= most:
        raise InputError(f"{location} is not understood; write {name} or {name}:N with N from 1 to {most:,}")
    return count
