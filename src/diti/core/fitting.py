"""A batch of a training in as many parts as memory asks for, which computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from accelerate import Accelerator

from diti.core.ahead import Batches
from diti.core.device import sent
from diti.core.errors import InputError, short_of_memory
from diti.core.objective import Objective
from diti.core.processes import add_up
from diti.core.rng import Draws
from diti.core.training import TrainingConfig

HELD = 3  # numbers for each that is trained, which only come with the first step: two moments, and what is sent


class TooLarge(InputError):
    """A batch does not fit in memory."""


def in_more_parts(config: TrainingConfig, objective: Objective, error: TooLarge) -> TrainingConfig:
    """The settings with the batch in more parts; the error again where it cannot be split."""
    parts = next_parts(config, processes=1)
    if parts is None or objective.compares_images:
        raise error
    print(f"a batch does not fit in memory: computed in {parts} parts from now on")
    return replace(config, gradient_accumulation_steps=parts)


def next_parts(config: TrainingConfig, processes: int) -> int | None:
    """The next number of parts that a process's share of the batch splits into; None beyond one image each."""
    share = config.train_batch_size // processes
    return next((n for n in range(config.gradient_accumulation_steps + 1, share + 1) if share % n == 0), None)


@contextmanager
def memory_advice(config: TrainingConfig, whole: bool, processes: int) -> Iterator[None]:
    """A batch that does not fit in memory becomes one line with the remedy. whole: it cannot be split."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not short_of_memory(error):
            raise
        more = next_parts(config, processes)
        remedy = "use smaller images or a narrower network"
        if more is not None:
            remedy = f"use --gradient-accumulation-steps {more}, which computes the same"
        raise TooLarge(
            f"a batch of {config.train_batch_size} images in {config.gradient_accumulation_steps} part(s) does "
            f"not fit in memory; {'use a smaller --train-batch-size' if whole else remedy}"
        ) from None


def rehearsed(
    objective: Objective, batches: Batches, images: int, config: TrainingConfig, accelerator: Accelerator
) -> TrainingConfig:
    """The settings with the batch in so many parts that they fit in the memory of each process.

    One process finds that out as it goes. Several agree before their first step, since none can change it alone
    while the others wait for its gradients.
    """
    processes = accelerator.num_processes
    if processes == 1 or objective.compares_images:
        return config
    before, parts = [buffer.clone() for buffer in objective.buffers()], config.gradient_accumulation_steps
    while True:
        short = torch.zeros(())
        refused = None
        try:
            with memory_advice(config, False, processes), accelerator.autocast():
                _try_a_part(objective, batches, images, config, accelerator)
        except TooLarge as error:
            refused = error
            short += 1
        objective.zero_grad(set_to_none=True)
        add_up([short])
        if not short:
            break
        if (more := next_parts(config, processes)) is None:
            raise refused or TooLarge("a batch does not fit in the memory of another process")
        config = replace(config, gradient_accumulation_steps=more)
    for buffer, kept in zip(objective.buffers(), before, strict=True):
        buffer.copy_(kept)
    if config.gradient_accumulation_steps > parts and accelerator.is_main_process:
        print(f"a batch does not fit in memory: computed in {config.gradient_accumulation_steps} parts")
    return config


def _try_a_part(
    objective: Objective, batches: Batches, images: int, config: TrainingConfig, accelerator: Accelerator
) -> None:
    """Forward and backward, beside room for what the first step of the optimiser will leave."""
    room = [torch.empty_like(p) for p in objective.parameters() if p.requires_grad for _ in range(HELD)]
    share = config.train_batch_size // accelerator.num_processes
    first, count = images + accelerator.process_index * share, share // config.gradient_accumulation_steps
    objective(sent(batches(first, count), accelerator.device), Draws(config.seed, first, count)).total.backward()
    del room
