"""What can be asked of a solved model, over a latent, a transformer and a hand-written diffusion model."""

import contextlib
import io
import os
from pathlib import Path

import numpy as np
import own_models
import pytest
import torch
from own_models import BESIDE, CODE
from PIL import Image
from pipelines import PIPELINES, SIZE

from diti.cli import main
from diti.data.sources import open_data
from diti.studio import session
from diti.studio.session import Visitor
from diti.studio.world import World, open_world

KINDS, DATA = ("latent", "DiT", "own"), "toyfaces:90"
SMALL = ("--code-dim", "6", "--subsets", "3", "--stretches", "2", "--pixel-axes", "8", "--images", "64")
STEPS = ("--sampling-steps", "2")
FEW = ("--faces", "0", "--pairs", "1", "--changes", "1", "--no-baselines", "--no-disentanglement")


def backbone_of(kind, folder):
    if kind != "own":
        return PIPELINES[kind](folder / "pipeline")
    fields = {"seed": 0, "channels": 1, "schedule": "flow", "predicts": "flow", "size": SIZE}
    (folder / "mine.py").write_text(CODE.format(**fields))
    (folder / "beside.py").write_text(BESIDE)
    return f"{folder / 'mine.py'}:make"


@pytest.fixture(scope="module", params=KINDS)
def solved(request, tmp_path_factory):
    """A folder with a model, and three pictures beside it."""
    folder = tmp_path_factory.mktemp("solved")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setenv("DITI_CACHE", str(folder / "cache"))
        backbone = backbone_of(request.param, folder)
        words = ("solve", "--data", DATA, "--backbone", backbone, *SMALL, "--out", folder / "model")
        assert main([str(word) for word in words]) == 0
        for name, image in zip("abc", open_data(DATA, SIZE).images, strict=False):
            Image.fromarray(image).save(folder / f"{name}.png")
        yield folder


@pytest.fixture(autouse=True)
def same_machine(solved, monkeypatch):
    """One on which the code of the hand-written model was named."""
    monkeypatch.setenv("DITI_CACHE", str(solved / "cache"))


VERBS = {
    "an axis": ("manipulate", "model", "a.png", "--axis", "a00", *STEPS),
    "an attribute": (
        "manipulate",
        "model",
        "a.png",
        "--attribute",
        "hat",
        "--keep",
        "smile",
        "--data",
        DATA,
        *STEPS,
    ),
    "an example": ("manipulate", "model", "a.png", "--like", "b.png", "--keep", "c.png", *STEPS),
    "a pair": ("manipulate", "model", "a.png", "--pairs", "b.png,c.png", "--save-as", "mine", *STEPS),
    "likeness": ("search", "model", "a.png", "--data", DATA),
    "oddness": ("search", "model", "--odd", "3", "--data", DATA),
    "labels": ("probe", "model", "--data", DATA, "--no-baselines", "--no-subsets", "--reconstruct", "2"),
    "a path": ("interpolate", "model", "a.png", "b.png", "--scales", "0,1", *STEPS),
    "variations": ("vary", "model", "a.png", "-n", "2", *STEPS),
    "the page": ("explore", "model", "--data", DATA, *STEPS),
}
OUT = {"probe": "out.json", "explore": "explored"}


@pytest.mark.parametrize("asked", VERBS)
def test_what_is_asked_is_answered(asked, solved, diti_here, tmp_path):
    verb, *words = VERBS[asked]
    out = tmp_path / OUT.get(verb, "out.png")
    done = diti_here(verb, *words, "--out", out, cwd=solved)
    assert done.returncode == 0, done.stderr
    pictures = [out] if out.suffix == ".png" else sorted(out.parent.rglob("*.png"))
    assert all(np.asarray(Image.open(picture)).std() > 0 for picture in pictures)
    assert pictures or out.suffix == ".json"


def test_the_studio_inverts_and_draws(solved, monkeypatch):
    monkeypatch.setattr(World, "steps", (2,))
    monkeypatch.setattr(session, "FULL_STEPS", 2)
    world, visitor = open_world(str(solved / "model"), DATA), Visitor()
    visitor.images = {"a": np.asarray(Image.open(solved / "a.png").convert("RGB"))}
    found = visitor.inverted(world.model, ("a",))
    drawn = visitor.decoded(found, found.z, found.x_T, 2)
    assert found.x_T.shape[1:] == world.model.noise_shape and drawn.shape == (1, 3, SIZE, SIZE)
    assert bool(torch.isfinite(drawn).all()) and world.axes(None)


@pytest.mark.slow
def test_they_are_reported(solved, diti_here, tmp_path, monkeypatch):
    # It measures in processes of its own, where the hand-written network must be found, too.
    paths = [str(Path(own_models.__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    done = diti_here("report", "model", "--data", DATA, *FEW, "--out", tmp_path / "report", cwd=solved)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report" / "index.html").is_file()
