"""`diti train` and `diti.train`: learn a representation by any method, in one loop, into one kind of folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diti.config import DEFAULT_PRESET, TrainConfig, from_options, resolve
from diti.core import loop
from diti.core.errors import InputError
from diti.core.outputs import require_writable
from diti.core.runs import RunFolder
from diti.data.prepared import Dataset, training_batches
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.start_run import start_run
from diti.presets import preset as named_preset
from diti.presets import train_preset
from diti.representation.finish import finish, training_statistics
from diti.representation.methods.base import see_before
from diti.representation.methods.registry import Findings, Method, find_method
from diti.representation.models.loading import load
from diti.representation.models.model import Model


def train_model(config: TrainConfig, out: Path, begun: Callable[[], None] = lambda: None) -> Findings:
    """Train, or continue to train, the model of `config` in the run folder `out`; returns what was measured.

    `begun` is called once everything is checked.
    """
    config, run = resolve(config), RunFolder(out)
    method = find_method(config.method)
    # What the folder holds already is told further on; this is about its place, and about what is read.
    require_writable({"--out": [out / "config.yaml"]}, [config.data, config.backbone], overwrite=True)
    accelerator = loop.make_accelerator(config.training)
    backbone = frozen_backbone(method, config)
    loop.check_batch(config.training, accelerator.num_processes)
    method.validate(config, backbone or named_preset(config.preset).backbone.size)
    with run.held(accelerator.is_main_process):
        dataset = start_run(config, run, backbone, accelerator, "train")
        begun()
        objective = method.build(config, backbone, dataset)
        see_before(objective, config.training, dataset)
        weights = loop.train(
            objective,
            training_batches(dataset, config.training.seed, flip=config.training.flip),
            config.training,
            run,
            label=f"training {config.method}",
            evaluate=lambda images: method.evaluate(objective, dataset),
            accelerator=accelerator,
        )
        findings = Findings()
        if accelerator.is_main_process:
            with weights.averaged():
                objective.eval()
                model = method.model(objective, config, *training_statistics(objective.encoder, dataset))
                findings = finish(
                    method, model, dataset, run, config.backbone, [origin(config, run.images_seen())]
                )
    accelerator.end_training()
    return findings


def origin(config: TrainConfig, images: int) -> str:
    """For the card: how the model was made."""
    length = f"trained on {images:,} images of `{config.data}`, seed {config.training.seed}"
    return length + (", from the closed-form solution" if config.start == "solved" else "")


def frozen_backbone(method: Method, config: TrainConfig) -> Backbone | None:
    """The frozen diffusion model, unless none is named and none is needed."""
    if config.backbone:
        return load_backbone(config.backbone)
    if method.wants_backbone(config):
        reason = f"method {method.name}" if method.needs_backbone else f"encoder {config.code.encoder!r}"
        raise InputError(f"{reason} needs a backbone and none is given; name a folder, a hub id, or toyfaces32")
    return None


def train(
    data: str | Path | Dataset,
    backbone: str | Path | None = None,
    *,
    out: str | Path,
    method: str = "diti",
    preset: str = DEFAULT_PRESET,
    images: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Model:
    """Train a model in the folder `out`, or continue to: what `diti train` does, from Python.

    images: length of the training, images seen; by default the preset's. settings: any other option of
    `diti train` by name, such as encoder, code_dim, subsets, learning_rate.

        model = diti.train("data/mine", "runs/backbone", method="pdae", images=20_000, out="runs/pdae")
    """
    if (processes := int(os.environ.get("WORLD_SIZE", "1"))) > 1:  # the others would load what is not there yet
        raise InputError(f"diti.train is for one process and {processes} were started; use torchrun -m diti train")
    options = {
        "method": method,
        "data": str(data.path if isinstance(data, Dataset) else data),
        "backbone": "" if backbone is None else str(backbone),
        "seed": seed,
        **({} if images is None else {"images": images}),
        **settings,
    }
    train_model(from_options(train_preset(preset), options, "diti.train"), Path(out))
    return load(out)
