"""The true factors of toy faces in the place of z."""

import pytest
import torch

from diti.config import BackboneConfig
from diti.core.rng import torch_generator
from diti.data import toyfaces
from diti.diffusion.unet import build_backbone
from diti.measure.sufficiency import HARMONICS, FactorReconstruction, factor_codes, factor_partition, sufficiency
from diti.representation.methods.diti import reconstruction_loss
from diti.representation.networks.shift import ShiftDecoder


@pytest.fixture
def backbone():
    shape = BackboneConfig(size=16, unshuffle=2, channels=(8, 16), layers=1, head_channels=8, timesteps=60)
    network = build_backbone(shape, seed=0).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch_generator(3, "perturb")), alpha=0.02)
    return network


def test_factor_codes_tell_all_faces_apart_and_are_standardised():
    codes = factor_codes(toyfaces.sample(4000, 0), toyfaces.NAMES)
    binary = sum(a.binary for a in toyfaces.ATTRIBUTES)
    assert codes.shape == (4000, binary + HARMONICS * (len(toyfaces.NAMES) - binary))
    assert codes.mean(0).abs().max() < 0.08 and (codes.std(0) - 1).abs().max() < 0.05
    factors = toyfaces.sample(5, 0)
    moved = (
        factor_codes(factors, ["hat", "skin"]) - factor_codes(toyfaces.change(factors, "hat"), ["hat", "skin"])
    ).abs()
    assert (moved[:, 0] == 2).all() and (moved[:, 1:] == 0).all()


def test_a_factor_is_visible_from_its_time_on():
    order, entries = ["hat", "skin", "beard"], [3.0, 7.2, 100.0]
    partition = factor_partition(order, entries, 20)
    for t in range(20):
        seen = partition.visible(t).tolist()
        assert seen[0] == (t >= 3) and set(seen[1 : 1 + HARMONICS]) == {t >= 7.2}
        assert seen[-1] == (t == 19), "what is never lost enters at the last step"


def test_check_is_the_loss_of_the_frozen_model_before_training(backbone):
    order = list(toyfaces.NAMES)
    partition = factor_partition(order, list(range(22)), backbone.timesteps)
    objective = FactorReconstruction(ShiftDecoder(backbone, partition.dims), partition, order, seed=0)
    objective.train()
    found = objective.check(60)
    assert objective.training and len(found["loss_by_time"]) == 10
    other = ShiftDecoder(backbone, 5, "random")  # g is zero here too, whatever z
    expected = []
    for start in range(0, 60, 20):  # another batch size: its noise differs, its mean hardly
        images = objective.faces(10_000_000 + start, 20)
        noise = torch.randn(images.shape, generator=torch_generator(start, "test"))
        with torch.no_grad():
            expected.append(
                reconstruction_loss(other, images, torch.arange(start, start + 20), noise, torch.zeros(20, 5))
            )
    assert found["loss"] == pytest.approx(torch.cat(expected).mean().item(), rel=0.1)


def test_trained_on_the_factors_in_both_orders(backbone):
    lost = {name: float(2 * place) for place, name in enumerate(reversed(toyfaces.NAMES))}
    record = sufficiency(backbone, lost, images=96, seed=0, faces=60)
    assert record["order"] == list(reversed(toyfaces.NAMES)) and record["entries"] == sorted(lost.values())
    for name in ("ordered", "reversed"):
        assert 0 < record[name]["removed"] < 1
        assert record[name]["removed"] == pytest.approx(1 - record[name]["loss"] / record["frozen"]["loss"])
    assert record["ordered"]["loss"] != record["reversed"]["loss"]
    assert sufficiency(backbone, lost, images=96, seed=0, faces=60) == record
