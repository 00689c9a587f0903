"""How the cost of `diti solve` grows: seconds and peak memory against images, D, image size and processes.

`python -m benchmarks.bench_solve_cost`: small random U-Nets, each case in a process of its own. What is solved is
of no use; what it costs is what a trained network of that shape costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = (32, 64, 128, 256)
LENGTHS = (1_024, 2_048)
CODES = (64, 256)
FACES = 1_400

CASE = """
import json, resource, sys, time
from diti.config import SolutionConfig, SolveConfig
from diti.data.sources import open_data
from diti.diffusion.backbone import load_backbone
from diti.representation.solve.evidence import gather_evidence, unsolved_encoder
from diti.representation.solve.solved import assemble
from diti.core.loop import make_accelerator
from diti.config import TrainingConfig
accelerator = make_accelerator(TrainingConfig())
backbone = load_backbone(sys.argv[1])
dataset = open_data(f"toyfaces:{sys.argv[4]}", backbone.size)
settings = SolutionConfig(stretches=int(sys.argv[5]), pixel_axes=128, whitened=256)
config = SolveConfig(code_dim=int(sys.argv[2]), images=int(sys.argv[3]), solution=settings)
began = time.perf_counter()
encoder = unsolved_encoder(config, backbone)
evidence = gather_evidence(config, backbone, dataset, encoder)
gathered = time.perf_counter() - began
assemble(config, backbone, encoder, evidence)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
if accelerator.is_main_process:
    print(json.dumps([gathered, time.perf_counter() - began - gathered, peak]))
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        backbones = {size: small_backbone(size, Path(folder)) for size in SIZES}
        print(" size  images    D stretches processes  pass, s  rest, s    GB")
        for images in LENGTHS:
            show(backbones[32], 32, images, 64, 4, 1)
        for dims in CODES[1:]:
            show(backbones[32], 32, LENGTHS[0], dims, 4, 1)
        show(backbones[32], 32, LENGTHS[0], 64, 4, 2)
        for size, images in ((64, 512), (128, 512), (256, 512)):
            show(backbones[size], size, images, 64, 1, 1)


def small_backbone(size: int, folder: Path) -> Path:
    """A random U-Net of the shape of celeba32, with a pixel-unshuffle that keeps its grid at 16 px or more."""
    from diti.config import BackboneConfig
    from diti.diffusion.unet import build_backbone

    fold = 2 if size < 128 else 4
    shape = BackboneConfig(size=size, unshuffle=fold, channels=(32, 32, 64), layers=1, head_channels=16)
    build_backbone(shape, seed=0).save(folder / str(size))
    return folder / str(size)


def show(backbone: Path, size: int, images: int, dims: int, stretches: int, processes: int) -> None:
    """One line: seconds of the pass, seconds of the decompositions, peak memory of a process."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    script = backbone.parent / "case.py"
    script.write_text(CASE, encoding="utf-8")
    words = [str(script), str(backbone), str(dims), str(images), str(FACES), str(stretches)]
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // processes)), "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, *(launcher if processes > 1 else []), *words]
    printed = subprocess.run(command, env=os.environ | threads, check=True, capture_output=True, text=True).stdout
    passed, rest, peak = (float(word) for word in printed.strip().splitlines()[-1].strip("[]").split(","))
    print(
        f"{size:>5}{images:>8,}{dims:>5}{stretches:>10}{processes:>10}{passed:>9.1f}{rest:>9.1f}{peak:>6.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
