import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from on_disk import hash_on_disk
from PIL import Image
from tiny import tiny_model

from diti.core.errors import InputError
from diti.core.runs import sha256_file
from diti.data import contents
from diti.data.prepare import prepare
from diti.data.prepared import Stream, open_dataset
from diti.data.source import ReadOptions
from diti.data.sources import find_source, open_data
from diti.data.split import split_by_hash, with_split
from diti.representation.features import encoder_codes


@pytest.fixture
def dataset(tmp_path):
    return prepare(find_source("toyfaces:60", ReadOptions(size=16)), tmp_path / "data", 16)


def test_opening_maps_the_images_instead_of_reading_them(dataset):
    assert isinstance(dataset.images, np.memmap) and not dataset.images.flags.writeable
    assert dataset.images.shape == (60, 16, 16, 3) and len(dataset) == 60 and dataset.size == 16


def test_rows_labels_and_attributes(dataset):
    rows = [dataset.rows(s) for s in ("train", "valid", "test")]
    assert sorted(np.concatenate(rows).tolist()) == list(range(60))
    assert dataset.labels().shape == (60, len(dataset.attributes))
    assert set(np.unique(dataset.labels(["hat"]))) == {0, 1} and dataset.is_binary("hat")
    assert not dataset.is_binary("background")
    with pytest.raises(InputError, match=r"no attribute 'hatt'.*Did you mean 'hat'"):
        dataset.labels(["hatt"])
    with pytest.raises(InputError, match="split 'dev' is unknown"):
        dataset.rows("dev")


def test_images_too_few_for_a_split_are_for_training(tmp_path):
    (tmp_path / "one").mkdir()
    Image.new("RGB", (16, 16)).save(tmp_path / "one" / "0.png")
    assert split_by_hash("0.png") == "test"
    assert len(open_data(tmp_path / "one").rows("train")) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("explore", "toyfaces32-diti", "--out", "explored"),
        ("analyze", "toyfaces32-diti", "--out", "analysed"),
        ("probe", "toyfaces32-diti", "--out", "probe.json"),
        ("train", "--backbone", "toyfaces32", "--out", "run"),
        ("train", "--method", "simclr", "--encoder", "residual", "--out", "run"),
        ("solve", "--backbone", "toyfaces32", "--out", "run"),
        ("pretrain", "--preset", "toyfaces32", "--out", "run"),
    ],
    ids=lambda words: words[0],
)
def test_data_without_training_images_is_told_at_once(words, tmp_path, diti_here):
    for index in range(4):
        (tmp_path / "own").mkdir(exist_ok=True)
        Image.new("RGB", (32, 32), (index, 0, 0)).save(tmp_path / "own" / f"{index}.png")
    rows = [f"{index}.png,{('test', 'valid')[index // 2]},{index % 2}\n" for index in range(4)]
    (tmp_path / "own" / "attributes.csv").write_text("file,split,hat\n" + "".join(rows))
    result = diti_here(*words, "--data", "own", cwd=tmp_path)
    assert result.returncode == 2 and sorted(p.name for p in tmp_path.iterdir()) == ["own"]
    assert result.stderr.splitlines()[-1].startswith(
        "diti: own has no training images (valid 2, test 2); mark some"
    )


def test_pixels_flip_only_where_asked_and_never_on_disk(dataset):
    rows = np.array([5, 5, 9])
    batch = dataset.pixels(rows, np.array([False, True, False]))
    assert np.array_equal(batch[1], batch[0][:, ::-1]) and np.array_equal(batch[2], dataset.images[9])
    assert np.array_equal(dataset.pixels(rows)[1], batch[0])


@pytest.mark.parametrize("name", ["images.npy", "table.parquet", "dataset.json"])
def test_damaged_folders_are_named(dataset, name):
    (dataset.path / name).write_bytes(b"broken")
    with pytest.raises(InputError, match=r"damaged|not valid JSON"):
        open_dataset(dataset.path)
    (dataset.path / name).unlink()
    with pytest.raises(InputError, match=name):
        open_dataset(dataset.path)


def test_the_name_of_a_folder_adds_no_column(dataset, tmp_path):
    dataset.path.rename(tmp_path / "size=16")
    assert open_dataset(tmp_path / "size=16").table.column_names == dataset.table.column_names


def replace_table(dataset, change):
    pyarrow.parquet.write_table(change(dataset.table), dataset.path / "table.parquet")


def with_info(change):
    def damage(dataset):
        path = dataset.path / "dataset.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage


def with_words(table):
    return table.set_column(1, "split", pa.array(["somewhere"] * table.num_rows))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (with_info(lambda _: []), "does not describe a dataset"),
        (with_info(lambda _: None), "does not describe a dataset"),
        (with_info(lambda _: {}), "has no name"),
        (with_info(lambda info: info | {"splits": 3}), "has no splits"),
        (with_info(lambda info: info | {"files": []}), "not records of files"),
        (with_info(lambda info: info | {"files": {"images.npy": {}}}), "not records of files"),
        (with_info(lambda info: info | {"predicted": ["hat"]}), "does not name columns"),
        (lambda d: (d.path / "images.npy").write_bytes(b""), r"images\.npy is not an array"),
        (lambda d: (d.path / "images.npy").write_bytes((d.path / "images.npy").read_bytes()[:-1]), "not an array"),
        (lambda d: (d.path / "images.npy").write_bytes(b"PK\x03\x04 an archive"), "not an array"),
        (lambda d: np.save(d.path / "images.npy", np.zeros((60, 16, 8, 3), np.uint8)), "instead of uint8"),
        (lambda d: np.save(d.path / "images.npy", np.zeros((60, 16, 16, 3))), "instead of uint8"),
        (lambda d: np.save(d.path / "images.npy", np.zeros((0, 16, 16, 3), np.uint8)), "is empty"),
        (lambda d: np.save(d.path / "images.npy", np.zeros((7, 16, 16, 3), np.uint8)), "7 images, .* 60 rows"),
        (lambda d: (d.path / "table.parquet").write_bytes(b""), "0 bytes"),
        (lambda d: replace_table(d, lambda t: t.drop_columns(["file"])), "no column 'file'"),
        (lambda d: replace_table(d, lambda t: t.drop_columns(["split"])), "no column 'split'"),
        (lambda d: replace_table(d, lambda t: t.append_column("hat", t["hat"])), "column 'hat' twice"),
        (lambda d: replace_table(d, lambda t: t.append_column("note", t["file"])), "attribute 'note' of string"),
        (lambda d: replace_table(d, with_words), "split 'somewhere', which is not one of train, valid, test"),
    ],
)
def test_whatever_is_damaged_is_told_in_one_line(dataset, damage, words):
    damage(dataset)
    with pytest.raises(InputError, match=rf"is damaged: .*{words}.*; run diti prepare again with --overwrite$"):
        open_dataset(dataset.path)


# ---- Files that are not as they were written ----------------------------------------------------------------


@pytest.fixture
def files_read(monkeypatch):
    """Names of the files whose contents are read, as it happens."""
    read = []
    monkeypatch.setattr(contents, "sha256_file", lambda path: read.append(path.name) or sha256_file(path))
    return read


def without_first_attribute(dataset):
    pyarrow.parquet.write_table(dataset.table.drop_columns(dataset.attributes[:1]), dataset.path / "table.parquet")


def change_a_pixel(dataset):
    pixels = np.load(dataset.path / "images.npy")
    pixels[7, 3, 3, 0] ^= 1
    np.save(dataset.path / "images.npy", pixels)


def test_an_edited_table_goes_under_a_hash_of_its_own(dataset):
    without_first_attribute(dataset)
    edited = open_dataset(dataset.path)
    assert edited.hash == hash_on_disk(dataset.path) != dataset.hash
    pyarrow.parquet.write_table(dataset.table, dataset.path / "table.parquet")
    assert open_dataset(dataset.path).hash == dataset.hash, "as it was before"


def test_edited_pixels_are_refused(dataset):
    change_a_pixel(dataset)
    with pytest.raises(InputError, match=r"images\.npy was changed or damaged .*; run diti prepare again"):
        open_dataset(dataset.path)


def test_codes_of_other_images_are_not_served(dataset):
    """A folder of an earlier version does not know what its files held, and is opened; its hash must be true."""
    encoder = tiny_model().encoder
    before = encoder_codes(encoder, dataset)
    of_an_earlier_version(dataset.path)
    np.save(dataset.path / "images.npy", np.load(dataset.path / "images.npy")[::-1])
    assert np.allclose(encoder_codes(encoder, open_dataset(dataset.path)), before[::-1], atol=1e-5)


def test_an_unchanged_folder_is_not_read(dataset, files_read):
    assert open_dataset(dataset.path).hash == dataset.hash and files_read == []


def test_a_copied_folder_is_read_once(dataset, tmp_path, files_read):
    shutil.copytree(dataset.path, tmp_path / "copy", copy_function=shutil.copyfile)
    description = (tmp_path / "copy" / "dataset.json").read_bytes()
    for _ in range(2):
        assert open_dataset(tmp_path / "copy").hash == dataset.hash
        assert files_read == ["images.npy", "table.parquet"]
    assert (tmp_path / "copy" / "dataset.json").read_bytes() == description, "others' folders stay as they are"
    change_a_pixel(open_dataset(tmp_path / "copy"))
    with pytest.raises(InputError, match="was changed or damaged"):
        open_dataset(tmp_path / "copy")


@pytest.mark.parametrize("copy", [shutil.copyfile, shutil.copy2])
def test_a_changed_copy_is_refused_though_size_and_times_are_those_of_the_original(dataset, tmp_path, copy):
    """Else codes of the original would be served for it."""
    shutil.copytree(dataset.path, tmp_path / "copy", copy_function=copy)
    before = (dataset.path / "images.npy").stat()
    change_a_pixel(open_dataset(tmp_path / "copy"))
    os.utime(tmp_path / "copy" / "images.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match="was changed or damaged"):
        open_dataset(tmp_path / "copy")
    assert open_dataset(dataset.path).hash == dataset.hash


def test_a_copy_opens_where_the_cache_cannot_be_used(dataset, tmp_path, monkeypatch):
    shutil.copytree(dataset.path, tmp_path / "copy", copy_function=shutil.copyfile)
    open_dataset(tmp_path / "copy")
    (note,) = (Path(os.environ["DITI_CACHE"]) / "contents").iterdir()
    for text in ("torn", "[]", "3", '{"images.npy": []}', '{"images.npy": {}}'):
        note.write_text(text)
        assert open_dataset(tmp_path / "copy").hash == dataset.hash
    (tmp_path / "file").touch()
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "file"))
    assert open_dataset(tmp_path / "copy").hash == dataset.hash


def of_an_earlier_version(folder):
    info = json.loads((folder / "dataset.json").read_text())
    del info["files"]
    (folder / "dataset.json").write_text(json.dumps(info))


def test_a_folder_of_an_earlier_version_is_read_once(dataset, files_read):
    of_an_earlier_version(dataset.path)
    for _ in range(2):
        assert open_dataset(dataset.path).hash == dataset.hash
        assert files_read == ["images.npy", "table.parquet"]
    change_a_pixel(dataset)
    assert open_dataset(dataset.path).hash != dataset.hash, "what it held before is not known: no refusal"


@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 40),
    seed=st.integers(0, 5),
    start=st.integers(0, 200),
    cuts=st.lists(st.integers(1, 30), max_size=5),
)
def test_a_stream_is_the_same_however_it_is_cut(size, seed, start, cuts):
    """One process or several, from the beginning or from the middle: position p holds the same image."""
    rows = np.arange(100, 100 + size)
    whole = Stream(rows, seed, flip=True).take(0, start + sum(cuts) + 1)
    position = start
    for count in cuts:
        got_rows, got_flips = Stream(rows, seed, flip=True).take(position, count)
        assert np.array_equal(got_rows, whole[0][position : position + count])
        assert np.array_equal(got_flips, whole[1][position : position + count])
        position += count


@given(size=st.integers(1, 40), epoch=st.integers(0, 3))
def test_every_epoch_shows_each_image_once(size, epoch):
    rows, flips = Stream(np.arange(size), 1, flip=False).take(epoch * size, size)
    assert sorted(rows.tolist()) == list(range(size)) and not flips.any()


def test_epochs_differ_and_half_is_flipped():
    stream = Stream(np.arange(500), 0, flip=True)
    first, flips = stream.take(0, 500)
    second, _ = stream.take(500, 500)
    assert not np.array_equal(first, second) and 0.4 < flips.mean() < 0.6


def test_a_split_without_images_is_refused():
    with pytest.raises(InputError, match="no image in this split"):
        Stream(np.arange(0), 0, flip=False)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=30, unique=True))
def test_a_split_depends_on_the_name_alone(names):
    files = ["a.jpg", *names]  # the first is for training, so that not all of them have to be
    splits = [with_split(pa.table({"file": order}))["split"].to_pylist() for order in (files, files[::-1])]
    assert splits[0] == [split_by_hash(file) for file in files] == splits[1][::-1]


def test_split_shares():
    splits = [split_by_hash(f"{i}.jpg") for i in range(5000)]
    assert 0.78 < splits.count("train") / 5000 < 0.82 and 0.08 < splits.count("valid") / 5000 < 0.12


def test_a_dataset_prints_as_one_line_and_can_be_a_key(dataset):
    assert repr(dataset) == f"<Dataset toyfaces: 60 images of 16 px, 22 attributes; {dataset.path}>"
    assert {dataset: 1}[dataset] == 1 and dataset != open_dataset(dataset.path)
