"""How `diti pretrain` and `diti train` begin: their data and their run folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator

from diti.config import WITHOUT_EFFECT, PretrainConfig, TrainConfig, preset
from diti.core.errors import InputError
from diti.core.runs import RunFolder
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.backbone import Backbone

# Settings that a continued run may change: they decide how long it runs and what it tells, not what it computes.
FREE = WITHOUT_EFFECT | {"images", "data"}


@contextmanager
def refused_cleanly(out: Path, is_main: bool) -> Iterator[None]:
    """Where the block refuses its input, remove the run folder again if there was none before."""
    new = not out.exists()
    try:
        yield
    except InputError:
        if new and is_main:
            shutil.rmtree(out, ignore_errors=True)
        raise


def start_run(
    config: PretrainConfig | TrainConfig, out: Path, backbone: Backbone | None, accelerator: Accelerator, verb: str
) -> tuple[RunFolder, Dataset]:
    """Open the data, prepared by the first process alone, and the run folder, which must hold this run or none.

    Without a backbone, data that is not prepared yet gets the size of the preset.
    """
    size = backbone.size if backbone else preset(config.preset).backbone.size
    with accelerator.main_process_first():
        dataset = open_data(config.data, size)
    if backbone:
        backbone.require_size(dataset.size)
    run = RunFolder(out)
    if accelerator.is_main_process:
        inputs = {"verb": verb, "data_name": dataset.name, "data_hash": dataset.hash}
        if verb == "train" and backbone:
            inputs["backbone_hash"] = backbone.digest()
        run.begin(config, inputs, FREE)
    accelerator.wait_for_everyone()
    return run, dataset
