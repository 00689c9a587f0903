"""Draw faces of people who do not exist with the generator of the package random-face: JPEGs of 128 px.

    python tools/draw_faces.py random_face/data OUT 0 6000

The commands before it are in docs/data.md. Half a second each on one core. Face n is a function of n
alone, and what is there already is not drawn again: processes can share the work, and a stopped one continues.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import openvino as ov
from PIL import Image

SEED, PX = 20261118, 128
SPLITS = {0: "test", 1: "valid"}  # by the last digit of n; the others are for training
SHARE = 0.75  # how far a style may go from the mean one ("truncation")


def draw_faces(data: Path, out: Path, first: int, last: int) -> None:
    """Faces first .. last - 1, by the networks in `data`."""
    core = ov.Core()
    # Left alone, OpenVINO rounds to bfloat16 where a CPU has it: twice as slow, and faces differ between machines.
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"})
    names = ("Mapping", "Synthesis")
    mapping, synthesis = (core.compile_model(data / f"{name}Network.xml", "CPU") for name in names)
    rng = np.random.default_rng(SEED)
    mean = np.mean([mapping([rng.normal(size=(1, 512)).astype(np.float32)])[0][0] for _ in range(4096)], 0)
    for n in range(first, last):
        path = out / SPLITS.get(n % 10, "train") / f"{n:05d}.jpg"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng([SEED, n]).normal(size=(1, 512)).astype(np.float32)
        style = mean + SHARE * (mapping([noise])[0] - mean)
        pixels = np.clip(synthesis([style])[0][0].transpose(1, 2, 0) * 127.5 + 127.5, 0, 255).astype(np.uint8)
        unfinished = path.with_suffix(".tmp")
        small = Image.fromarray(pixels).resize((PX, PX), Image.Resampling.LANCZOS)
        small.save(unfinished, "JPEG", quality=92, subsampling=0)
        unfinished.rename(path)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        raise SystemExit(__doc__)
    draw_faces(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
