"""`diti mix`: the fine details of one image with the coarse features of another.

Notation: D dims of z.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from diti.core.images import grid, picture_kind, save_picture, to_uint8
from diti.core.outputs import require_writable
from diti.core.progress import progress_bar
from diti.edit.interpolate import cut_of
from diti.edit.invert import Inverted
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.inputs import as_batch, read_images
from diti.representation.models.loading import load_with_decoder
from diti.representation.partition import THIRDS, Partition

IMAGES = ("A", "B")


def mixed_code(z: Tensor, partition: Partition, sources: Mapping[str, str]) -> Tensor:
    """(D,) of codes z (2, D): each third of the subsets from the image that `sources` names, A or B."""
    code = z[0].clone()
    for third in THIRDS:
        owned = [(partition.third(k) == third, partition.dims_of(k)) for k in range(partition.subsets)]
        mask = torch.tensor([inside for inside, dims in owned for _ in dims])
        code = torch.where(mask, z[IMAGES.index(sources[third])], code)
    return code


def mix(
    model: DecodingModel, pixels: Tensor, sources: Mapping[str, str], sampling_steps: int, progress: bool = False
) -> Tensor:
    """(3, H, W) from images A and B (2, 3, H, W), with the noise of the image that gives the fine details."""
    partition, _ = cut_of(model, None)
    steps = model.steps_of(2, sampling_steps) + model.steps_of(1, sampling_steps)
    with progress_bar("mixing", steps, unit="steps", shown=progress) as advance:
        start = Inverted.of(model, pixels, sampling_steps, on_step=lambda index, total, x: advance())
        noise = start.x_T[IMAGES.index(sources["early"])][None]
        code = mixed_code(start.z, partition, sources)[None]
        return start.shown(code, noise, lambda index, total, x: advance())[0]


def mix_files(
    source: str,
    first: str,
    second: str,
    sources: Mapping[str, str],
    out: Path,
    *,
    sampling_steps: int,
    overwrite: bool,
) -> list[str]:
    """Draw A, B and the mix of two image files side by side; returns what to print."""
    picture_kind(out)
    require_writable({"--out": [out]}, [first, second], overwrite=overwrite)
    model = load_with_decoder(source)
    model.validate_sampling_steps(sampling_steps)
    (a, b), lines = read_images((first, second), model.size)
    pixels = as_batch([a, b], model.size)
    drawn = mix(model, pixels, sources, sampling_steps, progress=True)
    told = ", ".join(f"{level} of {sources[third]}" for level, third in (("fine", "early"), ("coarse", "late")))
    picture = grid(to_uint8(torch.cat([pixels, drawn[None]])), 3, column_labels=["A", "B", told])
    return [*lines, f"wrote {save_picture(picture, out)}"]
