"""Diff-AE: an encoder and a diffusion model that knows z, trained together from noise prediction alone.

Preechakul et al., "Diffusion Autoencoders", CVPR 2022. Nothing is frozen and z is one subset at all time-steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diti.config import TrainConfig
from diti.core.card import Findings
from diti.core.device import fitted, sent
from diti.core.errors import InputError
from diti.core.loop import loss_by_time
from diti.core.objective import LossReport
from diti.core.rng import Draws
from diti.data.prepared import Dataset
from diti.diffusion.backbone import Backbone
from diti.diffusion.schedule import dm_loss_eps, gather, output_target, q_sample
from diti.diffusion.unet import build_backbone
from diti.diffusion.validation import fixed_batches
from diti.presets import preset
from diti.representation.checks import RECONSTRUCTIONS, save_reconstructions
from diti.representation.methods.base import EncoderObjective, encoder_rate, new_encoder
from diti.representation.methods.method import Method
from diti.representation.models.diffae import DiffAE, load_diffae
from diti.representation.models.model import inference
from diti.representation.networks.conditioned import ConditionedUNet
from diti.representation.networks.encoder import Encoder, build_encoder
from diti.representation.partition import Partition
from diti.representation.registry import listed


class ConditionedDenoising(EncoderObjective):
    """L_simple of Diff-AE: E ||ε - ε_θ(x_t, t, f(x0))||² over images, uniform time-steps and noise."""

    def __init__(self, encoder: Encoder, decoder: ConditionedUNet, encoder_rate: float = 1.0) -> None:
        super().__init__(encoder, encoder_rate)
        self.decoder = decoder

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        steps = self.decoder.timesteps
        t = sent(draws.integers("time-step", steps), images.device)
        noise = draws.normal("noise", tuple(images.shape[1:]), images.device)
        loss = conditional_loss(self.decoder, images, t, noise, self.encode(images, draws))
        return LossReport(total=loss.mean(), per_image=loss, time_share=t / steps)


def conditional_loss(decoder: ConditionedUNet, images: Tensor, t: Tensor, noise: Tensor, z: Tensor) -> Tensor:
    """(B,) mean squared error of what the network predicts itself: ε (then this is L_simple), x0 or v."""
    abar_t = gather(decoder.schedule.alpha_bar, t, images)
    x_t = q_sample(images, noise, abar_t)
    return dm_loss_eps(output_target(images, noise, abar_t, decoder.prediction_type), decoder(x_t, t, z))


class DiffAEMethod(Method):
    """Nothing is frozen: where there is a backbone, the U-Net starts from it."""

    name, title, about = listed("diffae")
    loss = "squared error of what the U-Net predicts"
    decodes = True
    uses = ()

    def build(self, config: TrainConfig, backbone: Backbone | None, dataset: Dataset) -> ConditionedDenoising:
        """Encoder and U-Net before the first step."""
        _check(config)
        encoder = new_encoder(config, backbone, dataset)
        return ConditionedDenoising(encoder, new_decoder(config, backbone or dataset.size), encoder_rate(config))

    def validate(self, config: TrainConfig, backbone: Backbone | int) -> None:
        _check(config)
        build_encoder(config.code, backbone, seed=0)
        new_decoder(config, backbone)

    def evaluate(self, objective: ConditionedDenoising, dataset: Dataset) -> dict[str, Any]:
        """Validation losses with z and with z shuffled."""
        with inference(objective):
            return validation_losses(objective.encoder, objective.decoder, dataset).record()

    def model(self, objective: ConditionedDenoising, config: TrainConfig, mean: Tensor, std: Tensor) -> DiffAE:
        partition = Partition.single(objective.decoder.timesteps, len(mean))
        return DiffAE(objective.encoder, partition, mean, std, self.name, decoder=objective.decoder)

    def assess(self, model: DiffAE, dataset: Dataset, folder: Path) -> Findings:
        """Is z used, and what does it keep: the losses, and a picture of reconstructions."""
        with inference(model.encoder, model.decoder):
            losses = validation_losses(model.encoder, model.decoder, dataset)
        errors = save_reconstructions(model, dataset, folder / "reconstructions.png")
        sentences = (
            f"z removes {losses.removed():.1%} of the loss that is left with z of another image",
            f"reconstruction error (mean squared, pixels in [-1, 1]): {errors['reconstruction_mse']:.2g} with "
            f"inferred noise, {errors['reconstruction_mse_random_noise']:.2g} with random noise",
        )
        return Findings(losses.record() | errors, sentences, {"reconstructions.png": RECONSTRUCTIONS})

    def load(self, folder: Path) -> DiffAE:
        return load_diffae(folder)


def _check(config: TrainConfig) -> None:
    if config.detach:
        raise InputError("--detach needs several subsets and diffae has one; use --method diti")


def new_decoder(config: TrainConfig, backbone: Backbone | int) -> ConditionedUNet:
    """The U-Net from a backbone, or from the side of the images: then of the preset's shape, and random."""
    dims, seed = config.code.code_dim, config.training.seed
    if isinstance(backbone, Backbone):
        return ConditionedUNet(backbone, dims, "random" if config.start == "random" else "copy", seed)
    shape = replace(preset(config.preset).backbone, size=backbone)
    return ConditionedUNet(build_backbone(shape, seed), dims, "random", seed)


@dataclass(frozen=True)
class Losses:
    """(N,) losses on fixed validation images, and (N,) their t / T."""

    with_z: Tensor
    shuffled: Tensor  # z of another image: if this is as low as with_z, z is not used
    time_share: Tensor

    def removed(self) -> float:
        """Share of the loss with z of another image that the right z removes."""
        return 1 - (self.with_z.mean() / self.shuffled.mean()).item()

    def record(self) -> dict[str, Any]:
        """For the log and for JSON."""
        return {
            "validation_loss": self.with_z.mean().item(),
            "validation_loss_shuffled": self.shuffled.mean().item(),
            "loss_removed_of_shuffled": self.removed(),
            "validation_loss_by_time": loss_by_time(self.with_z, self.time_share),
            "validation_loss_shuffled_by_time": loss_by_time(self.shuffled, self.time_share),
        }


@torch.no_grad()
def validation_losses(encoder: nn.Module, decoder: ConditionedUNet, dataset: Dataset) -> Losses:
    """Losses with z and with z of the image before, on the same images, time-steps and noise."""
    found: list[tuple[Tensor, ...]] = []
    device = next(decoder.parameters()).device
    for pixels, t, noise in fixed_batches(dataset, decoder.timesteps, device):
        z = fitted(encoder, pixels)
        loss = partial(conditional_loss, decoder)
        with_z, shuffled = (fitted(loss, pixels, t, noise, code) for code in (z, z.roll(1, 0)))
        found.append((with_z, shuffled, t / decoder.timesteps))
    return Losses(*(torch.cat(column).cpu().double() for column in zip(*found, strict=True)))
