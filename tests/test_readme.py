"""Every command in the README's quick start and the guide for own images, and all its Python, run in small."""

import inspect
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from diti.cli import main
from diti.data import toyfaces
from diti.representation.models.decoding import DecodingModel

README = Path(__file__).resolve().parents[1] / "README.md"
GUIDE = README.parent / "docs" / "guides" / "own-images.md"
TEXT = README.read_text(encoding="utf-8")
SMALL = {  # what makes a command short; nothing of what is written is left out
    "pretrain": "--images 64 --train-batch-size 32 --channels 8 8 16 --head-channels 8 --minutes 0.001",
    "solve": "--code-dim 16 --subsets 4 --images 128 --stretches 2 --pixel-axes 64 --whitened 64",
    "explore": "--sampling-steps 3 --axes 1",
    "interpolate": "--sampling-steps 3 --scales 0,1",
    "manipulate": "--sampling-steps 3",
    "mix": "--sampling-steps 3",
    "vary": "--sampling-steps 3",
}
FEWER = {"faces": "faces:60"}  # words that stand for fewer images here


def commands(heading: str, page: Path = README) -> list[list[str]]:
    """The lines of the first code block under a heading."""
    text = page.read_text(encoding="utf-8")
    block = re.search(rf"^#+ {re.escape(heading)}\n.*?```\n(.*?)```", text, re.DOTALL | re.MULTILINE)[1]
    return [shlex.split(line, comments=True) for line in block.strip().splitlines()]


def run(program: str, verb: str, *words: str) -> None:
    """A command as it is written, but small; it leaves what its --out names."""
    assert program == "diti"
    words = [FEWER.get(word, word) for word in words]
    assert main([verb, *words, *SMALL.get(verb, "").split()]) == 0, " ".join([verb, *words])
    if "--out" in words:
        out = words[words.index("--out") + 1]
        assert Path(out).exists(), f"{verb} wrote no {out}"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, as in a clone."""
    monkeypatch.chdir(tmp_path)
    Path("src").symlink_to(README.parent / "src")


@pytest.fixture
def photos(place):
    """300 PNG files and nothing else, in the folder that the guide speaks of."""
    Path("photos").mkdir()
    for index, face in enumerate(toyfaces.render(toyfaces.sample(300, seed=3), 40)):
        Image.fromarray(face).save(f"photos/{index:03}.png", compress_level=1)


def test_the_commands_of_the_quick_start_work(place):
    found = commands("Edit a face")
    assert len(found) >= 3
    for words in found:
        run(*words)


def test_photos_without_labels_are_enough_for_all_of_the_guide(photos, capsys):
    path, use = commands("From your images to a representation", GUIDE), commands("4. Use it", GUIDE)
    assert path == commands("Your own images"), "the README tells the same path"
    assert [words[1] for words in path] == ["prepare", "pretrain", "solve", "explore"]
    assert {"name", "manipulate", "mix", "search", "encode"} == {words[1] for words in use}
    for words, following in zip(path, [*path[1:], ["diti", "encode"]], strict=True):
        run(*words)
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("next: ") and f" {following[1]} " in last, (
            "the guide and the verbs lead the same way"
        )
    for words in use:
        run(*words)
    assert "the 32 oddest images of 300, by what z explains least" in capsys.readouterr().out


def test_the_python_of_the_readme_works(place, monkeypatch):
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 8
    few = 3  # sampling steps
    monkeypatch.setattr(inspect.unwrap(DecodingModel.reconstruct), "__defaults__", ("inferred", few, 0))
    monkeypatch.setitem(DecodingModel.interpolate.__kwdefaults__, "sampling_steps", few)
    exec(code, made := {})
    assert made["z"].shape == made["features"].shape == (16, 128) and len(made["names"]) == 128
    assert made["again"].shape == (16, 3, 64, 64) and made["between"].shape == (1, 3, 64, 64)


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
    assert {"demo", "convert", "train"} <= verbs and verbs <= {*VERBS, "demo"}
