"""CelebA as published: lists of attributes, partition and identities, and a folder of images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path, PurePath

import pyarrow as pa

from diti.core.errors import InputError
from diti.data.attributes import check_ignored, dataset_table, file_column, read_rows, read_table
from diti.data.source import ReadFiles, ReadOptions, Source

ATTRIBUTES, PARTITION, IDENTITY = "list_attr_celeba", "list_eval_partition", "identity_CelebA"
LIST_FOLDERS = ("", "Anno", "Eval")  # flat as on Kaggle, or as in the official distribution
LIST_SUFFIXES = (".txt", ".csv")
IN_THE_WILD = "img_celeba"
IMAGE_FOLDERS = ("img_align_celeba", "img_align_celeba_png", IN_THE_WILD)
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")


def detect(path: Path) -> bool:
    """A folder with CelebA's attribute list or with one of its image folders, or such an image folder."""
    if not path.is_dir() or (path / "data.mdb").is_file():  # a Diff-AE database may have the lists beside it
        return False
    known_name = path.absolute().name in IMAGE_FOLDERS
    return known_name or find_list([path], ATTRIBUTES) is not None or _image_folder(path) is not None


def open_source(path: Path, options: ReadOptions) -> Source:
    """Every image that is both listed and on disk, with its 40 attributes, partition and identity."""
    images, roots = _locate(path)
    list_path = find_list(roots, ATTRIBUTES)
    if list_path is None:
        raise InputError(
            f"{ATTRIBUTES}.txt (or .csv) is missing; it is expected in {roots[0]} or its folder Anno: "
            "put CelebA's attribute list there, or read the images without attributes with --kind folder"
        )
    listed, columns, notes = read_attributes(list_path)
    check_ignored(options.ignore, [*columns.column_names, "split", "identity"], list_path)
    rows, files, disk_notes = _match_disk(listed, images, list_path)
    labels, label_notes = people_and_splits([listed[row] for row in rows], roots, options.ignore)
    table = dataset_table(
        files, **labels, attributes=columns_of(columns.take(pa.array(rows)), skip=options.ignore)
    )
    crop = "centre" if images.name == IN_THE_WILD else "celeba"
    notes = (*notes, *disk_notes, *label_notes)
    return Source("celeba", str(path), table, ReadFiles(images, tuple(files)), crop, notes)


def columns_of(table: pa.Table, skip: Collection[str]) -> dict[str, pa.ChunkedArray]:
    """The columns of a table by name, without those to skip."""
    return {name: table[name] for name in table.column_names if name not in skip}


def _locate(path: Path) -> tuple[Path, list[Path]]:
    """The folder of the images, and the folders to search for lists."""
    path = path.absolute()
    if path.name in IMAGE_FOLDERS:
        # Up to three levels up, for Img/img_align_celeba/img_align_celeba.
        return _innermost(path), [*path.parents[:3], path]
    images = _image_folder(path)
    if images is None:
        raise InputError(
            f"{path} holds no images of CelebA; they are expected in {path / IMAGE_FOLDERS[0]} "
            f"(or {', '.join(IMAGE_FOLDERS[1:])})"
        )
    return images, [path]


def _image_folder(root: Path) -> Path | None:
    """The first known image folder below root, aligned images before the ones in the wild."""
    folders = (base / name for name in IMAGE_FOLDERS for base in (root, root / "Img"))
    return next((_innermost(folder) for folder in folders if folder.is_dir()), None)


def _innermost(folder: Path) -> Path:
    """Kaggle's archive unpacks to img_align_celeba/img_align_celeba."""
    nested = folder / folder.name
    return nested if nested.is_dir() else folder


def find_list(roots: Sequence[Path], stem: str) -> Path | None:
    """A list file of CelebA by its name without ending, in any of some folders."""
    places = (root / folder / stem for root in roots for folder in LIST_FOLDERS)
    files = (place.with_name(stem + suffix) for place in places for suffix in LIST_SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def read_attributes(path: Path) -> tuple[list[str], pa.Table, tuple[str, ...]]:
    """An attribute list (CelebA's or CelebA-HQ's): names of the images, their attributes, and notes."""
    if path.suffix == ".csv":
        table = read_table(path)
        key = file_column(table, path)
        return [str(name) for name in table[key].to_pylist()], table.drop_columns([key]), ()
    first, _, rest = _single_blanks(path.read_bytes()).partition(b"\n")
    header, _, rows = rest.partition(b"\n") if first.isdigit() else (first, b"", rest)
    names = ["file", *header.decode(errors="replace").split()]
    table = read_rows(rows, names, " ", {"file": pa.string()}, path, "an attribute list in CelebA's format")
    notes: tuple[str, ...] = ()
    if first.isdigit() and int(first) != table.num_rows:
        notes = (f"{path.name} announces {int(first):,} images and lists {table.num_rows:,}",)
    return table["file"].to_pylist(), table.drop_columns(["file"]), notes


def _single_blanks(text: bytes) -> bytes:
    """Columns are aligned by runs of blanks; the CSV parser needs exactly one, and none at the end."""
    text = text.replace(b"\r\n", b"\n").replace(b"\t", b" ")
    while b"  " in text:
        text = text.replace(b"  ", b" ")
    return text.replace(b" \n", b"\n").replace(b"\n ", b"\n").strip()


def _values_of(names: Sequence[str], path: Path) -> list[str]:
    """What a list of two columns, image and value, says about some images: the partition or the identities."""
    if path.suffix == ".csv":
        rows = [[str(v) for v in row.values()] for row in read_table(path).to_pylist()]
    else:
        rows = [line.split() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    for number, row in enumerate(rows):
        if len(row) != 2:
            raise InputError(f"{path}: row {number + 1} has {len(row)} columns instead of 2; fetch it again")
    values: dict[str, str] = dict(rows)
    if lacking := [name for name in names if name not in values]:
        raise InputError(
            f"{path} has no row for {len(lacking):,} of {len(names):,} images (first: {lacking[0]}); "
            "fetch it again, or remove it"
        )
    return [values[name] for name in names]


def people_and_splits(
    names: Sequence[str], roots: Sequence[Path], ignore: Collection[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Columns `split` and `identity` of some images, as far as their lists exist, and notes."""
    labels: dict[str, list[str]] = {}
    for column, stem in (("split", PARTITION), ("identity", IDENTITY)):
        path = find_list(roots, stem)
        if path is not None and column not in ignore:
            labels[column] = _values_of(names, path)
    if "split" in labels:
        return labels, []
    key = "person" if "identity" in labels else "file name"
    where = f"not found in {roots[0]}" if find_list(roots, PARTITION) is None else "ignored"
    return labels, [f"{PARTITION}.txt was {where}: the images are split by a hash of the {key}"]


def _match_disk(listed: Sequence[str], images: Path, list_path: Path) -> tuple[list[int], list[str], list[str]]:
    """Rows of the list that have a file, the names of these files, and notes on what does not match.

    The lists say .jpg even where the images are .png.
    """
    on_disk = {file.name for file in images.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES}
    by_stem = {PurePath(name).stem: name for name in on_disk}
    if twice := next((name for name, count in Counter(listed).items() if count > 1), None):
        raise InputError(f"{list_path} lists {twice} more than once; remove all but one of these rows")
    file_of = [name if name in on_disk else by_stem.get(PurePath(name).stem) for name in listed]
    rows = [row for row, file in enumerate(file_of) if file is not None]
    if not rows:
        raise InputError(
            f"{images} holds none of the {len(listed):,} images that {list_path} names; "
            f"the first is expected at {images / listed[0]}"
        )
    files = [file for file in file_of if file is not None]
    notes = []
    if len(rows) < len(listed):
        first = next(name for name, file in zip(listed, file_of, strict=True) if file is None)
        notes.append(
            f"{len(listed) - len(rows):,} of {len(listed):,} images in {list_path.name} are missing from "
            f"{images} and were left out (first: {first})"
        )
    extra = sorted(on_disk - set(files))
    if extra:
        notes.append(
            f"{len(extra):,} images in {images} are not in {list_path.name} and were left out (first: {extra[0]})"
        )
    return rows, files, notes
