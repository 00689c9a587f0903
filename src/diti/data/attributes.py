"""Attribute tables: 0/1 integers are binary attributes, floats are continuous, everything else is refused."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from diti.core.errors import InputError, nearest

Column: TypeAlias = pa.Array | pa.ChunkedArray | np.ndarray | Sequence
RESERVED = ("file", "split", "identity")  # columns of a dataset table that are not attributes
SPLITS = ("train", "valid", "test")
FILE_COLUMNS = ("file", "file_name", "filename", "image_id", "image", "path", "name", "id")
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
LONGEST_QUOTED = 60  # characters of a value in a message
SEPARATORS = (",", ";", "\t", "|")
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training", "trn", "0"), "train"),
    **dict.fromkeys(("valid", "validation", "val", "dev", "1"), "valid"),
    **dict.fromkeys(("test", "testing", "tst", "2"), "test"),
}


def split_word(word: object) -> str | None:
    """'val' → 'valid', 2 → 'test', ...; None for a word that is not a split."""
    return _SPLIT_WORDS.get(str(word).strip().lower())


def attribute_column(name: str, values: Column) -> pa.Array:
    """Int8 0/1 for 0/1, -1/1 and booleans; float32 for other numbers; InputError for the rest."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else pa.array(values)
    if array.null_count:
        row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(
            f"attribute {name!r} is empty in row {row + 1} ({array.null_count} empty in all); "
            f"fill it, or leave the column out with --ignore {name}"
        )
    numbers = _numbers(name, array)
    present = set(np.unique(numbers).tolist())
    if present <= {0.0, 1.0}:
        return pa.array(numbers.astype(np.int8))
    if present <= {-1.0, 1.0}:
        return pa.array((numbers > 0).astype(np.int8))
    return pa.array(numbers.astype(np.float32))


def _numbers(name: str, array: pa.Array) -> np.ndarray:
    try:
        numbers = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        bad = next((v for v in array.to_pylist() if not _is_number(v)), array[0].as_py())
        raise InputError(
            f"attribute {name!r} has the value {_short(bad)!r}; values must be 0/1, -1/1 or numbers: "
            f"change it, or leave the column out with --ignore {name}"
        ) from None
    if not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise InputError(
            f"attribute {name!r} is not a finite number in row {row + 1}; "
            f"change it, or leave the column out with --ignore {name}"
        )
    return numbers


def _is_number(value: object) -> bool:
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def dataset_table(
    files: Sequence[str] | pa.ChunkedArray,
    *,
    split: Column | None = None,
    identity: Column | None = None,
    attributes: dict[str, Column] | None = None,
) -> pa.Table:
    """The table of a source: file, split and identity where known, then the checked attributes."""
    if not isinstance(files, pa.ChunkedArray):
        names = [
            str(f).encode(errors="backslashreplace").decode() for f in files
        ]  # a name on disk may be any bytes
        files = pa.array(names, pa.string())
    columns: dict[str, Column] = {"file": files}
    if split is not None:
        columns["split"] = pa.array(_split_words(split), pa.string())
    if identity is not None:
        people = _python_values(identity)
        if None in people:
            raise InputError(
                f"identity is empty in row {people.index(None) + 1}; fill it, or add --ignore identity"
            )
        columns["identity"] = pa.array([str(person) for person in people], pa.string())
    for name, values in (attributes or {}).items():
        if name in RESERVED:
            raise InputError(f"an attribute may not be called {name!r}; rename the column")
        columns[name] = attribute_column(name, values)
    return pa.table(columns)


def _python_values(values: Column) -> list[object]:
    return values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)


def _split_words(values: Column) -> list[str]:
    words = []
    for value in _python_values(values):
        word = split_word(value)
        if word is None:
            raise InputError(f"split {_short(value)!r} is unknown; use train, valid or test (or 0, 1, 2)")
        words.append(word)
    return words


def read_table(path: Path) -> pa.Table:
    """A CSV (with commas, semicolons or tabs), TSV or parquet file as a table; each column has its own name."""
    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "is not a file" if path.exists() else "does not exist"
        raise InputError(f"{path} {fault}; name a CSV, TSV or parquet file")
    try:
        table = read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as a table: {str(error).splitlines()[0]}") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text (byte {error.start + 1:,}); save it as CSV in UTF-8, or as parquet"
        ) from None
    names = [name.strip() for name in table.column_names]
    if names[-1:] == [""] and table.columns[-1].null_count == table.num_rows:  # each line ends with a separator
        table, names = table.select(range(len(names) - 1)), names[:-1]
    check_names(names, path)
    return table.rename_columns(names)


def read_parquet(path: Path) -> pa.Table:
    """One file as it is; pyarrow's `read_table` adds a column for a folder named like size=64."""
    with pyarrow.parquet.ParquetFile(path.absolute()) as parquet:
        return parquet.read()


def check_names(columns: Sequence[str], path: Path) -> None:
    """InputError for columns that share a name, or have none."""
    for place, name in enumerate(columns):
        if not name or name in columns[:place]:
            fault = f"the column {name!r} twice" if name else f"no name for column {place + 1}"
            raise InputError(f"{path} has {fault}; give each column its own name")


def _read_csv(path: Path) -> pa.Table:
    lines = path.read_bytes().decode("utf-8-sig").split("\n")
    header = next((line for line in lines if line.strip()), "")
    # The separator that splits the header into the most columns; some programs write semicolons and call it CSV.
    pieces = {mark: len(next(csv.reader([header], delimiter=mark), [])) for mark in SEPARATORS}
    parse = pyarrow.csv.ParseOptions(delimiter=max(pieces, key=lambda mark: pieces[mark]))
    with pyarrow.csv.open_csv(path, parse_options=parse) as head:
        names = [name for name in head.schema.names if name.lower() in FILE_COLUMNS]
    # A file called 000001 must not become the number 1.
    convert = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
    return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)


def read_rows(
    data: bytes, names: Sequence[str], separator: str, types: dict[str, pa.DataType], path: Path, form: str
) -> pa.Table:
    """Rows of a list without a CSV header; InputError for a file that is not `form`."""
    check_names(names, path)
    try:
        return pyarrow.csv.read_csv(
            io.BytesIO(data),
            read_options=pyarrow.csv.ReadOptions(column_names=names),
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator, quote_char=False),
            convert_options=pyarrow.csv.ConvertOptions(column_types=types),
        )
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is not {form} ({str(error).splitlines()[0]}); fetch it again") from None


def file_column(table: pa.Table, path: Path) -> str:
    """The column that names the image of each row: a well-known name, else the first column of text."""
    fitting = [name for name in table.column_names if _may_name_files(table.schema.field(name).type)]
    lower = {name.lower(): name for name in reversed(fitting)}
    for name in FILE_COLUMNS:
        if name in lower:
            return lower[name]
    if table.num_columns and pa.types.is_string(table.schema.field(0).type):
        return table.column_names[0]
    raise InputError(
        f"{path} has no column that names the images; call it one of {', '.join(FILE_COLUMNS[:4])} "
        f"(found: {', '.join(map(_short, table.column_names[:6]))})"
    )


def _may_name_files(kind: pa.DataType) -> bool:
    """Words or whole numbers; a column of encoded images is often called image, too."""
    if pa.types.is_dictionary(kind):
        return _may_name_files(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind))


def _short(value: object) -> str:
    """A value as a message quotes it."""
    text = str(value)
    return text if len(text) <= LONGEST_QUOTED else f"{text[: LONGEST_QUOTED - 3]}..."


def join_attributes(
    files: Sequence[str], path: Path, *, ignore: Collection[str] = (), only_labelled: bool = False
) -> tuple[list[int], pa.Table, tuple[str, ...]]:
    """Match a table of attributes to files by relative path, else by name, else by name without its ending.

    Returns the row numbers of `files` that are kept, their dataset table, and notes for the user.
    """
    table = read_table(path)
    key = file_column(table, path)
    check_ignored(ignore, table.column_names, path)
    if table.num_columns == 1 and key.lower() not in FILE_COLUMNS:
        raise InputError(f"{path} has one column, {key!r}; separate columns by commas, semicolons or tabs")
    rows_of = _match_rows(files, [str(v) for v in table[key].to_pylist()], path)
    _refuse_conflicts(files, rows_of, table.drop_columns([key, *ignore]), path)
    found = np.array([len(rows) > 0 for rows in rows_of])
    if not found.all() and not only_labelled:
        lacking = [files[i] for i in np.flatnonzero(~found)[:2].tolist()]
        raise InputError(
            f"{path} has a row for {int(found.sum()):,} of {len(files):,} images; without one: "
            f"{', '.join(lacking)}. Add rows, or leave such images out with --only-labelled"
        )
    kept = np.flatnonzero(found).tolist()
    rows = table.take(pa.array([rows_of[i][0] for i in kept]))
    used = sum(len(rows_of[i]) for i in kept)
    notes = []
    if used > len(kept):
        notes.append(f"{used - len(kept):,} rows of {path.name} repeat another one and were left out")
    if used < table.num_rows:
        notes.append(f"{table.num_rows - used:,} rows of {path.name} name no image and were left out")
    if set(table.column_names) <= {key, *RESERVED, *ignore}:
        notes.append(f"{path.name} has no attributes")
    return kept, table_from_columns([files[i] for i in kept], rows, skip={key, *ignore}), tuple(notes)


def _refuse_conflicts(files: Sequence[str], rows_of: Sequence[list[int]], labels: pa.Table, path: Path) -> None:
    """Several rows for one image may only say the same."""
    if all(len(rows) < 2 for rows in rows_of):
        return
    said = labels.to_pylist()
    for file, rows in zip(files, rows_of, strict=True):
        if any(said[row] != said[rows[0]] for row in rows):
            numbers = ", ".join(str(row + 1) for row in rows[:4])
            raise InputError(
                f"{path} has {len(rows)} rows for {file} that differ (rows {numbers}); keep one of them"
            )


def check_ignored(ignore: Collection[str], columns: Sequence[str], path: Path) -> None:
    """A misspelt --ignore must not pass silently."""
    for name in ignore:
        if name not in columns:
            raise InputError(f"--ignore {name}: {path} has no such column.{nearest(name, columns)}")


def table_from_columns(files: Sequence[str] | pa.ChunkedArray, rows: pa.Table, skip: Collection[str]) -> pa.Table:
    """The dataset table of rows that are already in the order of `files`."""
    names = [n for n in rows.column_names if n not in skip]
    return dataset_table(
        files,
        split=rows["split"] if "split" in names else None,
        identity=rows["identity"] if "identity" in names else None,
        attributes={n: rows[n] for n in names if n not in RESERVED},
    )


def _match_rows(files: Sequence[str], named: Sequence[str], path: Path) -> list[list[int]]:
    """For each file the rows that name it, by the first way of naming that matches any file."""
    if not named:
        raise InputError(f"{path} has no rows; it needs one for each image")
    ways = (lambda f: str(PurePosixPath(f)), lambda f: PurePosixPath(f).name, lambda f: PurePosixPath(f).stem)
    for way in ways:
        rows_of: dict[str, list[int]] = {}
        for row, name in enumerate(named):
            rows_of.setdefault(way(name), []).append(row)
        found = [rows_of.get(way(file), []) for file in files]
        if any(found):
            _refuse_ambiguous(way, files, found, path)
            return found
    raise InputError(
        f"{path} matches none of the {len(files):,} images: it names {_quoted(named[:2])}, "
        f"the folder holds {_quoted(files[:2])}"
    )


def _quoted(values: Sequence[str]) -> str:
    return ", ".join(repr(_short(value)) for value in values)


def _refuse_ambiguous(way, files: Sequence[str], rows_of: Sequence[list[int]], path: Path) -> None:  # type: ignore[no-untyped-def]
    """Two images that share one row under this way of naming would silently get the same labels."""
    seen: dict[int, str] = {}
    for file, rows in zip(files, rows_of, strict=True):
        if rows and rows[0] in seen:
            raise InputError(
                f"{path}: one row matches both {seen[rows[0]]} and {file} ({way(file)!r}); "
                "name the images by their path inside the folder"
            )
        if rows:
            seen[rows[0]] = file


def attribute_names(table: pa.Table) -> list[str]:
    """Names of the attribute columns of a dataset table."""
    return [name for name in table.column_names if name not in RESERVED]


def attribute_kinds(table: pa.Table) -> dict[str, list[str]]:
    """Names of the binary and of the continuous attributes, as `dataset.json` lists them."""
    names = attribute_names(table)
    return {
        "binary": [name for name in names if is_binary(table[name])],
        "continuous": [name for name in names if not is_binary(table[name])],
    }


def is_binary(column: pa.ChunkedArray) -> bool:
    """Whether an attribute column is binary (0/1 integers) rather than continuous."""
    return bool(pa.types.is_integer(column.type))
