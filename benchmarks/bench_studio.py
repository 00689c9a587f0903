"""How long a visitor of the studio waits: until it is open, and after a move of a slider.

`python -m benchmarks.bench_studio [MODEL]`: by default the shipped model. A move costs the decoding alone:
the picture was inverted before. The goal is a preview in under one second.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time

import torch
from torch import Tensor

from benchmarks.timing import best_seconds
from diti.edit.axes import deviation
from diti.studio.session import FULL_STEPS, PREVIEW_STEPS, Visitor
from diti.studio.world import World, open_world

PORT, GOAL, PATIENCE = 7_899, 1.0, 120  # goal in seconds, of a preview


def main(source: str = "faces64-diti") -> None:
    world = open_world(source, None)
    visitor = Visitor()
    visitor.images["image"] = world.pixels(0)
    began = time.perf_counter()
    start = visitor.inverted(world.model, ("image",))
    print(f"{source}, {torch.get_num_threads()} threads")
    print(f"  a new picture is inverted once: {time.perf_counter() - began:.2f} s")
    code = moved(world, start.z[0])
    seconds = best_seconds(
        {
            "preview": lambda: visitor.decoded(start, code, start.x_T, PREVIEW_STEPS),
            "full": lambda: visitor.decoded(start, code, start.x_T, FULL_STEPS),
        }
    )
    told = "reached" if seconds["preview"] < GOAL else "missed"
    print(f"  a slider moves: preview {seconds['preview']:.2f} s (goal below {GOAL:g} s: {told})")
    print(f"  the full picture after {seconds['preview'] + seconds['full']:.2f} s")
    if importlib.util.find_spec("gradio") is None:
        print("  start: not measured, gradio is not installed")
    else:
        print(f"  from the command to the open page: {start_seconds(source):.1f} s (goal below 10 s)")


def moved(world: World, z: Tensor) -> Tensor:
    """(1, D) of a code (D,) with one axis turned."""
    return (z + 2 * deviation(0, world.statistics()[1]))[None]


def start_seconds(source: str) -> float:
    """From the command to the line that says where the studio is."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "diti", "serve", source, "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        for line in server.stdout or ():
            if re.search("the studio is open", line):
                return time.perf_counter() - began
        return float("nan")
    finally:
        server.terminate()
        server.wait(PATIENCE)


if __name__ == "__main__":
    main(*sys.argv[1:2])
