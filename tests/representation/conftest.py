"""The tiny model and its backbone, new for each test."""

import pytest
from tiny import tiny_backbone, tiny_model

from diti.representation.models.diffusion import DiTi


@pytest.fixture
def backbone():
    return tiny_backbone()


@pytest.fixture
def model(backbone) -> DiTi:
    return tiny_model(backbone)
