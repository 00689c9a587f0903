"""Losses that compare the images of a batch with each other need the whole batch, even when processes share it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from diti.core.processes import place


def gather_rows(rows: Tensor) -> tuple[Tensor, int]:
    """(B, ...) of this process → (P·B, ...) of all, with gradients, and the index of this process's first row.

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
