"""What a page is made of: tables whose cells carry their numbers, figures, and sections that hold both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Tone = Literal["", "best", "paper", "baseline"]  # how a cell or row is shown; paper: grey, not measured here


@dataclass(frozen=True)
class Cell:
    """Text for people and, if it shows a number, that number with its interval."""

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

    @property
    def sides(self) -> list[str]:
        """For each column: number, where it holds one."""
        columns = range(len(self.columns))
        return ["number" if any(row[i].value is not None for row in self.rows) else "" for i in columns]

    @property
    def greyed(self) -> bool:
        """Whether a cell is the paper's."""
        return any(cell.tone == "paper" for row in self.rows for cell in row)


@dataclass(frozen=True)
class Figure:
    """A picture on disk, to be embedded."""

    path: Path  # PNG
    caption: str
    alt: str  # what it shows, for those who cannot see it


@dataclass(frozen=True)
class Film:
    """A picture that a slider changes: all its frames lie side by side in one file."""

    path: Path  # PNG
    frames: int
    caption: str
    alt: str
    label: str  # of the slider


@dataclass(frozen=True)
class Section:
    """A heading with text, tables, figures and films, and the commands that made them."""

    title: str
    text: str = ""  # paragraphs separated by an empty line
    blocks: Sequence[Table | Figure | Film] = ()
    commands: Sequence[str] = ()
    folded: bool = False  # closed at first, for long details


@dataclass(frozen=True)
class Page:
    """The whole page."""

    title: str
    lead: str  # what was done and what came out, in a few sentences
    sections: Sequence[Section]
    facts: dict[str, str] = field(default_factory=dict)  # versions, hashes, dates: at the end
