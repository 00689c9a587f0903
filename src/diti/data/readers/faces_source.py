"""`faces[:N]` as a source: photograph-like faces of people who do not exist, stored in the package.

What they are and how they were made: docs/data.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from diti.data.readers import parquet
from diti.data.readers.built_in import count_of
from diti.data.source import ReadOptions, Source

FILE = Path(__file__).resolve().parents[2] / "assets" / "faces.parquet"


def open_source(location: str, options: ReadOptions) -> Source:
    """The first N faces with the readings of the judge, all that there are by default."""
    stored = parquet.open_source(FILE, options)
    count = count_of(location, "faces", usual=stored.table.num_rows, most=stored.table.num_rows)
    return replace(stored, name="faces", location=location, table=stored.table.slice(0, count))
