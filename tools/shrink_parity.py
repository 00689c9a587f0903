"""Shrink the authors' numbers to the fixture that the repository holds: `python tools/shrink_parity.py PARITY`.

PARITY is the large folder (../shared/parity); the result, under 1 MB, replaces tests/interop/parity. Run
tests/interop afterwards: it compares the two.

Two of the images stay. The weights, 12 MB, were drawn by torch's CPU generator from seed 0: where in its stream
each tensor begins is all that has to be kept, and tests/parity.py draws them again with NumPy. Three networks were
made one after the other (U-Net, decoder, encoder), uniformly as torch makes layers, last layers zero; then every
weight got normal noise in the same order; then the decoder took over the weights of the U-Net.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

TARGET = Path(__file__).resolve().parents[1] / "tests" / "interop" / "parity"
ROWS = [0, 2]  # of four images: t = 0, where one subset is seen, and t = 512
ZERO_LAYERS = ("out_layers.3", "proj_out", "out.2")  # these start at zero
FEWEST = 16  # torch draws fewer numbers than this in another way: these few are kept as they are


class Stream:
    """A place in torch's stream of random words; every number but those of small tensors takes one."""

    def __init__(self) -> None:
        self.place = 0
        self.spare = False  # a small tensor takes its numbers in pairs of four words, and may leave one behind

    def take(self, count: int) -> int:
        start, self.place = self.place, self.place + count
        return start

    def take_few(self, count: int) -> None:
        pairs, left = divmod(count - self.spare, 2)
        self.take(4 * (pairs + left))
        self.spare = bool(left)


def main(source: Path) -> None:
    tiny = source / "pdae_tiny"
    TARGET.mkdir(exist_ok=True)
    unet = torch.load(tiny / "ddpm_checkpoint.pt", weights_only=True)["ema_denoise_fn"]
    trained = torch.load(tiny / "diti_checkpoint.pt", weights_only=True)
    networks = {"unet": unet, "decoder": trained["ema_decoder"], "encoder": trained["ema_encoder"]}
    places = places_of(networks)
    places["decoder"] = {name: place for name, place in places["decoder"].items() if name not in unet}
    lines = [
        f'"{network}": {{\n' + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in tensors.items()) + "\n}"
        for network, tensors in places.items()
    ]
    (TARGET / "weights.json").write_text(f'{{"step": {trained["step"]},\n' + ",\n".join(lines) + "}\n")
    torch.save(fewer(torch.load(tiny / "expected.pt", weights_only=True)), TARGET / "expected.pt")
    for file in (tiny / "ddpm_config.yml", source / "staged_ends.json"):
        shutil.copyfile(file, TARGET / file.name)


def places_of(networks: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Any]]:
    """For each tensor its shape, where its uniform numbers begin or what fills it, and where its noise begins."""
    stream = Stream()
    places: dict[str, dict[str, Any]] = {network: {} for network in networks}
    for network, state in networks.items():
        for name, tensor in state.items():
            place: dict[str, Any] = {"shape": list(tensor.shape)}
            weight = state[name.rpartition(".")[0] + ".weight"]
            if weight.ndim == 1:  # of a norm
                place["filled"] = int(name.endswith(".weight"))
            else:
                start = stream.take(tensor.numel())
                if any(layer in name for layer in ZERO_LAYERS):
                    place["filled"] = 0
                else:
                    place |= {"uniform_from": start, "fan_in": weight[0].numel()}
            places[network][name] = place
    for network, state in networks.items():
        for name, tensor in state.items():
            if tensor.numel() < FEWEST:
                stream.take_few(tensor.numel())
                places[network][name] = {"values": tensor.tolist()}
            else:
                places[network][name]["normal_from"] = stream.take(tensor.numel())
    return places


def fewer(expected: dict[str, Any]) -> dict[str, Any]:
    """Two images of the four, and every table; what is the same twice is stored once."""
    images = len(expected["x0"])
    kept: dict[str, Any] = {}
    for name, value in expected.items():
        per_image = isinstance(value, Tensor) and len(value) == images
        part = value[ROWS].clone() if per_image else value
        same = (
            v for v in kept.values() if isinstance(v, Tensor) and isinstance(part, Tensor) and torch.equal(v, part)
        )
        kept[name] = next(same, part)
    return kept


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
