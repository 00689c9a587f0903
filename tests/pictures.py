"""Pictures for tests, told apart by their colour."""

from __future__ import annotations

import numpy as np
from PIL import Image


def picture(index: int, width: int = 40, height: int = 40) -> Image.Image:
    """A picture whose colour tells its index."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:] = (index * 37 % 256, index * 91 % 256, index % 256)
    return Image.fromarray(pixels)
