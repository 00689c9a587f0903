"""The photograph-like faces in the package: small, whole, and none that a model in the box has learned from."""

from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

import diti
from diti.core.errors import InputError
from diti.data.decode import decode
from diti.data.readers.faces_source import FILE


def test_they_open_with_their_readings_and_a_split():
    faces = diti.open_data("faces")
    assert faces.images.shape == (300, 64, 64, 3) and len(faces.attributes) == 20 and faces.title == "faces"
    assert Counter(faces.table["split"].to_pylist()) == {"train": 240, "valid": 30, "test": 30}
    assert not any(faces.is_binary(name) for name in faces.attributes)
    assert all(int(name.removesuffix(".jpg")) % 10 == 0 for name in faces.table["file"].to_pylist())
    assert FILE.stat().st_size < 2.1e6


def test_fewer_and_smaller_ones_can_be_had_but_not_more():
    few = diti.open_data("faces:20", size=32)
    assert few.images.shape == (20, 32, 32, 3) and {len(few.rows(s)) for s in ("valid", "test")} == {2}
    for location in ("faces:301", "faces:0", "faces:all"):
        with pytest.raises(
            InputError, match=f"{location} is not understood; write faces or faces:N with N from 1 to 300"
        ):
            diti.open_data(location)
    with pytest.raises(InputError, match=r"myfaces does not exist; .* write faces or toyfaces"):
        diti.open_data("myfaces")


def test_they_are_test_faces_of_the_whole_set(shared):
    faces, whole = diti.open_data("faces"), shared / "data" / "unreal-faces-128px.parquet"
    rows = pq.read_table(whole, columns=["image", "split", "age"]).to_pylist()
    held = {row["image"]["path"]: row for row in rows if row["split"] == "test"}
    for row in (0, 7, 299):
        original = held[faces.table["file"][row].as_py()]
        assert np.array_equal(faces.images[row], decode(original["image"]["bytes"], 64, "centre"))
        assert faces.labels(["age"])[row, 0] == pytest.approx(original["age"])
