"""Unsupervised, disentangled image representations from the time-steps of a diffusion model (DiTi, ICLR 2024).

Public names are loaded on first use, so that `import diti` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "DiTi": "diti.representation.models.diffusion",
    "Partition": "diti.representation.partition",
    "Transformer": "diti.representation.models.transformer",
    "load": "diti.representation.models.loading",
    "load_backbone": "diti.diffusion.backbone",
    "open_data": "diti.data.sources",
    "solve": "diti.representation.solve.run",
    "InputError": "diti.core.errors",
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'diti' has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
