from __future__ import annotations

import io
import itertools
import math
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from reading import read_elsewhere, refused

from diti.data.attributes import is_binary
from diti.data.readers import factors
from diti.data.source import Picture, ReadOptions

h5py = pytest.importorskip("h5py", reason="needs the extra hdf5")


def pictures_of(count: int, side: int = 4) -> np.ndarray:
    """(count, side, side, 3): every image has its number in its colour."""
    rows = np.arange(count)
    colours = np.stack([rows % 256, rows // 256, np.full(count, 9)], axis=1).astype(np.uint8)
    return np.broadcast_to(colours[:, None, None], (count, side, side, 3)).copy()


def number_of(picture: Picture) -> int:
    assert isinstance(picture, np.ndarray)
    assert (picture.dtype, picture.shape[2]) == (np.uint8, 3)
    assert (picture == picture[0, 0]).all()
    return int(picture[0, 0, 0]) + 256 * int(picture[0, 0, 1])


def test_factor_grid_counts_like_nested_loops() -> None:
    sizes = (2, 3, 1, 4)
    expected = list(itertools.product(*(range(size) for size in sizes)))
    assert factors.factor_grid(sizes).tolist() == [list(row) for row in expected]


# ---- Shapes3D


def write_shapes3d(path: Path, count: int = 600, chunk: int = 32) -> np.ndarray:
    labels = np.random.default_rng(0).integers(0, 4, (count, 6)).astype(float)
    labels[:, 3] = np.where(labels[:, 3] < 2, 0.75, 1.25)  # a factor with two values
    with h5py.File(path, "w") as file:
        file.create_dataset("images", data=pictures_of(count), chunks=(chunk, 4, 2, 1), compression="gzip")
        file.create_dataset("labels", data=labels)
    return labels


@pytest.mark.parametrize("given", ["", "3dshapes.h5"])
def test_shapes3d(tmp_path: Path, given: str) -> None:
    labels = write_shapes3d(tmp_path / "3dshapes.h5")
    assert factors.detect_shapes3d(tmp_path / given)
    source = factors.open_shapes3d(tmp_path / given, ReadOptions())
    assert (source.name, source.crop, source.notes) == ("shapes3d", "centre", ())
    assert source.table.column_names == ["file", *factors.SHAPES3D_FACTORS]
    for place, name in enumerate(factors.SHAPES3D_FACTORS):
        assert is_binary(source.table[name]) == (place == 3)
        expected = labels[:, place] == 1.25 if place == 3 else labels[:, place]
        np.testing.assert_array_equal(source.table[name], expected)
    for rows in (range(600), [31, 32, 33, 599], [0]):
        assert [number_of(p) for p in source.read(rows)] == list(rows)


def test_shapes3d_elsewhere(tmp_path: Path) -> None:
    write_shapes3d(tmp_path / "3dshapes.h5", 5, 2)
    source = factors.open_shapes3d(tmp_path, ReadOptions(ignore=("shape", "scale")))
    assert source.table.column_names == ["file", "floor_hue", "wall_hue", "object_hue", "orientation"]
    read_elsewhere(source.read, [1, 4])
    refused(factors.open_shapes3d, tmp_path, r"--ignore shapes: .* Did you mean 'shape'", ignore=("shapes",))


def test_shapes3d_that_vanishes_spoils_rows_not_the_run(tmp_path: Path) -> None:
    write_shapes3d(tmp_path / "3dshapes.h5", 70, 32)
    read = factors.open_shapes3d(tmp_path, ReadOptions()).read
    assert number_of(next(iter(read([0])))) == 0
    (tmp_path / "3dshapes.h5").unlink()
    pictures = list(read([40, 41, 69]))
    assert [type(p) for p in pictures] == [FileNotFoundError] * 3


def test_shapes3d_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not factors.detect_shapes3d(tmp_path)
    refused(factors.open_shapes3d, tmp_path, r"one file called \*3dshapes\*.h5 .* is expected, found: none")
    path = tmp_path / "3dshapes.h5"
    path.write_bytes(b"not HDF5")
    refused(factors.open_shapes3d, path, "is not Shapes3D with datasets images and labels")
    images = pictures_of(3)
    for arrays, words in (
        ({"images": images}, "is not Shapes3D with datasets images and labels"),
        (
            {"images": images / 255, "labels": np.zeros((3, 6))},
            r"float64 images of shape \(3, 4, 4, 3\) instead of",
        ),
        ({"images": images, "labels": np.zeros((2, 6))}, "holds 3 images and factors of 2"),
        ({"images": images, "labels": np.zeros((3, 5))}, "6 columns are expected"),
    ):
        with h5py.File(path, "w") as file:
            file.update(arrays)
        refused(factors.open_shapes3d, path, words)
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(factors.open_shapes3d, path, r"needs the extra: pip install 'diti-torch\[hdf5\]'")


# ---- dSprites

DSPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
SPRITE_SIZES = (1, 3, 2, 2, 5, 8)


def sprites(count: int) -> np.ndarray:
    """(count, 4, 4) of zeros and ones: the bits of the number."""
    bits = np.arange(count)[:, None] >> np.arange(16) & 1
    return bits.astype(np.uint8).reshape(count, 4, 4)


def write_dsprites(path: Path) -> np.ndarray:
    classes = factors.factor_grid(SPRITE_SIZES)
    values = classes * 0.25 + 1
    metadata = np.array({"latents_sizes": SPRITE_SIZES}, dtype=object)  # pickled, as in the published file
    arrays = {"imgs": sprites(len(values)), "latents_values": values, "latents_classes": classes}
    np.savez_compressed(path, metadata=metadata, **arrays)
    return values


def test_dsprites(tmp_path: Path) -> None:
    values = write_dsprites(tmp_path / DSPRITES)
    count = math.prod(SPRITE_SIZES)
    assert factors.detect_dsprites(tmp_path) and factors.detect_dsprites(tmp_path / DSPRITES)
    source = factors.open_dsprites(tmp_path, ReadOptions())
    assert source.name == "dsprites"
    assert source.notes == ("left out, because it never changes: color",)
    assert source.table.column_names == ["file", "shape", "scale", "orientation", "x", "y"]
    assert source.table["scale"].to_pylist() == (values[:, 2] == 1.25).astype(int).tolist()
    np.testing.assert_array_equal(source.table["y"], values[:, 5].astype(np.float32))
    expected = np.repeat(sprites(count)[..., None] * 255, 3, axis=-1)
    for rows in (range(count), [7, 8, 9, 200], [5], [0, count - 1]):  # forwards, and back to the start
        np.testing.assert_array_equal(np.stack(list(source.read(rows))), expected[list(rows)])
    read_elsewhere(source.read, [3, 4, 100])


def test_dsprites_ignore(tmp_path: Path) -> None:
    write_dsprites(tmp_path / DSPRITES)
    source = factors.open_dsprites(tmp_path, ReadOptions(ignore=("color", "shape")))
    assert source.table.column_names == ["file", "scale", "orientation", "x", "y"]
    assert source.notes == ()


def test_dsprites_errors(tmp_path: Path) -> None:
    path = tmp_path / DSPRITES
    path.write_bytes(b"not a zip")
    assert factors.detect_dsprites(path)
    refused(factors.open_dsprites, path, "has no readable array 'imgs'")
    np.savez(path, images=sprites(2))
    refused(factors.open_dsprites, path, "has no readable array 'imgs'")
    np.savez(path, imgs=sprites(2))
    refused(factors.open_dsprites, path, "has no readable array 'latents_values'")
    np.savez(path, imgs=sprites(2), latents_values=np.zeros((3, 6)))
    refused(factors.open_dsprites, path, "holds 2 images and factors of 3")
    np.savez(path, imgs=sprites(2).astype(float), latents_values=np.zeros((2, 6)))
    refused(factors.open_dsprites, path, r"'imgs' is float64 of shape \(2, 4, 4\), not 8-bit images")


def test_an_archive_that_ends_early_spoils_rows_not_the_run(tmp_path: Path) -> None:
    path = tmp_path / DSPRITES
    values = factors.factor_grid(SPRITE_SIZES)
    images = sprites(len(values))
    whole = io.BytesIO()
    np.save(whole, images)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("imgs.npy", whole.getvalue()[: -100 * 16])  # the last 100 of 480 images are cut off
        with archive.open("latents_values.npy", "w") as member:
            np.save(member, values)
    read = factors.open_dsprites(path, ReadOptions()).read
    pictures = list(read([0, 379, 380, 479]))
    np.testing.assert_array_equal(np.stack(pictures[:2])[..., 0], images[[0, 379]] * 255)
    assert [type(p) for p in pictures[2:]] == [EOFError, EOFError]
    assert [type(p) for p in read([390, 400])] == [EOFError, EOFError]
    np.testing.assert_array_equal(next(iter(read([5])))[..., 0], images[5] * 255)


# ---- MPI3D

SMALL_GRID = (2, 3, 2, 1, 2, 3, 4)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("name", ["mpi3d_toy.npz", "sim_toy_64x_ordered_without_heldout_factors.npz"])
def test_mpi3d(tmp_path: Path, save: Callable[..., None], name: str) -> None:
    count = math.prod(SMALL_GRID)
    save(tmp_path / name, images=pictures_of(count))
    assert factors.detect_mpi3d(tmp_path)
    source = factors.open_mpi3d(tmp_path, ReadOptions(), grids=((5, 5), SMALL_GRID))
    assert source.name == "mpi3d"
    assert source.notes == ("left out, because it never changes: camera_height",)
    for row, values in zip(source.table.to_pylist(), itertools.product(*map(range, SMALL_GRID)), strict=True):
        named = dict(zip(factors.MPI3D_FACTORS, values, strict=True))
        assert {n: row[n] for n in row if n != "file"} == {n: v for n, v in named.items() if n != "camera_height"}
    assert is_binary(source.table["object_size"])
    for rows in (range(count), [5, 6, 100], [2]):
        assert [number_of(p) for p in source.read(rows)] == list(rows)


def test_mpi3d_in_the_shape_of_its_grid(tmp_path: Path) -> None:
    count = math.prod(SMALL_GRID)
    np.savez(tmp_path / "mpi3d_real.npz", images=pictures_of(count).reshape(*SMALL_GRID, 4, 4, 3))
    source = factors.open_mpi3d(tmp_path, ReadOptions(), grids=(SMALL_GRID,))
    read_elsewhere(source.read, [0, 77])


def test_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "mpi3d_toy.npz"
    np.savez(path, images=pictures_of(4))
    read = factors.ReadNpz(path, "images", 3)
    assert [number_of(p) for p in read([1])] == [1]
    np.savez(path, images=pictures_of(8)[4:])
    assert [number_of(p) for p in read([1])] == [5]


def test_mpi3d_grids_are_the_published_ones() -> None:
    """Counts and index formula of the published description."""
    assert [math.prod(grid) for grid in factors.MPI3D_GRIDS] == [1_036_800, 460_800]
    grid = factors.factor_grid(factors.MPI3D_GRIDS[1])
    weights = [115_200, 28_800, 14_400, 4_800, 1_600, 40, 1]
    rows = np.random.default_rng(0).integers(0, len(grid), 1000)
    np.testing.assert_array_equal(grid[rows].astype(int) @ weights, rows)


def test_mpi3d_errors(tmp_path: Path) -> None:
    np.savez(tmp_path / "mpi3d_toy.npz", images=pictures_of(10))
    refused(factors.open_mpi3d, tmp_path, "holds 10 images; MPI3D has 1,036,800 or 460,800")
    np.savez(tmp_path / "mpi3d_real.npz", images=pictures_of(10))
    refused(factors.open_mpi3d, tmp_path, r"found: mpi3d_real.npz, mpi3d_toy.npz; name it")
    np.savez(tmp_path / "mpi3d_toy.npz", images=np.asfortranarray(pictures_of(10)))
    refused(factors.open_mpi3d, tmp_path / "mpi3d_toy.npz", "must be an array of numbers in C order")


# ---- Cars3D

CARS, AZIMUTHS, ELEVATIONS = 3, 5, 4


def write_cars(folder: Path) -> None:
    """im (H, W, 3, azimuths, elevations), as in the published files."""
    folder.mkdir(parents=True)
    images = pictures_of(CARS * AZIMUTHS * ELEVATIONS).reshape(CARS, AZIMUTHS, ELEVATIONS, 4, 4, 3)
    for car in range(CARS):
        arrays = {"im": images[car].transpose(2, 3, 4, 0, 1), "mask": np.zeros((4, 4, AZIMUTHS, ELEVATIONS))}
        scipy.io.savemat(folder / f"car_{car:03d}_mesh.mat", arrays, do_compression=True)
    (folder / "list.txt").write_text("".join(f"car_{car:03d}_mesh\n" for car in range(CARS)))


@pytest.mark.parametrize("below", ["", "cars", "data/cars"])
def test_cars3d(tmp_path: Path, below: str) -> None:
    root = tmp_path / "set"
    write_cars(root / below)
    assert factors.detect_cars3d(root)
    source = factors.open_cars3d(root, ReadOptions())
    assert (source.name, source.notes) == ("cars3d", ())
    assert source.table.column_names == ["file", "object_type", "azimuth", "elevation"]
    expected = itertools.product(range(CARS), range(AZIMUTHS), range(ELEVATIONS))
    for row, (car, azimuth, elevation) in zip(source.table.to_pylist(), expected, strict=True):
        assert (row["object_type"], row["azimuth"], row["elevation"]) == (car, azimuth, elevation)
    for rows in (range(60), [19, 20, 59], [4]):
        assert [number_of(p) for p in source.read(rows)] == list(rows)


def test_cars3d_elsewhere(tmp_path: Path) -> None:
    write_cars(tmp_path / "cars")
    source = factors.open_cars3d(tmp_path, ReadOptions(ignore=("object_type",)))
    assert source.table.column_names == ["file", "azimuth", "elevation"]
    read_elsewhere(source.read, [0, 25])


def test_a_spoilt_car_spoils_its_rows_only(tmp_path: Path) -> None:
    write_cars(tmp_path / "cars")
    source = factors.open_cars3d(tmp_path, ReadOptions())
    (tmp_path / "cars" / "car_000_mesh.mat").unlink()
    scipy.io.savemat(tmp_path / "cars" / "car_001_mesh.mat", {"im": np.zeros((4, 4, 3, 2, 2), np.uint8)})
    missing, wrong, good = source.read([0, 20, 40])
    assert isinstance(missing, FileNotFoundError)
    assert isinstance(wrong, ValueError)
    assert "instead of uint8 (4, 4, 3, 5, 4)" in str(wrong)
    assert number_of(good) == 40


def test_cars3d_errors(tmp_path: Path) -> None:
    assert not factors.detect_cars3d(tmp_path)
    refused(factors.open_cars3d, tmp_path, f"expected as {tmp_path / 'cars' / 'car_001_mesh.mat'}")
    path = tmp_path / "car_000_mesh.mat"
    path.write_bytes(b"not MATLAB" * 100)
    refused(factors.open_cars3d, tmp_path, "is not a MATLAB file of Cars3D")
    scipy.io.savemat(path, {"mask": np.zeros((2, 2))})
    refused(factors.open_cars3d, tmp_path, "has no array im")
