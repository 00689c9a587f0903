"""Several processes that share one job, as torchrun starts them; with only one, nothing special happens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from diti.core.device import carrier
from diti.core.errors import InputError

T = TypeVar("T")


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


def main_first(compute: Callable[[], T]) -> T:
    """What `compute` gives: the first process goes ahead, and the others find what it stored."""
    own = [compute()] if is_main() else []
    from_main(0.0)
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
