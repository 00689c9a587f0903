"""From what a user names to a `Source`: each kind of data is detected from what the path holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path

from diti import __version__
from diti.core.errors import InputError, nearest
from diti.core.machine import cache_folder
from diti.core.runs import described
from diti.data.contents import IMAGES
from diti.data.joined import open_joined, part_folders
from diti.data.parts import PIXELS
from diti.data.prepare import find_size, fingerprint, prepare_cached
from diti.data.prepared import INFO, Dataset, open_dataset
from diti.data.readers import (
    celeba,
    faces_source,
    factors,
    ffhq,
    folder,
    lfw,
    lmdbs,
    parquet,
    tars,
    toyfaces_source,
)
from diti.data.source import ReadOptions, Source


@dataclass(frozen=True)
class Kind:
    """One kind of source, and how it is recognised and read."""

    name: str
    about: str
    detect: Callable[[Path], bool]
    open_source: Callable[[Path, ReadOptions], Source]


KINDS = (  # tried in this order; the first that recognises a path reads it
    Kind("shapes3d", "Shapes3D, 3dshapes.h5", factors.detect_shapes3d, factors.open_shapes3d),
    Kind("dsprites", "dSprites, *.npz", factors.detect_dsprites, factors.open_dsprites),
    Kind("mpi3d", "MPI3D, *.npz", factors.detect_mpi3d, factors.open_mpi3d),
    Kind("cars3d", "Cars3D, a folder of *.mat", factors.detect_cars3d, factors.open_cars3d),
    Kind("parquet", "parquet with an image column, file or shards", parquet.detect, parquet.open_source),
    Kind("tar", "tar shards as of webdataset, file or folder", tars.detect, tars.open_source),
    Kind("diffae", "Diff-AE's LMDB (keys size-index)", lmdbs.detect_diffae, lmdbs.open_diffae),
    Kind("lsun", "LSUN's LMDB", lmdbs.detect_lsun, lmdbs.open_lsun),
    Kind("celeba", "CelebA's own layout", celeba.detect, celeba.open_source),
    Kind("lfw", "LFW's own layout", lfw.detect, lfw.open_source),
    Kind("ffhq", "FFHQ's own layout", ffhq.detect, ffhq.open_source),
    Kind("folder", "a folder of images, any nesting", folder.detect, folder.open_source),
)

BUILT_IN: dict[str, Callable[[str, ReadOptions], Source]] = {
    "toyfaces": toyfaces_source.open_source,
    "faces": faces_source.open_source,
}


def built_in(location: str) -> str | None:
    """The built-in data that a location names, `toyfaces[:N]` or `faces[:N]`."""
    name = location.partition(":")[0]
    return name if name in BUILT_IN else None


def find_source(location: str, options: ReadOptions, kind: str | None = None) -> Source:
    """The source at `location`: a path, or built-in data."""
    try:
        if kind is None and (name := built_in(location)) and not Path(location).exists():
            return BUILT_IN[name](location, options)
        path = Path(location).expanduser()
        if not location or not path.exists():
            hint = "; to use the built-in faces write faces or toyfaces" if "face" in location else ""
            raise InputError(f"{location or repr('')} does not exist; name a file or folder of images{hint}")
        for candidate in KINDS:
            if candidate.name == kind or (kind is None and candidate.detect(path)):
                return candidate.open_source(path, options)
    except OSError as error:
        remedy = "change its permissions" if isinstance(error, PermissionError) else "name another"
        raise InputError(
            f"{error.filename or location} cannot be read ({error.strerror or error}); {remedy}"
        ) from None
    if kind is not None:
        names = [k.name for k in KINDS]
        raise InputError(f"--kind {kind} is unknown; use {', '.join(names)}.{nearest(kind, names)}")
    known = "; ".join(k.about for k in KINDS)
    raise InputError(f"{location} is not a kind of data that can be read; known: {known}; faces[:N]; toyfaces[:N]")


def open_data(location: str | Path, size: int | None = None) -> Dataset:
    """What `--data` accepts: a dataset folder as it is; anything else is prepared into the cache first.

    size: side of the prepared images, px; may be omitted if all of them are squares of one size.

        data = diti.open_data("photos", size=64)
    """
    if isinstance(size, bool) or not isinstance(size, Integral | None):
        raise InputError(f"size is {size!r}; give the side of the images in px, a whole number such as 64")
    if not isinstance(location, str | Path):
        raise _no_data(location)
    path = Path(location).expanduser()
    if _is_prepared(path):
        return open_dataset(path)
    if part_folders(path):
        return open_joined(path)
    source = find_source(str(location), ReadOptions(size=size))
    size = find_size(source, source.crop) if size is None else size
    key = hashlib.sha256(f"{__version__}/{fingerprint(source)}/{size}/{source.crop}".encode()).hexdigest()[:12]
    dataset = prepare_cached(source, cache_folder() / f"{source.name[:60]}-{size}px-{key}", size)
    # A copy of a folder under another name shares its cache entry.
    return replace(dataset, info={**dataset.info, "title": source.title})


def _no_data(given: object) -> InputError:
    return InputError(f"the data is {described(given)}; give a Dataset, the path of images, faces or toyfaces")


def as_dataset(data: Dataset | str | Path, size: int | None = None) -> Dataset:
    """An open dataset as it is, anything else as `open_data` opens it."""
    return data if isinstance(data, Dataset) else open_data(data, size)


def place_of(data: Dataset | str | Path) -> str:
    """Where data is read from, as a command would name it."""
    if isinstance(data, Dataset):
        return str(data.path)
    if not isinstance(data, str | Path):
        raise _no_data(data)
    return str(data)


def data_of_run(folder: Path) -> str | None:
    """The data of a run, as named in its config.yaml; None where it names none, or the data is not here."""
    import yaml

    try:
        settings = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        data = str(settings["data"])
        found = bool(built_in(data)) or Path(data).expanduser().exists()
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):  # missing or damaged
        return None
    return data if data and found else None


def _is_prepared(path: Path) -> bool:
    """Whether a path is a dataset folder, complete or not."""
    try:
        return any((path / name).is_file() for name in (INFO, IMAGES, PIXELS))
    except OSError:  # an impossible name; `find_source` reports it
        return False
