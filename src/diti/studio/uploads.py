"""Pictures that visitors give: limited in bytes and in pixels before they are decoded, and kept in memory alone.

The page sends the contents of a file and nothing else: no name, no path. So there is nothing to open.
"""

from __future__ import annotations

import base64
import binascii
import re
import warnings
from typing import Any

import numpy as np
from PIL import Image

from diti.core.errors import InputError
from diti.data.decode import Unreadable, decode, picture_size, whole_picture
from diti.studio.framing import Framing

MOST_BYTES = 8 * 2**20  # of a file
MOST_PIXELS = 24_000_000  # a photo of a good phone
BEGINNINGS = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"RIFF", b"GIF8", b"BM")  # PNG, JPEG, WebP, GIF, BMP
NO_PICTURE = (
    "This file cannot be read as a picture; it may be damaged, or of another kind than its name says. Please "
    "choose a PNG, JPEG or WebP."
)
_DATA_URL = re.compile(r"data:[\w./+-]{0,100};base64,")


def read_upload(sent: Any, size: int, framing: Framing | None = None) -> np.ndarray:
    """uint8 (size, size, 3) of what the page sent; InputError with a friendly line for anything but a picture.

    framing: how the model's pictures show a face, which is then found, cut out and turned; without it the central
    square is taken.
    """
    return decoded(contents(sent), size, framing)


def contents(sent: Any) -> bytes:
    """The bytes of the file, of a data URL."""
    if not isinstance(sent, dict) or not isinstance(sent.get("data", ""), str):
        raise InputError("This was not an upload; please choose a picture.")
    url = sent.get("data", "")
    if not url or len(url) > MOST_BYTES * 4 / 3 + 200:  # the page sends no contents of a file that is too large
        raise InputError(f"This file is too large; please choose a picture of at most {MOST_BYTES // 2**20} MB.")
    head = _DATA_URL.match(url)
    try:
        return base64.b64decode(url[head.end() :], validate=True) if head else b""
    except (binascii.Error, ValueError):
        return b""


def decoded(data: bytes, size: int, framing: Framing | None = None) -> np.ndarray:
    """uint8 (size, size, 3): its head is read first, and only a picture of acceptable size is decoded.

    Pillow knows many more kinds of files, some of which it hands to other programs; those are not opened.
    """
    if not data.startswith(BEGINNINGS):
        raise InputError(NO_PICTURE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # we say it ourselves
            width, height = picture_size(data)
        if width * height > MOST_PIXELS:
            raise InputError(
                f"This picture has {width * height / 1e6:,.0f} megapixels ({width:,}×{height:,}); please choose "
                f"one of at most {MOST_PIXELS / 1e6:.0f}."
            )
        return framing.cut(whole_picture(data), size) if framing else decode(data, size, "centre")
    except Unreadable as error:
        if "decompression bomb" in str(error):  # Pillow's own limit, met while the head is read
            most = f"{MOST_PIXELS / 1e6:.0f} megapixels"
            raise InputError(f"This picture has far too many pixels; at most {most} can be read.") from None
        raise InputError(NO_PICTURE) from None
