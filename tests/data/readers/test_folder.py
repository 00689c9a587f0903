import errno
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features
from reading import refused

from diti.core.errors import InputError
from diti.data.prepare import prepare
from diti.data.readers.ffhq import own_split
from diti.data.readers.folder import find_images, folder_split, open_source
from diti.data.source import ReadOptions
from diti.data.sources import find_source, open_data


def test_images_of_any_nesting_in_order(image_folder):
    (image_folder / ".hidden").mkdir()
    (image_folder / ".hidden" / "x.png").write_bytes(b"")
    (image_folder / "notes.txt").write_text("x")
    files = find_images(image_folder)[0]
    assert files == sorted(files) and len(files) == 12 and files[0] == "a/00.png"


def test_names_with_spaces_and_other_letters(tmp_path):
    folder = tmp_path / "Bilder – été"
    names = ["ein bild.png", "größe/日本.PNG", "x'y\"z.jpeg"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9), (9, 8, 7)).save(folder / name)
    dataset = prepare(open_source(folder, ReadOptions()), tmp_path / "out put", 8)
    assert sorted(dataset.table["file"].to_pylist()) == sorted(names)


def test_attributes_beside_the_images_or_named(image_folder, tmp_path):
    rows = [f"{'ab'[i % 2]}/{i:02d}.png,{i % 2},{i / 2},{('train', 'test')[i % 2]},p{i // 2}" for i in range(12)]
    text = "\n".join(["file,hat,age,split,identity", *rows])
    (tmp_path / "elsewhere.csv").write_text(text)
    named = open_source(image_folder, ReadOptions(attributes=tmp_path / "elsewhere.csv"))
    (image_folder / "labels.csv").write_text(text)
    beside = open_source(image_folder, ReadOptions())
    for source in (named, beside):
        assert source.table.column_names == ["file", "split", "identity", "hat", "age"]
        row = source.table["file"].to_pylist().index("b/07.png")
        assert source.table.slice(row, 1).to_pylist()[0] == {
            "file": "b/07.png", "split": "test", "identity": "p3", "hat": 1, "age": 3.5,
        }  # fmt: skip


def test_only_labelled_keeps_rows_and_images_together(image_folder):
    (image_folder / "attributes.csv").write_text("file,hat\nb/03.png,1\na/10.png,0\n")
    refused(open_source, image_folder, "has a row for 2 of 12 images")
    source = open_source(image_folder, ReadOptions(only_labelled=True))
    paths = list(source.read([0, 1]))
    assert [p.name for p in paths] == ["10.png", "03.png"] and source.table["hat"].to_pylist() == [0, 1]


def test_split_folders():
    assert folder_split(["train/a.png", "val/b.png", "test/x/c.png"]) == ["train", "valid", "test"]
    assert folder_split(["train/a.png", "b.png"]) is None
    assert folder_split(["0/a.png", "1/b.png"]) is None, "numbered folders are classes or shards, not splits"


def test_names_that_are_numbers_make_no_ffhq(tmp_path):
    """A folder of images goes by its own name, whatever its images are called."""
    for name in ("drawn/00000.png", "drawn/60001.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    source = find_source(str(tmp_path / "drawn"), ReadOptions())
    assert (source.name, source.title) == ("folder", "drawn") and "split" not in source.table.column_names
    prepared = prepare(source, tmp_path / "out", 8)
    opened = open_data(tmp_path / "drawn")
    assert (prepared.name, prepared.title) == (opened.name, opened.title) == ("folder", "drawn")
    (tmp_path / "drawn").rename(tmp_path / "renamed")
    assert open_data(tmp_path / "renamed").title == "renamed", "though it is the same in the cache"


@pytest.mark.parametrize(
    ("folder", "kind", "name"),
    [
        ("images1024x1024", None, "ffhq"),
        ("thumbnails128x128", None, "ffhq"),
        ("thumbnails128x128", "folder", "folder"),
        ("photos", None, "folder"),
        ("photos", "ffhq", "ffhq"),
    ],
)
def test_ffhq_is_what_has_its_layout_or_is_said_to_be(tmp_path, folder, kind, name):
    for file in ("00000/00001.png", "60000/60001.png"):
        (tmp_path / folder / file).parent.mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / folder / file)
    for path in (tmp_path / folder, tmp_path):
        source = find_source(str(path), ReadOptions(), kind)
        assert source.name == name
        assert ("split" in source.table.column_names) == (name == "ffhq")
    if name == "ffhq":
        assert prepare(source, tmp_path.parent / f"{tmp_path.name}-out", 8).title == "ffhq"


def test_ffhq_by_its_description_is_read_once(tmp_path):
    (tmp_path / "ffhq-dataset-v2.json").write_text("{}")
    for name in ("00003.png", "60003.png"):
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    assert find_source(str(tmp_path), ReadOptions()).table["split"].to_pylist() == ["train", "valid"]
    for folder in ("thumbnails128x128", "images1024x1024"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / folder / "00001.png")
    source = find_source(str(tmp_path), ReadOptions())
    assert source.name == "ffhq" and [p.parent.name for p in source.read([0])] == ["images1024x1024"]
    assert source.table["file"].to_pylist() == ["00001.png"]


def test_ffhq_has_a_split_of_its_own():
    assert own_split(["00000/00007.png", "59000/59999.png", "60000/60000.png"]) == ["train", "train", "valid"]
    assert own_split(["00007.png", "59999.png"]) is None, "a part of FFHQ still needs images to validate on"
    assert own_split(["00007.png", "60000.png", "notes.png"]) is None


def test_images_of_a_kind_that_cannot_be_read_are_named_and_counted(image_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("diti.data.readers.folder.reads_heif", lambda: False)  # wherever this runs
    for name in ("a/photo.HEIC", "b/07.svg", "b/raw.dng", "notes.txt", "attributes.json"):
        (image_folder / name).write_bytes(b"x")
    dataset = prepare(open_source(image_folder, ReadOptions()), tmp_path / "out", 8)
    assert len(dataset) == 12 and dataset.info["skipped"] == 3
    lines = (dataset.path / "skipped.csv").read_text().splitlines()
    assert lines[1].startswith("a/photo.HEIC,.heic needs the extra: pip install 'diti-torch[heic]'")
    assert lines[2:] == [f"b/{n},{s} cannot be read: save it as PNG or JPEG" for n, s in OTHERS.items()]
    (image_folder / "attributes.csv").write_text("file,hat\n" + "".join(f"{i:02d},{i % 2}\n" for i in range(12)))
    assert open_source(image_folder, ReadOptions()).table.num_rows == 12, "they need no labels, and share none"


OTHERS = {"07.svg": ".svg", "raw.dng": ".dng"}


def test_a_folder_of_nothing_but_such_images(tmp_path):
    (tmp_path / "x.svg").write_text("<svg/>")
    refused(open_source, tmp_path, r"holds no images \(it holds x\.svg; \.svg cannot be read: save it as")


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow reads no AVIF")
def test_avif_is_read(tmp_path):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (16, 16), (200, 30, 30)).save(tmp_path / "photos" / "x.avif")
    dataset = prepare(open_source(tmp_path / "photos", ReadOptions()), tmp_path / "out", 8)
    assert dataset.info["skipped"] == 0 and np.abs(dataset.images[0, 4, 4] - [200.0, 30, 30]).max() < 12


PLUGIN = """
from PIL import BmpImagePlugin, Image

class Photo(BmpImagePlugin.BmpImageFile):
    format = "HEIF"
    def _open(self):
        assert self.fp.read(4) == b"heic"
        self._bitmap(offset=18)
    def _bitmap(self, header=0, offset=0):
        super()._bitmap(header=18)

def register_heif_opener():
    Image.register_open("HEIF", Photo, lambda prefix: prefix[:4] == b"heic")
"""


def test_heic_is_read_where_its_plugin_is_installed(tmp_path, diti):
    """The plugin here reads a bitmap behind four letters; which codec it has does not matter."""
    (tmp_path / "plugin").mkdir()
    (tmp_path / "plugin" / "pillow_heif.py").write_text(PLUGIN)
    (tmp_path / "photos").mkdir()
    for index in range(300):  # enough for further processes
        Image.new("RGB", (9, 9), (index % 256, 0, 0)).save(tmp_path / "x.bmp")
        (tmp_path / "photos" / f"{index:03d}.heic").write_bytes(b"heic" + (tmp_path / "x.bmp").read_bytes())
    path = os.pathsep.join([str(tmp_path / "plugin"), *sys.path])
    told = diti(
        "prepare", tmp_path / "photos", "--size", 8, "--workers", 2, "--out", tmp_path / "out",
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    dataset = open_data(tmp_path / "out")
    assert dataset.images[:, 4, 4, 0].tolist() == [i % 256 for i in range(300)] and dataset.info["skipped"] == 0


def test_bad_folders(tmp_path, image_folder):
    with pytest.raises(InputError, match=r"holds no images \(it is empty\)"):
        (tmp_path / "empty").mkdir()
        open_source(tmp_path / "empty", ReadOptions())
    (tmp_path / "empty" / "a.txt").write_text("x")
    refused(open_source, tmp_path / "empty", r"it holds a\.txt")
    refused(open_source, image_folder, r"no\.csv does not exist", attributes=tmp_path / "no.csv")
    refused(
        open_source,
        image_folder,
        r"empty is a folder; name a CSV, TSV or parquet file",
        attributes=tmp_path / "empty",
    )
    refused(open_source, image_folder, "need a table of attributes", ignore=("x",))


def test_links_to_the_folder_itself_end_and_each_file_is_read_once(image_folder, tmp_path):
    files = find_images(image_folder)[0]
    (tmp_path / "more").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "more" / "far.png")
    for name, target in {
        "self": ".", "a/up": "..", "b/other": "../a", "again.png": "a/00.png", "0.png": "again.png",
        "linked": tmp_path / "more", "linked too": tmp_path / "more", "far.png": tmp_path / "more" / "far.png",
    }.items():  # fmt: skip
        (image_folder / name).symlink_to(target)
    assert find_images(image_folder)[0] == sorted([*files, "linked/far.png"])


def test_what_is_no_file_is_named_and_never_opened(image_folder, tmp_path):
    os.mkfifo(image_folder / "pipe.png")
    os.mkfifo(image_folder / "pipe.parquet")
    (image_folder / "gone.png").symlink_to("nowhere")
    (image_folder / "round.png").symlink_to("round.png")
    dataset = prepare(find_source(str(image_folder), ReadOptions()), tmp_path / "out", 8)
    assert len(dataset) == 12
    skipped = (dataset.path / "skipped.csv").read_text().splitlines()
    assert skipped[1:3] == ["gone.png,file is missing", "pipe.png,not a regular file"] and len(skipped) == 4


def test_names_that_are_not_text(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff"
    Path(os.fsdecode(folder)).mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "x.png")
    (tmp_path / "x.png").rename(os.fsdecode(folder + b"/line\nend \xfe.png"))
    dataset = prepare(open_source(Path(os.fsdecode(folder)), ReadOptions()), tmp_path / "out", 8)
    assert dataset.table["file"].to_pylist() == ["line\nend \\udcfe.png"]


def test_a_folder_that_may_not_be_read_is_named(image_folder, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "b":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for kind in (None, "folder"):
        with pytest.raises(InputError, match=r"images/b cannot be read \(Permission denied\); change its perm"):
            find_source(str(image_folder), ReadOptions(), kind)
