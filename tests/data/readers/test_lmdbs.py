from __future__ import annotations

import hashlib
import pickle
import sys
from pathlib import Path

import pytest
from reading import colour_of, encoded, read_elsewhere, refused

from diti.core.errors import InputError
from diti.data.readers import celeba, lmdbs
from diti.data.source import ReadOptions

lmdb = pytest.importorskip("lmdb", reason="needs the extra lmdb")


def colour(index: int) -> tuple[int, int, int]:
    return index % 256, index // 256, 7


def write_lmdb(folder: Path, items: dict[bytes, bytes]) -> Path:
    with lmdb.open(str(folder), map_size=1 << 26) as environment, environment.begin(write=True) as transaction:
        for key, value in items.items():
            transaction.put(key, value)
    return folder


def lsun_items(count: int, salt: str = "") -> dict[bytes, bytes]:
    """Keys are digests, so the order of the database is not the order of the images."""
    return {hashlib.sha1(f"{salt}{i}".encode()).hexdigest().encode(): encoded(colour(i)) for i in range(count)}


def diffae_items(
    count: int, sizes: tuple[int | None, ...] = (256,), zfill: int = 5, pixels: tuple[int, int] = (4, 4)
) -> dict[bytes, bytes]:
    """Image i of the s-th size has the colour of 1000 s + i."""
    items = {
        f"{size}-{str(i).zfill(zfill)}".encode(): encoded(colour(1000 * place + i), pixels)
        for place, size in enumerate(sizes)
        for i in range(count)
    }
    return items | {b"length": str(count).encode()}


# ---- LSUN


def test_lsun_database(tmp_path: Path) -> None:
    items = lsun_items(3 * lmdbs.STRIDE // 2)
    path = write_lmdb(tmp_path / "bedroom_train_lmdb", items)
    assert lmdbs.detect_lsun(path) and not lmdbs.detect_diffae(path)
    source = lmdbs.open_lsun(path, ReadOptions())
    files = source.table["file"].to_pylist()
    assert source.name == "lsun"
    assert source.table.column_names == ["file"]
    assert files == sorted(key.decode() for key in items)
    expected = [items[file.encode()] for file in files]
    assert list(source.read(range(len(files)))) == expected
    stride = lmdbs.STRIDE
    for rows in ([stride - 1, stride, stride + 1], [0, len(files) - 1], [stride], [stride + 9, stride + 200]):
        assert list(source.read(rows)) == [expected[row] for row in rows]


def test_lsun_training_and_validation_together(tmp_path: Path) -> None:
    train, valid = lsun_items(6, "train"), lsun_items(3, "val")
    write_lmdb(tmp_path / "church_outdoor_val_lmdb", valid)
    write_lmdb(tmp_path / "church_outdoor_train_lmdb", train)
    assert lmdbs.detect_lsun(tmp_path)
    source = lmdbs.open_lsun(tmp_path, ReadOptions())
    assert source.table["split"].to_pylist() == ["train"] * 6 + ["valid"] * 3
    files = source.table["file"].to_pylist()
    assert files[0].startswith("church_outdoor_train_lmdb/")
    assert files[8].startswith("church_outdoor_val_lmdb/")
    both = train | valid
    for rows in (range(9), [5, 6], [7]):
        assert list(source.read(rows)) == [both[files[row].split("/")[1].encode()] for row in rows]


def test_one_lsun_database_in_a_folder_has_no_split(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "cat_train_lmdb", lsun_items(2))
    assert "split" not in lmdbs.open_lsun(tmp_path, ReadOptions()).table.column_names


def test_lsun_refuses_several_categories(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "cat_train_lmdb", lsun_items(1))
    write_lmdb(tmp_path / "dog_train_lmdb", lsun_items(1))
    refused(lmdbs.open_lsun, tmp_path, rf"\(cat, dog\); give one database, e.g. {tmp_path / 'cat_train_lmdb'}")


def test_lsun_says_what_is_missing_or_broken(tmp_path: Path) -> None:
    assert not lmdbs.detect_lsun(tmp_path) and not lmdbs.detect_diffae(tmp_path)
    refused(lmdbs.open_lsun, tmp_path, r"data.mdb is expected in it")
    empty = write_lmdb(tmp_path / "empty", {})
    refused(lmdbs.open_lsun, empty, "holds no images")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "data.mdb").write_bytes(b"not a database" * 1000)
    assert lmdbs.detect_lsun(broken) and not lmdbs.detect_diffae(broken)
    refused(lmdbs.open_lsun, broken, "cannot be read as an LMDB")


def test_a_database_that_ends_early_is_refused(tmp_path: Path) -> None:
    """Read, it would kill the process."""
    path = write_lmdb(tmp_path / "cut", lsun_items(40)) / "data.mdb"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(lmdbs.open_lsun, path.parent, r"data\.mdb ends early; fetch it again")


def test_lsun_has_nothing_to_ignore(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "cat", lsun_items(1))
    refused(lmdbs.open_lsun, path, r"--ignore Male: .* has no such column", ignore=("Male",))


def test_the_reader_is_small_and_works_in_another_process(tmp_path: Path) -> None:
    items = {f"{i:040x}".encode(): bytes([i % 251]) for i in range(20_000)}
    read = lmdbs.open_lsun(write_lmdb(tmp_path / "cat", items), ReadOptions()).read
    assert len(pickle.dumps(read)) < 10_000
    rows = [0, 700, 19_999]
    assert read_elsewhere(read, rows) == [bytes([i % 251]) for i in rows]


def test_a_database_that_disappears_spoils_its_rows_only(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "cat_train_lmdb", lsun_items(3))
    write_lmdb(tmp_path / "cat_val_lmdb", lsun_items(2))
    read = lmdbs.open_lsun(tmp_path, ReadOptions()).read
    (tmp_path / "cat_train_lmdb" / "data.mdb").unlink()
    pictures = list(read(range(5)))
    assert all(isinstance(p, InputError) for p in pictures[:3])
    assert [colour_of(p)[2] for p in pictures[3:]] == [7, 7]


def test_a_database_that_has_changed_spoils_its_rows(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "cat", {b"aa": b"1", b"bb": b"2"})
    read = lmdbs.open_lsun(path, ReadOptions()).read
    with lmdb.open(str(path), map_size=1 << 26) as environment, environment.begin(write=True) as transaction:
        transaction.delete(b"aa")
    (picture,) = read([1])
    assert isinstance(picture, InputError)
    assert "changed while it was read" in str(picture)


def test_without_the_extra_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lmdb(tmp_path / "cat", lsun_items(1))
    monkeypatch.setitem(sys.modules, "lmdb", None)
    assert lmdbs.detect_lsun(path)
    refused(lmdbs.open_lsun, path, r"needs the extra: pip install 'diti-torch\[lmdb\]'")


# ---- Diff-AE


@pytest.mark.parametrize(
    ("sizes", "wanted", "expected"),
    [
        ((256,), 64, 256),
        ((64, 128, 256), 64, 64),
        ((64, 128, 256), 65, 128),
        ((64, 128), 512, 128),
        ((None,), 64, None),
        ((None, 128), 64, 128),
        ((None, 128), 200, None),
    ],
)
def test_best_size(sizes: tuple[int | None, ...], wanted: int, expected: int | None) -> None:
    assert lmdbs.best_size(sizes, wanted) == expected


@pytest.mark.parametrize(("zfill", "first"), [(5, "256-00000"), (7, "256-0000000")])  # faces, LSUN
def test_diffae_database(tmp_path: Path, zfill: int, first: str) -> None:
    path = write_lmdb(tmp_path / "ffhq256.lmdb", diffae_items(12, zfill=zfill))
    assert lmdbs.detect_diffae(path) and not lmdbs.detect_lsun(path)
    source = lmdbs.open_diffae(path, ReadOptions())
    assert (source.name, source.crop, source.notes) == ("diffae", "centre", ())
    assert source.table.column_names == ["file"]
    assert source.table["file"][0].as_py() == first
    assert [colour_of(p) for p in source.read(range(12))] == [colour(i) for i in range(12)]


def test_diffae_takes_the_wanted_size_among_several(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "faces.lmdb", diffae_items(5, sizes=(64, 128, 256)))
    source = lmdbs.open_diffae(path, ReadOptions(size=100))
    assert source.table["file"].to_pylist() == [f"128-0000{i}" for i in range(5)]
    assert [colour_of(p) for p in source.read([0, 4])] == [colour(1000), colour(1004)]
    assert [colour_of(p) for p in read_elsewhere(source.read, [3])] == [colour(1003)]


def write_celeba_list(path: Path, names: list[str]) -> None:
    """Smiling is 1 for even places, Male for the first half."""
    rows = [f"{name} {1 if i % 2 == 0 else -1} {1 if i < len(names) / 2 else -1}" for i, name in enumerate(names)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([str(len(names)), "Smiling Male", *rows]) + "\n")


@pytest.mark.parametrize("place", ["", "celeba_anno", "celeba.lmdb"])
def test_celeba_unresized_with_its_list(tmp_path: Path, place: str) -> None:
    """Index i is the i-th image in the order of the names."""
    path = write_lmdb(tmp_path / "celeba.lmdb", diffae_items(6, (None,), 7, (178, 218)))
    write_celeba_list(tmp_path / place / "list_attr_celeba.txt", [f"{i + 1:06d}.jpg" for i in range(6)])
    assert lmdbs.detect_diffae(path) and not celeba.detect(path)
    source = lmdbs.open_diffae(path, ReadOptions())
    assert source.crop == "celeba"
    assert source.table["file"].to_pylist() == [f"None-{i:07d}" for i in range(6)]
    assert source.table["Smiling"].to_pylist() == [1, 0, 1, 0, 1, 0]
    assert source.table["Male"].to_pylist() == [1, 1, 1, 0, 0, 0]
    assert "split" not in source.table.column_names
    assert source.notes == (
        f"list_eval_partition.txt was not found in {path}: the images are split by a hash of the file name",
    )


def test_celeba_takes_partition_and_identity_from_their_lists(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "celeba.lmdb", diffae_items(4, (None,), 7))
    names = [f"{i + 1:06d}.jpg" for i in range(4)]
    write_celeba_list(tmp_path / "list_attr_celeba.txt", names[::-1])  # written upside down
    for name, values in (("list_eval_partition.txt", "0012"), ("identity_CelebA.txt", "7789")):
        (tmp_path / name).write_text("".join(f"{n} {v}\n" for n, v in zip(names, values, strict=True)))
    source = lmdbs.open_diffae(path, ReadOptions())
    assert source.table["split"].to_pylist() == ["train", "train", "valid", "test"]
    assert source.table["identity"].to_pylist() == ["7", "7", "8", "9"]
    assert source.table["Male"].to_pylist() == [0, 0, 1, 1]
    assert source.notes == ()


def test_celeba_hq_matches_by_number(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "celebahq256.lmdb", diffae_items(11))
    order = [10, *range(10)]
    write_celeba_list(path / "CelebAMask-HQ-attribute-anno.txt", [f"{i}.jpg" for i in order])
    source = lmdbs.open_diffae(path, ReadOptions(ignore=("Smiling",)))
    assert source.table.column_names == ["file", "Male"]
    assert source.table["Male"].to_pylist() == [int(order.index(i) < 5.5) for i in range(11)]
    refused(lmdbs.open_diffae, path, r"--ignore Mail: .* Did you mean 'Male'", ignore=("Mail",))


def test_a_list_of_another_set_is_not_used(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "ffhq256.lmdb", diffae_items(3))
    lists = tmp_path / "celeba_anno"
    write_celeba_list(lists / "CelebAMask-HQ-attribute-anno.txt", ["0.jpg", "1.jpg"])
    source = lmdbs.open_diffae(path, ReadOptions())
    assert source.table.column_names == ["file"]
    assert source.notes == (
        f"{lists / 'CelebAMask-HQ-attribute-anno.txt'} lists 2 images, not 3: it was not used",
    )


def test_a_list_that_skips_an_image_is_refused(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "celebahq256.lmdb", diffae_items(2))
    write_celeba_list(tmp_path / "CelebAMask-HQ-attribute-anno.txt", ["0.jpg", "2.jpg"])
    refused(lmdbs.open_diffae, path, "has no row for image 1 of the database")


def test_wrong_length_is_tolerated_with_a_note(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", diffae_items(3) | {b"length": b"70000"})
    source = lmdbs.open_diffae(path, ReadOptions())
    assert source.table.num_rows == 3
    assert source.notes == ("a.lmdb announces 70000 images and holds 3",)


def test_other_keys_are_refused(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "a.lmdb", diffae_items(1) | {b"0000001": b"x"})
    refused(lmdbs.open_diffae, path, r"has the key b'0000001'; .* keys such as 256-00000")
    path = write_lmdb(tmp_path / "b.lmdb", {b"length": b"0"})
    refused(lmdbs.open_diffae, path, "holds no images")


def test_whole_published_sets_get_their_official_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {count: sum(parts) for count, (_, parts) in lmdbs.PUBLISHED.items()} == {
        202_599: 202_599,
        70_000: 70_000,
    }
    path = write_lmdb(tmp_path / "celeba.lmdb", diffae_items(6, (None,), 7))
    monkeypatch.setitem(lmdbs.PUBLISHED, 6, ("CelebA", (3, 2, 1)))
    source = lmdbs.open_diffae(path, ReadOptions())
    assert source.table["split"].to_pylist() == ["train"] * 3 + ["valid"] * 2 + ["test"]
    assert source.notes == ("6 images: the published split of CelebA was taken",)
    write_celeba_list(tmp_path / "list_attr_celeba.txt", [f"{i + 1:06d}.jpg" for i in range(6)])
    assert lmdbs.open_diffae(path, ReadOptions()).notes == source.notes
    assert "split" not in lmdbs.open_diffae(path, ReadOptions(ignore=("split",))).table.column_names
