"""`tools/identify_faces.py`: the table that `--identity` takes, printed. dlib itself is pretended."""

import csv
import io
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image

TOOL = Path(__file__).parents[1] / "tools" / "identify_faces.py"


class Box(SimpleNamespace):
    def area(self) -> int:
        return self.side**2


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """A dlib that finds two faces in pictures that are not black; who one is, is its side and the mean colour."""

    def find(pixels: np.ndarray, upsampled: int) -> list[Box]:
        assert (
            upsampled == 0 and pixels.dtype == np.uint8 and pixels.shape == (384, 384, 3)
        )  # larger, with a border
        return [Box(side=100), Box(side=200)] if pixels.any() else []

    def describe(pixels: np.ndarray, marks: Box) -> list[float]:
        return [float(marks.side), *pixels.mean((0, 1)), *[0.0] * 124]

    dlib, models = ModuleType("dlib"), tmp_path / "face_recognition_models"
    dlib.get_frontal_face_detector = lambda: find
    dlib.shape_predictor = lambda path: lambda pixels, box: box
    dlib.face_recognition_model_v1 = lambda path: SimpleNamespace(compute_face_descriptor=describe)
    dlib.fhog_object_detector = object
    monkeypatch.setitem(sys.modules, "dlib", dlib)
    models.mkdir()
    (models / "__init__.py").write_text("raise ImportError('it needs setuptools')")  # is only looked for
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_row_of_128_numbers_per_picture_and_an_empty_one_where_no_face_is(pretended, monkeypatch, capsys):
    paths = [str(pretended / name) for name in ("a.png", "nobody.png", "b.png")]
    for path, colour in zip(paths, ((10, 20, 30), (0, 0, 0), (60, 50, 40)), strict=True):
        Image.new("RGB", (64, 64), colour).save(path)
    monkeypatch.setattr(sys, "argv", [str(TOOL), *paths])
    runpy.run_path(str(TOOL), run_name="__main__")
    text = capsys.readouterr().out
    head, first, none, last = csv.reader(io.StringIO(text))
    assert len(head) == 129 and head[:2] == ["file", "who_000"] and [first[0], none[0], last[0]] == paths
    assert [float(value) for value in first[1:6]] == [200, 10, 20, 30, 0]  # of the larger face
    assert set(none[1:]) == {""}


def test_it_says_what_is_missing(pretended, monkeypatch):
    (pretended / "face_recognition_models" / "__init__.py").unlink()
    (pretended / "face_recognition_models").rmdir()
    found = runpy.run_path(str(TOOL), run_name="told")
    with pytest.raises(SystemExit, match="face_recognition_models is not installed; see the top of this file"):
        found["weights"]("x.dat")
