"""What solving, training, encoding and editing cost on GPUs, computed: nothing here was run on one.

`python -m benchmarks cost` counts the floating-point operations of one image with torch.utils.flop_counter, on
tensors without contents, for networks of the presets' shapes, and the bytes of weights, states and gradients. Time
follows from an assumed speed, which is printed; of eight GPUs only adding up gradients takes more than that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from diti.config import SAMPLING_STEPS, BackboneConfig, EncoderConfig, SolveConfig
from diti.core.device import FULL, PRECISION
from diti.diffusion.unet import build_backbone
from diti.representation.networks.encoder import Encoder, build_encoder
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.solve.collect import MOST_IMAGES

SPEED = 60e12  # operations per second that a GPU is assumed to reach: a fifth of an A100's 312e12 in bf16
LINK = 100e9  # bytes per second that it is assumed to send gradients with, to the next GPU
NOWHERE = "meta"  # tensors there have a shape and no contents
DIMS, BATCH, GPUS, MILLION = 128, 128, 8, 1_000_000
SHAPES = {  # widths as the presets celeba64 and ffhq128, and as google/ddpm-celebahq-256
    64: BackboneConfig(size=64, channels=(64, 128, 256, 512), layers=2, attention=(16,), head_channels=64),
    128: BackboneConfig(size=128, channels=(128, 128, 256, 384, 512), layers=2, attention=(16,), head_channels=64),
    256: BackboneConfig(
        size=256, channels=(128, 128, 256, 256, 512, 512), layers=2, attention=(16,), head_channels=64
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Counted:
    """Operations of one image, and bytes; a multiplication and an addition are two operations."""

    size: int  # side of the images, px
    frozen: float  # of the frozen network, forward
    encode: float  # of the encoder
    decode: float  # of the decoder with the frozen network in it
    train: float  # of a step of training: encoder and decoder, forward and backward
    activations: int  # bytes that the backward pass of one image needs, in float32
    state: int  # bytes of weights, their average, gradients and Adam's moments
    gradients: int  # bytes that processes add up in each step


def count(shape: BackboneConfig) -> Counted:
    """For a DiTi over a frozen network of this shape, with a decoder of its own."""
    backbone = build_backbone(shape, seed=0)
    encoder, decoder = build_encoder(EncoderConfig(code_dim=DIMS), backbone, 0), ShiftDecoder(backbone, DIMS)
    learned = {id(p): p for network in (encoder, decoder) for p in network.parameters() if p.requires_grad}
    weights = 4 * sum(p.numel() for p in learned.values())
    frozen = 4 * sum(p.numel() for p in backbone.parameters())
    for network in (backbone, encoder, decoder):
        network.to(NOWHERE)
    x = torch.zeros(1, 3, shape.size, shape.size, device=NOWHERE)
    t, z = torch.zeros(1, dtype=torch.long, device=NOWHERE), torch.zeros(1, DIMS, device=NOWHERE)
    with torch.no_grad():
        forward = operations(lambda: backbone(x, t)), operations(lambda: encoder(x))
        decode = operations(lambda: decoder(x, t, z))
    saved = Saved()
    with torch.autograd.graph.saved_tensors_hooks(saved.note, lambda tensor: tensor):
        train = operations(lambda: step(encoder, decoder, x, t))
    return Counted(shape.size, *forward, decode, train, saved.bytes, frozen + 5 * weights, weights)


def operations(work: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def step(encoder: Encoder, decoder: ShiftDecoder, x: Tensor, t: Tensor) -> None:
    """Forward and backward for one image."""
    found = decoder(x, t, encoder(x))
    found.g.sum().backward()


class Saved:
    """Bytes of the tensors kept for the backward pass, each once."""

    def __init__(self) -> None:
        self.bytes, self.seen = 0, set[int]()

    def note(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, torch.nn.Parameter) and storage._cdata not in self.seen:
            self.seen.add(storage._cdata)
            self.bytes += storage.nbytes()
        return tensor


def hours(work: float, counted: Counted, gpus: int, steps: float = 0) -> float:
    """Of so many operations, and steps after which gradients are added up, around a ring."""
    sending = steps * 2 * (gpus - 1) / gpus * counted.gradients / LINK
    return (work / gpus / SPEED + sending) / 3600


def costs(counted: Counted) -> dict[str, tuple[float, float]]:
    """Work → its operations, and its steps."""
    stretches = SolveConfig().solution.stretches
    return {
        f"solve, {MOST_IMAGES:,} images × {stretches} stretches": (
            MOST_IMAGES * (stretches * counted.frozen + counted.encode), 0,
        ),
        "train, 1,000,000 images seen": (MILLION * counted.train, MILLION / BATCH),
        "encode 1,000,000 images": (MILLION * counted.encode, 0),
        f"edit 1,000 images, {SAMPLING_STEPS} steps there and back; a command for each GPU": (
            1_000 * (2 * SAMPLING_STEPS * counted.decode + counted.encode), 0,
        ),
    }  # fmt: skip


def main() -> None:
    os.environ.setdefault(PRECISION, FULL)  # such tensors have no device that could be asked for bf16
    found = [count(shape) for shape in SHAPES.values()]
    print(f"computed, never measured: at {SPEED / 1e12:.0f} TFLOP/s a GPU, {LINK / 1e9:.0f} GB/s between GPUs\n")
    print("| work | " + " | ".join(f"{one.size} px: TFLOP, 1 GPU, {GPUS} GPUs" for one in found) + " |")
    print("| --- " * (len(found) + 1) + "|")
    for name in costs(found[0]):
        cells = []
        for one in found:
            work, steps = costs(one)[name]
            times = ", ".join(told(hours(work, one, gpus, steps)) for gpus in (1, GPUS))
            cells.append(f"{work / 1e12:,.0f}, {times}")
        print(f"| {name} | " + " | ".join(cells) + " |")
    cells = [f"{one.state / 1e9:.1f} GB, {one.activations / 1e6:,.0f} MB" for one in found]
    print("| memory to train: weights and states; for each image of a GPU's share | " + " | ".join(cells) + " |")


def told(time: float) -> str:
    """Hours, minutes or seconds."""
    if time >= 1:
        return f"{time:.1f} h"
    return f"{60 * time:.1f} min" if time >= 1 / 60 else f"{3600 * time:.1f} s"


if __name__ == "__main__":
    main()
