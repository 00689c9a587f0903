"""The tiny model, new for each test."""

import pytest
from tiny import tiny_model

from diti.representation.models.diffusion import DiTi


@pytest.fixture
def model() -> DiTi:
    return tiny_model()
