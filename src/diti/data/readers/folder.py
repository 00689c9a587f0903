"""A folder of images, any nesting, with an optional table of attributes; FFHQ is such a folder too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pyarrow as pa

from diti.core.errors import InputError
from diti.data.attributes import TABLE_SUFFIXES, dataset_table, join_attributes, split_word
from diti.data.source import ReadFiles, ReadOptions, Source

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".tga", ".avif", ".jp2"),
)
TABLE_STEMS = ("attributes", "labels", "metadata")  # found without being named, in this order
FFHQ_TRAIN = 60_000  # FFHQ's README: the first 60,000 images are for training, the rest for validation


def detect(path: Path) -> bool:
    """Any folder; this reader is asked last."""
    return path.is_dir()


def open_source(path: Path, options: ReadOptions) -> Source:
    """All images below a folder, in the order of their names."""
    files = list_images(path)
    table_path = options.attributes or _table_beside(path)
    if table_path is None:
        return _without_table(path, files, options)
    if not table_path.is_file():
        raise InputError(f"--attributes {table_path} does not exist; name a CSV, TSV or parquet file")
    kept, table, notes = join_attributes(
        files, table_path, ignore=options.ignore, only_labelled=options.only_labelled
    )
    files = [files[row] for row in kept]
    if "split" not in table.column_names and (split := folder_split(files)):
        table = table.add_column(1, "split", pa.array(split, pa.string()))
    return Source("folder", str(path), table, ReadFiles(path, files), notes=notes)


def _without_table(path: Path, files: list[str], options: ReadOptions) -> Source:
    if options.ignore or options.only_labelled:
        raise InputError(
            f"--ignore and --only-labelled need a table of attributes and {path} has none; add --attributes FILE"
        )
    name, split = ("ffhq", ffhq_split(files)) if is_ffhq(files) else ("folder", folder_split(files))
    return Source(name, str(path), dataset_table(files, split=split), ReadFiles(path, files))


def list_images(root: Path) -> list[str]:
    """Paths of all image files below root, relative, with forward slashes, sorted; hidden ones left out.

    Links are followed, but each file is listed once: under its own name where that lies below root.
    """
    named: dict[str, str] = {}  # the real place of a file → the path under which it is listed
    linked: dict[str, str] = {}
    other: list[str] = []
    for folder, entries in _folders(root):
        real, inside = os.path.realpath(folder), folder.relative_to(root)
        for entry in entries:
            path = (inside / entry.name).as_posix()
            if Path(path).suffix.lower() not in IMAGE_SUFFIXES:
                other.append(path)
            elif entry.is_symlink():
                linked.setdefault(os.path.realpath(entry.path), path)
            else:
                named[os.path.join(real, entry.name)] = path  # noqa: PTH118 (of millions of files)
    found = list({**linked, **named}.values())
    if not found:
        held = f"it holds {', '.join(sorted(other)[:2])}" if other else "it is empty"
        raise InputError(f"{root} holds no images ({held}); known endings: {' '.join(IMAGE_SUFFIXES)}")
    return sorted(found)


def _folders(root: Path) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
    """Each folder below root once, with what it holds beside folders; what lies behind links comes last."""
    folders, links = [root], list[Path]()
    seen = set[Path]()
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        if (real := folder.resolve()) in seen:
            continue
        seen.add(real)
        with os.scandir(folder) as entries:
            shown = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
        folders += [folder / entry.name for entry in shown if entry.is_dir(follow_symlinks=False)]
        behind = {entry.name for entry in shown if entry.is_symlink() and Path(entry).is_dir()}
        links += [folder / entry.name for entry in shown if entry.name in behind]
        yield folder, [e for e in shown if not e.is_dir(follow_symlinks=False) and e.name not in behind]


def _table_beside(root: Path) -> Path | None:
    """attributes.csv and the like in the folder itself."""
    for stem in TABLE_STEMS:
        for suffix in TABLE_SUFFIXES:
            if (root / f"{stem}{suffix}").is_file():
                return root / f"{stem}{suffix}"
    return None


def folder_split(files: list[str]) -> list[str] | None:
    """Splits from top folders called train, valid, test and the like; None unless every image lies in one."""
    words = [split_word(PurePosixPath(file).parts[0]) if "/" in file else None for file in files]
    numbered = all(PurePosixPath(file).parts[0].isdigit() for file in files)  # folders 0, 1, 2 are no splits
    return None if numbered or None in words else [word for word in words if word]


def is_ffhq(files: list[str]) -> bool:
    """FFHQ: nothing but PNGs called by a number of five digits, flat or in folders of thousands."""
    name = re.compile(r"(.*/)?\d{5}\.png")
    return all(name.fullmatch(file) for file in files)


def ffhq_split(files: list[str]) -> list[str] | None:
    """FFHQ's own split; None (split by hash) where a part of the set leaves nothing to validate on."""
    split = ["train" if int(PurePosixPath(file).stem) < FFHQ_TRAIN else "valid" for file in files]
    return split if len(set(split)) == 2 else None
