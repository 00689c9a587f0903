"""Where a training stands: its last good line in memory, its states on disk, and how it recovers from a fall."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from accelerate import Accelerator
from torch import Tensor

from diti.core.errors import InputError
from diti.core.health import MOST_FALLS, Health, Line
from diti.core.objective import Objective
from diti.core.pace import Pace
from diti.core.runs import DIVERGED, RunFolder, write_text
from diti.core.state import BETWEEN, load_state, save_state
from diti.core.training import TrainingConfig
from diti.core.weights import Weights


class Diverged(InputError):
    """The training diverged again and again, at ever lower rates."""


@dataclass(frozen=True)
class Fall:
    """A training that has to go back."""

    reason: str
    images: int  # where it was noticed
    to_the_start: bool  # what it has learned so far is of no use


class Standing:
    """Where a run stands: its last good line in memory, its states on disk, its health."""

    def __init__(self, weights: Weights, run: RunFolder, accelerator: Accelerator, pace: Pace) -> None:
        self.weights, self.run, self.accelerator = weights, run, accelerator
        self.images, self.health, self.pace = 0, Health(), pace
        self.saved = 0  # images of the newest state on disk
        self.between = False  # whether the last good line is one at which no state is due
        self.beginning = self.tensors = copied(weights.tensors())
        self.facts = self._facts()

    @classmethod
    def begin(cls, weights: Weights, run: RunFolder, accelerator: Accelerator, pace: Pace) -> Standing:
        """From the newest undamaged state, or from the start. pace: how long the run should be."""
        standing = cls(weights, run, accelerator, pace)
        found = load_state(run.path / "state")
        notes: list[str] = []
        if found is not None:
            tensors, facts, notes = found
            weights.restore(tensors)
            if accelerator.scaler is not None and facts.get("scaler"):
                accelerator.scaler.load_state_dict(facts["scaler"])
            standing.images = standing.saved = int(facts["images"])
            standing.health = Health(**facts.get("health", {}))
            if facts.get("pace"):
                standing.pace = Pace(**facts["pace"])
            standing.tensors, standing.facts = copied(weights.tensors()), standing._facts()
            notes = [*notes, f"continuing at image {standing.images:,}"]
        if accelerator.is_main_process:
            run.rewind_log(
                standing.images, standing.health.falls
            )  # also for a run that was killed before its first state
            for note in notes:
                print(note)
        return standing

    def judge(self, line: Line, objective: Objective, config: TrainingConfig, broken: bool) -> Fall | None:
        """A fall, if the line or its last step shows one; the same in every process."""
        if broken:
            return Fall("the gradient is not a number", line.images, to_the_start=False)
        if reason := self.health.fault(line, steady=objective.steady):
            return Fall(reason, line.images, to_the_start=False)
        if self.health.never_began(line, config.lr_warmup_images, objective.must_gain):
            return Fall("the network has learned to predict nothing", line.images, to_the_start=True)
        return None

    def go_back(self, fall: Fall, config: TrainingConfig, usual_rate: float) -> None:
        """Back to the last good line, or to the start, at half the rate; Diverged after too many times.

        usual_rate: a higher rate is never advised.
        """
        falls, rate = self.health.falls + 1, config.learning_rate * self.health.rate_factor
        if falls > MOST_FALLS:
            raise self._given_up(fall, min(rate / 4, usual_rate), config.lr_warmup_images)
        if fall.to_the_start:
            self.images, self.saved, self.tensors = 0, 0, self.beginning
            if self.accelerator.is_main_process:
                shutil.rmtree(self.run.path / "state", ignore_errors=True)  # none of them was good
        self.weights.restore(self.tensors)
        self.health = Health(falls=falls) if fall.to_the_start else replace(self.health, falls=falls)
        self.facts = self._facts()
        if self.accelerator.is_main_process:
            self.run.rewind_log(self.images)
            self.run.log(images=self.images, fall=fall.reason, noticed_at=fall.images, learning_rate=rate / 2)
            print(f"{fall.reason} at image {fall.images:,}: back to image {self.images:,}, rate {rate / 2:.2g}")

    def _given_up(self, fall: Fall, advised_rate: float, warmup: int) -> Diverged:
        """What to do about it; the folder keeps the message too."""
        place = "another --out and " if self.saved else ""  # without a state the same folder will do
        message = (
            f"{fall.reason} at image {fall.images:,}, after {MOST_FALLS} retries, each at half the rate; "
            f"start again with {place}--learning-rate {advised_rate:.2g}, or a longer --lr-warmup-images "
            f"(now {warmup:,}); the log is kept in {self.run.log_path}"
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
        """The last good line as a state on disk, written by the first process."""
        if self.accelerator.is_main_process and self.images > self.saved:
            save_state(self.run.path / "state", self.images, self.tensors, self.facts)
        self.saved = self.images

    @contextmanager
    def kept_when_stopped(self) -> Iterator[None]:
        """A run stopped by hand loses no more than what came after its last line."""
        try:
            yield
        except KeyboardInterrupt:
            self.save()
            raise

    def _facts(self) -> dict[str, Any]:
        scaler = self.accelerator.scaler
        return {
            "scaler": None if scaler is None else scaler.state_dict(),
            "health": self.health.facts(),
            "pace": self.pace.facts() if self.pace.measured else None,
            BETWEEN: self.between,
        }


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A copy in main memory, safe from later steps."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
