"""One of several equal parts of a long list, such as 3/16, for machines that share a job without talking."""

from __future__ import annotations

import re
from dataclasses import dataclass

from diti.core.errors import InputError

MOST = 100_000


@dataclass(frozen=True)
class Part:
    """The number-th part, from 1 on, of so many."""

    number: int
    of: int

    @classmethod
    def read(cls, text: str) -> Part:
        """From 3/16."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
        part = cls(int(found[1]), int(found[2])) if found else cls(0, 0)
        if not 1 <= part.number <= part.of <= MOST:
            raise InputError(f"--part {text!r} is not a part; write 1/16, 2/16, up to 16/16")
        return part

    def rows(self, count: int) -> slice:
        """Its rows of `count`: the parts follow each other and differ by one row at most."""
        return slice(count * (self.number - 1) // self.of, count * self.number // self.of)

    @property
    def name(self) -> str:
        """For a file or folder: in the order of the parts."""
        return f"part-{self.number:05d}-of-{self.of:05d}"

    @classmethod
    def of_name(cls, name: str) -> Part | None:
        """From such a name; None for any other."""
        found = re.fullmatch(r"part-(\d{5,6})-of-(\d{5,6})", name)
        return cls(int(found[1]), int(found[2])) if found else None

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"
