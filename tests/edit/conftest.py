"""The tiny model, and two faces to edit."""

import numpy as np
import pytest
from tiny import tiny_model

from diti.data import toyfaces
from diti.representation.models.diffusion import DiTi


@pytest.fixture(scope="session")
def model() -> DiTi:
    return tiny_model(subsets=6)


@pytest.fixture(scope="session")
def faces() -> np.ndarray:
    """Two uint8 (16, 16, 3) faces."""
    return toyfaces.render(toyfaces.sample(2, seed=2), 16)
