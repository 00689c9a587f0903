import pytest
import torch
from PIL import Image

from diti.cli import main
from diti.config import BackboneConfig
from diti.diffusion.generate import round_trip, samples
from diti.diffusion.unet import build_backbone

SHAPE = BackboneConfig(size=16, unshuffle=2, channels=(8, 16), layers=1, head_channels=8)


@pytest.fixture
def backbone():
    """Random weights whose output is not zero."""
    network = build_backbone(SHAPE, seed=0)
    torch.nn.init.normal_(network.unet.conv_out.weight, std=0.05, generator=torch.Generator().manual_seed(0))
    return network


def test_sampling_leaves_mode_and_random_state_alone(backbone):
    backbone.train()
    before = torch.get_rng_state()
    first = samples(backbone, 2, seed=3, sampling_steps=4)
    assert backbone.training and torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, samples(backbone, 2, seed=3, sampling_steps=4)) and first.shape == (2, 3, 16, 16)
    assert not torch.equal(first, samples(backbone, 2, seed=4, sampling_steps=4)) and first.abs().max() <= 1


def test_more_calls_come_closer_to_the_image(backbone):
    images = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    errors = [
        (round_trip(backbone.eval(), images, sampling_steps) - images).square().mean().item()
        for sampling_steps in (5, 20, 60)
    ]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-3


def test_sample_writes_a_picture(backbone, tmp_path, capsys):
    backbone.save(tmp_path / "b")
    words = ["sample", str(tmp_path / "b"), "-n", "3", "--sampling-steps", "3", "--out", str(tmp_path / "s.png")]
    assert main(words) == 0
    with Image.open(tmp_path / "s.png") as picture:
        assert picture.size[0] > 3 * 90
    assert main([*words[:3], "0", *words[4:]]) == 2 and "--count (-n) is 0; draw from 1" in capsys.readouterr().err
    assert main(["sample", str(tmp_path / "nowhere"), "--out", "x.png"]) == 2
