"""The settings that the training loop reads; the same for every method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from diti.core.ranges import BELOW_ONE, OFF, POSITIVE, Count, Range, Seed
from diti.core.settings import Settings

RATE = Range(0, 100, open=(0,), hint="presets have 1e-4 to 4e-3")
Batch = Annotated[int, *Range(1, 1_000_000)]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Settings):
    """How long and how to train; the same for every method. Lengths are counted in images seen."""

    images: Count = 1_000_000  # length of the run, images seen
    minutes: Annotated[float | None, *POSITIVE] = None  # length of the run by the clock, instead of --images
    train_batch_size: Batch = 64  # images per optimiser step, over all processes
    gradient_accumulation_steps: Batch = 1  # split the batch into this many parts when memory is short
    learning_rate: Annotated[float, *RATE] = 1e-4  # used as written, never rescaled
    lr_warmup_images: Annotated[int, *OFF] = 0  # the rate rises from 0 over this many images
    lr_schedule: Literal["constant", "cosine", "hold"] = "constant"
    """After the warm-up; cosine: falls to 0; hold: falls in the last quarter only."""
    max_grad_norm: Annotated[float, *OFF] = 1.0  # gradient clipping; 0 = off
    ema_decay: Annotated[float, *BELOW_ONE] = 0.9999  # per step; rises to this from 0.1 in the first steps
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = "auto"  # auto: bf16 on GPUs that have it, else no
    compile: bool = False  # torch.compile the networks: minutes at the start, for long runs on a GPU
    flip: bool = True  # mirror half of the images
    seed: Seed = 0
    log_images: Count = 6_400  # images between two lines of the log
    validate_images: Count = 100_000  # images between two validations, each with a picture
    checkpoint_images: Count = 50_000  # images between two states to continue from

    @property
    def sure_images(self) -> int:
        """The fewest images that a finished run has seen; 0 for one that goes by the clock."""
        return self.images if self.minutes is None else 0
