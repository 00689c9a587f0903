"""New images from drawn codes, and variations of an image: the same code with other noise."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from diti.core.device import AUTO, Device
from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, ValueRange, grid, picture_kind, save_picture, to_float, to_uint8
from diti.core.outputs import require_writable
from diti.core.progress import progress_bar
from diti.diffusion.backbone import holds_backbone, is_code, load_backbone
from diti.diffusion.files import locate
from diti.diffusion.generate import SAMPLING_STEPS, require_count
from diti.diffusion.generate import save_samples as save_backbone_samples
from diti.diffusion.sampler import OnStep
from diti.edit.invert import Inverted
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.direct import DirectModel
from diti.representation.models.inputs import Images, as_batch, read_images
from diti.representation.models.latent import how_to_make, load_latent
from diti.representation.models.loading import as_model, load_with_decoder
from diti.representation.models.model import Model
from diti.representation.networks.latent import FOLDER as LATENT

COLUMNS = 8  # of a picture with many images


class Codes(Protocol):
    """Where new codes come from: a latent that was trained on a model's codes, or a prior."""

    @property
    def dims(self) -> int: ...

    def sample(self, count: int, seed: int) -> Tensor: ...


def sample(
    model: Model | str | Path,
    count: int = 16,
    seed: int = 0,
    sampling_steps: int = SAMPLING_STEPS,
    *,
    codes: Codes | None = None,
    device: Device = AUTO,
) -> Tensor:
    """(count, 3, H, W) new images of a model, or of the model in a folder: `diti sample` from Python.

    Codes come from what `diti train-latent` learned and kept in the folder, or from the prior of a model that has
    one. codes: draw them from this instead, whose `sample(count, seed)` gives (count, D).
    device: where to compute, such as "cuda:1"; the images come back on the CPU.

        faces = diti.sample("runs/model", 8)
    """
    if isinstance(model, Model):
        able = as_model(model, device).with_decoder()
        codes = own_codes(able) if codes is None else codes
    else:
        able = load_with_decoder(model, device)
        codes = new_codes(able, locate(model)) if codes is None else codes
    return draw(able, codes, count, seed, sampling_steps)


def own_codes(model: DecodingModel) -> Codes:
    """The prior of a model that has one; a latent lies in a folder, which a model does not know."""
    if isinstance(model, DirectModel):
        return model.prior
    raise InputError(f"a {model.method} model draws new codes with the latent in its folder; give the folder")


def draw(
    model: DecodingModel,
    codes: Codes,
    count: int,
    seed: int = 0,
    sampling_steps: int = SAMPLING_STEPS,
    *,
    on_step: OnStep | None = None,
) -> Tensor:
    """(count, 3, H, W) new images: both the code and the noise are drawn."""
    if codes.dims != model.dims:
        raise InputError(f"the latent draws codes of {codes.dims} dims, the model has {model.dims}; use its own")
    require_count(count)
    model.validate_sampling_steps(sampling_steps)
    z, noise = codes.sample(count, seed), model.new_noise(count, seed)
    return model.decode(z, noise, sampling_steps, on_step=on_step).cpu()


def vary(
    model: Model | str | Path,
    image: Images,
    count: int = 8,
    seed: int = 0,
    sampling_steps: int = SAMPLING_STEPS,
    *,
    on_step: OnStep | None = None,
    value_range: ValueRange | None = None,
    device: Device = AUTO,
) -> Tensor:
    """(count, 3, H, W) images with the z of one image, each from its own new noise.

    value_range: of a float image, as in `Model.encode`. device: as in `sample`.

    faces = diti.vary("faces64-diti", "a.png", 8)
    """
    model = as_model(model, device).with_decoder()
    pixels = as_batch(image, model.size, value_range)
    if len(pixels) != 1:
        raise InputError(f"{len(pixels)} images were given; vary one at a time")
    require_noise(model)
    require_count(count)
    model.validate_sampling_steps(sampling_steps)
    z = model.encode(pixels, value_range=MODEL_RANGE).expand(count, -1)
    return model.decode(z, model.new_noise(count, seed), sampling_steps, on_step=on_step).cpu()


def require_noise(model: DecodingModel) -> None:
    """InputError for a model that draws only one image from a code."""
    if not model.has_noise:
        raise InputError(f"a {model.method} model draws one image from a code: there is nothing to vary")


def save_samples(
    source: str | Path,
    count: int,
    out: Path,
    *,
    seed: int = 0,
    sampling_steps: int = SAMPLING_STEPS,
    overwrite: bool = False,
) -> list[str]:
    """`diti sample`: from a model with new codes where it can draw some, else from its backbone; what to print."""
    check_picture(count, out, overwrite=overwrite)
    if is_code(source):
        return [f"wrote {save_backbone_samples(load_backbone(source), count, seed, sampling_steps, out)}"]
    folder = locate(source)
    if holds_backbone(folder) and not (folder / LATENT / "config.json").is_file():
        lines = [f"wrote {save_backbone_samples(load_backbone(folder), count, seed, sampling_steps, out)}"]
        if (folder / "encoder").is_dir():
            lines.append(f"drawn by the backbone alone; for new z run: {how_to_make(folder)}")
        return lines
    return [f"wrote {save_new_images(folder, count, seed, sampling_steps, out)}: newly drawn z, decoded"]


def check_picture(count: int, out: Path, *inputs: Path, overwrite: bool) -> None:
    """InputError for a number of images that cannot be drawn, or a picture that cannot be written."""
    require_count(count)
    picture_kind(out)
    require_writable({"--out": [out]}, inputs, overwrite=overwrite)


def save_new_images(
    source: str | Path,
    count: int,
    seed: int = 0,
    sampling_steps: int = SAMPLING_STEPS,
    out: Path = Path("samples.png"),
) -> Path:
    """`diti sample` of a model: new images as one picture."""
    folder = locate(source)
    model = load_with_decoder(folder)
    codes = new_codes(model, folder)
    model.validate_sampling_steps(sampling_steps)
    with progress_bar("drawing", model.steps_of(count, sampling_steps), unit="steps") as advance:
        images = draw(model, codes, count, seed, sampling_steps, on_step=lambda index, total, x: advance())
    return save_picture(grid(to_uint8(images), min(COLUMNS, count)), out)


def new_codes(model: DecodingModel, folder: Path) -> Codes:
    """The latent of the model folder, or the prior of a model that has one and no latent."""
    if isinstance(model, DirectModel) and not (folder / LATENT).is_dir():
        return model.prior
    return load_latent(folder).to(model.device)


def save_variations(
    source: str | Path,
    image: Path,
    count: int,
    out: Path,
    *,
    seed: int = 0,
    sampling_steps: int = SAMPLING_STEPS,
    overwrite: bool = False,
) -> list[str]:
    """`diti vary`: the original, its reconstruction with its own noise, then variations; what to print."""
    check_picture(count, out, image, overwrite=overwrite)
    model = load_with_decoder(source)
    (pixels,), lines = read_images([image], model.size)
    original = to_float(pixels[None])
    require_noise(model)
    model.validate_sampling_steps(sampling_steps)
    steps = 2 * model.steps_of(1, sampling_steps) + model.steps_of(count, sampling_steps)
    with progress_bar("varying", steps, unit="steps") as advance:

        def on_step(index: int, total: int, x: Tensor) -> None:
            advance()

        varied = vary(model, original, count, seed, sampling_steps, on_step=on_step, value_range=MODEL_RANGE)
        own = Inverted.of(model, original, sampling_steps, on_step=on_step)
        rebuilt = own.decode(own.z, own.x_T, on_step)
    captions = ["original", "its own noise", *(f"new noise {i + 1}" for i in range(count))]
    pictures = to_uint8(torch.cat([original, rebuilt, varied]))
    sheet = grid(pictures, min(COLUMNS, count + 2), captions=captions)
    return [*lines, f"wrote {save_picture(sheet, out)}"]
