"""LMDB databases of encoded images: LSUN's (one per category and split) and the ones of Diff-AE and PDAE."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa

from diti.core.errors import InputError
from diti.data.attributes import check_ignored, dataset_table
from diti.data.readers import celeba
from diti.data.source import Picture, ReadOptions, Source, read_blocks

DATA = "data.mdb"
LENGTH = b"length"  # Diff-AE's databases say how many images they hold; LSUN's have no such key
STRIDE = 512  # one key in this many is kept, to find the others from
CELEBA_HQ = "CelebAMask-HQ-attribute-anno.txt"
# Sets that are known by their number of images and published in the order train, valid, test.
PUBLISHED = {202_599: ("CelebA", (162_770, 19_867, 19_962)), 70_000: ("FFHQ", (60_000, 10_000, 0))}


@contextmanager
def _cursor(folder: Path) -> Iterator[Any]:
    """A cursor over one database; closed at the end, since a database must not be open twice in a process."""
    try:
        import lmdb
    except ImportError:
        raise InputError(f"{folder} is an LMDB, which needs the extra: pip install 'diti-torch[lmdb]'") from None
    try:
        with (
            lmdb.open(str(folder), readonly=True, lock=False, readahead=False, create=False) as environment,
            environment.begin() as transaction,
            transaction.cursor() as cursor,
        ):
            pages = environment.info()["last_pgno"] + 1
            if (folder / DATA).stat().st_size < pages * environment.stat()["psize"]:
                # LMDB would read past the end, which kills the process.
                raise InputError(f"{folder} cannot be read as an LMDB: {DATA} ends early; fetch it again")
            yield cursor
    except lmdb.Error as error:
        raise InputError(f"{folder} cannot be read as an LMDB: {error}; fetch it again") from None


@dataclass(frozen=True)
class KeyRange:
    """A run of keys in the order of one database. All keys of LSUN would be hundreds of MB to pass around."""

    folder: Path
    count: int
    landmarks: tuple[bytes, ...]  # key of every STRIDE-th row

    @classmethod
    def of(cls, folder: Path, keys: Sequence[bytes]) -> KeyRange:
        """From `keys` in the order of the database."""
        return cls(folder, len(keys), tuple(keys[::STRIDE]))

    def values(self, rows: Sequence[int]) -> list[bytes]:
        """Values of ascending rows: go to the landmark before each, then step."""
        values = []
        position = self.count
        with _cursor(self.folder) as cursor:
            for row in rows:
                landmark = row // STRIDE
                if not landmark * STRIDE <= position <= row:
                    if not cursor.set_key(self.landmarks[landmark]):
                        raise InputError(f"{self.folder} changed while it was read")
                    position = landmark * STRIDE
                for _ in range(row - position):
                    cursor.next()
                position = row
                values.append(cursor.value())
        return values


@dataclass(frozen=True)
class ReadLmdb:
    """`Read` over one or more databases, one after the other."""

    ranges: tuple[KeyRange, ...]

    def __call__(self, rows: Sequence[int]) -> Iterator[Picture]:
        starts = [0, *accumulate(r.count for r in self.ranges)]
        return read_blocks(rows, starts, lambda number, local: self.ranges[number].values(local), InputError)


def detect_lsun(path: Path) -> bool:
    """An LMDB folder that is not Diff-AE's, or a folder of LSUN's *_train_lmdb and *_val_lmdb."""
    if (path / DATA).is_file():
        return not detect_diffae(path)
    return bool(_parts(path))


def open_lsun(path: Path, options: ReadOptions) -> Source:
    """All images of one LMDB, or of the training and validation LMDBs of one category."""
    check_ignored(options.ignore, [], path)
    if (path / DATA).is_file():
        keys = _all_keys(path)
        table = dataset_table([_name(key) for key in keys])
        return Source("lsun", str(path), table, ReadLmdb((KeyRange.of(path, keys),)))
    parts = _parts(path)
    if not parts:
        raise InputError(
            f"{path} holds no LMDB; {DATA} is expected in it, or in e.g. {path / 'bedroom_train_lmdb'}"
        )
    categories = sorted({name.rsplit("_", 2)[0] for name in parts})
    if len(categories) > 1:
        raise InputError(
            f"{path} holds several categories of LSUN ({', '.join(categories)}); give one database, "
            f"e.g. {path / next(iter(parts))}"
        )
    files, split, ranges = [], [], []
    for name, word in parts.items():
        keys = _all_keys(path / name)
        files += [f"{name}/{_name(key)}" for key in keys]
        split += [word] * len(keys)
        ranges.append(KeyRange.of(path / name, keys))
    table = dataset_table(files, split=split if len(parts) > 1 else None)
    return Source("lsun", str(path), table, ReadLmdb(tuple(ranges)))


def _name(key: bytes) -> str:
    return key.decode(errors="replace")


def _parts(path: Path) -> dict[str, str]:
    """Databases in a folder by LSUN's names, training first, with their splits."""
    folders = sorted(path.glob("*_lmdb")) if path.is_dir() else []
    names = [folder.name for folder in folders if (folder / DATA).is_file()]
    train = dict.fromkeys((name for name in names if name.endswith("_train_lmdb")), "train")
    return train | dict.fromkeys((name for name in names if name.endswith("_val_lmdb")), "valid")


def _all_keys(folder: Path) -> list[bytes]:
    """Every key in the order of the database, i.e. sorted."""
    with _cursor(folder) as cursor:
        keys = list(cursor.iternext(values=False))
    if not keys:
        raise InputError(f"{folder} holds no images; fetch it again")
    return keys


def detect_diffae(path: Path) -> bool:
    """An LMDB folder with the key `length`. What cannot be opened is left to LSUN's reader to report."""
    if not (path / DATA).is_file():
        return False
    try:
        with _cursor(path) as cursor:
            return bool(cursor.set_key(LENGTH))
    except InputError:
        return False


def open_diffae(path: Path, options: ReadOptions) -> Source:
    """The images of the best stored size, with CelebA's or CelebA-HQ's attributes where their list is there."""
    by_size = keys_by_size([key for key in _all_keys(path) if key != LENGTH], path)
    size = best_size(by_size, options.size)
    keys = by_size[size]
    with _cursor(path) as cursor:
        said = cursor.get(LENGTH, b"").decode(errors="replace") or "no"
    notes = [] if said == str(len(keys)) else [f"{path.name} announces {said} images and holds {len(keys):,}"]
    indices = [int(key.rpartition(b"-")[2]) for key in keys]
    labels, attributes, label_notes = _labels(indices, path.absolute(), options.ignore)
    table = dataset_table([_name(key) for key in keys], **labels, attributes=attributes)
    # Only CelebA is stored unresized; its images are the aligned ones of 178 x 218 px.
    crop = "celeba" if size is None else "centre"
    read = ReadLmdb((KeyRange.of(path, keys),))
    return Source("diffae", str(path), table, read, crop, (*notes, *label_notes))


def keys_by_size(keys: Sequence[bytes], path: Path) -> dict[int | None, list[bytes]]:
    """Keys {size}-{index} by size; images stored unresized have the size None."""
    by_size: dict[int | None, list[bytes]] = {}
    for key in keys:
        size, _, index = key.partition(b"-")
        if not (index.isdigit() and (size.isdigit() or size == b"None")):
            raise InputError(f"{path} has the key {key[:40]!r}; a database of Diff-AE has keys such as 256-00000")
        by_size.setdefault(int(size) if size.isdigit() else None, []).append(key)
    if not by_size:
        raise InputError(f"{path} holds no images; fetch it again")
    return by_size


def best_size(sizes: Collection[int | None], wanted: int | None) -> int | None:
    """The smallest stored size that is large enough, else unresized images, else the largest."""
    numbers = [size for size in sizes if size is not None]
    enough = [size for size in numbers if wanted is not None and size >= wanted]
    if enough:
        return min(enough)
    return None if None in sizes else max(numbers)


def _labels(
    indices: Sequence[int], path: Path, ignore: Collection[str]
) -> tuple[dict[str, list[str]], dict[str, pa.ChunkedArray], list[str]]:
    """Split and identity, attributes, and notes. A list of another length belongs to another set."""
    roots = [path, path.parent, path.parent / "celeba_anno"]
    labels, notes = _published_split(indices, ignore)
    unused = []
    lists = (celeba.find_list(roots, celeba.ATTRIBUTES), *(root / CELEBA_HQ for root in roots))
    for list_path in (found for found in lists if found is not None and found.is_file()):
        names, columns, list_notes = celeba.read_attributes(list_path)
        if len(names) != len(indices):
            unused.append(f"{list_path} lists {len(names):,} images, not {len(indices):,}: it was not used")
            continue
        check_ignored(ignore, [*columns.column_names, "split", "identity"], list_path)
        rows = _rows_of(indices, names, list_path)
        if list_path.name != CELEBA_HQ:
            listed, listed_notes = celeba.people_and_splits([names[row] for row in rows], roots, ignore)
            if "split" in listed or "split" not in labels:  # the partition list takes precedence over the order
                notes = listed_notes
            labels |= listed
        attributes = celeba.columns_of(columns.take(pa.array(rows)), skip=ignore)
        return labels, attributes, [*list_notes, *notes]
    check_ignored(ignore, ["split"], path)
    return labels, {}, [*notes, *unused]


def _rows_of(indices: Sequence[int], names: Sequence[str], list_path: Path) -> list[int]:
    """The row of the list for each image. CelebA was numbered from 0 in the order of its names; CelebA-HQ's
    names are the numbers themselves."""
    if list_path.name == CELEBA_HQ:
        row_of = {PurePath(name).stem: row for row, name in enumerate(names)}
    else:
        by_name = sorted(range(len(names)), key=names.__getitem__)
        row_of = {str(place): row for place, row in enumerate(by_name)}
    lacking = next((index for index in indices if str(index) not in row_of), None)
    if lacking is not None:
        raise InputError(
            f"{list_path} has no row for image {lacking} of the database; "
            "move the list away to do without attributes"
        )
    return [row_of[str(index)] for index in indices]


def _published_split(indices: Sequence[int], ignore: Collection[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The official split of a set that is stored whole, in its published order, and a note."""
    if len(indices) not in PUBLISHED or "split" in ignore:
        return {}, []
    name, (train, valid, _) = PUBLISHED[len(indices)]
    words = ["train" if i < train else "valid" if i < train + valid else "test" for i in indices]
    return {"split": words}, [f"{len(indices):,} images: the published split of {name} was taken"]
