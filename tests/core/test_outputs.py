"""What may be written: new files and our own; never what is read, never others' files unless told to."""

import json
import os

import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from diti.core.errors import InputError
from diti.core.images import save_picture
from diti.core.outputs import is_own, require_apart, require_writable
from diti.core.runs import versions, write_json


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with photos, in which the tests stand."""
    (tmp_path / "photos").mkdir()
    for name in ("a.png", "photos/b.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(here, out, *inputs, overwrite=False):
    require_writable({"--out": [here / out]}, inputs, overwrite=overwrite)


def test_new_files_and_our_own_may_be_written(here):
    check(here, "new.png")
    check(here, "deep/in/new.png", "photos")
    save_picture(Image.new("RGB", (4, 4)), here / "own.png")
    check(here, "own.png", "a.png", "photos", "toyfaces:300", None)


def test_others_files_are_replaced_only_when_told(here):
    (here / "link.png").symlink_to(here / "a.png")
    (here / "nowhere.png").symlink_to(here / "gone")
    for name in ("a.png", "link.png", "nowhere.png"):
        with pytest.raises(InputError, match=rf"--out .*{name} exists, and diti did not write it.*--overwrite"):
            check(here, name)
        check(here, name, overwrite=True)


@pytest.mark.parametrize("spelling", ["a.png", "./photos/../a.png", "link.png", "folder/a.png", "hard.png"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_read_is_never_replaced(here, spelling, overwrite):
    (here / "link.png").symlink_to(here / "a.png")
    (here / "folder").symlink_to(here)
    os.link(here / "a.png", here / "hard.png")
    with pytest.raises(InputError, match=r"would replace a\.png, which is an input"):
        check(here, spelling, "a.png", overwrite=overwrite)


@pytest.mark.parametrize(
    "spelling", ["photos/new.png", "photos/deep/new.png", "link/new.png", "x/../photos/new.png"]
)
def test_nothing_is_written_into_a_folder_that_is_read(here, spelling):
    (here / "link").symlink_to(here / "photos")
    with pytest.raises(InputError, match="lies in photos, which is an input; choose a place outside"):
        check(here, spelling, "photos", overwrite=True)
    check(here, "photos2/new.png", "photos")


def test_a_folder_of_outputs_holds_no_input(here):
    for spelling in ("photos", "photos/.", "./photos"):
        with pytest.raises(InputError, match=r"--frames photos holds photos/b\.png, which is an input"):
            require_apart("--frames", here.joinpath(spelling).relative_to(here), ["a.png", "photos/b.png"])
    require_apart("--frames", here / "frames", ["a.png"])


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("photos", "is a folder; name a file"),
        (".", "is a folder; name a file"),
        ("a.png/new.png", r"a\.png is a file, not a folder"),
        ("a.png/deep/new.png", r"a\.png is a file, not a folder"),
        ("pipe.png", "is a device or a pipe"),
        (f"{'n' * 240}.png", "a name of more than 220 bytes"),
        ("loop/new.png", "is a file, not a folder"),
    ],
)
def test_places_where_nothing_can_be_written(here, out, words):
    os.mkfifo(here / "pipe.png")
    (here / "loop").symlink_to(here / "loop")
    with pytest.raises(InputError, match=words):
        check(here, out, overwrite=True)


def test_a_folder_without_permission_is_told(here, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="is read-only; choose another place"):
        check(here, "new.png")


def test_two_options_never_write_one_file(here):
    with pytest.raises(InputError, match="--out and --animate both write"):
        require_writable({"--out": [here / "x.webp"], "--animate": [here / "photos" / ".." / "x.webp"]})


def test_files_say_whether_they_are_ours(here):
    record = {"probe": {}, "versions": versions()}
    for name, content, own in (
        ("probe.json", record, True), ("run.json", record | {"verb": "train"}, False), ("list.json", [], False),
        ("null.json", None, False), ("other.json", {"versions": "3"}, False), ("model.json", {"method": 1}, False),
    ):  # fmt: skip
        write_json(here / name, content)
        assert is_own(here / name) is own, name
    pa.parquet.write_table(pa.table({"file": ["a"], "split": ["b"], "z000_t0": [1.0]}), here / "z.parquet")
    pa.parquet.write_table(pa.table({"file": ["a"], "age": [1.0]}), here / "other.parquet")
    texts = {
        "z.csv": "file,split,z000\n",
        "quoted.csv": '"file","split","z000_t0300"\n',
        "mine.csv": "name,age\n",
        "page.html": "<html></html>",
        "cut.png": "PNG",
    }
    for name, text in texts.items():
        (here / name).write_text(text)
    assert all(is_own(here / name) for name in ("z.parquet", "z.csv", "quoted.csv"))
    for name in ("other.parquet", "mine.csv", "page.html", "cut.png", "a.png", "absent.json", "absent.xyz"):
        assert not is_own(here / name), name
    (here / "report.json").write_text(json.dumps(record))
    assert is_own(here / "mine.csv"), "a table beside the record of a report"
