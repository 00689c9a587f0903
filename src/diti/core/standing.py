"""Where a training stands: its last good line in memory, its states on disk, and what it does when it diverges."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from accelerate import Accelerator
from torch import Tensor

from diti.core.device import HOST
from diti.core.errors import InputError
from diti.core.health import MOST_FALLS, Health, Line
from diti.core.objective import Objective
from diti.core.pace import Pace
from diti.core.processes import State, state_from_main
from diti.core.runs import DIVERGED, RunFolder, write_text
from diti.core.state import BETWEEN, load_state, save_state
from diti.core.training import TrainingConfig
from diti.core.weights import Weights


class Diverged(InputError):
    """The training diverged again and again, at ever lower rates."""


class Standing:
    """Where a run stands: its last good line in memory, its states on disk, its health."""

    def __init__(self, weights: Weights, run: RunFolder, accelerator: Accelerator, config: TrainingConfig) -> None:
        """From the newest undamaged state, or from the start."""
        self.weights, self.run, self.accelerator, self.config = weights, run, accelerator, config
        self.images, self.health, self.pace = 0, Health(), Pace.of(config.images, config.minutes)
        self.saved = 0  # images of the newest state on disk
        self.between = False  # whether the last good line is one at which no state is due
        self.beginning = self.tensors = copied(weights.tensors())
        notes: list[str] = []
        if (found := self._loaded(notes)) is not None:
            tensors, facts = found
            weights.restore(tensors)
            if accelerator.scaler is not None and facts.get("scaler"):
                accelerator.scaler.load_state_dict(facts["scaler"])
            self.images = self.saved = int(facts["images"])
            self.health = Health(**facts.get("health", {}))
            if facts.get("pace"):
                self.pace = Pace(**facts["pace"])
            self.tensors = copied(weights.tensors())
            notes = [*notes, f"continuing at image {self.images:,}"]
        self.facts = self._facts()
        if accelerator.is_main_process:
            run.rewind_log(self.images, self.health.falls)  # also for a run killed before its first state
            for note in notes:
                print(note)

    def _loaded(self, notes: list[str]) -> State | None:
        """The newest state, read by the first process; adds notes on damaged ones."""

        def load() -> State | None:
            if (found := load_state(self.run.path / "state")) is None:
                return None
            notes.extend(found[2])
            return found[0], found[1]

        return state_from_main(load)

    def fell(self, line: Line, objective: Objective, broken: bool, usual_rate: float) -> bool:
        """Whether the line or its last step, which may be `broken`, shows divergence; the same in every process.

        The run is then back at the last good line, or the start, at half the rate; Diverged after too many times.
        usual_rate: a higher rate is never advised.
        """
        reason = "the gradient is not a number" if broken else self.health.fault(line, steady=objective.steady)
        to_the_start = False
        if not reason:
            if not self.health.never_began(line, self.config.lr_warmup_images, objective.must_gain):
                return False
            reason, to_the_start = "the network has learned to predict nothing", True
        where = f"{reason} at image {line.images:,}"
        falls, rate = self.health.falls + 1, self.config.learning_rate * self.health.rate_factor
        if falls > MOST_FALLS:
            raise self._given_up(where, min(rate / 4, usual_rate))
        if to_the_start:
            self.images, self.saved, self.tensors = 0, 0, self.beginning
            if self.accelerator.is_main_process:
                shutil.rmtree(self.run.path / "state", ignore_errors=True)  # none of them was good
        self.weights.restore(self.tensors)
        self.health = Health(falls=falls) if to_the_start else replace(self.health, falls=falls)
        self.facts = self._facts()
        if self.accelerator.is_main_process:
            self.run.rewind_log(self.images)
            self.run.log(images=self.images, fall=reason, noticed_at=line.images, learning_rate=rate / 2)
            print(f"{where}: back to image {self.images:,}, rate {rate / 2:.2g}")
        return True

    def _given_up(self, where: str, advised_rate: float) -> Diverged:
        """What to do about it; the folder keeps the message too."""
        place = "another --out and " if self.saved else ""  # without a state the same folder will do
        message = (
            f"{where}, after {MOST_FALLS} retries, each at half the rate; "
            f"start again with {place}--learning-rate {advised_rate:.2g}, or a longer --lr-warmup-images "
            f"(now {self.config.lr_warmup_images:,}); the log is kept in {self.run.log_path}"
        )
        if self.accelerator.is_main_process:
            write_text(self.run.path / DIVERGED, message + "\n")
        return Diverged(message)

    def good(self, line: Line, between: bool = False) -> None:
        """Keep this line in memory to go back to. between: no state is due there, unless the run is stopped."""
        self.health.remember(line)
        self.between = between
        self.images, self.tensors, self.facts = line.images, copied(self.weights.tensors()), self._facts()

    def save(self) -> None:
        """Write the last good line to disk as a state; the first process does it."""
        if self.accelerator.is_main_process and self.images > self.saved:
            save_state(self.run.path / "state", self.images, self.tensors, self.facts)
        self.saved = self.images

    @contextmanager
    def kept_when_stopped(self) -> Iterator[None]:
        """A run that the user stops loses no more than what came after its last line."""
        try:
            yield
        except KeyboardInterrupt:
            self.save()
            raise

    def _facts(self) -> dict[str, Any]:
        scaler = self.accelerator.scaler
        return {
            "scaler": None if scaler is None else scaler.state_dict(),
            "health": asdict(self.health),
            "pace": asdict(self.pace) if self.pace.measured else None,
            BETWEEN: self.between,
        }


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy in main memory, safe from later steps."""
    return {name: tensor.detach().to(HOST, copy=True) for name, tensor in tensors.items()}
