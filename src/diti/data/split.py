"""Train, valid and test for sources without a split: stable, by hash, all images of a person together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from diti.data.attributes import SPLITS

ROWS_AT_ONCE = 65_536
VALID_SHARE = 0.1
TEST_SHARE = 0.1


def split_by_hash(key: str) -> str:
    """The split of one key (a file name or a person): always the same, whatever else is in the set."""
    place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    if place < TEST_SHARE:
        return "test"
    return "valid" if place < TEST_SHARE + VALID_SHARE else "train"


def set_split(table: pa.Table, splits: Sequence[str] | None) -> pa.Table:
    """The table with these splits, if there are any, in second place; its own stay."""
    if splits is None or "split" in table.column_names:
        return table
    return table.add_column(1, "split", pa.array(splits, pa.string()))


def split_counts(table: pa.Table) -> dict[str, int]:
    """How many images each split has."""
    found = pc.value_counts(table["split"]).to_pylist()
    counts = {one["values"]: int(one["counts"]) for one in found}
    return {split: counts.get(split, 0) for split in SPLITS}


def in_pieces(column: pa.ChunkedArray) -> Iterator[list[Any]]:
    """The values of a column, some at a time: millions of words as Python's would take a gigabyte."""
    return (column.slice(start, ROWS_AT_ONCE).to_pylist() for start in range(0, len(column), ROWS_AT_ONCE))


def with_split(table: pa.Table) -> pa.Table:
    """The table with a split: its own, else by person, else by file name.

    If there are so few images that none would be for training, all of them are.
    """
    if "split" in table.column_names:
        return table
    keys = table["identity" if "identity" in table.column_names else "file"]
    splits = [split_by_hash(key) for piece in in_pieces(keys) for key in piece]
    return set_split(table, splits if "train" in splits else ["train"] * len(splits))
