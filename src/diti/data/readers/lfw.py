"""Labeled Faces in the Wild: Person_Name/Person_Name_0001.jpg, attribute scores, and lists of people."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from diti.core.errors import InputError
from diti.data.attributes import check_ignored, dataset_table, read_rows
from diti.data.source import ReadFiles, ReadOptions, Source
from diti.data.split import VALID_SHARE, split_by_hash

SCORES = "lfw_attributes.txt"
DEV_TRAIN, DEV_TEST = "peopleDevTrain.txt", "peopleDevTest.txt"
# Where there are several versions: the paper uses the funneled one.
PREFERRED = ("lfw_funneled", "lfw-funneled", "lfw-deepfunneled", "lfw_deepfunneled", "lfw")
_IMAGE = re.compile(r"(?P<person>.+)_(?P<number>\d+)\.(jpg|jpeg|png)", re.IGNORECASE)
_PEEK = 8  # subfolders to check before a folder counts as not LFW's


class Photo(NamedTuple):
    """One image: Person_Name/Person_Name_0001.jpg."""

    file: str
    person: str  # with underscores
    number: int


def detect(path: Path) -> bool:
    """A folder of people called lfw..., or a folder that holds one, or one of LFW's lists."""
    if not path.is_dir():
        return False
    if any((path / name).is_file() for name in (SCORES, DEV_TRAIN, DEV_TEST)):
        return True
    return bool(_versions(path)) or (_is_called_lfw(path.absolute()) and _holds_people(path))


def open_source(path: Path, options: ReadOptions) -> Source:
    """Every image (with a list of scores: every image with scores), its person and raw scores."""
    images, roots, notes = _locate(path.absolute())
    photos, left_out = _photos(images)
    if left_out:
        notes.append(f"{left_out:,} files are not called Person/Person_0001.jpg and were left out")
    scores_path = _find(roots, SCORES)
    attributes: dict[str, pa.ChunkedArray] = {}
    if scores_path is not None:
        photos, attributes, score_notes = _join_scores(photos, scores_path, images)
        notes += score_notes
    check_ignored(options.ignore, [*attributes, "split", "identity"], scores_path or images)
    people = [photo.person for photo in photos]
    split, split_notes = _split(people, roots, options.ignore)
    files = [photo.file for photo in photos]
    table = dataset_table(
        files,
        split=split,
        identity=None if "identity" in options.ignore else people,
        attributes={name: attributes[name] for name in attributes if name not in options.ignore},
    )
    return Source("lfw", str(path), table, ReadFiles(images, files), "lfw", (*notes, *split_notes))


def _locate(path: Path) -> tuple[Path, list[Path], list[str]]:
    """The folder of the people, the folders to search for lists, and notes."""
    if _holds_people(path):
        return path, [path, *path.parents[:2]], []
    versions = _versions(path)
    if not versions:
        raise InputError(
            f"{path} holds no images of LFW; they are expected as "
            f"{path / PREFERRED[0] / 'Person_Name' / 'Person_Name_0001.jpg'}"
        )
    images = versions[0]
    others = ", ".join(version.name for version in versions[1:])
    notes = [f"{images.name} was read, not {others}; give another folder to read that one"] if others else []
    return images, [path, images, images.parent], notes


def _versions(root: Path) -> list[Path]:
    """Folders of people below root called lfw..., also one level down as Kaggle unpacks, best first."""
    if not root.is_dir():
        return []
    named = [folder for folder in root.iterdir() if _is_called_lfw(folder)]
    nested = [folder / folder.name for folder in named]
    held = [folder for folder in (*named, *nested) if _holds_people(folder)]
    rank = {name: place for place, name in enumerate(PREFERRED)}
    return sorted(held, key=lambda folder: (rank.get(folder.name.lower(), len(rank)), str(folder)))


def _is_called_lfw(folder: Path) -> bool:
    return folder.name.lower().startswith("lfw")


def _holds_people(folder: Path) -> bool:
    """Whether some of the first subfolders hold an image named after the subfolder."""
    if not folder.is_dir():
        return False
    people = islice((entry for entry in folder.iterdir() if entry.is_dir()), _PEEK)
    return any(next(_photos_of(person), None) for person in people)


def _photos_of(folder: Path) -> Iterator[Photo]:
    for file in folder.iterdir():
        match = _IMAGE.fullmatch(file.name)
        if match and match["person"] == folder.name:
            yield Photo(f"{folder.name}/{file.name}", folder.name, int(match["number"]))


def _photos(images: Path) -> tuple[list[Photo], int]:
    """All images in the order of their names, and the number of files with other names."""
    photos: list[Photo] = []
    files = 0
    for folder in images.iterdir():
        if folder.is_dir():
            photos += _photos_of(folder)
            files += sum(not file.name.startswith(".") for file in folder.iterdir())
    return sorted(photos), files - len(photos)


def _find(roots: Sequence[Path], name: str) -> Path | None:
    return next((root / name for root in roots if (root / name).is_file()), None)


def read_scores(path: Path) -> pa.Table:
    """`lfw_attributes.txt`: comment lines, the last of which names the columns, then tab-separated rows."""
    lines = path.read_text(errors="replace").splitlines()
    comments = list(takewhile(lambda line: line.startswith("#"), lines))
    header = comments[-1].lstrip("#").split("\t") if comments else []
    names = [name.strip() for name in header if name.strip()]
    if names[:2] != ["person", "imagenum"]:
        raise InputError(f"{path} does not name the columns person and imagenum in a line with #; fetch it again")
    rows = "\n".join(lines[len(comments) :]).encode()
    types = {"person": pa.string(), "imagenum": pa.int64()}
    return read_rows(rows, names, "\t", types, path, "in the format of LFW's attributes")


def _join_scores(
    photos: list[Photo], path: Path, images: Path
) -> tuple[list[Photo], dict[str, pa.ChunkedArray], list[str]]:
    """The photos that have scores, these scores as columns, and notes on what does not match."""
    table = read_scores(path)
    people = [person.replace(" ", "_") for person in table["person"].to_pylist()]
    photographed = list(zip(people, table["imagenum"].to_pylist(), strict=True))
    row_of = {key: row for row, key in enumerate(photographed)}
    if len(row_of) < len(photographed):
        person, number = next(key for row, key in enumerate(photographed) if row_of[key] != row)
        raise InputError(f"{path} has more than one row for {person} {number}; remove all but one of them")
    scored = [photo for photo in photos if (photo.person, photo.number) in row_of]
    if not scored:
        raise InputError(f"{path} names none of the {len(photos):,} images in {images}; fetch it again")
    rows = table.take(pa.array([row_of[photo.person, photo.number] for photo in scored]))
    notes = []
    if len(scored) < len(photos):
        notes.append(f"{len(photos) - len(scored):,} images have no scores in {path.name} and were left out")
    if len(scored) < table.num_rows:
        notes.append(f"{table.num_rows - len(scored):,} rows of {path.name} have no image and were left out")
    return scored, {name: rows[name] for name in rows.column_names[2:]}, notes


def read_people(path: Path) -> set[str]:
    """Names of `peopleDevTrain.txt` or `peopleDevTest.txt`: a line with the count, then name<TAB>images."""
    lines = path.read_text(errors="replace").splitlines()
    return {line.split("\t")[0] for line in lines if "\t" in line}


def validation_people(train: Collection[str]) -> set[str]:
    """LFW's development lists have no validation part: a tenth of the training people, by hash, become one."""
    by_hash = sorted(train, key=lambda person: hashlib.sha256(person.encode()).digest())
    return set(by_hash[: math.ceil(len(by_hash) * VALID_SHARE)])


def _split(
    people: Sequence[str], roots: Sequence[Path], ignore: Collection[str]
) -> tuple[list[str] | None, list[str]]:
    """The split of each image by its person, or None where the lists are missing or ignored."""
    paths = {name: _find(roots, name) for name in (DEV_TRAIN, DEV_TEST)}
    missing = [name for name, path in paths.items() if path is None]
    if missing or "split" in ignore:
        reason = f"{' and '.join(missing)} not found in {roots[0]}" if missing else "split ignored"
        whole = "images" if "identity" in ignore else "people"
        return None, [f"{reason}: {whole} are split by hash"]
    train, test = (read_people(path) for path in paths.values() if path is not None)
    notes = [f"{DEV_TEST} gives test, {DEV_TRAIN} train and, with a tenth of its people by hash, valid"]
    split_of = {person: split_by_hash(person) for person in people}
    unlisted = split_of.keys() - train - test
    if unlisted:
        notes.append(f"{len(unlisted):,} people are in neither list and are split by hash")
    split_of |= dict.fromkeys(train, "train") | dict.fromkeys(validation_people(train), "valid")
    split_of |= dict.fromkeys(test, "test")
    return [split_of[person] for person in people], notes
