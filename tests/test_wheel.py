"""What is installed: the wheel is built for real, holds what ships, and stays small."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ASSETS = "diti/assets/"
MOST = 30e6  # bytes


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling", reason="needs hatchling, of the extra dev")
    out = tmp_path_factory.mktemp("dist")
    words = ["-m", "hatchling", "build", "--target", "wheel", "--directory", out]
    subprocess.run([sys.executable, *words], cwd=REPOSITORY, check=True, capture_output=True, timeout=600)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_is_small_and_holds_all_that_ships(wheel):
    assert wheel.stat().st_size < MOST
    with zipfile.ZipFile(wheel) as built:
        inside = {info.filename: info.file_size for info in built.infolist()}
    assets = {name: size for name, size in inside.items() if name.startswith(ASSETS)}
    folder = REPOSITORY / "src" / "diti" / "assets"
    assert set(assets) == {ASSETS + p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert sum(assets.values()) < MOST
    assert {"diti/py.typed", "diti/studio/upload.js", "diti/pages/page.css"} <= inside.keys()
    assert not [name for name in inside if name.endswith((".bin", ".pt", ".pkl", ".pyc"))]
