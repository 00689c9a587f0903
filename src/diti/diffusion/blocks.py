"""What the named blocks of any network see: their outputs, by forward hooks, as maps (B,C,h,w).

Notation: B images, C channels, N tokens of a transformer, h·w cells of a grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diti.core.errors import InputError

# What the hooks of this thread write to: images are run in several lanes through one network.
_SEEN: ContextVar[dict[str, Any] | None] = ContextVar("seen", default=None)


def blocks_named(network: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """The blocks of these names; InputError for a name that is none."""
    known = dict(network.named_modules())
    if missing := [name for name in names if name not in known]:
        some = ", ".join(name for name, _ in network.named_children())
        raise InputError(
            f"the network has no block {missing[0]!r}; name blocks as named_modules() does, below {some}"
        )
    return [known[name] for name in names]


def watch(network: nn.Module, names: Sequence[str]) -> None:
    """Let `seen_by` see what these blocks give; without it they cost nothing."""
    for name, block in zip(names, blocks_named(network, names), strict=True):
        block.register_forward_hook(partial(_write, name))  # no closure: models can be pickled


def _write(name: str, module: nn.Module, given: Any, output: Any) -> None:
    seen = _SEEN.get()
    if seen is not None:
        seen[name] = output


def seen_by(names: Sequence[str], run: Callable[[], Any], tokens: tuple[int, int] | None = None) -> list[Tensor]:
    """(B,C,h,w) of each watched block while `run` runs. tokens: h and w of a transformer's grid, where known."""
    found: dict[str, Any] = {}
    before = _SEEN.set(found)
    try:
        run()
    finally:
        _SEEN.reset(before)
    maps = []
    for name in names:
        if name not in found or (seen := as_map(found[name], tokens)) is None:
            raise InputError(f"the block {name!r} gives no map or tokens of the image; name others as features")
        maps.append(seen)
    return maps


def as_map(output: Any, tokens: tuple[int, int] | None = None) -> Tensor | None:
    """(B,C,h,w) of a block's output: a map, or tokens (B,N,C) that make up a grid; None for anything else.

    Of several outputs the first map, else the last tokens: those of the image come after those of the text.
    """
    outputs = [one for one in (output if isinstance(output, tuple | list) else [output]) if torch.is_tensor(one)]
    if maps := [one for one in outputs if one.ndim == 4]:
        return maps[0]
    for one in reversed([one for one in outputs if one.ndim == 3]):
        side = math.isqrt(one.shape[1])
        grid = tokens or (side, side)
        if grid[0] * grid[1] <= one.shape[1] and (tokens or side * side == one.shape[1]):
            image = one[:, one.shape[1] - grid[0] * grid[1] :]  # behind the text, where both are in one
            return image.transpose(1, 2).unflatten(2, grid)
    return None


# ---- Which blocks, where nobody says -------------------------------------------------------------------------


class _Met(NamedTuple):
    """A module that gave a map, in the order of the calls."""

    name: str
    cells: int
    own: bool  # whether it is a block: an entry of a list of modules


def around_bottleneck(network: nn.Module, run: Callable[[], Any]) -> list[str]:
    """The last block before the smallest grid, the one in its middle, and the first after it; found by one run.

    Where all grids are alike, as in a transformer: blocks at a quarter, a half and three quarters of the way.
    """
    met: list[_Met] = []
    lists = {f"{name}." if name else "" for name, module in network.named_modules() if _is_list(module)}
    hooks = [
        module.register_forward_hook(_meter(name, _parent(name) in lists, met))
        for name, module in network.named_modules()
        if name
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    if not met:
        raise InputError("no block of the network gives a map or tokens of the image: name some as features")
    runs = [list(group) for _, group in groupby(met, key=lambda one: one.cells)]
    # A last layer that gives the image again, or a first one that takes it in, is not a level by itself.
    levels = [[one for one in level if one.own] or level for level in runs]
    smallest = min(range(len(levels)), key=lambda index: levels[index][0].cells)
    middle = levels[smallest]
    if len(middle) >= 3 and len(levels) < 3:
        return list(dict.fromkeys(middle[round(share * (len(middle) - 1))].name for share in (0.25, 0.5, 0.75)))
    chosen = [levels[smallest - 1][-1]] if smallest else []
    chosen.append(middle[len(middle) // 2])
    chosen += [levels[smallest + 1][0]] if smallest + 1 < len(levels) else []
    return list(dict.fromkeys(one.name for one in chosen))


def _meter(name: str, own: bool, met: list[_Met]) -> Callable[[nn.Module, Any, Any], None]:
    def note(module: nn.Module, given: Any, output: Any) -> None:
        seen = as_map(output)
        if seen is not None and seen.shape[2] * seen.shape[3] > 1:
            met.append(_Met(name, seen.shape[2] * seen.shape[3], own))

    return note


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential)


def _parent(name: str) -> str:
    head, _, _ = name.rpartition(".")
    return f"{head}." if head else ""


def unet_blocks(network: Any, whole: bool) -> Iterator[str]:
    """The end of each level on a diffusers U-Net's way down; `whole`: then the middle, and each level up."""
    for level, block in enumerate(network.down_blocks):
        # Before its downsampling; a block that attends ends in an attention.
        part = "attentions" if len(getattr(block, "attentions", None) or []) else "resnets"
        yield f"down_blocks.{level}.{part}.{len(getattr(block, part)) - 1}"
    if whole:
        yield "mid_block"
        yield from (f"up_blocks.{level}" for level in range(len(network.up_blocks)))


def transformer_blocks(name: str, count: int) -> list[str]:
    """Blocks at a quarter, a half and three quarters of a stack of `count`."""
    return list(dict.fromkeys(f"{name}.{min(count - 1, round(share * count))}" for share in (0.25, 0.5, 0.75)))
