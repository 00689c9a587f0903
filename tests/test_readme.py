"""Every command and line of Python in the README's quick start, run in small, as written there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from diti.cli import main
from diti.data import toyfaces

README = Path(__file__).resolve().parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
SMALL = {  # what makes a command short; nothing of what is written is left out
    "pretrain": [
        "--images",
        "64",
        "--train-batch-size",
        "32",
        "--channels",
        "16",
        "16",
        "32",
        "--head-channels",
        "8",
        "--minutes",
        "0.01",
    ],
    "explore": ["--sampling-steps", "3", "--axes", "1"],
    "solve": ["--code-dim", "32", "--images", "128", "--stretches", "2"],
    "interpolate": ["--sampling-steps", "3", "--scales", "0,1"],
    "manipulate": ["--sampling-steps", "3"],
    "mix": ["--sampling-steps", "3"],
    "vary": ["--sampling-steps", "3"],
}


def commands(heading: str) -> list[list[str]]:
    """The lines of the first code block under a heading."""
    block = re.search(rf"## {re.escape(heading)}\n.*?```\n(.*?)```", TEXT, re.DOTALL)[1]
    return [shlex.split(line, comments=True) for line in block.strip().splitlines()]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder with the images that the README speaks of."""
    monkeypatch.chdir(tmp_path)
    faces = toyfaces.render(toyfaces.sample(220, seed=3), 48)
    Path("photos").mkdir()
    for index, face in enumerate(faces):
        Image.fromarray(face).save(f"photos/{index}.jpg")
    Path("src").symlink_to(README.parent / "src")  # as in a clone
    return tmp_path


@pytest.mark.parametrize("heading", ["Edit a face", "Your own images"])
def test_the_commands_of_the_quick_start_work(heading, place):
    found = commands(heading)
    assert found
    for program, verb, *words in found:
        assert program == "diti"
        assert main([verb, *words, *SMALL.get(verb, [])]) == 0, " ".join([verb, *words])
        out = words[words.index("--out") + 1]
        assert (place / out).exists(), f"{verb} wrote no {out}"


def test_the_python_of_the_readme_works(place):
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 8
    checks = "assert z.shape == (16, 128) and again.shape == (16, 3, 32, 32) and between.shape == (1, 3, 32, 32)\n"
    checks += "assert features.shape == (16, 128) and len(names) == 128\n"
    done = subprocess.run([sys.executable, "-c", code + checks], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_two_commands_are_targets_of_the_makefile():
    for words in commands("Two commands"):
        assert words[0] == "make"
        dry = subprocess.run(
            ["make", "-n", *words[1:]], cwd=README.parent, capture_output=True, text=True, check=True
        )
        assert {"demo": "diti demo", "test": "pytest"}[words[1]] in dry.stdout


def test_all_files_that_the_readme_names_exist():
    named = re.findall(r"\]\(([^)#:]+)\)", TEXT) + re.findall(r"\b(sweeps/\S+?\.yaml)", TEXT)
    assert len(named) > 8
    missing = [name for name in named if not (README.parent / name).exists()]
    assert not missing


def test_the_verbs_in_the_readme_exist(capsys):
    from diti.verbs import VERBS

    quoted = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", TEXT)
    verbs = {verb for text in quoted for verb in re.findall(r"(?:^|[\s/])diti ([a-z-]+)", text)}
    assert {"counterfactuals", "convert", "train"} <= verbs and verbs <= {*VERBS, "demo"}
