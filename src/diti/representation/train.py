"""`diti train` and `diti.train`: learn a representation by any method, in one loop, into one kind of folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from diti.config import DEFAULT_PRESET, TrainConfig
from diti.core import loop
from diti.core.card import Findings
from diti.core.device import AUTO, HOST, Device
from diti.core.errors import InputError
from diti.core.meeting import meet
from diti.core.outputs import require_writable
from diti.core.processes import require_alone
from diti.core.runs import RunFolder, as_path
from diti.core.settings import from_options
from diti.data.prepared import Dataset, training_batches
from diti.data.sources import place_of
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.start_run import FREE, open_together, settled, start_run
from diti.diffusion.unet import require_unet
from diti.presets import preset as named_preset
from diti.presets import train_preset
from diti.representation.finish import finish, training_statistics
from diti.representation.methods.base import see_before
from diti.representation.methods.method import Method
from diti.representation.models.loading import as_backbone, backbone_name, device_of, load
from diti.representation.models.model import Model
from diti.representation.registry import find_method
from diti.representation.settings import resolve


def train_model(
    config: TrainConfig,
    out: Path,
    begun: Callable[[], None] = lambda: None,
    backbone: Backbone | None = None,
    data: Dataset | None = None,
    device: Device = AUTO,
) -> Findings:
    """Train, or continue to train, the model of `config` in the run folder `out`; returns what was measured.

    `begun` is called once everything is checked. backbone, data: instead of those that the settings name.
    """
    config, run = resolve(config), RunFolder(out)
    method = find_method(config.method)
    # What the folder already holds is checked later; this is about its place, and about what is read.
    require_writable({"--out": [out / "config.yaml"]}, [config.data, config.backbone], overwrite=True)
    config = replace(config, training=settled(config, out, device))
    accelerator = loop.make_accelerator(config.training, device)
    backbone = backbone or frozen_backbone(method, config)
    if backbone:
        require_unet(backbone)
    loop.check_batch(config.training, accelerator.num_processes)
    size = backbone.size if backbone else named_preset(config.preset).backbone.size
    method.validate(config, backbone or size)
    with run.held(accelerator.is_main_process):
        dataset = open_together(config.data if data is None else data, size)
        if backbone:
            backbone.require_size(dataset.size)
        inputs = {"verb": "train"} | ({"backbone_hash": backbone.digest()} if backbone else {})
        by_content = {"backbone"} if backbone else set()  # its name may change, its hash may not
        start_run(config, run, dataset, accelerator, inputs, FREE | by_content)
        begun()
        if backbone:
            backbone.to(accelerator.device)
        objective = method.build(config, backbone, dataset).to(accelerator.device)
        see_before(objective, config.training, dataset)
        weights = loop.train(
            objective,
            training_batches(dataset, config.training.seed, flip=config.training.flip),
            config.training,
            run,
            label=f"training {config.method}",
            evaluate=lambda images: method.evaluate(objective, dataset),
            accelerator=accelerator,
            usual_rate=train_preset(config.preset).training.learning_rate,
        )
        findings = Findings()
        if accelerator.is_main_process:
            with weights.averaged():
                objective.eval()
                model = method.model(objective, config, *training_statistics(objective.encoder, dataset))
                made = [origin(config, run.images_seen())]
                findings = finish(model, method.assess, dataset, run, config.backbone, made)
    meet()  # the first one writes
    accelerator.end_training()
    return findings


def origin(config: TrainConfig, images: int) -> str:
    """For the card: how the model was made."""
    length = f"trained on {images:,} images of `{config.data}`, seed {config.training.seed}"
    return length + (", from the closed-form solution" if config.start == "solved" else "")


def frozen_backbone(method: Method, config: TrainConfig) -> Backbone | None:
    """The frozen diffusion model, unless none is named and none is needed."""
    if config.backbone:
        return load_backbone(config.backbone, HOST)
    if method.wants_backbone(config):
        reason = f"method {method.name}" if method.needs_backbone else f"encoder {config.code.encoder!r}"
        raise InputError(f"{reason} needs a backbone and none is given; name a folder, a hub id, or faces64")
    return None


def train(
    data: str | Path | Dataset,
    backbone: str | Path | Backbone | Model | None = None,
    *,
    out: str | Path,
    method: str = "diti",
    preset: str = DEFAULT_PRESET,
    images: int | None = None,
    seed: int = 0,
    device: Device = AUTO,
    **settings: Any,
) -> Model:
    """Train a model in the folder `out`, or continue to: what `diti train` does, from Python.

    backbone: a folder, shipped name or hub id, a backbone itself, or a model, whose backbone is taken.
    images: length of the training, images seen; by default the preset's.
    device: where to compute, such as "cuda:1"; by default where a given backbone is, else a GPU if there is one.
    settings: any other option of `diti train` by name, such as encoder, code_dim, subsets, learning_rate, or one
    of the method's own.

        model = diti.train("data/mine", "runs/backbone", method="pdae", images=20_000, out="runs/pdae")
    """
    require_alone("diti.train", "train")
    options = {
        "method": method,
        "data": place_of(data),
        "backbone": "" if backbone is None else backbone_name(backbone),
        "seed": seed,
        **({} if images is None else {"images": images}),
        **settings,
    }
    config, folder = from_options(train_preset(preset), options, "diti.train"), as_path(out, "out")
    held = as_backbone(backbone) if isinstance(backbone, Backbone | Model) else None
    device = device_of(backbone, device)
    train_model(config, folder, backbone=held, data=data if isinstance(data, Dataset) else None, device=device)
    return load(folder, device)
