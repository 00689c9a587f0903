"""Anybody's own diffusion model: `diti.backbone(...)`, or a function in a Python file that returns one.

    # mine.py, for: diti solve --backbone mine.py:make
    def make():
        network = MyUNet()
        network.load_state_dict(torch.load("mine.pt", weights_only=True))
        return diti.backbone(network, schedule="cosine", size=28, channels=1)

Notation: B images, C channels of x0, h its side; H side of the pictures, px.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, ValueRange
from diti.core.runs import write_json
from diti.diffusion.backbone import DESCRIPTION
from diti.diffusion.blocks import around_bottleneck, blocks_named
from diti.diffusion.clock import Clock, Scheduled
from diti.diffusion.code import allow, require_allowed, returned_by
from diti.diffusion.kinds.watched import WatchedBackbone
from diti.diffusion.pictures import Pictures, Pixels

Way = Callable[[Tensor], Tensor]


class OwnPictures(Pictures):
    """Somebody's own way from pictures (B,3,H,H) in [-1,1] to x0 and back.

    A module follows the network to another device; a function may hold one that does not: it is asked where the
    network was when it was given, `home`.
    """

    bounded = False

    def __init__(self, encode: Way, decode: Way, size: int, home: torch.device) -> None:
        super().__init__()
        self.way_in, self.way_out, self.size, self.home = encode, decode, size, home

    def encode(self, pixels: Tensor) -> Tensor:
        return self._gone(self.way_in, pixels)

    def decode(self, x0: Tensor) -> Tensor:
        return self._gone(self.way_out, x0)

    def _gone(self, way: Way, given: Tensor) -> Tensor:
        place = given.device if isinstance(way, nn.Module) else self.home
        return way(given.to(place)).detach().to(given.device)

    def side(self, grid: int) -> int:
        return self.size

    @torch.no_grad()
    def tried_out(self) -> tuple[int, int, int]:
        """(C,h,h) of an x0; InputError for ways that do not lead from pictures to x0 and back."""
        grey = torch.zeros(1, 3, self.size, self.size, device=self.home)
        x0 = _went("encode", self.way_in, grey)
        if x0.ndim != 4 or x0.shape[2] != x0.shape[3]:
            raise InputError(f"encode gives {tuple(x0.shape)} for a picture; let it give x0 (1,C,h,h)")
        if (drawn := _went("decode", self.way_out, x0)).shape != grey.shape:
            raise InputError(f"decode gives {tuple(drawn.shape)}; let it give the picture {tuple(grey.shape)}")
        return x0.shape[1], x0.shape[2], x0.shape[3]


def _went(name: str, way: Way, given: Tensor) -> Tensor:
    """What somebody's `encode` or `decode` gives, where it gives a tensor."""
    try:
        found = way(given)
    except Exception as error:  # it can fail anywhere, with any kind of error
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{name} failed on {tuple(given.shape)} ({type(error).__name__}: {reason[:200]})"
        ) from error
    if not torch.is_tensor(found):
        raise InputError(f"{name} gives {type(found).__name__}; let it give a tensor")
    return found


class OwnBackbone(WatchedBackbone):
    """A network that is told (x_t, time) and predicts; `diti.backbone` makes one."""

    kind = "model of your own"

    def __init__(
        self,
        network: nn.Module,
        clock: Clock,
        predicts: str,
        pictures: Pictures,
        shape: tuple[int, int, int],
        blocks: Sequence[str],
    ) -> None:
        super().__init__(network, clock, predicts, pictures)
        self.own_shape, self.chosen = shape, tuple(blocks)
        self.code: str | None = None  # file:function that made it; None: it was made in Python
        self._check()

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.own_shape

    def ask(self, x: Tensor, time: Tensor) -> Tensor:
        output = self.network(x, time)
        output = getattr(output, "sample", output)
        output = output[0] if isinstance(output, tuple | list) else output
        if not torch.is_tensor(output):
            raise InputError(f"the network gives {type(output).__name__}; let it give a tensor (B,C,h,h)")
        return output[:, : self.shape[0]]  # the mean, where the network also learns sigma

    def blocks(self, whole: bool = False) -> Sequence[str]:
        if not self.chosen:
            with torch.no_grad():
                self.chosen = tuple(around_bottleneck(self.network, self.nothing))
        return self.chosen

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Weights and clock; what its code does besides cannot be told."""
        yield from sorted(self.state_dict().items())
        yield from sorted(self.clock.state().items())

    def save(self, folder: str | Path) -> None:
        """Write how it was made: not the code, nor the weights, which stay where they are."""
        facts = {"code": self.code, "blocks": list(self.blocks()), "digest": self.digest()}
        write_json(Path(folder) / DESCRIPTION, facts)

    @classmethod
    def from_code(cls, name: str) -> OwnBackbone:
        """What the function of file.py:function returns. It is run: only where a user names it."""
        found = returned_by(name)
        if not isinstance(found, cls):
            raise InputError(f"{name} returned {type(found).__name__}; let it return diti.backbone(...)")
        found.code = allow(name)
        return found

    @classmethod
    def reopened(cls, folder: Path, settings: dict[str, Any]) -> OwnBackbone:
        """That of a model folder, from the same code, if a user has named it on this machine."""
        found = cls.from_code(require_allowed(settings["code"], folder))
        if found.digest() != settings.get("digest"):
            raise InputError(
                f"{found.code} makes another diffusion model now than the one that {folder} was made with: "
                "weights or schedule changed; put the old ones back, or solve again"
            )
        found.chosen = tuple(settings.get("blocks", ())) or found.chosen
        return found

    @torch.no_grad()
    def _check(self) -> None:
        """InputError at once for a network that does not take or give what was said, or lacks a named block."""
        blocks_named(self.network, self.chosen)
        with self.faults_told():
            self.nothing()


def backbone(
    denoise: nn.Module,
    *,
    schedule: Scheduled,
    size: int,
    predicts: str = "epsilon",
    channels: int = 3,
    range: ValueRange = MODEL_RANGE,
    features: Sequence[str] = (),
    encode: Way | None = None,
    decode: Way | None = None,
) -> OwnBackbone:
    """A diffusion model of your own, for `diti.solve(data, backbone)` and everything that follows.

    denoise: a module called as denoise(x_t, time), with time (B,): int64 of a discrete model, else float32. It
    stays frozen. schedule: linear, cosine, flow or edm, betas (T,), a scheduler of diffusers, or a `diti.Clock`,
    which also says how time is counted. predicts: epsilon, sample (x0), v_prediction, or flow (noise - x0).
    size: side of its pictures, px. channels: 1 for grey: RGB data are taken by luminance and come back grey.
    range: of its pixels. features: names of the blocks whose outputs are the features, as named_modules() has
    them; by default those around the smallest grid. encode, decode: from pictures (B,3,H,H) in [-1,1] to x0
    (B,C,h,h) and back, for a model of latents, or of pixels scaled in another way; they are asked on the device
    where denoise is now, while a module in their place follows denoise to another.

        mine = diti.backbone(network, schedule="linear", size=32)
        model = diti.solve("data/mine", mine, out="runs/mine")  # later: diti.load("runs/mine", backbone=mine)
    """
    if not isinstance(denoise, nn.Module):
        raise InputError(
            f"denoise is {type(denoise).__name__}; give a torch.nn.Module, whose blocks can be looked at: wrap a "
            "function in one"
        )
    if next(denoise.parameters(), None) is None:
        raise InputError("denoise has no weights; give the network itself, as a module that holds them")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise InputError(f"size is {size!r}; give the side of the pictures, px")
    if isinstance(features, str):
        raise InputError(f"features is {features!r}; give a list of names of blocks")
    if (encode is None) != (decode is None):
        raise InputError("give both encode and decode, or none of them")
    clock = Clock.of(schedule)
    pictures: Pictures = Pixels(channels, range)
    shape = (channels, size, size)
    if encode is not None and decode is not None:
        pictures = OwnPictures(encode, decode, size, next(denoise.parameters()).device)
        shape = pictures.tried_out()
    return OwnBackbone(denoise, clock, predicts, pictures, shape, features)
