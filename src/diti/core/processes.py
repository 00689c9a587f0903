"""Several processes that share one job, as torchrun starts them; all of it is plain where there is only one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def place() -> tuple[int, int]:
    """This process's number, and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def is_main() -> bool:
    """Whether this process is the one that writes and prints."""
    return place()[0] == 0


def add_up(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over processes."""
    for tensor in tensors:
        dist.all_reduce(tensor)


def from_main(value: float) -> float:
    """The first process's number, in every process."""
    if place()[1] == 1:
        return value
    shared = torch.tensor(value, dtype=torch.float64)
    dist.broadcast(shared, 0)
    return float(shared)
