"""What the tests of all readers need: pictures to write, and what a reader must be able to do."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diti.core.errors import InputError
from diti.data.source import Picture, Read, ReadOptions, Source

Open = Callable[[Path, ReadOptions], Source]


def refused(open_source: Open, path: Path, words: str, **options: object) -> None:
    with pytest.raises(InputError, match=words):
        open_source(path, ReadOptions(**options))


def encoded(colour: tuple[int, int, int], size: tuple[int, int] = (4, 4)) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", size, colour).save(data, "png")
    return data.getvalue()


def colour_of(picture: Picture) -> tuple[int, ...]:
    assert isinstance(picture, bytes)
    with Image.open(io.BytesIO(picture)) as image:
        return tuple(np.asarray(image.convert("RGB"))[0, 0].tolist())


def size_of(picture: Picture) -> tuple[int, int]:
    with Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as image:
        return image.size


def shows(picture: Picture, colour: tuple[int, int, int]) -> bool:
    """Whether a file holds an image of this colour, as JPEG keeps it."""
    assert isinstance(picture, Path)
    with Image.open(picture) as image:
        return bool(np.abs(np.asarray(image, int) - colour).max() <= 3)


def listed(read: Read, rows: list[int]) -> list[Picture]:
    return list(read(rows))


def read_elsewhere(read: Read, rows: list[int]) -> list[Picture]:
    """The reader is pickled, starts afresh in another process, and finds the same pictures there."""
    assert pickle.loads(pickle.dumps(read)) == read
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pictures = pool.submit(listed, read, rows).result()
    for here, there in zip(read(rows), pictures, strict=True):
        np.testing.assert_array_equal(here, there)
    return pictures
