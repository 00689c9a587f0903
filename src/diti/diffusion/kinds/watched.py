"""What the kinds from elsewhere have in common: their own clock, their own pictures, features of named blocks.

Notation: B images, C channels of x0, h its side; T steps of the clock.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone
from diti.diffusion.blocks import seen_by, watch
from diti.diffusion.clock import Clock
from diti.diffusion.pictures import Pictures
from diti.diffusion.schedule import OUTPUTS, gather, require_one_of


class WatchedBackbone(Backbone):
    """A network that is told more than (x_t, t), or something else; frozen from here on."""

    network: Any  # a module, of whatever class

    def __init__(self, network: nn.Module, clock: Clock, predicts: str, pictures: Pictures) -> None:
        super().__init__()
        self.network, self.pictures, self.clock = network, pictures, clock
        self.schedule = clock.schedule
        self.prediction_type = require_one_of("predicts", predicts, OUTPUTS)
        self.bounded = pictures.bounded
        self._watched: set[str] = set()
        self._shapes: dict[tuple[str, ...], list[tuple[int, int, int]]] = {}
        self.eval().requires_grad_(False)

    @property
    def size(self) -> int:
        return self.pictures.side(self.shape[1])

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]: ...

    @abstractmethod
    def ask(self, x: Tensor, time: Tensor) -> Tensor:
        """What the network says of an x_t of its own, told its own time; sigma, where it learns that, left out."""

    def tokens(self) -> tuple[int, int] | None:
        """Height and width of the grid of a transformer's tokens; None where they follow from their number."""
        return None

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x_t (B,C,h,h), t (B,) -> (B,C,h,h): what the network predicts, by `prediction_type`."""
        own = gather(self.clock.scale, t, x).to(x.dtype) * x
        given = self.ask(own, self.clock.told(t)).to(x.dtype)
        if given.shape != x.shape:
            raise InputError(
                f"the network gives {tuple(given.shape[1:])} for x_t of {tuple(x.shape[1:])}; it must give as "
                "much as it takes, or twice the channels where it also learns sigma: does it allow this size?"
            )
        return given

    def encode(self, pixels: Tensor) -> Tensor:
        return self.pictures.encode(pixels)

    def decode(self, x0: Tensor) -> Tensor:
        return self.pictures.decode(x0)

    @torch.no_grad()
    def maps(self, x0: Tensor, time: int, blocks: Sequence[str]) -> list[Tensor]:
        """(B,C,h,w) of each named block, fed the clean x0 as if it were x_t at that row of the clock."""
        if new := [name for name in blocks if name not in self._watched]:
            watch(self.network, new)
            self._watched |= set(new)
        t = torch.full((len(x0),), time, dtype=torch.int64, device=x0.device)
        return [one.to(x0.dtype) for one in seen_by(blocks, lambda: self(x0, t), self.tokens())]

    def map_shapes(self, blocks: Sequence[str]) -> list[tuple[int, int, int]]:
        """(C,h,w) of what each block gives for one image; found out by one run."""
        names = tuple(blocks)
        if names not in self._shapes:
            with self.faults_told():
                seen = self.maps(torch.zeros(1, *self.shape, device=self.device), 0, names)
            self._shapes[names] = [(h.shape[1], h.shape[2], h.shape[3]) for h in seen]
        return self._shapes[names]

    @contextmanager
    def faults_told(self) -> Iterator[None]:
        """Errors of a first run of the network, of whatever kind, become an InputError that says what it got."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InputError(
                f"the network failed on x_t (1, {', '.join(map(str, self.shape))}) and time {self.clock.time[0]} "
                f"({type(error).__name__}: {reason[:200]}); check size, channels and what it is told"
            ) from error

    def nothing(self) -> Tensor:
        """(1,C,h,h) what is predicted of zeros: a run that shows which shapes there are."""
        x = torch.zeros(1, *self.shape, device=self.device)
        return self(x, torch.zeros(1, dtype=torch.int64, device=self.device))
