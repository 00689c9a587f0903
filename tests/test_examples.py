"""The scripts in examples/ run as they stand, here with small numbers."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from diti.representation.registry import METHODS

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_an_example_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60


def test_own_method_trains_and_is_probed_beside_pca(tmp_path, monkeypatch, capsys):
    words = ["own_method.py", "--data", "toyfaces:300", "--images", "256", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", words)
    try:
        runpy.run_path(str(EXAMPLES / "own_method.py"), run_name="__main__")
    finally:
        METHODS.pop("vicreg", None)
    found = dict(re.findall(r"^(.+): mean AP ([\d.]+)%$", capsys.readouterr().out, re.MULTILINE))
    assert found.keys() == {"VICReg", "PCA of pixels, 64 dims"} and all(
        0 < float(ap) < 100 for ap in found.values()
    )
    assert (tmp_path / "run" / "model.json").is_file() and (tmp_path / "run" / "log.jsonl").is_file()
