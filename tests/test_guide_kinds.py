"""The four commands that the guide to backbones gives for each kind, run over a tiny network of the same class."""

import re
from pathlib import Path

import pytest
from own_models import BESIDE, CODE
from PIL import Image
from pipelines import PIPELINES
from test_readme import commands

from diti.cli import main
from diti.data import toyfaces

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "backbones.md"
KINDS = {  # heading → the tiny network, and the side of its pictures, px
    "Pixels, `UNet2DModel`": ("toyfaces32", 32),
    "Unconditional latents": ("latent", 16),
    "Stable Diffusion 1 and 2": ("stable diffusion", 16),
    "Stable Diffusion XL": ("stable diffusion XL", 16),
    "DiT": ("DiT", 16),
    "PixArt": ("PixArt", 16),
    "Stable Diffusion 3": ("stable diffusion 3", 16),
    "Flux": ("Flux", 16),
    "Code of your own": ("own", 28),
}
QUICK = "Unconditional latents"
SMALL = {
    "solve": "--code-dim 12 --subsets 4 --images 64 --stretches 2 --pixel-axes 8 --whitened 16",
    "explore": "--sampling-steps 2 --axes 1",
    "interpolate": "--sampling-steps 2 --scales 0,1",
    "manipulate": "--sampling-steps 2",
    "vary": "--sampling-steps 2",
}


def tiny(name: str) -> str:
    """Where that network is; in this folder, if it must be made."""
    if name == "own":
        fields = {"seed": 0, "channels": 1, "schedule": "cosine", "predicts": "epsilon", "size": 28}
        Path("mine.py").write_text(CODE.format(**fields))
        Path("beside.py").write_text(BESIDE)
        return "mine.py:make"
    return str(PIPELINES[name](Path("pipeline"))) if name in PIPELINES else name


def test_every_kind_of_the_guide_has_its_four_commands():
    section = GUIDE.read_text(encoding="utf-8").split("## Four commands for each\n")[1].partition("\n## ")[0]
    assert re.findall(r"^### (.*)$", section, re.MULTILINE) == list(KINDS)
    for heading in KINDS:
        lines = commands(heading, GUIDE)
        assert len(lines) == 4 and [line[1] for line in lines[:3]] == ["prepare", "solve", "explore"]


@pytest.mark.parametrize(
    "heading", [one if one == QUICK else pytest.param(one, marks=pytest.mark.slow) for one in KINDS]
)
def test_its_commands(heading, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "cache"))
    Path("photos").mkdir()
    for index, face in enumerate(toyfaces.render(toyfaces.sample(120, seed=3), 40)):
        Image.fromarray(face).save(f"photos/{index:03}.png", compress_level=1)
    for index, name in enumerate("ab"):
        Path(f"photos/{index:03}.png").rename(f"{name}.png")
    network, side = KINDS[heading]
    lines = commands(heading, GUIDE)
    size, backbone = lines[0][lines[0].index("--size") + 1], lines[1][lines[1].index("--backbone") + 1]
    instead = {size: str(side), backbone: tiny(network)}
    for _, verb, *words in lines:
        asked = [verb, *(instead.get(word, word) for word in words), *SMALL.get(verb, "").split()]
        assert main(asked) == 0, " ".join(asked)
        assert Path(words[words.index("--out") + 1]).exists()
