"""A dataset in a notebook: counts, attributes and a few pictures, and only these are read."""

import base64
import io

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from shown_html import Shown

from diti.data.prepared import Dataset

HARM = '"><img src=x onerror=alert(1)><script>alert(1)</script>'


class Counting(np.ndarray):
    """Tells which rows were read."""

    read: list[int]

    def __getitem__(self, rows):
        Counting.read += np.asarray(rows).tolist()
        return np.asarray(self)[rows]


def dataset(count=100, size=16, attributes=("hat", "smile"), **info):
    pixels = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), np.uint8).view(Counting)
    Counting.read = []
    splits = ["train"] * (count - count // 10) + ["test"] * (count // 10)
    columns = {name: pa.array([0, 1] * (count // 2), pa.int8()) for name in attributes}
    table = pa.table({"file": ["a"] * count, "split": splits, **columns, "age": [0.5] * count})
    return Dataset("data/mine", pixels, table, {"name": "mine", "skipped": 0, **info})


def test_what_is_told_and_what_is_read():
    shown = Shown(dataset(skipped=3, predicted={"smile": {}})._repr_html_())
    assert "images 100 of 16 px: train 90, test 10" in shown.text and "folder data/mine" in shown.text
    assert "3 unreadable" in shown.text
    assert "3 attributeshat (binary)\nsmile (binary, predicted)\nage (continuous)" in shown.text
    assert Counting.read == [0, 14, 28, 42, 56, 70, 84, 99], "memory-mapped rows, never all images"


@pytest.mark.parametrize(("count", "size", "wide"), [(100, 16, 8 * 16), (4, 256, 4 * 64)])
def test_pictures_are_small(count, size, wide):
    html = dataset(count, size)._repr_html_()
    (source,) = Shown(html).pictures
    with Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as picture:
        assert picture.size == (wide, min(64, size))
    assert len(html) < 150_000, "noise, the worst there is"


def test_names_are_text_whatever_they_hold():
    html = dataset(attributes=(HARM, *(f"{n}{'long' * 500}" for n in range(300))), name=HARM)._repr_html_()
    shown = Shown(html)
    assert shown.text.startswith(HARM) and f"{HARM} (binary)" in shown.text
    assert "and 102 more" in shown.text and len(html) < 60_000
