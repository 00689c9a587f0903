from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from PIL import Image
from reading import read_elsewhere, refused, shows, size_of

from diti.data.attributes import attribute_names, is_binary
from diti.data.readers import celeba
from diti.data.source import ReadOptions
from diti.data.split import with_split

NAMES = ["5_o_Clock_Shadow", "Male", "Smiling"]
COUNT = 8


def values(index: int) -> list[int]:
    """The attributes of an image are the bits of its number."""
    return [1 if index >> bit & 1 else -1 for bit in range(3)]


def partition(index: int) -> int:
    return 0 if index < 5 else 1 if index < 7 else 2


def colour(index: int) -> tuple[int, int, int]:
    return 20 * index, 255 - 20 * index, 60


def write_lists(root: Path, folders: tuple[str, str] = ("", ""), suffix: str = ".txt") -> None:
    """The lists of COUNT images as published: the text form aligns columns and ends its header in a blank."""
    anno, evaluation = (root / folder for folder in folders)
    anno.mkdir(parents=True, exist_ok=True)
    evaluation.mkdir(parents=True, exist_ok=True)
    files = [f"{i + 1:06d}.jpg" for i in range(COUNT)]
    if suffix == ".csv":
        rows = [",".join([f, *map(str, values(i))]) for i, f in enumerate(files)]
        (anno / "list_attr_celeba.csv").write_text("\n".join([",".join(["image_id", *NAMES]), *rows]) + "\n")
        rows = [f"{f},{partition(i)}" for i, f in enumerate(files)]
        (evaluation / "list_eval_partition.csv").write_text("\n".join(["image_id,partition", *rows]) + "\n")
    else:
        rows = [f + " " + " ".join(f"{v:2d}" for v in values(i)) + "  \r" for i, f in enumerate(files)]
        text = "\n".join([str(COUNT), " ".join(NAMES) + " ", *rows]) + "\n"
        (anno / "list_attr_celeba.txt").write_text(text)
        text = "".join(f"{f} {partition(i)}\n" for i, f in enumerate(files))
        (evaluation / "list_eval_partition.txt").write_text(text)
    text = "".join(f"{f} {100 + i // 2}\n" for i, f in enumerate(files))
    (anno / "identity_CelebA.txt").write_text(text)


def write_images(folder: Path, suffix: str = ".jpg") -> None:
    folder.mkdir(parents=True)
    for i in range(COUNT):
        Image.new("RGB", (178, 218), colour(i)).save(folder / f"{i + 1:06d}{suffix}")


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    write_lists(tmp_path)
    write_images(tmp_path / "img_align_celeba")
    return tmp_path


def drop_line(path: Path, number: int) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:number] + lines[number + 1 :]))


@pytest.mark.parametrize(
    ("lists", "list_suffix", "images", "image_suffix", "given", "crop"),
    [
        (("", ""), ".txt", "img_align_celeba", ".jpg", "", "celeba"),
        (("Anno", "Eval"), ".txt", "Img/img_align_celeba", ".jpg", "", "celeba"),
        (("Anno", "Eval"), ".txt", "Img/img_align_celeba", ".jpg", "Img/img_align_celeba", "celeba"),
        (("", ""), ".csv", "img_align_celeba/img_align_celeba", ".jpg", "", "celeba"),
        (("", ""), ".csv", "img_align_celeba/img_align_celeba", ".jpg", "img_align_celeba", "celeba"),
        (("", ""), ".txt", "img_align_celeba_png", ".png", "", "celeba"),
        (("", ""), ".txt", "img_celeba", ".jpg", "", "centre"),
    ],
)
def test_every_published_layout(tmp_path, lists, list_suffix, images, image_suffix, given, crop) -> None:
    write_lists(tmp_path, lists, list_suffix)
    write_images(tmp_path / images, image_suffix)
    assert celeba.detect(tmp_path / given)
    source = celeba.open_source(tmp_path / given, ReadOptions())
    assert (source.name, source.crop, source.notes) == ("celeba", crop, ())
    assert source.table.column_names == ["file", "split", "identity", *NAMES]
    for i, row in enumerate(source.table.to_pylist()):
        assert row["file"] == f"{i + 1:06d}{image_suffix}"
        assert row["split"] == ("train", "valid", "test")[partition(i)]
        assert row["identity"] == str(100 + i // 2)
        assert [row[name] for name in NAMES] == [int(v > 0) for v in values(i)]
    assert all(shows(path, colour(i)) for i, path in enumerate(source.read(range(COUNT))))


def test_read_works_in_another_process(flat: Path) -> None:
    read = celeba.open_source(flat, ReadOptions()).read
    assert read_elsewhere(read, [2, 5]) == [
        flat / "img_align_celeba/000003.jpg",
        flat / "img_align_celeba/000006.jpg",
    ]


def test_not_celeba(tmp_path: Path) -> None:
    write_images(tmp_path / "pictures")
    assert not celeba.detect(tmp_path) and not celeba.detect(tmp_path / "pictures")
    assert not celeba.detect(tmp_path / "pictures" / "000001.jpg")


def test_a_database_with_the_lists_inside_is_not_this_layout(tmp_path: Path) -> None:
    write_lists(tmp_path)
    (tmp_path / "data.mdb").write_bytes(b"")
    assert not celeba.detect(tmp_path)


def test_missing_attribute_list_is_named_with_its_place(flat: Path) -> None:
    (flat / "list_attr_celeba.txt").unlink()
    assert celeba.detect(flat)
    for given in (flat, flat / "img_align_celeba"):
        refused(celeba.open_source, given, r"list_attr_celeba\.txt .* is missing; .* expected in " + str(flat))


def test_missing_images_are_named_with_their_place(tmp_path: Path) -> None:
    write_lists(tmp_path)
    assert celeba.detect(tmp_path)
    refused(celeba.open_source, tmp_path, f"expected in {tmp_path / 'img_align_celeba'}")
    (tmp_path / "img_align_celeba").mkdir()
    refused(celeba.open_source, tmp_path, f"none of the 8 images .* {tmp_path / 'img_align_celeba/000001.jpg'}")


def test_missing_partition_leads_to_a_split_by_person(flat: Path) -> None:
    (flat / "list_eval_partition.txt").unlink()
    source = celeba.open_source(flat, ReadOptions())
    assert "split" not in source.table.column_names
    assert source.notes == (
        f"list_eval_partition.txt was not found in {flat}: the images are split by a hash of the person",
    )
    table = with_split(source.table).to_pylist()
    assert all(len({row["split"] for row in table if row["identity"] == p}) == 1 for p in ("100", "103"))


def test_without_identities_the_column_is_absent(flat: Path) -> None:
    (flat / "identity_CelebA.txt").unlink()
    source = celeba.open_source(flat, ReadOptions())
    assert source.table.column_names == ["file", "split", *NAMES]
    assert source.notes == ()


def test_images_that_are_missing_or_not_listed_are_left_out_and_counted(flat: Path) -> None:
    images = flat / "img_align_celeba"
    (images / "000003.jpg").unlink()
    (images / "000008.jpg").unlink()
    Image.new("RGB", (178, 218)).save(images / "holiday.jpg")
    (images / "notes.txt").write_text("not an image")
    source = celeba.open_source(flat, ReadOptions())
    assert source.table["file"].to_pylist() == [f"{i:06d}.jpg" for i in (1, 2, 4, 5, 6, 7)]
    assert source.table["Male"].to_pylist() == [int(i >> 1 & 1) for i in (0, 1, 3, 4, 5, 6)]
    assert next(iter(source.read([2]))) == images / "000004.jpg"
    missing, extra = source.notes
    assert missing.startswith("2 of 8 images in list_attr_celeba.txt are missing")
    assert "first: 000003.jpg" in missing
    assert extra.startswith("1 images")
    assert "first: holiday.jpg" in extra


def test_wrong_count_is_tolerated_with_a_note(flat: Path) -> None:
    path = flat / "list_attr_celeba.txt"
    path.write_text(path.read_text().replace("8", "202599", 1))
    source = celeba.open_source(flat, ReadOptions())
    assert source.table.num_rows == COUNT
    assert source.notes == ("list_attr_celeba.txt announces 202,599 images and lists 8",)


@pytest.mark.parametrize("name", ["list_eval_partition.txt", "identity_CelebA.txt"])
def test_incomplete_list_is_refused(flat: Path, name: str) -> None:
    drop_line(flat / name, 1)
    refused(celeba.open_source, flat, rf"{name} has no row for 1 of 8 images \(first: 000002.jpg\)")


def test_broken_lists_are_refused(flat: Path) -> None:
    path = flat / "list_eval_partition.txt"
    path.write_text(path.read_text() + "000009.jpg\n")
    refused(celeba.open_source, flat, "row 9 has 1 columns instead of 2")
    path = flat / "list_attr_celeba.txt"
    path.write_text(path.read_text() + "000009.jpg 1\n")
    refused(celeba.open_source, flat, "Expected 4 columns, got 2")
    path.write_text("")
    refused(celeba.open_source, flat, "not an attribute list")


def test_ignore(flat: Path) -> None:
    source = celeba.open_source(flat, ReadOptions(ignore=("Male", "split")))
    assert source.table.column_names == ["file", "identity", "5_o_Clock_Shadow", "Smiling"]
    assert source.notes == ("list_eval_partition.txt was ignored: the images are split by a hash of the person",)
    refused(celeba.open_source, flat, r"--ignore Smilling: .* Did you mean 'Smiling'", ignore=("Smilling",))


def test_sample_of_the_real_set(shared: Path) -> None:
    sample = shared / "data" / "celeba-layout-sample"
    source = celeba.open_source(sample, ReadOptions())
    table = source.table
    names = attribute_names(table)
    assert (table.num_rows, len(names), source.notes) == (60, 40, ())
    assert all(is_binary(table[name]) for name in names)
    words = (sample / "list_eval_partition.txt").read_text().split()[1::2]
    assert Counter(table["split"].to_pylist()) == {
        split: words.count(code) for split, code in (("train", "0"), ("valid", "1"), ("test", "2"))
    }
    first = (sample / "list_attr_celeba.txt").read_text().splitlines()[2].split()
    row = table.slice(0, 1).to_pylist()[0]
    assert row["file"] == first[0]
    assert [row[name] for name in names] == [int(v == "1") for v in first[1:]]
    assert {size_of(path) for path in source.read(range(60))} == {(178, 218)}


@pytest.mark.parametrize(
    ("line", "words"), [(2, r"lists 000001\.jpg more than once"), (1, r"the column '5_o_Clock_Shadow' twice")]
)
def test_rows_and_columns_that_stand_twice_are_refused(flat: Path, line: int, words: str) -> None:
    path = flat / "list_attr_celeba.txt"
    lines = path.read_text().splitlines()
    lines[line] += f"\n{lines[line]}" if line == 2 else f" {lines[line]}"
    path.write_text("\n".join(lines))
    refused(celeba.open_source, flat, words)
