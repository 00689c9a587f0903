"""One place decides where networks compute; the paths of on_device.py, in a process that registers a device.

PyTorch starts the threads of its backward pass with the first one, for the devices that it knows by then.
"""

import inspect
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import diti
from diti.core.device import allow_tf32, decide, preferred
from diti.core.errors import InputError
from diti.verbs.parsing import VERBS

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "diti"
NAMED = re.compile(r"""torch\.(cuda|mps|xpu)\b|(?<!such as )["'](cpu|cuda|mps|xpu)(:\d)?["']""")


def test_every_path_on_a_device():
    files = [str(TESTS / name) for name in ("on_device.py", "on_device_limits.py")]
    words = ["-m", "pytest", *files, "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run([sys.executable, *words], cwd=TESTS.parent, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_no_other_file_names_a_kind_of_device():
    found = {
        f"{file.relative_to(PACKAGE)}:{number}"
        for file in PACKAGE.rglob("*.py")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if file.name != "device.py" and NAMED.search(line)
    }
    assert found == set()


@pytest.mark.parametrize("name", ["cuda:7", "mps:0", "quantum", "cpu:1", "cuda:x", "", "meta"])
def test_a_device_that_is_not_there_is_one_line(name):
    with pytest.raises(InputError, match=r"device '.*' is not there; this machine has cpu.*: use one of"):
        decide(name)


def test_it_is_told_before_any_work(diti_here, monkeypatch, tmp_path):
    said = diti_here("encode", "toyfaces32-diti", "toyfaces:4", "--out", tmp_path / "z.csv", "--device", "cuda:9")
    assert said.returncode == 2 and "device 'cuda:9' is not there" in said.stderr
    monkeypatch.setenv("DITI_DEVICE", "abacus")
    said = diti_here("encode", "toyfaces32-diti", "toyfaces:4", "--out", tmp_path / "z.csv")
    assert said.returncode == 2 and "DITI_DEVICE 'abacus' is not there" in said.stderr
    assert not list(tmp_path.glob("*.csv"))


def test_a_preference_ends_with_its_block(monkeypatch):
    monkeypatch.setenv("DITI_DEVICE", "abacus")
    with preferred("cpu"):
        assert decide().type == "cpu"
    with pytest.raises(InputError, match="abacus"):
        decide()


def test_every_verb_and_function_that_computes_can_be_told():
    plain = {"prepare", "name", "label", "export", "presets"}  # the last but one exports on the CPU
    assert {name for name, verb in VERBS.items() if "device" not in {f.name for f in fields(verb)}} == plain
    functions = {name for name in diti.__all__ if inspect.isfunction(getattr(diti, name))}
    silent = {name for name in functions if "device" not in inspect.signature(getattr(diti, name)).parameters}
    # A backbone stays where it is given, and what takes a model or a dataset alone computes there or nothing.
    assert silent == {"backbone", "grid", "kept_direction", "new_encoder", "open_data", "prepare", "quiet",
                      "read_labels", "register"}  # fmt: skip


def test_rounded_factors_are_for_one_kind_of_device_alone():
    before = torch.get_float32_matmul_precision()
    try:
        allow_tf32(torch.device("cpu"))
        assert torch.get_float32_matmul_precision() == before
        allow_tf32(torch.device("cuda:0"))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
