"""The words of a page: each picture is told as what its method drew, each loss by its name."""

from dataclasses import replace

import pytest
from made_runs import make_run
from PIL import Image

from diti.config import VAEConfig
from diti.core.runs import RunFolder
from diti.presets import train_preset
from diti.reporting.runs import Group
from diti.reporting.sections import loss_panels, training

USUAL = train_preset("toyfaces32")


@pytest.fixture
def group_of(tmp_path):
    """Make a group of one run of a method, whose folder holds a log, pictures, and the card that names them."""

    def make(method, card="", label="", **settings):
        config = replace(USUAL, method=method, start="copy", partition="staged-even", **settings)
        path = tmp_path / (label or method)
        run = RunFolder(path)
        for step in range(1, 4):
            run.log(images=64 * step, loss=1 / step, **({"loss_by_time": [0.1]} if method == "diti" else {}))
        (path / "card.md").write_text(card)
        for file in ("reconstructions.png", "samples.png"):
            Image.new("RGB", (8, 8)).save(path / file)
        return Group(label or method, (make_run(config, path=path),))

    return make


def captions(groups, folder):
    return [block.caption for block in training(groups, {}, folder / "figures").blocks]


def test_a_picture_is_told_as_its_run_tells_it(group_of, tmp_path):
    vae = "# VAE\n\n![validation images, redrawn from z in one step](reconstructions.png)\n"
    diti = "# DiTi\n\n![images and (inferred) noise](reconstructions.png)\n\n![gone](gone.png)\n"
    found = captions([group_of("tcvae", vae), group_of("diti", diti)], tmp_path)
    assert found[1] == "tcvae. Validation images, redrawn from z in one step."
    assert found[2] == "diti. Figure A9: λ-weighted loss of eq. 6 by time-step, early and late in the training."
    assert found[3:] == ["diti. Images and (inferred) noise."], (
        "samples.png and gone.png are not told, or not there"
    )
    assert "stand apart" in found[0] and "stand apart" not in captions([group_of("pdae")], tmp_path)[0]


def test_losses_that_cannot_be_compared_stand_apart(group_of):
    strong = VAEConfig(tc_weight=20.0)
    groups = [
        group_of("diti"), group_of("pdae"), group_of("tcvae"), group_of("tcvae", label="strong", vae=strong),
        group_of("simclr"), group_of("from elsewhere"),
    ]  # fmt: skip
    panels = {tuple(panel.runs): panel.loss for panel in loss_panels(groups)}
    assert list(panels) == [("diti", "pdae"), ("tcvae",), ("strong",), ("simclr",), ("from elsewhere",)]
    assert panels["diti", "pdae"] == "λ-weighted loss of eq. 6"
    assert not any("λ" in loss for labels, loss in panels.items() if "diti" not in labels)
    assert panels["from elsewhere",] == "training loss of from elsewhere"
