"""`python tools/halve.py MODEL OUT`: copy a model folder with its weights as float16, to ship it in half the size.

They load as float32. A trunk of the encoder that is the backbone's own is stored with that alone. Statistics of z
stay as they are; what the run learned and measured is left out. Pictures keep 256 colours.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from diti.diffusion.files import read_weights
from diti.representation.networks.encoder import TRUNK

LEFT_OUT = shutil.ignore_patterns("measured", "attributes", "state", "tensorboard", "*.lock", ".*")


COLOURS = 256


def halve(model: Path, out: Path) -> None:
    """Copy, then store the weights of its networks and its pictures anew."""
    shutil.copytree(model, out, ignore=LEFT_OUT)
    for file in out.glob("*.png"):
        with Image.open(file) as picture:
            few, signed = picture.convert("RGB").quantize(COLOURS), picture.getexif()
        few.save(file, optimize=True, exif=signed)
    for file in out.glob("*/*.safetensors"):
        weights = {name: _half(tensor) for name, tensor in load_file(file).items()}
        save_file(weights, file, metadata={"format": "pt"})
    if (encoder := out / "encoder" / "model.safetensors").is_file():
        save_file(_without_copies(load_file(encoder), read_weights(out / "unet")), encoder)


def _half(tensor: torch.Tensor) -> torch.Tensor:
    stored = tensor.half() if tensor.is_floating_point() else tensor
    if not bool(stored.isfinite().all()):
        raise SystemExit("a weight is too large for float16; ship this model as it is")
    return stored.contiguous()


def _without_copies(encoder: dict[str, torch.Tensor], unet: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights without the trunk, if that is the U-Net's; one that was trained on stays."""
    trunk = {name.removeprefix(TRUNK): tensor for name, tensor in encoder.items() if name.startswith(TRUNK)}
    if not all(name in unet and torch.equal(tensor, unet[name]) for name, tensor in trunk.items()):
        return encoder
    return {name: tensor for name, tensor in encoder.items() if not name.startswith(TRUNK)}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    halve(Path(sys.argv[1]), Path(sys.argv[2]))
