"""`diti train`: learn a representation by any method, in one loop, into one kind of folder."""

from __future__ import annotations

from pathlib import Path

from diti.config import TrainConfig, resolve
from diti.core.errors import InputError
from diti.core.loop import make_accelerator, train
from diti.data.prepared import training_batches
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.start_run import start_run
from diti.representation.finish import finish, training_statistics
from diti.representation.methods.registry import Findings, Method, find_method


def train_model(config: TrainConfig, out: Path) -> Findings:
    """Train, or continue to train, the model of `config` in the run folder `out`; returns what was measured."""
    config = resolve(config)
    method = find_method(config.method)
    accelerator = make_accelerator(config.training)
    backbone = frozen_backbone(method, config)
    run, dataset = start_run(config, out, backbone, accelerator, "train")
    objective = method.build(config, backbone, dataset)
    weights = train(
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
            length = f"trained on {config.training.images:,} images of `{config.data}`"
            start = ", from the closed-form solution" if config.start == "solved" else ""
            origin = [f"{length}, seed {config.training.seed}{start}"]
            findings = finish(method, model, dataset, run, config.backbone, origin)
    accelerator.end_training()
    return findings


def frozen_backbone(method: Method, config: TrainConfig) -> Backbone | None:
    """The frozen diffusion model, unless none is named and none is needed."""
    if config.backbone:
        return load_backbone(config.backbone)
    if method.wants_backbone(config):
        reason = f"method {method.name}" if method.needs_backbone else f"encoder {config.code.encoder!r}"
        raise InputError(f"{reason} needs a backbone and none is given; name a folder, a hub id, or toyfaces32")
    return None
