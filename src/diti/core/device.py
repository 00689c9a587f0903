"""Where networks compute: one decision for all verbs and functions. No other file names a kind of device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from diti.core.errors import InputError, short_of_memory

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Device: TypeAlias = "str | torch.device"
AUTO, HOST = "auto", "cpu"
VARIABLE = "DITI_DEVICE"
PRECISION, FULL = "DITI_PRECISION", "float32"
LOOKED_FOR = ("cuda", "mps")  # by auto, the best first
FETCHING = ("cuda",)  # these fetch what is in pinned memory by themselves


def decide(given: Device = AUTO) -> torch.device:
    """The device to compute on: the given one; for auto that of DITI_DEVICE, else a GPU where torch finds one."""
    import torch

    name, source = str(given), "device"
    if name == AUTO:
        name, source = os.environ.get(VARIABLE) or AUTO, VARIABLE
    if name == AUTO:
        name = next((kind for kind in LOOKED_FOR if _count(kind)), HOST)
    kind, _, number = name.partition(":")
    if not _count(kind) or (number and not (number.isdecimal() and int(number) < _count(kind))):
        there = [HOST, *(f"{one}:{i}" for one in LOOKED_FOR for i in range(_count(one)))]
        raise InputError(
            f"{source} {name!r} is not there; this machine has {', '.join(there)}: use one of these, or {AUTO}"
        )
    if kind == HOST:
        return torch.device(HOST)
    if not number and _count(kind) > 1:  # of the processes that torchrun starts, each takes its own
        number = str(int(os.environ.get("LOCAL_RANK", "0")) % _count(kind))
    return torch.device(f"{kind}:{number or 0}")


def _count(kind: str) -> int:
    """How many devices of a kind torch finds; 0 of one that it does not know."""
    import torch

    try:
        found: int = torch.get_device_module(kind).device_count()
    except (RuntimeError, AttributeError):
        return 0
    return found


@contextmanager
def preferred(given: Device) -> Iterator[None]:
    """Inside the block, and in the processes it starts, auto stands for the given device."""
    if str(given) == AUTO:
        yield
        return
    before, chosen = os.environ.get(VARIABLE), decide(given)
    os.environ[VARIABLE] = str(chosen)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def on_host(place: Tensor | torch.device | torch.Generator) -> bool:
    """Whether that is the CPU or on it: elsewhere, looking at a value stalls the queue of work."""
    device: torch.device = getattr(place, "device", place)  # type: ignore[arg-type]
    return device.type == HOST


def widest(device: torch.device) -> torch.dtype:
    """The most precise float that it computes with."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on the device; the CPU does not wait for the copy where that is known to be safe."""
    if device.type not in FETCHING or not on_host(tensor):
        return tensor.to(device)
    return pinned(tensor, device).to(device, non_blocking=True)  # memory that is not pinned would be waited for


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor in memory from which the device can fetch it by itself, where there is such memory."""
    return tensor if device.type not in FETCHING or tensor.is_pinned() else tensor.pin_memory()


@lru_cache(maxsize=64)
def constant(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor that never changes, sent where it is used once; cast first: not every device has float64."""
    return tensor.to(dtype).to(device)


def has_bf16(device: torch.device) -> bool:
    """Whether a GPU computes in bfloat16, and does not only imitate it."""
    import torch

    asked = None if on_host(device) else getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return asked is not None and bool(asked(including_emulation=False))


@contextmanager
def frozen(device: torch.device) -> Iterator[None]:
    """For networks that do not learn: in bfloat16 where the device has it, unless DITI_PRECISION=float32."""
    import torch

    if (wanted := os.environ.get(PRECISION) or AUTO) not in (AUTO, FULL):
        raise InputError(f"{PRECISION} {wanted!r} is unknown; use {AUTO} or {FULL}")
    if wanted == FULL or not has_bf16(device):
        yield
        return
    with torch.autocast(device.type, torch.bfloat16):
        yield


def allow_tf32(device: torch.device) -> None:
    """Let products of float32 matrices round their factors to 10 bits, as convolutions do there anyway."""
    import torch

    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")


def carrier(backend: str) -> torch.device:
    """Where a tensor must be to reach other processes: NCCL, used with GPUs, takes none from the CPU."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device(HOST)


def gpu_name() -> str:
    """For reports."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return next((kind for kind in LOOKED_FOR if _count(kind)), "no GPU")


CLOSE = 8  # the search ends where what fits and what does not differ by less than an eighth

_known: dict[tuple[object, ...], tuple[int, int]] = {}  # rows that fit and rows that do not, by work and shapes


def fitted(work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """work(*tensors), row by row the same; where memory is too small in as large parts as fit.

    How many rows fit is found by bisection between those that did and those that did not, and remembered for the
    rest of the process.
    """
    import torch

    count, kind = len(tensors[0]), _kind_of(work, tensors)
    found: list[Tensor] = []
    start = 0
    while start < count or not found:
        rows = min(_to_try(kind, count), count - start)
        part = tensors if rows == count else tuple(tensor[start : start + rows] for tensor in tensors)
        try:
            found.append(work(*part))
        except (RuntimeError, MemoryError) as error:
            if not short_of_memory(error):
                raise
            said = str(error).partition("\n")[0]
        else:
            start += rows
            if kind in _known:
                fits, fails = _known[kind]
                _known[kind] = max(fits, rows), fails
            continue
        # Outside the block above, so that what did not fit is let go.
        if rows <= 1:
            remedy = "use a smaller network" if on_host(tensors[0]) else f"use --device {HOST}"
            raise InputError(f"one image does not fit in the memory of the device ({said}); {remedy}")
        fits = _known.get(kind, (0, 0))[0]
        _known[kind] = fits if fits < rows else 0, rows
    return found[0] if len(found) == 1 else torch.cat(found)


def _to_try(kind: tuple[object, ...], count: int) -> int:
    """Rows to take next: all at first; then halfway between what fits and what does not, until these are close."""
    fits, fails = _known.get(kind, (count, count + 1))
    return fits if fails - fits <= max(1, fits // CLOSE) else (fits + fails) // 2


def _kind_of(work: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> tuple[object, ...]:
    """What decides how much memory a row takes, as far as one can tell from outside."""
    function = getattr(work, "func", work)  # of a partial one
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return name, str(tensors[0].device), *(tuple(tensor.shape[1:]) for tensor in tensors)
