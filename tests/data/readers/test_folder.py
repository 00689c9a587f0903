import errno
import os
from pathlib import Path

import pytest
from PIL import Image

from diti.core.errors import InputError
from diti.data.prepare import prepare
from diti.data.readers.folder import ffhq_split, folder_split, is_ffhq, list_images, open_source
from diti.data.source import ReadOptions
from diti.data.sources import find_source


def test_images_of_any_nesting_in_order(image_folder):
    (image_folder / ".hidden").mkdir()
    (image_folder / ".hidden" / "x.png").write_bytes(b"")
    (image_folder / "notes.txt").write_text("x")
    files = list_images(image_folder)
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
    with pytest.raises(InputError, match="has a row for 2 of 12 images"):
        open_source(image_folder, ReadOptions())
    source = open_source(image_folder, ReadOptions(only_labelled=True))
    paths = list(source.read([0, 1]))
    assert [p.name for p in paths] == ["10.png", "03.png"] and source.table["hat"].to_pylist() == [0, 1]


def test_split_folders():
    assert folder_split(["train/a.png", "val/b.png", "test/x/c.png"]) == ["train", "valid", "test"]
    assert folder_split(["train/a.png", "b.png"]) is None
    assert folder_split(["0/a.png", "1/b.png"]) is None, "numbered folders are classes or shards, not splits"


def test_ffhq_by_its_names_and_split():
    files = ["00000/00007.png", "59000/59999.png", "60000/60000.png"]
    assert is_ffhq(files) and ffhq_split(files) == ["train", "train", "valid"]
    assert ffhq_split(files[:2]) is None, "a part of FFHQ still needs images to validate on"
    assert not is_ffhq(["00000/00007.jpg"])


def test_ffhq_folder_is_named_so(tmp_path):
    for name in ("00000/00001.png", "60000/60001.png"):
        (tmp_path / name).parent.mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / name)
    assert open_source(tmp_path, ReadOptions()).name == "ffhq"


def test_bad_folders(tmp_path, image_folder):
    with pytest.raises(InputError, match=r"holds no images \(it is empty\)"):
        (tmp_path / "empty").mkdir()
        open_source(tmp_path / "empty", ReadOptions())
    (tmp_path / "empty" / "a.txt").write_text("x")
    with pytest.raises(InputError, match=r"it holds a\.txt"):
        open_source(tmp_path / "empty", ReadOptions())
    with pytest.raises(InputError, match=r"no\.csv does not exist"):
        open_source(image_folder, ReadOptions(attributes=tmp_path / "no.csv"))
    with pytest.raises(InputError, match="need a table of attributes"):
        open_source(image_folder, ReadOptions(ignore=("x",)))


def test_links_to_the_folder_itself_end_and_each_file_is_read_once(image_folder, tmp_path):
    files = list_images(image_folder)
    (tmp_path / "more").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "more" / "far.png")
    for name, target in {
        "self": ".", "a/up": "..", "b/other": "../a", "again.png": "a/00.png", "0.png": "again.png",
        "linked": tmp_path / "more", "linked too": tmp_path / "more", "far.png": tmp_path / "more" / "far.png",
    }.items():  # fmt: skip
        (image_folder / name).symlink_to(target)
    assert list_images(image_folder) == sorted([*files, "linked/far.png"])


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
