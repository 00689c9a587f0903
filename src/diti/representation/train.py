"""`diti train`: learn encoder f and decoder g over a frozen backbone. Algorithm 1 of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
from diti.diffusion.pretrain import denoising_loss, start_run
from diti.diffusion.schedule import gather, lambda_eps
from diti.diffusion.validation import fixed_batches
from diti.representation.checks import loss_curves, save_loss_figure, save_reconstructions
from diti.representation.encoder import Encoder, build_encoder
from diti.representation.model import BATCH, DiTi, code_statistics, inference
from diti.representation.objectives.diti import Reconstruction, time_chances
from diti.representation.partition import Partition, make_partition
from diti.representation.shift import ShiftDecoder

HEAD_IMAGES = 4_096  # training images from which the head of a `backbone` encoder is fitted
CURVE_IMAGES, CURVE_BINS = 2_048, 50  # for the loss by time-step that adaptive choices are made from


def train_model(config: TrainConfig, out: Path) -> dict[str, Any]:
    """Train, or continue to train, the model of `config` in the run folder `out`; returns what was measured."""
    accelerator = make_accelerator(config.training)
    backbone = load_backbone(config.backbone)
    run, dataset = start_run(config, out, backbone, accelerator, "train")
    objective = build_objective(config, backbone, dataset)
    weights = train(
        objective,
        training_batches(dataset, config.training.seed, flip=config.training.flip),
        config.training,
        run,
        label=f"training {config.method}",
        evaluate=lambda images: evaluate(objective, dataset),
        accelerator=accelerator,
    )
    facts: dict[str, Any] = {}
    if accelerator.is_main_process:
        with weights.averaged():
            facts = finish(objective, config, dataset, run)
    accelerator.end_training()
    return facts


def build_objective(config: TrainConfig, backbone: Backbone, dataset: Dataset) -> Reconstruction:
    """Networks, partition and loss, before the first step."""
    needs_curve = config.partition == "adaptive" or config.time_sampling == "loss"
    curve = frozen_loss_by_time(backbone, dataset) if needs_curve else None
    partition = build_partition(config, backbone.timesteps, curve)
    encoder = build_encoder(config.code, backbone, config.training.seed)
    if config.code.encoder == "backbone":
        fit_head(encoder, dataset, config.training.seed)
    decoder = ShiftDecoder(backbone, config.code.code_dim, config.decoder_start, config.training.seed)
    chances = time_chances(curve) if curve is not None and config.time_sampling == "loss" else None
    rate = config.code.encoder_rate if config.code.encoder == "backbone" else 1.0
    return Reconstruction(
        encoder, decoder, partition, detach=config.detach, time_chances=chances, encoder_rate=rate
    )


def build_partition(config: TrainConfig, timesteps: int, curve: Tensor | None) -> Partition:
    """How z is cut: PDAE's one subset, or the named partition."""
    if config.method == "pdae":
        if config.detach:
            raise InputError("--detach needs several subsets and pdae has one; use --method diti")
        return Partition.single(timesteps, config.code.code_dim)
    parameters = {"loss_by_time": curve.tolist()} if config.partition == "adaptive" and curve is not None else {}
    return make_partition(config.partition, timesteps, config.subsets, config.code.code_dim, **parameters)


@torch.no_grad()
def frozen_loss_by_time(backbone: Backbone, dataset: Dataset) -> Tensor:
    """(T,) the frozen model's weighted loss by time-step: means over equal stretches, made positive."""
    device = next(backbone.parameters()).device
    total, count = torch.zeros(CURVE_BINS, dtype=torch.float64), torch.zeros(CURVE_BINS, dtype=torch.float64)
    for pixels, t, noise in fixed_batches(dataset, backbone.timesteps, device, CURVE_IMAGES, split="train"):
        weight = gather(lambda_eps(backbone.schedule), t, pixels).flatten()
        loss = (weight * denoising_loss(backbone, pixels, t, noise)).double().cpu()
        place = (t.cpu() * CURVE_BINS) // backbone.timesteps
        total.index_add_(0, place, loss)
        count.index_add_(0, place, torch.ones_like(loss))
    means = (total / count.clamp(min=1)).clamp(min=1e-12)
    return means[torch.arange(backbone.timesteps) * CURVE_BINS // backbone.timesteps]


def fit_head(encoder: Encoder, dataset: Dataset, seed: int) -> None:
    """Start the head from the principal components of the trunk's features of some training images."""
    rows = dataset.rows("train")
    rows = np.sort(np.random.default_rng(seed).permutation(rows)[:HEAD_IMAGES])
    parts = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
    encoder.fit_head((to_float(dataset.pixels(part)) for part in parts), order="ascending")


def evaluate(objective: Reconstruction, dataset: Dataset) -> dict[str, Any]:
    """Validation losses with z, with z shuffled, and of the frozen model."""
    with inference(objective):
        return loss_curves(objective.encoder, objective.decoder, objective.partition, dataset).record()


def finish(objective: Reconstruction, config: TrainConfig, dataset: Dataset, run: RunFolder) -> dict[str, Any]:
    """Statistics of z, the model folder, three facts about z, and a picture of each."""
    objective.eval()
    model = DiTi(
        objective.encoder, objective.decoder, objective.partition,
        *training_statistics(objective, dataset), config.method,
    )  # fmt: skip
    model.save(run.path)
    curves = loss_curves(objective.encoder, objective.decoder, objective.partition, dataset)
    save_loss_figure(curves, run.path / "losses.png")
    facts = curves.record() | save_reconstructions(model, dataset, run.path / "reconstructions.png")
    write_json(run.path / "checks.json", facts)
    write_text(run.path / "card.md", card(config, facts))
    return facts


def training_statistics(objective: Reconstruction, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and std of z over the training split."""
    rows = dataset.rows("train")
    device = next(objective.parameters()).device
    with progress_bar("statistics of z", len(rows)) as advance, torch.no_grad():

        def encode(part: np.ndarray) -> Tensor:
            advance(len(part))
            return objective.encoder(to_float(dataset.pixels(part)).to(device)).cpu()

        return code_statistics(encode, iter([rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]))


def card(config: TrainConfig, facts: dict[str, Any]) -> str:
    """What the model is and what was measured after its training."""
    return f"""# {config.method} over `{config.backbone}`

- z: {config.code.code_dim} dims in {config.subsets if config.method == "diti" else 1} subsets ({config.partition})
- trained on {config.training.images:,} images of `{config.data}`, seed {config.training.seed}
- loss that z removes: {facts["loss_removed"]:.1%} of the frozen model's; z of another image:
  {facts["loss_removed_shuffled"]:.1%}
- reconstruction error (mean squared, pixels in [-1, 1]): {facts["reconstruction_mse"]:.2g} with inferred noise,
  {facts["reconstruction_mse_random_noise"]:.2g} with random noise

![loss by time-step](losses.png)

![reconstructions](reconstructions.png)
"""
