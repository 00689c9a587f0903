"""Several processes that share one job, as torchrun starts them; with only one, nothing special happens."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from diti.core.crew import packed, unpacked
from diti.core.device import carrier
from diti.core.errors import InputError
from diti.core.meeting import meet, together, told_by_main

T = TypeVar("T")
State = tuple[dict[str, Tensor], dict[str, Any]]  # tensors by name, and facts


def place() -> tuple[int, int]:
    """This process's number, and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def is_main() -> bool:
    """Whether this process is the one that writes and prints; known from torchrun before they connect."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"


def require_alone(function: str, verb: str) -> None:
    """InputError for a function in several processes: the others would load what is not there yet."""
    if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
        raise InputError(
            f"{function} is for one process and {processes} were started; use torchrun -m diti {verb}"
        )


def add_up(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over processes."""
    if place()[1] == 1:
        return
    for tensor in tensors:
        carried = tensor.to(carrier(dist.get_backend()))
        dist.all_reduce(carried)
        tensor.copy_(carried)


def from_main(value: float) -> float:
    """The first process's number, in every process."""
    if place()[1] == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64, device=carrier(dist.get_backend()))
    dist.broadcast(shared, 0)
    return float(shared)


def state_from_main(load: Callable[[], State | None]) -> State | None:
    """Tensors and facts that the first process loads, in every process: the others need not see its disk."""
    rank, count = place()
    found = load() if rank == 0 else None
    if count == 1 or (header := told_by_main(lambda: _header(found))) is None:
        return found
    tensors, facts = found or ({}, {})
    held = {}
    for name, shape, kind in header["tensors"]:
        tensor = tensors[name] if found else torch.empty(shape, dtype=getattr(torch, kind))
        carried = tensor.contiguous().to(carrier(dist.get_backend()))
        dist.broadcast(carried, 0)
        held[name] = carried.to(tensor.device)
    return held, facts if found else header["facts"]


def _header(state: State | None) -> dict[str, Any] | None:
    if state is None:
        return None
    kinds = [[name, list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in state[0].items()]
    return {"tensors": kinds, "facts": state[1]}


@contextmanager
def folder_from_main(folder: Path) -> Iterator[Path]:
    """A folder of the first process: itself there, a copy that lasts as long as the block elsewhere."""
    rank, count = place()
    meet()
    if rank == 0:
        if count > 1:
            _bytes_from_main(packed(partial(shutil.copytree, folder)))
        yield folder
        return
    with tempfile.TemporaryDirectory() as copy:
        yield unpacked(_bytes_from_main(b""), Path(copy))


def _bytes_from_main(data: bytes) -> bytes:
    count = int(from_main(len(data)))
    shared = torch.frombuffer(bytearray(data or count), dtype=torch.uint8).to(carrier(dist.get_backend()))
    dist.broadcast(shared, 0)
    return shared.cpu().numpy().tobytes()


def first_of_each_machine(compute: Callable[[], T]) -> T:
    """What `compute` gives: one process of each machine goes ahead, and the others there find what it stored."""
    first = not together() or os.environ.get("LOCAL_RANK", "0") == "0"
    own = [compute()] if first else []
    meet()
    return own[0] if own else compute()


def gather_rows(rows: Tensor) -> tuple[Tensor, int]:
    """(B, ...) of this process → (P·B, ...) of all, with gradients, and the index of this process's first row.

    For losses that compare the images of a batch with each other, which need the whole batch.
    The gradient of what another process computes from these rows comes back to them. Where each process takes the
    mean over its own rows, the average over processes, which DistributedDataParallel takes, is then the gradient
    of the mean over the whole batch. Every process must call it, with the same number of rows.
    """
    rank, processes = place()
    return (rows, 0) if processes == 1 else (_Gather.apply(rows), rank * len(rows))


class _Gather(torch.autograd.Function):
    """All processes' rows; backwards, the sum of all processes' gradients of this one's. For any backend."""

    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        context.count = len(rows)
        _, processes = place()
        parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(processes)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)  # all_reduce writes into it
        dist.all_reduce(gradient)
        rank, _ = place()
        first = rank * context.count
        return gradient[first : first + context.count]
