"""Parquet files as on the public hub: a column of encoded images; the other columns are attributes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from diti.core.errors import InputError
from diti.data.attributes import check_ignored, check_names, split_word, table_from_columns
from diti.data.source import Picture, ReadOptions, Source, keep_latest, read_blocks

IMAGE = "image"


@dataclass(frozen=True)
class Shard:
    """One file."""

    path: Path
    name: str  # path inside the folder, without ending
    group_sizes: tuple[int, ...]  # rows of each row group

    @property
    def count(self) -> int:
        """Rows of the file."""
        return sum(self.group_sizes)


def detect(path: Path) -> bool:
    """A parquet file, or a folder of them whose first one has a column of images."""
    if path.is_file():
        return path.suffix == ".parquet"
    if not path.is_dir() or (path / "images.npy").exists():  # a prepared dataset holds a table.parquet
        return False
    try:
        return bool(image_column(_schema(_find(path)[0]), path))
    except InputError:
        return False


def open_source(path: Path, options: ReadOptions) -> Source:
    """All rows of all files. Only the columns besides the images are read here."""
    files = _find(path)
    schema = _schema(files[0])
    check_names(schema.names, path)
    image = image_column(schema, path)
    columns, notes = _columns(schema, image, options, path)
    shards = [_shard(file, path) for file in files]
    rows = _read_columns(files, columns)
    if "split" not in schema.names:
        words, split_notes = split_by_shard([shard.name for shard in shards])
        notes += split_notes
        if words:
            split = [word for word, shard in zip(words, shards, strict=True) for _ in range(shard.count)]
            rows = rows.append_column("split", pa.array(split, pa.string()))
    table = table_from_columns(_file_names(rows, image, shards), rows, skip={image})
    return Source(path.stem, str(path), table, ReadParquet(tuple(shards), image), notes=tuple(notes))


def _find(path: Path) -> list[Path]:
    """The file itself, or the parquet files in a folder, in its `data`, or in its train, valid and test."""
    if path.is_file():
        return [path]
    splits = [entry for entry in path.iterdir() if _word(entry.name) and entry.is_dir()]
    found = (file for folder in (path, path / "data", *splits) for file in folder.glob("*.parquet"))
    files = sorted(file for file in found if file.is_file())
    if not files:
        raise InputError(f"{path} holds no parquet files; they are expected as {path / 'train-00000.parquet'}")
    return files


def _open(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file.absolute())
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{file} cannot be read as a parquet file ({reason}); fetch it again") from None


def _schema(file: Path) -> pa.Schema:
    with _open(file) as parquet:
        return parquet.schema_arrow


def _shard(file: Path, path: Path) -> Shard:
    with _open(file) as parquet:
        metadata = parquet.metadata
        sizes = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    name = file.name if file == path else file.relative_to(path).as_posix()
    return Shard(file, name.removesuffix(".parquet"), sizes)


def image_column(schema: pa.Schema, path: Path) -> str:
    """The column `image`, else the only one that holds encoded images."""
    fitting = [field.name for field in schema if _is_image(field.type)]
    if IMAGE in fitting or len(fitting) == 1:
        return IMAGE if IMAGE in fitting else fitting[0]
    raise InputError(
        f"{path} has no column 'image' of encoded images, as bytes or as struct of bytes and path "
        f"(found: {', '.join(schema.names[:6])}); rename or add it"
    )


def _is_image(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _columns(schema: pa.Schema, image: str, options: ReadOptions, path: Path) -> tuple[list[str], list[str]]:
    """The columns to read besides the pixels, and a note on those that cannot be attributes."""
    others = [name for name in schema.names if name != image]
    check_ignored(options.ignore, others, path)
    wanted = [name for name in others if name not in options.ignore]
    nested = [n for n in wanted if pa.types.is_nested(schema.field(n).type) or _is_image(schema.field(n).type)]
    notes = [f"columns of lists, structs or bytes were left out: {', '.join(nested)}"] if nested else []
    kind = schema.field(image).type
    has_path = pa.types.is_struct(kind) and kind.get_field_index("path") >= 0
    return [n for n in wanted if n not in nested] + ([f"{image}.path"] if has_path else []), notes


def _read_columns(files: Sequence[Path], columns: list[str]) -> pa.Table:
    if not columns:
        return pa.table({})
    try:
        tables = [_open(file).read(columns=columns) for file in files]
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{files[0].parent}: the parquet files do not fit together ({reason})") from None


def split_by_shard(names: Sequence[str]) -> tuple[list[str] | None, list[str]]:
    """Splits from names such as train-00000-of-00002 or validation/0000, where these differ between files."""
    words = [_word(name) for name in names]
    if set(words) == {None}:
        return None, []
    if None in words:
        return None, [f"{names[words.index(None)]} names no split: the images are split by hash"]
    if len(set(words)) == 1:
        return None, [f"every file is called {words[0]}: the images are split by hash"]
    return [word for word in words if word], []


def _word(name: str) -> str | None:
    """The split in the letters that a file or its folder begins with; bare numbers count shards, not splits."""
    for part in reversed(name.split("/")):
        letters = re.match(r"[a-z]+", part.lower())
        if letters and (word := split_word(letters[0])):
            return word
    return None


def _file_names(rows: pa.Table, image: str, shards: Sequence[Shard]) -> list[str]:
    """The column `file` or the paths of the images; shard/row where these are empty or not unique."""
    fallback = [f"{shard.name}/{row:06d}" for shard in shards for row in range(shard.count)]
    if "file" in rows.column_names:
        given = rows["file"].to_pylist()
    elif image in rows.column_names:
        given = pc.struct_field(rows[image], "path").to_pylist()
    else:
        return fallback
    seen = Counter(given)
    return [str(g) if g and seen[g] == 1 else f for g, f in zip(given, fallback, strict=True)]


@dataclass(frozen=True)
class ReadParquet:
    """`Read` by row group: rows arrive in ascending order, so each group is read once."""

    shards: tuple[Shard, ...]
    image: str

    def __call__(self, rows: Sequence[int]) -> Iterator[Picture]:
        groups = [(s.path, g) for s in self.shards for g in range(len(s.group_sizes))]
        starts = [0, *accumulate(size for s in self.shards for size in s.group_sizes)]

        def pictures(number: int, local: list[int]) -> list[Picture]:
            path, group = groups[number]
            values = _row_group(path, group, self.image)
            return [_picture(values[row].as_py(), path) for row in local]

        return read_blocks(rows, starts, pictures, (pa.ArrowException, OSError))


@keep_latest
def _row_group(path: Path, group: int, column: str) -> pa.ChunkedArray:
    """The images of one row group."""
    with pq.ParquetFile(path.absolute()) as parquet:
        # No threads of pyarrow: this runs in forked processes.
        return parquet.read_row_group(group, columns=[column], use_threads=False)[column]


def _picture(value: object, shard: Path) -> Picture:
    """The encoded image. An image without bytes but with a path is a file beside the shard."""
    data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
    if isinstance(data, bytes):
        return data
    return shard.parent / path if path else ValueError("the image is empty")
