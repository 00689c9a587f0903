"""Preparing JPEGs against a plain Pillow loop; batches from a dataset folder against decoding again."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.timing import best_seconds
from diti.data import toyfaces
from diti.data.decode import celeba_box
from diti.data.prepare import prepare
from diti.data.readers.folder import open_source as open_folder
from diti.data.source import ReadOptions

REAL = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "celeba-layout-sample"
COUNT, SIZE, BATCH = 3_000, 64, 128


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        jpegs = Path(folder) / "jpegs"
        kind = make_jpegs(jpegs)
        print(f"{COUNT:,} {kind} JPEGs of 178×218 → {SIZE} px")
        bench_prepare(jpegs, Path(folder))
        bench_batches(jpegs, Path(folder))
        bench_toyfaces()


def make_jpegs(folder: Path) -> str:
    """Files of CelebA's size: copies of real ones where they are at hand, rendered faces elsewhere."""
    folder.mkdir()
    real = sorted((REAL / "img_align_celeba").glob("*.jpg")) if REAL.is_dir() else []
    if real:
        for index in range(COUNT):
            shutil.copy(real[index % len(real)], folder / f"{index:06d}.jpg")
        return "CelebA"
    for index, pixels in enumerate(toyfaces.render(toyfaces.sample(COUNT, 0), 218)):
        Image.fromarray(pixels[:, 20:198]).save(folder / f"{index:06d}.jpg", quality=90)
    return "rendered"


def plain_loop(files: list[Path]) -> np.ndarray:
    """What one writes without thinking: open, convert, crop, resize, one after the other."""
    images = []
    for file in files:
        with Image.open(file) as image:
            box = tuple(int(edge) for edge in celeba_box(*image.size))
            cropped = image.convert("RGB").crop(box)  # type: ignore[arg-type]
            images.append(np.asarray(cropped.resize((SIZE, SIZE), Image.Resampling.BICUBIC)))
    return np.stack(images)


def bench_prepare(jpegs: Path, folder: Path) -> None:
    files = sorted(jpegs.glob("*.jpg"))
    source = open_folder(jpegs, ReadOptions())

    def ours() -> None:
        prepare(source, folder / "prepared", SIZE, crop="celeba", overwrite=True)

    best = best_seconds({"plain": lambda: plain_loop(files), "prepare": ours}, rounds=4)
    for name, seconds in best.items():
        print(f"  {name:<8} {COUNT / seconds:8,.0f} images/s")
    print(f"  prepare is {best['plain'] / best['prepare']:.2f} times the plain loop (goal 1.6)")


def bench_batches(jpegs: Path, folder: Path) -> None:
    dataset = prepare(open_folder(jpegs, ReadOptions()), folder / "prepared", SIZE, crop="celeba")
    files = sorted(jpegs.glob("*.jpg"))
    rng = np.random.default_rng(0)

    def rows() -> np.ndarray:
        return rng.integers(0, COUNT, BATCH)

    best = best_seconds(
        {
            "decode": lambda: plain_loop([files[row] for row in rows()]),
            "folder": lambda: dataset.pixels(rows(), rng.random(BATCH) < 0.5),
        },
        rounds=20,
    )
    for name, seconds in best.items():
        print(f"  batches by {name:<8} {BATCH / seconds:10,.0f} images/s")
    print(f"  the dataset folder is {best['decode'] / best['folder']:.0f} times as fast (goal 50)")


def bench_toyfaces() -> None:
    factors = toyfaces.sample(4_000, 0)
    best = best_seconds({"render": lambda: toyfaces.render(factors, 32)}, rounds=3)
    print(f"  toy faces at 32 px: {len(factors) / best['render']:,.0f} images/s (goal 2,000)")
