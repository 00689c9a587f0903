"""`toyfaces[:N]` as a source: faces are rendered when their rows are read, straight at the wanted size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from diti.core.errors import InputError
from diti.data.attributes import dataset_table
from diti.data.readers.built_in import count_of
from diti.data.source import Picture, ReadOptions, Source
from diti.data.toyfaces import ATTRIBUTES, check_size, render, sample

DEFAULT_COUNT = 20_000
MOST = 10_000_000
SEED = 0  # the set called toyfaces is always the same one


def open_source(location: str, options: ReadOptions) -> Source:
    """The first N toy faces with all their attributes."""
    count = count_of(location, "toyfaces", usual=DEFAULT_COUNT, most=MOST)
    if options.size is None:
        raise InputError(f"{location} can be drawn at any size and none is given; add size=32, or --size 32")
    check_size(options.size)
    factors = sample(count, SEED)
    names = [f"face-{index:07d}" for index in range(count)]
    table = dataset_table(names, attributes={a.name: factors[a.name] for a in ATTRIBUTES})
    return Source("toyfaces", location, table, ReadToyFaces(options.size))


@dataclass(frozen=True)
class ReadToyFaces:
    """Renders the faces of the rows asked for."""

    size: int

    def __call__(self, rows: Sequence[int]) -> Iterable[Picture]:
        if len(rows) == 0:
            return []
        first, last = rows[0], rows[-1]
        factors = sample(last - first + 1, SEED, start=first)
        return list(render(factors[[row - first for row in rows]], self.size))
