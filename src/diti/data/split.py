"""Train, valid and test for sources without a split: stable, by hash, all images of a person together."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa

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


def with_split(table: pa.Table) -> pa.Table:
    """The table with a split: its own, else by person, else by file name.

    If there are so few images that none would be for training, all of them are.
    """
    if "split" in table.column_names:
        return table
    keys = table["identity" if "identity" in table.column_names else "file"].to_pylist()
    splits = [split_by_hash(key) for key in keys]
    return set_split(table, splits if "train" in splits else ["train"] * len(splits))
