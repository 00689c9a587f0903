"""What a report is made of: tables whose cells carry their numbers, figures, and sections that hold both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Tone = Literal["", "best", "paper", "baseline"]  # how a cell or row is shown; paper: greyed, not measured here


@dataclass(frozen=True)
class Cell:
    """Text for people and, where it is one, the number behind it with its interval."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    tone: Tone = ""


@dataclass(frozen=True)
class Table:
    """A table with a key that names its CSV file."""

    key: str  # such as table1
    title: str
    columns: Sequence[str]  # the first is the heading of the rows' names
    rows: Sequence[Sequence[Cell]]
    note: str = ""  # below the table: what the numbers are, how many seeds, what is not known

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.key}: a row of {len(row)} cells under {len(self.columns)} columns")


@dataclass(frozen=True)
class Figure:
    """A picture on disk, to be embedded."""

    path: Path  # PNG
    caption: str
    alt: str  # what it shows, for those who cannot see it


@dataclass(frozen=True)
class Section:
    """A heading with text, tables and figures, and the commands that made them."""

    title: str
    text: str = ""  # paragraphs apart by an empty line
    blocks: Sequence[Table | Figure] = ()
    commands: Sequence[str] = ()
    folded: bool = False  # closed at first, for long details


@dataclass(frozen=True)
class Page:
    """The whole report."""

    title: str
    lead: str  # what was done and what came out, in a few sentences
    sections: Sequence[Section]
    facts: dict[str, str] = field(default_factory=dict)  # versions, hashes, dates: at the end
