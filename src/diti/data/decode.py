"""One picture of any kind → uint8 RGB at the wanted size. The only Pillow decoding in the package."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from diti.core.errors import InputError, nearest
from diti.data.source import Picture

Box = tuple[float, float, float, float]  # left, top, right, bottom, px


def centre_box(width: int, height: int) -> Box:
    """The largest centred square."""
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side


def celeba_box(width: int, height: int) -> Box:
    """The field's crop of aligned CelebA: 128 px around (89, 121). Other sizes are not aligned faces."""
    if (width, height) != (178, 218):
        return centre_box(width, height)
    return 25.0, 57.0, 153.0, 185.0


def lfw_box(width: int, height: int) -> Box:
    """LFW: resize to 1.1 times the wanted size and cut out the centre, i.e. the central 1/1.1."""
    left, top, right, bottom = centre_box(width, height)
    margin = (right - left) * (1 - 1 / 1.1) / 2
    return left + margin, top + margin, right - margin, bottom - margin


def whole_box(width: int, height: int) -> Box:
    """The whole picture, stretched to a square."""
    return 0.0, 0.0, float(width), float(height)


CROPS: dict[str, Callable[[int, int], Box]] = {
    "centre": centre_box,
    "celeba": celeba_box,
    "lfw": lfw_box,
    "whole": whole_box,
}


def check_crop(crop: str) -> None:
    """InputError for a crop that does not exist."""
    if crop not in CROPS:
        raise InputError(f"crop {crop!r} is unknown; use {', '.join(CROPS)}.{nearest(crop, CROPS)}")


class Unreadable(Exception):
    """This picture cannot be decoded; the message says why."""


def decode(picture: Picture, size: int, crop: str) -> np.ndarray:
    """uint8 (size, size, 3). Raises Unreadable for anything that is not a whole image."""
    with _opened(picture) as image:
        return _fit(image, size, crop)


def whole_picture(picture: Picture) -> Image.Image:
    """The picture in its own size, upright, RGB. Raises Unreadable for anything that is not a whole image."""
    with _opened(picture) as image:
        return to_rgb(ImageOps.exif_transpose(image))


def picture_size(picture: Picture) -> tuple[int, int]:
    """Width and height, px, from the header of the file. Raises Unreadable where it has none."""
    with _opened(picture) as image:
        return image.size


@contextmanager
def _opened(picture: Picture) -> Iterator[Image.Image]:
    """A picture of any kind; any error in the block becomes Unreadable."""
    if isinstance(picture, Exception):
        raise Unreadable(_reason(picture)) from picture
    reads_heif()
    try:
        if isinstance(picture, np.ndarray):
            yield Image.fromarray(picture)
            return
        if isinstance(picture, Path) and not picture.is_file() and picture.exists():
            raise OSError("not a regular file")  # reading a pipe would block
        with Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as image:
            yield image
    except UnidentifiedImageError:
        raise Unreadable("not an image that Pillow knows") from None
    except Exception as error:  # Pillow's decoders raise many kinds on broken files; one must never stop a run
        raise Unreadable(_reason(error)) from error


@cache
def reads_heif() -> bool:
    """Whether HEIC can be read: Pillow needs pillow-heif for it."""
    if find_spec("pillow_heif") is None:
        return False
    import pillow_heif

    pillow_heif.register_heif_opener()
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "file is missing"
    return (str(error) or type(error).__name__).splitlines()[0]


def _fit(image: Image.Image, size: int, crop: str) -> np.ndarray:
    """Crop and resize; the box is computed for the upright picture in its full size."""
    width, height = image.size
    _draft(image, size, crop)
    is_rotated = image.getexif().get(ExifTags.Base.Orientation, 1) != 1
    upright = to_rgb(ImageOps.exif_transpose(image) if is_rotated else image)
    if upright.size != image.size:  # rotated by 90 degrees: width and height are swapped
        width, height = height, width
    scale = (upright.size[0] / width, upright.size[1] / height)  # 1 unless drafted
    left, top, right, bottom = (round(e * scale[i % 2]) for i, e in enumerate(CROPS[crop](width, height)))
    # Cut before resampling: resize(box=...) would mix in pixels from outside the box.
    if (left, top, right, bottom) != (0, 0, *upright.size):
        upright = upright.crop((left, top, right, bottom))
    if upright.size != (size, size):
        upright = upright.resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(upright)


def _draft(image: Image.Image, size: int, crop: str) -> None:
    """Let the JPEG decoder skip detail of large photos, as long as twice the wanted size remains."""
    if image.format == "JPEG":
        left, top, right, bottom = CROPS[crop](*image.size)
        spare = min(right - left, bottom - top) / (2 * size)
        if spare >= 2:
            image.draft(image.mode, (int(image.size[0] / spare), int(image.size[1] / spare)))


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode as RGB: transparency over white, 16-bit and float scaled to the 8-bit range."""
    if image.mode == "RGB" and "transparency" not in image.info:
        image.load()
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_eight_bit(np.asarray(image))).convert("RGB")
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def _eight_bit(values: np.ndarray) -> np.ndarray:
    """Grey values of 16-bit integers, of 8-bit integers in a wide type, or of floats (0..1 or 0..255)."""
    if values.dtype.kind == "f":
        scale = 255.0 if np.nanmax(values) <= 1.0 else 1.0
    else:
        scale = 1 / 257 if values.dtype.itemsize == 2 or values.max() > 255 else 1.0
    return np.clip(np.rint(np.nan_to_num(values.astype(np.float64)) * scale), 0, 255).astype(np.uint8)


def decode_file(path: Path, size: int) -> np.ndarray:
    """`decode` of one file the user named: InputError instead of Unreadable."""
    try:
        return decode(path, size, "centre")
    except Unreadable as error:
        raise InputError(f"{path} cannot be read as an image: {error}") from None
