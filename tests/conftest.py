"""Shared by all tests: real images on disk, the folder of real data, and the command line as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pytest
from parity import write_large_layout
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the user's cache."""
    monkeypatch.setenv("DITI_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def shared() -> Path:
    """Real data beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("the folder of real data (../shared) is not here")
    return SHARED


@pytest.fixture(scope="session", params=["small", "large"])
def parity(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authors' numbers: those that the repository holds, and all of them where they lie beside it."""
    if request.param == "small":
        return write_large_layout(tmp_path_factory.mktemp("parity"))
    if not (SHARED / "parity").is_dir():
        pytest.skip("the large fixture of the authors' numbers (../shared/parity) is not here")
    return SHARED / "parity"


@pytest.fixture
def diti() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own."""

    def run(*words: object, **keywords: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "diti", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, **keywords)  # type: ignore[call-overload]

    return run


def picture(index: int, width: int = 40, height: int = 40) -> Image.Image:
    """A picture whose colour tells its index."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:] = (index * 37 % 256, index * 91 % 256, index % 256)
    return Image.fromarray(pixels)


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Twelve small PNGs in two folders."""
    for index in range(12):
        path = tmp_path / "images" / "ab"[index % 2] / f"{index:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(index).save(path)
    return tmp_path / "images"
