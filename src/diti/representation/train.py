"""`diti train`: learn a representation by any method, in one loop, into one kind of folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diti.config import TrainConfig
from diti.core.errors import InputError
from diti.core.images import to_float
from diti.core.loop import make_accelerator, train
from diti.core.progress import progress_bar
from diti.core.runs import RunFolder, write_json, write_text
from diti.data.prepared import Dataset, training_batches
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.pretrain import start_run
from diti.representation.encoder import Encoder
from diti.representation.methods import Findings, Method, find_method
from diti.representation.model import BATCH, Model, code_statistics
from diti.representation.objectives.base import EncoderObjective


def train_model(config: TrainConfig, out: Path) -> Findings:
    """Train, or continue to train, the model of `config` in the run folder `out`; returns what was measured."""
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
            findings = finish(method, objective, config, dataset, run)
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


def finish(
    method: Method, objective: EncoderObjective, config: TrainConfig, dataset: Dataset, run: RunFolder
) -> Findings:
    """Statistics of z, the model folder, and what the method finds out about it."""
    objective.eval()
    model = method.model(objective, config, *training_statistics(objective.encoder, dataset))
    model.save(run.path)
    findings = method.check(model, dataset, run.path)
    write_json(run.path / "checks.json", findings.facts)
    write_text(run.path / "card.md", card(method, model, config, findings))
    return findings


def training_statistics(encoder: Encoder, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and std of z over the training split."""
    rows = dataset.rows("train")
    device = encoder.head.weight.device
    with progress_bar("statistics of z", len(rows)) as advance, torch.no_grad():

        def encode(part: np.ndarray) -> Tensor:
            advance(len(part))
            return encoder(to_float(dataset.pixels(part)).to(device)).cpu()

        return code_statistics(encode, iter([rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]))


def card(method: Method, model: Model, config: TrainConfig, findings: Findings) -> str:
    """What the model is and what was measured after its training."""
    over = f" over `{config.backbone}`" if config.backbone else ""
    cut = model.partition
    lines = [
        f"z: {model.dims} dims" + (f" in {cut.subsets} subsets ({cut.kind})" if cut.subsets > 1 else ""),
        f"trained on {config.training.images:,} images of `{config.data}`, seed {config.training.seed}",
        *findings.sentences,
    ]
    listed = "\n".join(f"- {line}" for line in lines)
    shown = "".join(f"\n![{words}]({file})\n" for file, words in findings.pictures.items())
    return f"# {method.title}{over}\n\n{listed}\n{shown}"
