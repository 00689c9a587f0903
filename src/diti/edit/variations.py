"""New images from drawn codes, and variations of an image: the same code with other noise."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import grid, save_picture, to_float, to_uint8
from diti.core.progress import progress_bar
from diti.core.rng import torch_generator
from diti.data.decode import decode_file
from diti.diffusion.backbone import load_backbone
from diti.diffusion.files import locate
from diti.diffusion.generate import CALLS
from diti.diffusion.generate import save_samples as save_backbone_samples
from diti.diffusion.sampler import OnStep
from diti.representation.inputs import Images, as_batch
from diti.representation.latent import FOLDER as LATENT
from diti.representation.latent import Latent, load_latent
from diti.representation.model import DiTi, load_with_decoder

BATCH = 64  # images decoded at once
COLUMNS = 8  # of a picture with many images


def draw(
    model: DiTi, latent: Latent, count: int, seed: int = 0, calls: int = CALLS, *, on_step: OnStep | None = None
) -> Tensor:
    """(count, 3, H, W) images of nothing in the data: z drawn from the latent, x_T from noise."""
    if latent.dims != model.dims:
        raise InputError(f"the latent draws codes of {latent.dims} dims, the model has {model.dims}; use its own")
    require_count(model, count, calls)
    return decode_in_parts(model, latent.sample(count, seed), new_noise(model, count, seed), calls, on_step)


def vary(
    model: DiTi, image: Images, count: int, seed: int = 0, calls: int = CALLS, *, on_step: OnStep | None = None
) -> Tensor:
    """(count, 3, H, W) images with the z of one image, each from its own new x_T."""
    pixels = as_batch(image, model.size)
    if len(pixels) != 1:
        raise InputError(f"{len(pixels)} images were given; vary one at a time")
    require_count(model, count, calls)
    z = model.encode(pixels).expand(count, -1)
    return decode_in_parts(model, z, new_noise(model, count, seed), calls, on_step)


def new_noise(model: DiTi, count: int, seed: int) -> Tensor:
    """x_T (count, 3, H, W); the first images of a larger count are those of a smaller one."""
    shape = (3, model.size, model.size)
    return torch.stack([torch.randn(shape, generator=torch_generator(seed, "new-x_T", i)) for i in range(count)])


def decode_in_parts(model: DiTi, z: Tensor, x_T: Tensor, calls: int, on_step: OnStep | None) -> Tensor:
    """`model.decode` with bounded memory."""
    parts = zip(z.split(BATCH), x_T.split(BATCH), strict=True)
    return torch.cat([model.decode(codes, noise, calls, on_step=on_step) for codes, noise in parts])


def require_count(model: DiTi, count: int, calls: int) -> None:
    """InputError unless there is something to draw and the schedule has so many steps."""
    if count < 1 or not 1 <= calls <= model.backbone.timesteps:
        raise InputError(
            f"{count} images with {calls} calls; use 1 image or more and 1 to {model.backbone.timesteps} calls"
        )


def save_samples(source: str | Path, count: int, out: Path, *, seed: int = 0, calls: int = CALLS) -> list[str]:
    """`diti sample`: through the latent of a model that has one, else from the backbone; what to print."""
    folder = locate(source)
    if (folder / LATENT / "config.json").is_file():
        return [f"wrote {save_new_images(folder, count, seed, calls, out)}: z drawn anew, then decoded"]
    if (folder / "encoder").is_dir() and not (folder / "unet").is_dir():
        load_with_decoder(folder)  # says that this model cannot
    lines = [f"wrote {save_backbone_samples(load_backbone(folder), count, seed, calls, out)}"]
    if (folder / "encoder").is_dir():
        lines.append(f"drawn by the backbone alone; for new z run: diti train-latent {source} --data DATA")
    return lines


def save_new_images(
    source: str | Path, count: int, seed: int = 0, calls: int = CALLS, out: Path = Path("samples.png")
) -> Path:
    """`diti sample` of a model: new images as one picture."""
    folder = locate(source)
    model, latent = load_with_decoder(folder), load_latent(folder)
    with progress_bar("drawing", calls * -(-count // BATCH), unit="steps") as advance:
        images = draw(model, latent, count, seed, calls, on_step=lambda index, total, x: advance())
    return save_picture(grid(to_uint8(images), min(COLUMNS, count)), out)


def save_variations(
    source: str | Path, image: Path, count: int, out: Path, *, seed: int = 0, calls: int = CALLS
) -> Path:
    """`diti vary`: the original, its reconstruction with inferred x_T, then variations, as one picture."""
    model = load_with_decoder(source)
    original = to_float(decode_file(image, model.size)[None])
    with progress_bar("varying", calls * (2 + -(-count // BATCH)), unit="steps") as advance:

        def on_step(index: int, total: int, x: Tensor) -> None:
            advance()

        varied = vary(model, original, count, seed, calls, on_step=on_step)
        z = model.encode(original)
        x_T = model.infer_noise(original, z, calls, on_step=on_step)
        rebuilt = model.decode(z, x_T, calls, clamp=False, on_step=on_step)
    captions = ["original", "its own x_T", *(f"new x_T {i + 1}" for i in range(count))]
    pictures = to_uint8(torch.cat([original, rebuilt, varied]))
    return save_picture(grid(pictures, min(COLUMNS, count + 2), captions=captions), out)
