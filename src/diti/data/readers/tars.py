"""Tar shards as webdataset writes them: the files of an image follow each other, named alike up to the first dot.

0001.jpg is an image, 0001.json beside it holds its attributes as names and numbers, 0001.cls a class number.
"""

from __future__ import annotations

import json
import tarfile
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from diti.core.errors import InputError
from diti.data.attributes import check_ignored, table_from_columns
from diti.data.readers.folder import HEIF_SUFFIXES, IMAGE_SUFFIXES
from diti.data.readers.parquet import split_by_shard
from diti.data.source import Picture, ReadOptions, Source

ENDING, FACTS, CLASS = ".tar", ".json", ".cls"
IMAGES = (*IMAGE_SUFFIXES, *HEIF_SUFFIXES)
MOST_CLASSES = 64  # as many become attributes of their own


@dataclass
class Sample:
    """The files of one image."""

    key: str  # path inside the shard up to the first dot of the name
    place: tuple[int, int] | None = None  # where the image lies in the shard: first byte, length
    facts: dict[str, Any] = field(default_factory=dict)  # contents of .json and .cls


def detect(path: Path) -> bool:
    """A tar file, or a folder that holds some and no image beside them."""
    if path.is_file():
        return path.suffix == ENDING
    beside = [entry.suffix.lower() for entry in path.iterdir() if entry.is_file()] if path.is_dir() else []
    return ENDING in beside and not set(beside) & set(IMAGES)


def open_source(path: Path, options: ReadOptions) -> Source:
    """All images of all shards: their places are found by reading the headers once."""
    files = [path] if path.is_file() else sorted(path.glob(f"*{ENDING}"))
    shards = [read_shard(file, f"{file.stem}/" if len(files) > 1 else "") for file in files]
    counts = [shard.rows.num_rows for shard in shards]
    if not any(counts):
        raise InputError(f"{path} holds no images; known endings: {' '.join(IMAGES)}")
    columns, notes = _columns(shards, path)
    check_ignored(options.ignore, columns.column_names, path)
    if "split" not in columns.column_names:
        words, split_notes = split_by_shard([file.stem for file in files])
        notes += split_notes
        if words:
            split = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
            columns = columns.append_column("split", pa.array(split, pa.string()))
    starts = tuple([0, *accumulate(counts)][:-1])
    places = array("q", chain.from_iterable(shard.places for shard in shards))
    table = table_from_columns(columns["file"], columns, skip={"file", *options.ignore})
    return Source(path.stem, str(path), table, ReadTars(tuple(files), starts, places), notes=tuple(notes))


@dataclass(frozen=True)
class Shard:
    """What one file holds."""

    rows: pa.Table  # a row per image: its name in the column `file`, and its attributes
    places: array[int]  # first byte and length of each image, one after the other
    words: set[str]  # names of what is no number


def read_shard(file: Path, prefix: str) -> Shard:
    """The index of a shard; prefix: before the name of each image."""
    keys, places, words = list[str](), array("q"), set[str]()
    columns: dict[str, list[Any]] = {}  # shorter than `keys` where the last images have no such value
    for sample in samples(file):
        if sample.place is None:
            continue
        for name, value in sample.facts.items():
            is_word = name in ("split", "identity")
            if value is None or name == "file":
                continue
            if not is_word and not isinstance(value, int | float):
                words.add(name)
                continue
            values = columns.setdefault(name, [])
            values += [None] * (len(keys) - len(values))
            values.append(str(value) if is_word else value + 0)  # of True a number
        keys.append(prefix + sample.key)
        places.extend(sample.place)
    filled = {name: values + [None] * (len(keys) - len(values)) for name, values in columns.items()}
    try:
        rows = pa.table({"file": pa.array(keys, pa.string()), **filled})
    except (pa.ArrowException, OverflowError) as error:
        raise InputError(f"{file}: its values cannot be a table ({str(error).splitlines()[0]})") from None
    return Shard(rows, places, words)


def samples(shard: Path) -> Iterator[Sample]:
    """What a shard holds, image by image; InputError for one that is compressed or damaged."""
    sample = Sample("")
    try:
        with tarfile.open(shard, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
                key, ending = _named(member.name)
                if not member.isfile() or not ending:
                    continue
                if key != sample.key:
                    yield sample
                    sample = Sample(key)
                if ending in IMAGES and sample.place is None:
                    sample.place = member.offset_data, member.size
                elif ending == FACTS:
                    sample.facts |= _facts(tar, member, shard)
                elif ending == CLASS:
                    sample.facts[CLASS] = _number(tar, member, shard)
    except tarfile.TarError as error:
        raise InputError(
            f"{shard} cannot be read as a tar file ({error}); unpack it if it is compressed, else copy it again"
        ) from None
    yield sample


def _named(name: str) -> tuple[str, str]:
    """Key and ending: the ending begins at the first dot of the file's name. Hidden files have none."""
    folder, slash, file = name.removeprefix("./").rpartition("/")
    stem, dot, ending = file.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{ending}".lower() if stem else ""


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None  # it is a file
    return file.read()


def _facts(tar: tarfile.TarFile, member: tarfile.TarInfo, shard: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(tar, member))
    except ValueError as error:
        raise InputError(f"{shard}: {member.name} is not valid JSON ({error})") from None
    if not isinstance(found, dict):
        raise InputError(f"{shard}: {member.name} holds a {type(found).__name__}, not names and values")
    return found


def _number(tar: tarfile.TarFile, member: tarfile.TarInfo, shard: Path) -> int:
    text = _text(tar, member).strip()
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{shard}: {member.name} holds {text[:40]!r}, not the number of a class") from None


def _columns(shards: list[Shard], path: Path) -> tuple[pa.Table, list[str]]:
    """File names and attributes of all images, and notes on what cannot be one: words, lists, too many classes."""
    words = set[str]().union(*(shard.words for shard in shards))
    notes = [f"values that are no numbers were left out: {', '.join(sorted(words))}"] if words else []
    try:
        tables = [one.rows.select([n for n in one.rows.column_names if n not in words]) for one in shards]
        found = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"{path}: the shards do not fit together ({str(error).splitlines()[0]})") from None
    if CLASS not in found.column_names:
        return found, notes
    given, found = found[CLASS], found.drop_columns([CLASS])
    classes = sorted(pc.unique(given).drop_null().to_pylist())
    if given.null_count or len(classes) > MOST_CLASSES:
        fault = f"{given.null_count:,} images have none" if given.null_count else f"{len(classes):,} are too many"
        return found, [*notes, f"the classes in {CLASS} were left out: {fault}"]
    for one in classes:
        found = found.append_column(f"class {one}", pc.cast(pc.equal(given, one), pa.int8()))
    return found, notes


@dataclass(frozen=True)
class ReadTars:
    """`Read` by place: no header is read again."""

    shards: tuple[Path, ...]
    starts: tuple[int, ...]  # the first row of each shard
    places: array[int]  # first byte and length of each image in its shard, one after the other

    def __call__(self, rows: Sequence[int]) -> Iterator[Picture]:
        number, file = -1, None
        try:
            for row in rows:
                if (wanted := bisect_right(self.starts, row) - 1) != number or file is None:
                    if file is not None:
                        file.close()
                    number, file = wanted, self.shards[wanted].open("rb")
                file.seek(self.places[2 * row])
                yield file.read(self.places[2 * row + 1])
        finally:
            if file is not None:
                file.close()
