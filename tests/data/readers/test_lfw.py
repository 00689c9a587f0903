from __future__ import annotations

import hashlib
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reading import read_elsewhere, refused, shows, size_of

from diti.data.attributes import attribute_names, is_binary
from diti.data.readers import lfw
from diti.data.source import ReadOptions
from diti.data.split import split_by_hash

PEOPLE = {"Aaron_Eckhart": 1, "Abdel_Nasser_Assidi": 2, "Zico": 3}
PHOTOS = [(person, number) for person, count in PEOPLE.items() for number in range(1, count + 1)]
NAMES = ["Male", "Middle Aged"]


def scores(place: int) -> list[float]:
    return [place - 2.5, 0.125 * place]


def colour(place: int) -> tuple[int, int, int]:
    return 30 * place, 90, 255 - 30 * place


def write_images(folder: Path) -> None:
    for place, (person, number) in enumerate(PHOTOS):
        (folder / person).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (50, 50), colour(place)).save(folder / person / f"{person}_{number:04d}.jpg")


def write_scores(root: Path, photos: list[tuple[str, int]] = PHOTOS) -> None:
    rows = [
        "\t".join([person.replace("_", " "), str(number), *map(str, scores(PHOTOS.index((person, number))))])
        for person, number in photos
    ]
    header = "\t".join(["#", "person", "imagenum", *NAMES])
    (root / "lfw_attributes.txt").write_text("\n".join(["# a comment", header, *rows]) + "\n")


def write_people(root: Path, train: list[str], test: list[str]) -> None:
    for name, people in (("peopleDevTrain.txt", train), ("peopleDevTest.txt", test)):
        (root / name).write_text(
            "\n".join([str(len(people)), *(f"{p}\t{PEOPLE.get(p, 1)}" for p in people)]) + "\n"
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_images(tmp_path / "lfw_funneled")
    write_scores(tmp_path)
    write_people(tmp_path, ["Aaron_Eckhart", "Zico"], ["Abdel_Nasser_Assidi"])
    return tmp_path


@pytest.mark.parametrize("given", ["", "lfw_funneled"])
def test_table(root: Path, given: str) -> None:
    assert lfw.detect(root / given)
    source = lfw.open_source(root / given, ReadOptions())
    assert (source.name, source.crop) == ("lfw", "lfw")
    assert source.table.column_names == ["file", "split", "identity", *NAMES]
    assert not any(is_binary(source.table[name]) for name in NAMES)
    for place, (row, (person, number)) in enumerate(zip(source.table.to_pylist(), PHOTOS, strict=True)):
        assert row["file"] == f"{person}/{person}_{number:04d}.jpg"
        assert row["identity"] == person
        assert [row[name] for name in NAMES] == scores(place)
    assert all(shows(path, colour(place)) for place, path in enumerate(source.read(range(len(PHOTOS)))))


@pytest.mark.parametrize("folder", ["lfw", "lfw-deepfunneled", "lfw-deepfunneled/lfw-deepfunneled", "LFW_mine"])
def test_other_names_of_the_folder(tmp_path: Path, folder: str) -> None:
    write_images(tmp_path / folder)
    assert lfw.detect(tmp_path)
    assert lfw.open_source(tmp_path, ReadOptions()).table.num_rows == len(PHOTOS)


def test_several_versions_take_the_funneled_one_and_say_so(root: Path) -> None:
    write_images(root / "lfw")
    source = lfw.open_source(root, ReadOptions())
    assert next(iter(source.read([0]))) == root / "lfw_funneled/Aaron_Eckhart/Aaron_Eckhart_0001.jpg"
    assert "lfw_funneled was read, not lfw; give another folder to read that one" in source.notes


def test_folders_that_are_not_lfw(tmp_path: Path) -> None:
    write_images(tmp_path / "faces")  # the pattern alone could be any set of classes
    assert not lfw.detect(tmp_path) and not lfw.detect(tmp_path / "faces")
    (tmp_path / "lfw" / "Zico").mkdir(parents=True)
    assert not lfw.detect(tmp_path) and not lfw.detect(tmp_path / "lfw")
    assert not lfw.detect(tmp_path / "faces" / "Zico" / "Zico_0001.jpg")


def test_read_works_in_another_process(root: Path) -> None:
    read = lfw.open_source(root, ReadOptions()).read
    images = root / "lfw_funneled"
    assert read_elsewhere(read, [0, 5]) == [
        images / "Aaron_Eckhart/Aaron_Eckhart_0001.jpg",
        images / "Zico/Zico_0003.jpg",
    ]


def test_split_follows_the_development_lists(root: Path) -> None:
    source = lfw.open_source(root, ReadOptions())
    split_of = dict(zip(source.table["identity"].to_pylist(), source.table["split"].to_pylist(), strict=True))
    assert split_of["Abdel_Nasser_Assidi"] == "test"
    assert sorted([split_of["Aaron_Eckhart"], split_of["Zico"]]) == ["train", "valid"]  # a tenth, rounded up
    assert source.notes == (
        "peopleDevTest.txt gives test, peopleDevTrain.txt train and, with a tenth of its people by hash, valid",
    )


def test_validation_people_are_a_stable_tenth() -> None:
    people = [f"Person_{i}" for i in range(4038)]
    valid = lfw.validation_people(people)
    assert len(valid) == math.ceil(403.8)
    assert valid < set(people)
    assert lfw.validation_people(people[::-1]) == valid
    place = {person: hashlib.sha256(person.encode()).hexdigest() for person in people}
    assert max(place[p] for p in valid) < min(place[p] for p in people if p not in valid)
    assert len(lfw.validation_people(["Zico"])) == 1


def test_people_in_neither_list_are_split_by_hash(root: Path) -> None:
    write_people(root, ["Zico", "Somebody_Else"], [])
    source = lfw.open_source(root, ReadOptions())
    split_of = dict(zip(source.table["identity"].to_pylist(), source.table["split"].to_pylist(), strict=True))
    for person in ("Aaron_Eckhart", "Abdel_Nasser_Assidi"):
        assert split_of[person] == split_by_hash(person)
    assert "2 people are in neither list and are split by hash" in source.notes


@pytest.mark.parametrize("missing", ["peopleDevTrain.txt", "peopleDevTest.txt"])
def test_a_missing_list_of_people_leaves_the_split_to_the_caller(root: Path, missing: str) -> None:
    (root / missing).unlink()
    source = lfw.open_source(root, ReadOptions())
    assert "split" not in source.table.column_names
    assert source.notes == (f"{missing} not found in {root}: people are split by hash",)


def test_images_without_scores_and_scores_without_image_are_counted(root: Path) -> None:
    write_scores(root, PHOTOS[1:])  # no scores for the first photo
    (root / "lfw_funneled/Zico/Zico_0002.jpg").unlink()
    (root / "lfw_funneled/Zico/thumbnail.jpg").write_bytes(b"")
    source = lfw.open_source(root, ReadOptions())
    kept = [1, 2, 3, 5]
    assert source.table["file"].to_pylist() == [
        f"{PHOTOS[i][0]}/{PHOTOS[i][0]}_{PHOTOS[i][1]:04d}.jpg" for i in kept
    ]
    assert source.table["Male"].to_pylist() == [scores(i)[0] for i in kept]
    assert source.notes[:3] == (
        "1 files are not called Person/Person_0001.jpg and were left out",
        "1 images have no scores in lfw_attributes.txt and were left out",
        "1 rows of lfw_attributes.txt have no image and were left out",
    )


def test_without_scores_there_are_identities(root: Path) -> None:
    (root / "lfw_attributes.txt").unlink()
    source = lfw.open_source(root, ReadOptions())
    assert source.table.column_names == ["file", "split", "identity"]
    assert source.table.num_rows == len(PHOTOS)


def test_scores_of_other_people_are_refused(root: Path) -> None:
    (root / "lfw_attributes.txt").write_text("# x\n#\tperson\timagenum\tMale\nNobody\t1\t0.5\n")
    refused(lfw.open_source, root, r"lfw_attributes.txt names none of the 6 images")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Zico\t1\t0.5\n", "does not name the columns person and imagenum"),
        ("#\tperson\timagenum\tMale\nZico\t1\n", "Expected 3 columns, got 2"),
        ("#\tperson\timagenum\tMale\nZico\tone\t0.5\n", "not in the format of LFW's attributes"),
    ],
)
def test_broken_scores_are_refused(root: Path, text: str, message: str) -> None:
    (root / "lfw_attributes.txt").write_text(text)
    refused(lfw.open_source, root, message)


def test_lists_without_images_say_where_these_are_expected(tmp_path: Path) -> None:
    write_scores(tmp_path)
    assert lfw.detect(tmp_path)
    expected = tmp_path / "lfw_funneled/Person_Name/Person_Name_0001.jpg"
    refused(lfw.open_source, tmp_path, f"expected as {expected}")


def test_ignore(root: Path) -> None:
    source = lfw.open_source(root, ReadOptions(ignore=("Middle Aged", "identity", "split")))
    assert source.table.column_names == ["file", "Male"]
    assert source.notes == ("split ignored: images are split by hash",)
    refused(lfw.open_source, root, r"--ignore Mail: .* Did you mean 'Male'", ignore=("Mail",))


def test_sample_of_the_real_set(shared: Path) -> None:
    sample = shared / "data" / "lfw-layout-sample"
    source = lfw.open_source(sample, ReadOptions())
    table = source.table
    names = attribute_names(table)
    assert (table.num_rows, len(names), len(set(table["identity"].to_pylist()))) == (32, 73, 8)
    assert not any(is_binary(table[name]) for name in names)
    assert Counter(table["split"].to_pylist()) == {"train": 16, "valid": 4, "test": 12}
    first = (sample / "lfw_attributes.txt").read_text().splitlines()[2].split("\t")
    row = table.slice(0, 1).to_pylist()[0]
    assert row["file"] == f"{first[0].replace(' ', '_')}/{first[0].replace(' ', '_')}_000{first[1]}.jpg"
    np.testing.assert_allclose([row[name] for name in names], np.array(first[2:], np.float32), rtol=1e-6)
    assert {size_of(path) for path in source.read(range(32))} == {(250, 250)}


def test_rows_and_columns_that_stand_twice_are_refused(root: Path) -> None:
    write_scores(root, [*PHOTOS, PHOTOS[4]])
    refused(lfw.open_source, root, "more than one row for Zico 2")
    path = root / "lfw_attributes.txt"
    path.write_text(path.read_text().replace("Middle Aged", "Male"))
    refused(lfw.open_source, root, "the column 'Male' twice")
