"""FFHQ as published: its description, and folders of images whose names are numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

from diti.data.readers import folder
from diti.data.source import ReadOptions, Source
from diti.data.split import set_split

DESCRIPTION = "ffhq-dataset-v2.json"
IMAGE_FOLDERS = ("images1024x1024", "thumbnails128x128", "in-the-wild-images")  # the first that exists is read
TRAIN = 60_000  # FFHQ's README: the first 60,000 images are for training, the rest for validation


def detect(path: Path) -> bool:
    """A folder with FFHQ's description or one of its image folders, or such an image folder.

    Names that are numbers prove nothing: many folders have them.
    """
    if not path.is_dir():
        return False
    return path.resolve().name in IMAGE_FOLDERS or (path / DESCRIPTION).is_file() or _image_folder(path) != path


def open_source(path: Path, options: ReadOptions) -> Source:
    """All images, with FFHQ's own split."""
    source = folder.open_source(_image_folder(path), options)
    table = set_split(source.table, own_split(source.table["file"].to_pylist()))
    return replace(source, name="ffhq", title="", location=str(path), table=table)


def _image_folder(path: Path) -> Path:
    return next((path / name for name in IMAGE_FOLDERS if (path / name).is_dir()), path)


def own_split(files: list[str]) -> list[str] | None:
    """By the number of each image; None (split by hash) if part of the set leaves nothing to validate on."""
    stems = [PurePosixPath(file).stem for file in files]
    if not all(stem.isdecimal() for stem in stems):
        return None
    split = ["train" if int(stem) < TRAIN else "valid" for stem in stems]
    return split if len(set(split)) == 2 else None
