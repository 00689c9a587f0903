from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from reading import colour_of, encoded, read_elsewhere, refused

import diti
from diti.data.readers import tars
from diti.data.source import ReadOptions


def colour(index: int) -> tuple[int, int, int]:
    return index % 256, 5, 250 - index % 250


def write(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def shard(path: Path, numbers: range, *, size: tuple[int, int] = (4, 4), **facts: list[object]) -> Path:
    files = {}
    for place, number in enumerate(numbers):
        files[f"{number:04d}.png"] = encoded(colour(number), size)
        if facts:
            files[f"{number:04d}.json"] = json.dumps({name: v[place] for name, v in facts.items()}).encode()
    return write(path, files)


def test_one_file(tmp_path: Path) -> None:
    path = shard(
        tmp_path / "faces.tar", range(6),
        split=["train"] * 4 + ["val", "test"], Smiling=[True, False] * 3, Age=[1, 2.5, 3, 4, 5, 6], who=["a"] * 6,
    )  # fmt: skip
    assert tars.detect(path)
    source = tars.open_source(path, ReadOptions())
    assert source.table.column_names == ["file", "split", "Smiling", "Age"]
    assert source.table["file"].to_pylist() == [f"{i:04d}" for i in range(6)]
    assert source.table["split"].to_pylist() == ["train"] * 4 + ["valid", "test"]
    assert source.table["Smiling"].to_pylist() == [1, 0] * 3 and source.table["Age"].to_pylist()[1] == 2.5
    assert source.notes == ("values that are no numbers were left out: who",)
    for rows in (range(6), [3, 4], [5], [0, 2, 5]):
        assert [colour_of(picture) for picture in source.read(rows)] == [colour(i) for i in rows]


def test_shards_in_a_folder_to_a_dataset(tmp_path: Path) -> None:
    for number, word in enumerate(("train", "val")):
        shard(tmp_path / "shards" / f"{word}-{number:04d}.tar", range(4 * number, 4 * number + 4), size=(16, 16))
    (tmp_path / "shards" / "README.txt").write_text("of what")
    source = tars.open_source(tmp_path / "shards", ReadOptions())
    read_elsewhere(source.read, [1, 3, 4, 7])
    data = diti.prepare(tmp_path / "shards", tmp_path / "data", workers=1)
    assert data.table["file"].to_pylist()[3:5] == ["train-0000/0003", "val-0001/0004"]
    assert data.rows("valid").tolist() == [4, 5, 6, 7]
    assert [tuple(image[0, 0].tolist()) for image in data.images] == [colour(i) for i in range(8)]


def test_classes_and_what_else_a_sample_may_hold(tmp_path: Path) -> None:
    files = {}
    for number in range(3):
        files |= {f"./a/{number}.cls": str(number % 2).encode(), f"./a/{number}.txt": b"a caption"}
        files |= {f"./a/{number}.seg.png": b"no image", f"./a/{number}.jpg": encoded(colour(number))}
    path = write(tmp_path / "a.tar", {**files, "a/.hidden.png": b"", "a/9.json": b"{}"})
    source = tars.open_source(path, ReadOptions())
    assert source.table["file"].to_pylist() == ["a/0", "a/1", "a/2"]
    assert source.table["class 1"].to_pylist() == [0, 1, 0]
    assert [colour_of(picture) for picture in source.read([2])] == [colour(2)]
    lacking = write(tmp_path / "b.tar", {"0.png": encoded(colour(0)), "1.png": encoded(colour(1)), "1.cls": b"7"})
    assert tars.open_source(lacking, ReadOptions()).notes == (
        "the classes in .cls were left out: 1 images have none",
    )


def test_a_shard_without_a_value_is_told(tmp_path: Path) -> None:
    shard(tmp_path / "s" / "0.tar", range(2), Age=[1, 2])
    shard(tmp_path / "s" / "1.tar", range(2))
    refused(tars.open_source, tmp_path / "s", "attribute 'Age' is empty in row 3")
    assert tars.open_source(tmp_path / "s", ReadOptions(ignore=("Age",))).table.num_rows == 4


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"0.txt": b"words"}, "holds no images"),
        ({"0.png": b"", "0.json": b"[1]"}, "0.json holds a list, not names and values"),
        ({"0.png": b"", "0.json": b"{"}, "0.json is not valid JSON"),
        ({"0.png": b"", "0.cls": b"cat"}, "0.cls holds b'cat', not the number of a class"),
    ],
)
def test_refused(tmp_path: Path, files: dict[str, bytes], words: str) -> None:
    refused(tars.open_source, write(tmp_path / "a.tar", files), words)


def test_compressed_and_cut_off(tmp_path: Path) -> None:
    path = shard(tmp_path / "whole.tar", range(3))
    (tmp_path / "packed.tar").write_bytes(gzip.compress(path.read_bytes()))
    refused(tars.open_source, tmp_path / "packed.tar", "cannot be read as a tar file .* unpack it")
    assert not tars.detect(Path(__file__).parent), "a folder without shards"
    encoded_picture = tmp_path / "mixed" / "a.png"
    shard(tmp_path / "mixed" / "a.tar", range(2))
    encoded_picture.write_bytes(encoded(colour(1)))
    assert not tars.detect(tmp_path / "mixed"), "images beside a tar are a folder of images"
