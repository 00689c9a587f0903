"""How `diti pretrain` and `diti train` begin: their data and their run folder."""

from __future__ import annotations

from accelerate import Accelerator

from diti.config import WITHOUT_EFFECT, PretrainConfig, TrainConfig
from diti.core.runs import RunFolder
from diti.core.state import load_state
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.backbone import Backbone
from diti.presets import preset

# Settings that a continued run may change: they decide how long it runs and what it tells, not what it computes.
FREE = WITHOUT_EFFECT | {"images", "data"}


def start_run(
    config: PretrainConfig | TrainConfig,
    run: RunFolder,
    backbone: Backbone | None,
    accelerator: Accelerator,
    verb: str,
) -> Dataset:
    """Open the data, prepared by the first process alone, and the run folder, which must hold this run or none.

    Without a backbone, data that is not prepared yet gets the size of the preset.
    """
    size = backbone.size if backbone else preset(config.preset).backbone.size
    with accelerator.main_process_first():
        dataset = open_data(config.data, size)
    if backbone:
        backbone.require_size(dataset.size)
    if accelerator.is_main_process:
        inputs = {"verb": verb, "data_name": dataset.name, "data_hash": dataset.hash}
        if verb == "train" and backbone:
            inputs["backbone_hash"] = backbone.digest()
        load_state(run.path / "state")  # where all of them are damaged, that is told before anything is written
        run.begin(config, inputs, FREE, None if config.training.minutes else config.training.images)
    accelerator.wait_for_everyone()
    return dataset
