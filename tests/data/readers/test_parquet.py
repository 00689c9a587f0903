from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reading import colour_of, encoded, read_elsewhere, refused, size_of

from diti.data.attributes import attribute_names, is_binary
from diti.data.readers import parquet
from diti.data.source import ReadOptions

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def colour(index: int) -> tuple[int, int, int]:
    return index % 256, 5, 250 - index % 250


def hub_images(numbers: range, paths: bool = True) -> pa.Array:
    return pa.array(
        [{"bytes": encoded(colour(i)), "path": f"img{i}.png" if paths else None} for i in numbers], STRUCT
    )


def write(path: Path, numbers: range, group: int = 4, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"image": hub_images(numbers), **columns})
    pq.write_table(table, path, row_group_size=group)
    return path


def test_one_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "faces.parquet",
        range(10),
        split=["train"] * 8 + ["validation", "test"],
        identity=list(range(10)),
        Smiling=[False, True] * 5,
        Age=np.linspace(20, 65, 10),
    )
    assert parquet.detect(path)
    source = parquet.open_source(path, ReadOptions())
    assert (source.name, source.crop, source.notes) == ("faces", "centre", ())
    assert source.table.column_names == ["file", "split", "identity", "Smiling", "Age"]
    assert source.table["file"].to_pylist() == [f"img{i}.png" for i in range(10)]
    assert source.table["split"].to_pylist() == ["train"] * 8 + ["valid", "test"]
    assert source.table["Smiling"].to_pylist() == [0, 1] * 5
    assert is_binary(source.table["Smiling"])
    np.testing.assert_allclose(source.table["Age"], np.linspace(20, 65, 10), rtol=1e-6)
    for rows in (range(10), [3, 4], [9], [0, 5, 7]):
        assert [colour_of(p) for p in source.read(rows)] == [colour(i) for i in rows]


def test_plain_bytes_under_another_name(tmp_path: Path) -> None:
    table = pa.table({"img": [encoded(colour(i)) for i in range(3)], "label": [0, 1, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    source = parquet.open_source(tmp_path / "a.parquet", ReadOptions())
    assert source.table.column_names == ["file", "label"]
    assert source.table["file"].to_pylist() == ["a/000000", "a/000001", "a/000002"]
    assert [colour_of(p) for p in source.read([0, 2])] == [colour(0), colour(2)]


def test_images_alone(tmp_path: Path) -> None:
    for shard in range(2):
        table = pa.table({"image": [encoded(colour(2 * shard)), encoded(colour(2 * shard + 1))]})
        pq.write_table(table, tmp_path / f"{shard}.parquet")
    source = parquet.open_source(tmp_path, ReadOptions())
    assert source.table.column_names == ["file"]  # files 0 and 1 are numbered, not named train and valid
    assert source.table["file"].to_pylist() == ["0/000000", "0/000001", "1/000000", "1/000001"]
    assert [colour_of(p) for p in source.read(range(4))] == [colour(i) for i in range(4)]


@pytest.mark.parametrize(
    "layout", ["{split}-0000{n}-of-00002.parquet", "data/{split}-{n}.parquet", "{split}/000{n}.parquet"]
)
def test_shards_named_after_splits(tmp_path: Path, layout: str) -> None:
    first = 0
    expected = []
    for split in ("test", "train", "validation"):  # the order of the names
        for n in range(2):
            write(tmp_path / layout.format(split=split, n=n), range(first, first + 5), Male=[0, 1, 0, 1, 0])
            first += 5
            expected += [{"validation": "valid"}.get(split, split)] * 5
    assert parquet.detect(tmp_path)
    source = parquet.open_source(tmp_path, ReadOptions())
    assert source.name == tmp_path.name
    assert source.table["split"].to_pylist() == expected
    assert source.notes == ()
    assert [colour_of(p) for p in source.read(range(30))] == [colour(i) for i in range(30)]
    rows = [3, 4, 5, 13, 29]
    assert [colour_of(p) for p in source.read(rows)] == [colour(i) for i in rows]


def test_a_split_column_wins_over_names(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet", range(2), split=["test", "valid"])
    write(tmp_path / "test.parquet", range(2, 4), split=["train", "train"])
    source = parquet.open_source(tmp_path, ReadOptions())
    assert source.table["split"].to_pylist() == ["train", "train", "test", "valid"]


@pytest.mark.parametrize(
    ("names", "words", "note"),
    [
        (["train-00000-of-00001"], None, "every file is called train: the images are split by hash"),
        (["train-0", "extra-0"], None, "extra-0 names no split: the images are split by hash"),
        (["0", "1", "2"], None, None),
        (["faces", "testimony"], None, None),
        (["trn_a", "tst_b"], ["train", "test"], None),
    ],
)
def test_split_by_shard(names: list[str], words: list[str] | None, note: str | None) -> None:
    assert parquet.split_by_shard(names) == (words, [note] if note else [])


def test_file_names_are_unique(tmp_path: Path) -> None:
    paths = ["a.png", "b.png", None, "a.png", ""]
    images = pa.array([{"bytes": encoded(colour(i)), "path": p} for i, p in enumerate(paths)], STRUCT)
    pq.write_table(pa.table({"image": images}), tmp_path / "s.parquet")
    source = parquet.open_source(tmp_path / "s.parquet", ReadOptions())
    assert source.table["file"].to_pylist() == ["s/000000", "b.png", "s/000002", "s/000003", "s/000004"]


def test_a_column_file_names_the_images(tmp_path: Path) -> None:
    path = write(tmp_path / "s.parquet", range(2), file=["x.png", "y.png"])
    table = parquet.open_source(path, ReadOptions()).table
    assert table.to_pylist() == [{"file": "x.png"}, {"file": "y.png"}]


def test_columns_that_cannot_be_attributes(tmp_path: Path) -> None:
    columns = {"box": [[1, 2], [3]], "meta": [{"a": 1}, {"a": 2}], "mask": [b"1", b"2"], "Young": [1, 0]}
    path = write(tmp_path / "s.parquet", range(2), **columns)
    source = parquet.open_source(path, ReadOptions(ignore=("meta",)))
    assert source.table.column_names == ["file", "Young"]
    assert source.notes == ("columns of lists, structs or bytes were left out: box, mask",)


def test_text_columns_are_refused_until_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "s.parquet", range(2), caption=["a man", "a dog"], Young=[1, 0])
    refused(parquet.open_source, path, r"'caption' has the value 'a man'.*--ignore caption")
    source = parquet.open_source(path, ReadOptions(ignore=("caption",)))
    assert source.table.column_names == ["file", "Young"]
    refused(parquet.open_source, path, r"--ignore Yung: .* Did you mean 'Young'", ignore=("Yung",))


def test_empty_cells_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "s.parquet", range(2), identity=["a", None])
    refused(parquet.open_source, path, r"identity is empty in row 2; .*--ignore identity")


def test_only_the_images_of_the_needed_row_group_are_read(tmp_path: Path) -> None:
    """Spoil the bytes of one row group on disk: rows of the others must not notice, and opening neither."""
    path = write(tmp_path / "s.parquet", range(12), group=4, Young=[0, 1] * 6)
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(bytes(data))
    source = parquet.open_source(path, ReadOptions(ignore=("Young",)))
    pictures = list(source.read([2, 4, 7, 8]))
    assert [colour_of(pictures[0]), colour_of(pictures[3])] == [colour(2), colour(8)]
    assert all(isinstance(p, Exception) for p in pictures[1:3])


def test_rows_without_an_image(tmp_path: Path) -> None:
    images = pa.array(
        [{"bytes": None, "path": "beside.png"}, None, {"bytes": encoded(colour(2)), "path": None}], STRUCT
    )
    pq.write_table(pa.table({"image": images}), tmp_path / "s.parquet")
    beside, empty, good = parquet.open_source(tmp_path / "s.parquet", ReadOptions()).read(range(3))
    assert beside == tmp_path / "beside.png"
    assert isinstance(empty, ValueError)
    assert colour_of(good) == colour(2)


def test_a_replaced_or_missing_file_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "s.parquet", range(3))
    read = parquet.open_source(path, ReadOptions()).read
    assert colour_of(next(iter(read([1])))) == colour(1)
    write(path, range(10, 13))
    assert colour_of(next(iter(read([1])))) == colour(11)
    path.unlink()
    assert [type(p) for p in read([0, 1])] == [FileNotFoundError] * 2


def test_read_works_in_another_process(tmp_path: Path) -> None:
    read = parquet.open_source(write(tmp_path / "s.parquet", range(9)), ReadOptions()).read
    assert [colour_of(p) for p in read_elsewhere(read, [1, 8])] == [colour(1), colour(8)]


def test_what_is_not_such_a_source(tmp_path: Path) -> None:
    assert not parquet.detect(tmp_path)
    refused(parquet.open_source, tmp_path, "holds no parquet files; they are expected as")
    table = tmp_path / "table.parquet"
    pq.write_table(pa.table({"file": ["a.png"], "Male": [1]}), table)
    assert not parquet.detect(tmp_path)  # attributes of a folder of images
    refused(parquet.open_source, table, r"no column 'image' of encoded images.* \(found: file, Male\)")
    write(tmp_path / "table.parquet", range(1))
    assert parquet.detect(tmp_path)
    (tmp_path / "images.npy").write_bytes(b"")
    assert not parquet.detect(tmp_path)  # a prepared dataset


def test_broken_files_are_named(tmp_path: Path) -> None:
    broken = tmp_path / "b.parquet"
    broken.write_bytes(b"PAR1 and then nothing")
    assert parquet.detect(broken)
    refused(parquet.open_source, broken, rf"{broken} cannot be read as a parquet file")
    write(tmp_path / "a.parquet", range(1))
    refused(parquet.open_source, tmp_path, rf"{broken} cannot be read as a parquet file")
    write(broken, range(1), Male=["no"])
    write(tmp_path / "a.parquet", range(1), Male=[1])
    refused(parquet.open_source, tmp_path, "do not fit together")


@pytest.mark.parametrize(
    ("name", "count", "binary", "continuous"),
    [("celeba46k-64px.parquet", 46_715, 40, 0), ("lfw3k-64px.parquet", 2_999, 0, 73)],
)
def test_shared_files(shared: Path, name: str, count: int, binary: int, continuous: int) -> None:
    source = parquet.open_source(shared / "data" / name, ReadOptions())
    table = source.table
    kinds = Counter(is_binary(table[n]) for n in attribute_names(table))
    assert (table.num_rows, kinds[True], kinds[False]) == (count, binary, continuous)
    assert "identity" in table.column_names
    assert len(set(table["file"].to_pylist())) == count
    if binary:
        assert Counter(table["split"].to_pylist()) == {"train": 37_540, "valid": 4_535, "test": 4_640}
    assert {size_of(picture) for picture in source.read([0, count - 1])} == {(64, 64)}


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", range(3), hat=pa.array([0, 1, 1]))
    table = pq.read_table(path)
    pq.write_table(table.append_column("hat", table["hat"]), path)
    refused(parquet.open_source, path, "the column 'hat' twice")
