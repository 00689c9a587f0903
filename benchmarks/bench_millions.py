"""Millions of images on one machine: generated tar shards through prepare, encode and search.

`python -m benchmarks.bench_millions DIR --images 2000000` does so for an eighth and for all of them, each
command in a process of its own. It prints seconds, those of the CPU, and the most memory that a command held:
RssAnon of the process and its children, without pages of files, which the system takes back when it is short. It
writes below DIR, at most 6 kB per image, and leaves the shards there.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

SIDE, SHARD, DIFFERENT = 32, 20_000, 5_000  # px, images of a tar file, images that differ
SEEN = 0.2  # seconds between two looks at the memory


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=2_000_000)
    given = parser.parse_args(words)
    generate(given.folder / "shards", given.images)
    model = tiny_model(given.folder / "model")
    (picture := given.folder / "first.jpg").write_bytes(encoded(0))
    for images in (given.images // 8, given.images):
        whole_path(given.folder / "work", first_shards(given.folder, images), images, model, picture)


def whole_path(place: Path, shards: Path, images: int, model: Path, picture: Path) -> None:
    """Each command in turn, in a folder that is removed at the end."""
    commands = {
        "prepare": ["prepare", shards, "--out", place / "data", "--size", SIDE],
        "encode": ["encode", model, place / "data", "--out", place / "z.parquet", "--no-explained"],
        "search": ["search", model, picture, "--data", place / "data", "--out", place / "found.png"],
        "again": ["search", model, picture, "--data", place / "data", "--out", place / "found.png"],
    }
    for name, words in commands.items():
        seconds, busy, memory = run([str(word) for word in words], place / "cache")
        print(
            f"{name:<8} {images:>10,} images {seconds:8.1f} s, {busy:8.1f} s of the CPU, "
            f"{1e6 * busy / images:7.1f} µs an image, most memory {memory / 1e6:,.0f} MB",
            flush=True,
        )
    shutil.rmtree(place)


def first_shards(folder: Path, images: int) -> Path:
    """A folder of links to the shards of so many images."""
    shutil.rmtree(links := folder / "some", ignore_errors=True)
    links.mkdir()
    for shard in sorted((folder / "shards").glob("*.tar"))[: -(-images // SHARD)]:
        (links / shard.name).symlink_to(shard.resolve())
    return links


def generate(folder: Path, images: int) -> None:
    """Tar shards of JPEGs: coloured blocks, DIFFERENT ones and then the same again under other names."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = [encoded(number) for number in range(min(DIFFERENT, images))]
    for first in range(0, images, SHARD):
        path = folder / f"{first // SHARD:05d}.tar"
        if path.exists():
            continue
        with tarfile.open(part := path.with_suffix(".part"), "w") as tar:
            for number in range(first, min(first + SHARD, images)):
                data = pictures[number % len(pictures)]
                member = tarfile.TarInfo(f"{number:09d}.jpg")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        part.rename(path)


def encoded(number: int) -> bytes:
    """A JPEG of 4 × 4 blocks."""
    blocks = np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)
    Image.fromarray(blocks.repeat(SIDE // 4, 0).repeat(SIDE // 4, 1)).save(out := io.BytesIO(), "jpeg", quality=80)
    return out.getvalue()


def tiny_model(folder: Path) -> Path:
    """A small untrained encoder with statistics, in a model folder."""
    import torch

    from diti.config import EncoderConfig
    from diti.representation.models.model import Model
    from diti.representation.networks.encoder import build_encoder
    from diti.representation.partition import Partition

    if not (folder / "model.json").is_file():
        config = EncoderConfig(encoder="residual", code_dim=64, encoder_channels=(8, 16, 16))
        encoder, cut = build_encoder(config, SIDE, 0), Partition.single(1000, 64)
        Model(encoder, cut, torch.zeros(64), torch.ones(64), "simclr", metric=torch.eye(64)).save(folder)
    return folder


def run(words: list[str], cache: Path) -> tuple[float, float, int]:
    """Seconds that a command takes, those of the CPU by all its processes, and the most bytes of its own."""
    began, before, most = time.monotonic(), cpu_of_children(), 0
    known = {"DITI_CACHE": str(cache), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, "-m", "diti", *words]
    with subprocess.Popen(command, env={**os.environ, **known}, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, own_memory(process.pid))
            time.sleep(SEEN)
    if process.returncode:
        sys.exit(f"failed: diti {' '.join(words)}")
    return time.monotonic() - began, cpu_of_children() - before, most


def cpu_of_children() -> float:
    """Seconds of the CPU that processes took that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def own_memory(process: int) -> int:
    """Bytes that a process and its children hold and that are not of files, on Linux."""
    total = 0
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total = 1024 * int(line.split()[1])
        for task in Path(f"/proc/{process}/task").iterdir():
            total += sum(own_memory(int(child)) for child in (task / "children").read_text().split())
    except OSError:  # it has ended
        pass
    return total


if __name__ == "__main__":
    main(sys.argv[1:])
