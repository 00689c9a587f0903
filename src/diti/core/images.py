"""The only uint8 ↔ [-1, 1] conversion, captioned grids of images, and pictures signed by diti."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from diti.core.errors import InputError
from diti.core.runs import atomic_path

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

ValueRange: TypeAlias = tuple[float, float]  # lowest and highest value of a pixel
MODEL_RANGE: ValueRange = (-1.0, 1.0)
PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF"}
LARGEST = {"JPEG": 65_500, "WEBP": 16_383}  # px per side, for the formats that have a limit
SOFTWARE, SIGNATURE = 0x0131, "diti"  # EXIF's tag for the program that made a picture
_INK, _PAPER, _GAP, _FONT_SIZE = (40, 40, 46), (255, 255, 255), 2, 13


def to_float(images: np.ndarray) -> torch.Tensor:
    """uint8 (N, H, W, 3) in 0..255 → float32 (N, 3, H, W) in [-1, 1]."""
    import torch

    if images.dtype != np.uint8:
        raise TypeError(f"to_float takes uint8 pixels, got {images.dtype}")
    images = images if images.flags.writeable else images.copy()  # torch has no read-only tensors
    return torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32).div_(127.5).sub_(1.0)


def check_value_range(value_range: object) -> ValueRange:
    """Both ends of a range; InputError for anything else."""
    ends = value_range if isinstance(value_range, tuple | list) and len(value_range) == 2 else (math.nan, math.nan)
    low, high = (float(end) if isinstance(end, int | float) else math.nan for end in ends)
    if not -math.inf < low < high < math.inf:
        raise InputError(
            f"value_range is {value_range!r}; give the lowest and the highest value of a pixel, such as (0, 1), "
            "(-1, 1) or (0, 255)"
        )
    return low, high


def in_model_range(images: torch.Tensor, value_range: ValueRange) -> torch.Tensor:
    """Floats of that range → [-1, 1]."""
    low, high = check_value_range(value_range)
    return images if (low, high) == MODEL_RANGE else images.float().sub(low).div((high - low) / 2).sub(1.0)


def to_uint8(images: torch.Tensor) -> np.ndarray:
    """float (N, 3, H, W) in [-1, 1] → uint8 (N, H, W, 3); values outside are clamped, the rest rounded."""
    import torch

    if not bool(torch.isfinite(images).all()):
        raise InputError(
            "the images contain numbers that are not finite, and are not written; use smaller scales, or a "
            "model whose training did not diverge"
        )
    pixels = images.detach().float().add(1.0).mul(127.5).round_().clamp_(0, 255)
    return pixels.to(torch.uint8).permute(0, 2, 3, 1).contiguous().cpu().numpy()


def grid(
    images: np.ndarray | torch.Tensor,
    columns: int,
    *,
    captions: Sequence[str] = (),
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    title: str = "",
    scale: int = 0,
    value_range: ValueRange = MODEL_RANGE,
) -> Image.Image:
    """uint8 (N, H, W, 3) as one picture, filled row by row, with a caption below each image where given.

    Float images (N, 3, H, W) in [-1, 1], as models give them, work too, and other ranges with `value_range`.
    `scale` enlarges every pixel to scale×scale; 0 picks it so that an image is about 96 px wide.

        diti.grid(model.reconstruct(images), columns=8)
    """
    pixels = _as_pixels(images, value_range)
    if columns < 1:
        raise InputError(f"columns is {columns}; give 1 or more")
    count, height, width, _ = pixels.shape
    scale = scale or max(1, round(96 / width))
    font = ImageFont.load_default(_FONT_SIZE)
    line = _FONT_SIZE + 7
    left = max((int(font.getlength(label)) + 10 for label in row_labels), default=0)
    top = line * (bool(title) + bool(column_labels))
    step_x, step_y = width * scale + _GAP, height * scale + _GAP + line * bool(captions)
    size = (left + columns * step_x - _GAP, top + -(-count // columns) * step_y - _GAP)
    sheet = Image.new("RGB", (max(size[0], int(font.getlength(title))), size[1]), _PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((left, 2), title, _INK, font)
    for column, label in enumerate(column_labels):
        draw.text((left + column * step_x + width * scale / 2, top - line + 2), label, _INK, font, anchor="ma")
    for row, label in enumerate(row_labels):
        draw.text((left - 6, top + row * step_y + height * scale / 2), label, _INK, font, anchor="rm")
    for index, image in enumerate(pixels):
        x, y = left + index % columns * step_x, top + index // columns * step_y
        enlarged = Image.fromarray(image).resize((width * scale, height * scale), Image.Resampling.NEAREST)
        sheet.paste(enlarged, (x, y))
        if captions:
            below = (x + width * scale / 2, y + height * scale + 2)
            draw.text(below, captions[index], _INK, font, anchor="ma")
    return sheet


def _as_pixels(images: np.ndarray | torch.Tensor, value_range: ValueRange) -> np.ndarray:
    """uint8 (N, H, W, 3) of images in either form; InputError for anything else."""
    if images.ndim == 4 and len(images) > 0:
        if isinstance(images, np.ndarray):
            if images.dtype == np.uint8 and images.shape[3] == 3:
                return images
        elif images.is_floating_point() and images.shape[1] == 3:
            return to_uint8(in_model_range(images, value_range))
    raise InputError(
        f"images are {images.dtype} of shape {tuple(images.shape)}; give uint8 (N, H, W, 3), or a tensor "
        "of floats (N, 3, H, W) in [-1, 1]"
    )


def save_picture(picture: Image.Image, path: Path) -> Path:
    """Write a picture, of the kind given by the name's ending, under a temporary name and rename it."""
    kind = picture_kind(path)
    if max(picture.size) > LARGEST.get(kind, max(picture.size)):
        width, height = picture.size
        raise InputError(
            f"{path} would be {width}×{height} px, too large for {kind}; name a .png, or draw fewer images"
        )
    with atomic_path(path) as temporary:
        picture.save(temporary, format=kind, exif=signature())
    return path


def picture_kind(path: Path) -> str:
    """PNG, JPEG, WEBP or TIFF by the ending of the name."""
    if path.is_dir():
        raise InputError(f"--out {path} is a folder; name a file such as {path / 'faces.png'}")
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"--out {path} does not end in {', '.join(PICTURES)}; name a picture such as faces.png")
    return PICTURES[path.suffix.lower()]


def signature() -> Image.Exif:
    """To be saved with a picture, to tell it from pictures of other programs."""
    exif = Image.Exif()
    exif[SOFTWARE] = SIGNATURE
    return exif


def is_signed(path: Path) -> bool:
    """Whether `save_picture`, `save_figure` or an animation of ours wrote this file."""
    with Image.open(path) as picture:
        return picture.getexif().get(SOFTWARE) == SIGNATURE or picture.info.get("comment") == SIGNATURE.encode()


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a matplotlib figure as a PNG under a temporary name and rename it."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130, pil_kwargs={"exif": signature()})
    return path
