"""A folder of images, any nesting, with an optional table of attributes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from diti.core.errors import InputError
from diti.data.attributes import TABLE_SUFFIXES, dataset_table, join_attributes, split_word
from diti.data.decode import reads_heif
from diti.data.source import ReadFiles, ReadOptions, Source
from diti.data.split import set_split

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".avif", ".jp2", ".j2k"),
)
HEIF_SUFFIXES = (".heic", ".heif", ".hif")
OTHER_SUFFIXES = (  # images of kinds that cannot be read
    *(".svg", ".svgz", ".jxl", ".psd", ".xcf", ".exr", ".hdr", ".raw", ".dng", ".cr2", ".cr3", ".crw"),
    *(".nef", ".nrw", ".arw", ".srf", ".sr2", ".orf", ".rw2", ".raf", ".pef", ".srw", ".3fr", ".iiq", ".x3f"),
)
TABLE_STEMS = ("attributes", "labels", "metadata")  # found without being named, in this order


def detect(path: Path) -> bool:
    """Any folder; this reader is tried last."""
    return path.is_dir()


def open_source(path: Path, options: ReadOptions) -> Source:
    """All images below a folder, in the order of their names."""
    images, left_out = find_images(path)
    table_path = options.attributes or _table_beside(path)
    notes: tuple[str, ...] = ()
    if table_path is not None:
        kept, table, notes = join_attributes(
            images, table_path, ignore=options.ignore, only_labelled=options.only_labelled
        )
        images = [images[row] for row in kept]
    elif options.ignore or options.only_labelled:
        raise InputError(
            f"--ignore and --only-labelled need a table of attributes and {path} has none; add --attributes FILE"
        )
    else:
        table = dataset_table(images)
    table = set_split(table, folder_split(images))
    title = path.resolve().name.encode(errors="backslashreplace").decode()  # a name on disk may be any bytes
    return Source("folder", str(path), table, ReadFiles(path, images), notes=notes, title=title, left_out=left_out)


def find_images(root: Path) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """All image files below root, relative and sorted; and those of a kind that cannot be read, and why.

    Hidden ones are left out. Links are followed, but each file is listed once: under its own name where that is
    below root.
    """
    named: dict[str, str] = {}  # the real path of a file → the path under which it is listed
    linked: dict[str, str] = {}
    other: list[str] = []
    for folder, entries in _folders(root):
        real, inside = os.path.realpath(folder), folder.relative_to(root)
        for entry in entries:
            path = (inside / entry.name).as_posix()
            if not _is_image(path):
                other.append(path)
            elif entry.is_symlink():
                linked.setdefault(os.path.realpath(entry.path), path)
            else:
                named[os.path.join(real, entry.name)] = path  # noqa: PTH118 (of millions of files)
    images = list({**linked, **named}.values())
    unreadable = {path: why for path in other if (why := _why_unreadable(path))}
    if not images:
        held = f"it holds {', '.join(sorted(other)[:2])}" if other else "it is empty"
        reason = f"; {next(iter(sorted(unreadable.items())))[1]}" if unreadable else ""
        raise InputError(f"{root} holds no images ({held}{reason}); known endings: {' '.join(IMAGE_SUFFIXES)}")
    return sorted(images), tuple(sorted(unreadable.items()))


def _is_image(path: str) -> bool:
    suffix = Path(path).suffix.lower()
    return suffix in IMAGE_SUFFIXES or (suffix in HEIF_SUFFIXES and reads_heif())


def _why_unreadable(path: str) -> str:
    """Why a file is not listed with the images; empty where it is not an image at all."""
    suffix = Path(path).suffix.lower()
    if suffix in HEIF_SUFFIXES:
        return f"{suffix} needs the extra: pip install 'diti-torch[heic]'"
    return f"{suffix} cannot be read: save it as PNG or JPEG" if suffix in OTHER_SUFFIXES else ""


def _folders(root: Path) -> Iterator[tuple[Path, list[os.DirEntry[str]]]]:
    """Each folder below root once, with its files; folders that links lead to come last."""
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
    files = (root / f"{stem}{suffix}" for stem in TABLE_STEMS for suffix in TABLE_SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def folder_split(files: list[str]) -> list[str] | None:
    """Splits from top folders called train, valid, test and the like; None unless every image is in one."""
    words = [split_word(PurePosixPath(file).parts[0]) if "/" in file else None for file in files]
    numbered = all(PurePosixPath(file).parts[0].isdigit() for file in files)  # folders 0, 1, 2 are not splits
    return None if numbered or None in words else [word for word in words if word]
