"""A tiny model with all its parts, random but not trivial, and two faces to edit."""

import numpy as np
import pytest
import torch

from diti.config import BackboneConfig, EncoderConfig
from diti.core.rng import torch_generator
from diti.data import toyfaces
from diti.diffusion.backbone import build_backbone
from diti.representation.encoder import build_encoder
from diti.representation.model import DiTi
from diti.representation.partition import Partition
from diti.representation.shift import ShiftDecoder

SHAPE = BackboneConfig(size=16, unshuffle=2, channels=(8, 16), layers=1, head_channels=8)
DIMS, SUBSETS = 12, 6


def perturb(module: torch.nn.Module, std: float) -> None:
    """New networks start at zero output; move every weight, so that nothing is equal by accident."""
    rng = torch_generator(3, "perturb")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=std)


@pytest.fixture(scope="session")
def model() -> DiTi:
    backbone = build_backbone(SHAPE, seed=0)
    perturb(backbone, 0.02)
    config = EncoderConfig(encoder="residual", code_dim=DIMS, encoder_channels=(8, 16))
    encoder = build_encoder(config, backbone.eval(), 0)
    perturb(encoder, 0.02)
    decoder = ShiftDecoder(backbone, DIMS)
    perturb(decoder.path, 0.02)
    return DiTi(encoder, decoder, Partition.balanced(1000, SUBSETS, DIMS), torch.zeros(DIMS), torch.ones(DIMS))


@pytest.fixture(scope="session")
def faces() -> np.ndarray:
    """Two uint8 (16, 16, 3) faces."""
    return toyfaces.render(toyfaces.sample(2, seed=2), 16)
