"""How `diti pretrain` and `diti train` begin: their data and their run folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from accelerate import Accelerator

from diti.config import WITHOUT_EFFECT, TrainingConfig
from diti.core.device import AUTO, Device
from diti.core.errors import InputError
from diti.core.loop import with_precision
from diti.core.meeting import meet, told_by_main
from diti.core.processes import first_of_each_machine
from diti.core.runs import RunFolder
from diti.core.settings import load_yaml
from diti.core.state import load_state
from diti.data.prepared import Dataset, require_training_images
from diti.data.sources import as_dataset

# Settings that a continued run may change: they decide how long it runs and what it reports, not what it computes.
FREE = WITHOUT_EFFECT | {"images", "data"}


class Config(Protocol):
    """What the settings of both have in common."""

    @property
    def data(self) -> str: ...
    @property
    def training(self) -> TrainingConfig: ...


def open_together(data: str | Dataset, size: int) -> Dataset:
    """The data to train on, prepared by one process of each machine; size: for data that is not prepared yet."""
    dataset = first_of_each_machine(lambda: require_training_images(as_dataset(data, size)))
    if told_by_main(lambda: dataset.hash) != dataset.hash:
        raise InputError(f"{dataset.path} holds other images than on the first machine; copy it again")
    return dataset


def settled(config: Config, out: Path, device: Device = AUTO) -> TrainingConfig:
    """How to train, with the precision that `auto` stands for: that of a run in the folder, else the device's."""

    def before() -> str:
        saved = out / "config.yaml"
        if config.training.mixed_precision == "auto" and saved.is_file():
            with suppress(InputError):  # another kind of run, or a damaged one, is refused further on
                found: Config = load_yaml(type(config)(), saved)
                return found.training.mixed_precision
        return config.training.mixed_precision

    return with_precision(replace(config.training, mixed_precision=told_by_main(before)), device)


def start_run(
    config: Config,
    run: RunFolder,
    dataset: Dataset,
    accelerator: Accelerator,
    inputs: Mapping[str, Any],
    free: frozenset[str] = FREE,
) -> None:
    """Begin the run in its folder, which must hold this run or none. inputs: what is recorded besides the data."""
    if accelerator.is_main_process:
        load_state(run.path / "state")  # if all of them are damaged, this fails before anything is written
        known = {**inputs, "data_name": dataset.name, "data_hash": dataset.hash}
        run.begin(config, known, free, None if config.training.minutes else config.training.images)
    meet()
