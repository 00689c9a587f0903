"""Rendered sets with known factors of variation: Shapes3D, dSprites, MPI3D and Cars3D."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np

from diti.core.errors import InputError
from diti.data.attributes import Column, check_ignored, dataset_table
from diti.data.source import Picture, Read, ReadOptions, Source, keep_latest, read_blocks

SHAPES3D_FILES = ("*3dshapes*.h5", "*shapes3d*.h5")
SHAPES3D_FACTORS = ("floor_hue", "wall_hue", "object_hue", "scale", "shape", "orientation")
DSPRITES_FILES = ("*dsprites*.npz",)
DSPRITES_FACTORS = ("color", "shape", "scale", "orientation", "x", "y")
MPI3D_FILES = ("*mpi3d*.npz", "*_64x_ordered_without_heldout_factors.npz")
MPI3D_FACTORS = (
    *("object_color", "object_shape", "object_size", "camera_height"),
    *("background_color", "horizontal_axis", "vertical_axis"),
)
MPI3D_GRIDS = (
    (6, 6, 2, 3, 3, 40, 40),  # toy, realistic, real: 1,036,800 images
    (4, 4, 2, 3, 3, 40, 40),  # real complex, and the first release of toy and realistic: 460,800 images
)
CARS3D_FILES = ("*_mesh*.mat",)
CARS3D_FACTORS = ("object_type", "azimuth", "elevation")


# ---- what the four have in common


def factor_grid(sizes: Sequence[int]) -> np.ndarray:
    """Indices of all combinations of factors, (prod(sizes), len(sizes)); the last factor varies fastest."""
    return np.stack([axis.ravel() for axis in np.indices(sizes, dtype=np.int16)], axis=1)


def _source(
    name: str, path: Path, factors: Sequence[str], values: np.ndarray, read: Read, options: ReadOptions
) -> Source:
    """`values` (N, F): a row per image, a column per factor. A factor with two values becomes 0/1."""
    check_ignored(options.ignore, factors, path)
    if values.ndim != 2 or values.shape[1] != len(factors):
        raise InputError(f"{path} holds factors of shape {values.shape}; {len(factors)} columns are expected")
    attributes: dict[str, Column] = {}
    constant = []
    for factor, column in zip(factors, values.T, strict=True):
        levels = np.unique(column)
        if factor in options.ignore:
            continue
        if len(levels) == 1:
            constant.append(factor)
        else:
            attributes[factor] = (column == levels[1]).astype(np.int8) if len(levels) == 2 else column
    notes = (f"left out, because it never changes: {', '.join(constant)}",) if constant else ()
    table = dataset_table([f"{row:07d}" for row in range(len(values))], attributes=attributes)
    return Source(name, str(path), table, read, notes=notes)


def _matching(path: Path, patterns: Sequence[str]) -> list[Path]:
    """The file itself, or the files of a folder, that match one of the patterns."""
    files = path.iterdir() if path.is_dir() else [path]
    called = (file for file in files if any(fnmatch(file.name.lower(), pattern) for pattern in patterns))
    return sorted(file for file in called if file.is_file())


def _holds(path: Path, patterns: Sequence[str]) -> bool:
    return bool(_matching(path, patterns))


def _the_file(path: Path, patterns: Sequence[str]) -> Path:
    files = _matching(path, patterns)
    if len(files) != 1:
        found = ", ".join(file.name for file in files) or "none"
        raise InputError(f"{path}: one file called {' or '.join(patterns)} is expected, found: {found}; name it")
    return files[0]


def _check_count(path: Path, images: int, rows: int) -> None:
    if images != rows:
        raise InputError(f"{path} holds {images:,} images and factors of {rows:,}; fetch it again")


# ---- Shapes3D: one HDF5 file


detect_shapes3d = partial(_holds, patterns=SHAPES3D_FILES)


def open_shapes3d(path: Path, options: ReadOptions) -> Source:
    """Datasets `images` (N, H, W, 3) and `labels` (N, 6)."""
    file = _the_file(path, SHAPES3D_FILES)
    try:
        import h5py
    except ImportError:
        raise InputError(f"{file} is HDF5, which needs the extra: pip install 'diti-torch[hdf5]'") from None
    try:
        with h5py.File(file, "r") as handle:
            labels = handle["labels"][:]
            images = handle["images"]
            # Compressed chunks usually span many images; reading less than one unpacks it repeatedly.
            block = min(images.chunks[0] if images.chunks else 256, 8192)
            shape, kind = images.shape, images.dtype
    except (OSError, KeyError) as error:
        raise InputError(f"{file} is not Shapes3D with datasets images and labels: {error}") from None
    if len(shape) != 4 or shape[3] != 3 or kind != np.uint8:
        raise InputError(f"{file} holds {kind} images of shape {shape} instead of uint8 (N, H, W, 3)")
    _check_count(file, shape[0], len(labels))
    return _source("shapes3d", path, SHAPES3D_FACTORS, labels, ReadHdf5(file, range(0, shape[0], block)), options)


@dataclass(frozen=True)
class ReadHdf5:
    """`Read` in blocks of rows."""

    path: Path
    starts: range  # the first row of each block

    def __call__(self, rows: Sequence[int]) -> Iterator[Picture]:
        return read_blocks(rows, self.starts, self._block, OSError)

    def _block(self, number: int, rows: list[int]) -> np.ndarray:
        return _hdf5_block(self.path, self.starts[number], self.starts.step)[rows]


@keep_latest
def _hdf5_block(path: Path, start: int, count: int) -> np.ndarray:
    """Some images (count, H, W, 3)."""
    import h5py

    with h5py.File(path, "r") as handle:
        return np.asarray(handle["images"][start : start + count])


# ---- dSprites and MPI3D: one NumPy archive


detect_dsprites = partial(_holds, patterns=DSPRITES_FILES)
detect_mpi3d = partial(_holds, patterns=MPI3D_FILES)


def open_dsprites(path: Path, options: ReadOptions) -> Source:
    """Arrays `imgs` (N, H, W) of zeros and ones and `latents_values` (N, 6)."""
    file = _the_file(path, DSPRITES_FILES)
    count = _count_images(file, "imgs", 2)
    try:
        with np.load(file) as arrays:
            values = arrays["latents_values"]
    except (KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{file} has no readable array 'latents_values' ({error}); fetch it again") from None
    _check_count(file, count, len(values))
    return _source("dsprites", path, DSPRITES_FACTORS, values, ReadNpz(file, "imgs", 2, 255), options)


def open_mpi3d(path: Path, options: ReadOptions, grids: Sequence[tuple[int, ...]] = MPI3D_GRIDS) -> Source:
    """Array `images` (N, H, W, 3) in the order of the factors; N shows which of the known grids it is."""
    file = _the_file(path, MPI3D_FILES)
    count = _count_images(file, "images", 3)
    sizes = next((grid for grid in grids if math.prod(grid) == count), None)
    if sizes is None:
        known = " or ".join(f"{math.prod(grid):,}" for grid in grids)
        raise InputError(f"{file} holds {count:,} images; MPI3D has {known}: fetch it again")
    return _source("mpi3d", path, MPI3D_FACTORS, factor_grid(sizes), ReadNpz(file, "images", 3), options)


def _count_images(file: Path, array: str, dimensions: int) -> int:
    """Number of images in an array of an archive, from its header."""
    try:
        images = _ArrayStream(file, array)
        images.stream.close()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} has no readable array {array!r} ({error}); fetch it again") from None
    if images.dtype not in (np.uint8, np.bool_) or len(images.shape) <= dimensions:
        raise InputError(f"{file}: {array!r} is {images.dtype} of shape {images.shape}, not 8-bit images")
    return math.prod(images.shape[:-dimensions])


class _ArrayStream:
    """One array of an npz, read image by image: unpacked whole, it would be gigabytes.

    A compressed member can only be read forwards. Rows arrive in ascending order, so that is enough; going
    back means starting again.
    """

    def __init__(self, path: Path, array: str) -> None:
        with zipfile.ZipFile(path) as archive:  # the member stays open after it
            self.stream = archive.open(f"{array}.npy")
        version = np.lib.format.read_magic(self.stream)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, in_columns, self.dtype = header(self.stream)
        self.start = self.stream.tell()
        if in_columns or self.dtype.hasobject:
            raise ValueError(f"{array} must be an array of numbers in C order")

    def read(self, row: int, dimensions: int) -> np.ndarray:
        """One row of the array, seen as (N, ...) with that many dimensions after N."""
        shape = self.shape[-dimensions:]
        size = math.prod(shape) * self.dtype.itemsize
        self.stream.seek(self.start + row * size)
        data = self.stream.read(size)
        if len(data) < size:
            raise EOFError("the archive ends early")
        return np.frombuffer(data, self.dtype).reshape(shape)


_array_stream = keep_latest(_ArrayStream)


@dataclass(frozen=True)
class ReadNpz:
    """`Read` of an array of images: (N, H, W, 3), or grey (N, H, W)."""

    path: Path
    array: str
    dimensions: int  # of one image
    scale: int = 1  # 255 for images of zeros and ones

    def __call__(self, rows: Sequence[int]) -> Iterator[Picture]:
        for row in rows:
            try:
                pixels = _array_stream(self.path, self.array).read(row, self.dimensions) * np.uint8(self.scale)
                yield pixels if self.dimensions == 3 else np.repeat(pixels[..., None], 3, axis=-1)
            except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
                yield error


# ---- Cars3D: a folder of MATLAB files, one per car


def _car_files(path: Path) -> list[Path]:
    """car_*_mesh.mat in the folder itself, else in its cars or data/cars."""
    folders = (folder for folder in (path, path / "cars", path / "data" / "cars") if folder.is_dir())
    return next((files for folder in folders if (files := _matching(folder, CARS3D_FILES))), [])


def detect_cars3d(path: Path) -> bool:
    return bool(_car_files(path))


def open_cars3d(path: Path, options: ReadOptions) -> Source:
    """Each file: `im` (H, W, 3, 24 azimuths, 4 elevations)."""
    files = _car_files(path)
    if not files:
        raise InputError(f"{path} holds no cars; they are expected as {path / 'cars' / 'car_001_mesh.mat'}")
    import scipy.io

    try:
        with files[0].open("rb") as handle:
            shapes = {name: shape for name, shape, _ in scipy.io.whosmat(handle)}
    except Exception as error:  # scipy raises many kinds on broken files
        raise InputError(f"{files[0]} is not a MATLAB file of Cars3D: {error}") from None
    shape = shapes.get("im", ())
    if len(shape) != 5:
        raise InputError(f"{files[0]} has no array im (height, width, 3, azimuths, elevations); fetch it again")
    values = factor_grid((len(files), *shape[3:]))
    return _source("cars3d", path, CARS3D_FACTORS, values, ReadMat(tuple(files), shape), options)


@dataclass(frozen=True)
class ReadMat:
    """`Read` of Cars3D: rows by car, then azimuth, then elevation."""

    files: tuple[Path, ...]
    shape: tuple[int, ...]  # of `im` in every file

    def __call__(self, rows: Sequence[int]) -> Iterator[Picture]:
        per_car = math.prod(self.shape[3:])
        # scipy raises many kinds on broken files; one must not stop a run
        return read_blocks(rows, range(0, per_car * len(self.files), per_car), self._views, Exception)

    def _views(self, car: int, rows: list[int]) -> np.ndarray:
        return _car(self.files[car], self.shape)[rows]


@keep_latest
def _car(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """All views of one car, (azimuths * elevations, H, W, 3)."""
    import scipy.io

    with path.open("rb") as handle:
        views = scipy.io.loadmat(handle)["im"]
    if views.shape != shape or views.dtype != np.uint8:
        raise ValueError(f"{path.name} holds {views.dtype} images {views.shape} instead of uint8 {shape}")
    return np.ascontiguousarray(views.transpose(3, 4, 0, 1, 2)).reshape(-1, *shape[:3])
