"""The scripts in examples/ run as they stand, here with small numbers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_an_example_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60


def test_own_method_trains_and_is_probed_beside_pca(tmp_path):
    words = [EXAMPLES / "own_method.py", "--data", "toyfaces:300", "--images", "256", "--out", tmp_path / "run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr
    found = dict(re.findall(r"^(.+): mean AP ([\d.]+)%$", result.stdout, re.MULTILINE))
    assert found.keys() == {"VICReg", "PCA of pixels, 64 dims"} and all(
        0 < float(ap) < 100 for ap in found.values()
    )
    assert (tmp_path / "run" / "model.json").is_file() and (tmp_path / "run" / "log.jsonl").is_file()
