import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diti.core.errors import InputError
from diti.data.prepare import prepare
from diti.data.prepared import Stream, open_dataset
from diti.data.source import ReadOptions
from diti.data.sources import find_source
from diti.data.split import hash_splits, split_by_hash


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
    assert hash_splits(names) == [split_by_hash(n) for n in names]
    assert hash_splits(names[::-1]) == hash_splits(names)[::-1]


def test_split_shares():
    splits = hash_splits([f"{i}.jpg" for i in range(5000)])
    assert 0.78 < splits.count("train") / 5000 < 0.82 and 0.08 < splits.count("valid") / 5000 < 0.12


def test_a_dataset_prints_as_one_line_and_can_be_a_key(dataset):
    assert repr(dataset) == f"<Dataset toyfaces: 60 images of 16 px, 22 attributes; {dataset.path}>"
    assert {dataset: 1}[dataset] == 1 and dataset != open_dataset(dataset.path)
