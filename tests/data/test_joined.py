"""Parts that several machines prepared, opened as one dataset."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import diti
from diti.core.errors import InputError
from diti.core.part import Part
from diti.data.joined import Joined
from diti.data.prepared import Stream


@pytest.fixture(scope="module")
def parts(tmp_path_factory, image_files):
    folder = tmp_path_factory.mktemp("parts") / "data"
    for number in (3, 1, 2):
        diti.prepare(image_files, folder, 16, part=f"{number}/3", workers=1)
    return folder


@pytest.fixture(scope="module")
def image_files(tmp_path_factory):
    """Eleven files with an attribute."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(11):
        diti.grid(np.full((1, 16, 16, 3), 20 * number, np.uint8), columns=1).save(folder / f"{number:02d}.png")
    rows = [f"{number:02d}.png,{number % 2}" for number in range(11)]
    (folder / "labels.csv").write_text("\n".join(["file,odd", *rows]))
    return folder


@pytest.mark.parametrize("count", [1, 10, 16, 1001])
def test_parts_follow_each_other(count):
    rows = [row for number in range(1, 8) for row in range(count)[Part(number, 7).rows(count)]]
    assert rows == list(range(count))
    assert Part.of_name(Part(3, 16).name) == Part(3, 16) and Part.of_name("part-3") is None


def test_the_parts_are_the_whole(parts, image_files, tmp_path):
    whole, joined = diti.prepare(image_files, tmp_path / "whole", 16, workers=1), diti.open_data(parts)
    assert sorted(entry.name for entry in parts.iterdir()) == [Part(number, 3).name for number in (1, 2, 3)]
    assert joined.table.equals(whole.table) and joined.info["splits"] == whole.info["splits"]
    assert np.array_equal(joined.images[:], whole.images) and joined.size == 16 and joined.attributes == ["odd"]
    rows, flips = Stream(joined.rows("train"), 0, flip=True).take(0, 20)
    assert np.array_equal(joined.pixels(rows, flips), whole.pixels(rows, flips))


def test_joined_arrays_are_read_like_one():
    whole = np.arange(7 * 2).reshape(7, 2)
    joined = Joined([whole[:3], whole[3:4], whole[4:]])
    keys = (
        slice(None), slice(1, 6), slice(3, 4), slice(6, 2), slice(None, None, 2), slice(-2, None), 0, -1, 5,
        np.array([6, 0, 3, 3]), np.array([], int), whole[:, 0] > 4, [-1, 2],
    )  # fmt: skip
    for key in keys:
        assert np.array_equal(joined[key], whole[key]), key
    assert np.array_equal(np.asarray(joined), whole) and len(joined.stretch(slice(2, 5))) == 3
    assert np.shares_memory(joined[4:6], whole), "nothing is copied where it need not be"
    with pytest.raises(IndexError):
        joined[7]


def test_any_prepared_folders_of_one_size(tmp_path):
    for name in "ab":
        diti.prepare("toyfaces:9", tmp_path / "both" / name, 16, workers=1)
    both = diti.open_data(tmp_path / "both")
    assert len(both) == 18 and both.table["file"][9].as_py().startswith("b/")
    assert np.array_equal(both.images[9:], both.images[:9])
    assert both.hash != diti.open_data(tmp_path / "both" / "a").hash
    diti.prepare("toyfaces:9", tmp_path / "both" / "c", 32, workers=1)
    with pytest.raises(InputError, match=r"holds parts of 16 and of 32 px \(a, c\)"):
        diti.open_data(tmp_path / "both")


def test_parts_of_what_is_no_files(tmp_path):
    whole = diti.open_data("toyfaces:9", 16)
    for number in (1, 2):
        diti.prepare("toyfaces:9", tmp_path / "parts", 16, part=f"{number}/2", workers=1)
    assert np.array_equal(diti.open_data(tmp_path / "parts").images[:], whole.images)


def test_what_does_not_belong_together(parts, image_files, tmp_path):
    few = tmp_path / "few"
    diti.prepare(image_files, few, 16, part="2/3", workers=1)
    with pytest.raises(InputError, match=r"lacks part 1/3 and 1 more; run diti prepare --part 1/3 into it"):
        diti.open_data(few)
    with pytest.raises(InputError, match=r"holds parts of 3; use --part 1/3"):
        diti.prepare(image_files, few, 16, part="1/4", workers=1)
    with pytest.raises(InputError, match="--part 1/12 of 11 images is empty"):
        diti.prepare(image_files, tmp_path / "many", 16, part="1/12", workers=1)
    (few / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds other files \(notes.txt\); choose a folder for parts alone"):
        diti.prepare(image_files, few, 16, part="1/3", workers=1)
    (few / "notes.txt").unlink()
    table = pq.read_table(few / Part(2, 3).name / "table.parquet")
    for number in (1, 3):
        diti.prepare(image_files, few, 16, part=f"{number}/3", workers=1)
    more = table.append_column("age", pa.array([1.0] * table.num_rows, pa.float32()))
    pq.write_table(more, few / Part(2, 3).name / "table.parquet")
    with pytest.raises(InputError, match="differ in the column 'age'"):
        diti.open_data(few)
