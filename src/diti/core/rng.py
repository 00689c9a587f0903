"""Randomness is an argument: every random number comes from (seed, purpose, index) and nothing else.

Two purposes never share a stream, and a run that continues at image 12,800 draws what the uninterrupted
run would have drawn there, because `index` is the position and not the history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diti.core.device import HOST

if TYPE_CHECKING:
    import torch

BLOCK = 16  # images whose random numbers come from one stream
GOLDEN = np.uint64(11400714819323198485)  # 2^64 over the golden ratio, to the nearest odd number


def stream_seed(seed: int, purpose: str, index: int = 0) -> int:
    """63-bit seed of the stream (seed, purpose, index), the same on every machine and Python version."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def numpy_generator(seed: int, purpose: str, index: int = 0) -> np.random.Generator:
    """NumPy generator of the stream (seed, purpose, index)."""
    return np.random.Generator(np.random.PCG64(stream_seed(seed, purpose, index)))


def torch_generator(seed: int, purpose: str, index: int = 0, device: torch.device | str = HOST) -> torch.Generator:
    """torch generator of the stream: of the CPU, so that every device sees the same; or of another device.

    There the same stream gives other numbers than on the CPU, and the same ones each time.
    """
    import torch

    return torch.Generator(device).manual_seed(stream_seed(seed, purpose, index))


@dataclass(frozen=True)
class Draws:
    """Random numbers for the images at positions start .. start + count - 1 of a training run.

    They are drawn in blocks at fixed positions, so image p gets the same numbers whether the batch is computed at
    once, in parts, or by several processes.
    """

    seed: int
    start: int
    count: int

    def normal(self, purpose: str, shape: tuple[int, ...], device: torch.device | str = HOST) -> torch.Tensor:
        """Standard normal float32 (count, *shape), drawn on the device: noise is too large to be sent there."""
        import torch

        return self._blocks(
            purpose, lambda rng: torch.randn((BLOCK, *shape), generator=rng, device=device), device
        )

    def integers(self, purpose: str, below: int) -> torch.Tensor:
        """Uniform int64 (count,) in 0 .. below - 1."""
        import torch

        return self._blocks(purpose, lambda rng: torch.randint(below, (BLOCK,), generator=rng))

    def uniform(self, purpose: str) -> torch.Tensor:
        """Uniform float64 (count,) in [0, 1)."""
        import torch

        return self._blocks(purpose, lambda rng: torch.rand(BLOCK, generator=rng, dtype=torch.float64))

    def spread(self, purpose: str, below: int) -> torch.Tensor:
        """int64 (count,) in 0 .. below - 1 that no two neighbours share: steps of the golden ratio from a start.

        Any stretch of positions covers the range as evenly as can be, so that batches differ less than by chance.
        """
        import torch

        positions = np.arange(self.start, self.start + self.count, dtype=np.uint64)
        # Modulo 2^64: a turn of a circle.
        place = np.uint64(2 * stream_seed(self.seed, purpose)) + positions * GOLDEN
        return torch.from_numpy(((place >> np.uint64(32)) * np.uint64(below) >> np.uint64(32)).astype(np.int64))

    def _blocks(
        self,
        purpose: str,
        draw: Callable[[torch.Generator], torch.Tensor],
        device: torch.device | str = HOST,
    ) -> torch.Tensor:
        import torch

        first, last = self.start // BLOCK, (self.start + self.count - 1) // BLOCK
        blocks = [draw(torch_generator(self.seed, purpose, block, device)) for block in range(first, last + 1)]
        offset = self.start - first * BLOCK
        return torch.cat(blocks)[offset : offset + self.count]
