"""DiTi: at time-step t only the subsets up to t may help g to make up for what the diffusion model lost. Eq. 6.

PDAE is the same with one subset.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from diti.config import TrainConfig
from diti.core.card import Findings
from diti.core.device import fitted, sent
from diti.core.errors import InputError
from diti.core.objective import LossReport
from diti.core.rng import Draws
from diti.data.prepared import Dataset
from diti.diffusion.backbone import Backbone
from diti.diffusion.pretrain import denoising_loss
from diti.diffusion.schedule import gather, lambda_eps, q_sample, w_eps
from diti.diffusion.validation import fixed_batches
from diti.representation.checks import assess_diti, loss_curves
from diti.representation.methods.base import EncoderObjective, encoder_rate, new_encoder
from diti.representation.methods.method import Method
from diti.representation.models.diffusion import DiTi, load_diti
from diti.representation.models.model import inference
from diti.representation.networks.encoder import Encoder, build_encoder
from diti.representation.networks.linear import LinearPart
from diti.representation.networks.shift import ShiftDecoder, weighted_loss
from diti.representation.partition import Partition, make_partition
from diti.representation.registry import listed
from diti.representation.settings import resolve
from diti.representation.solve.start import solved_start

USUAL_WEIGHTS = 2_560 * 128  # features times dims: a solved head of no more weights learns at the encoder's rate
CURVE_IMAGES, CURVE_BINS = 2_048, 50  # for the loss by time-step that adaptive choices are made from


class Reconstruction(EncoderObjective):
    """Algorithm 1: encode, noise, mask z by the time-step, and reconstruct with g on top of the frozen model."""

    def __init__(
        self,
        encoder: Encoder,
        decoder: ShiftDecoder,
        partition: Partition,
        *,
        detach: bool = False,
        time_chances: Tensor | None = None,
        encoder_rate: float = 1.0,
        starts_solved: bool = False,
    ) -> None:
        super().__init__(encoder, encoder_rate)
        self.head_rate = encoder_rate * (solved_head_share(encoder) if starts_solved else 1.0)
        self.decoder, self.partition = decoder, partition
        self.detach, self.time_chances = detach, time_chances

    def rate_factor(self, name: str) -> float:
        return self.head_rate if name.startswith("encoder.head.") else super().rate_factor(name)

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        t, weight = draw_time(draws, self.partition.timesteps, self.time_chances)
        t, weight = sent(t, images.device), sent(weight, images.device)
        noise = draws.normal("noise", tuple(images.shape[1:]), images.device)
        loss = reconstruction_loss(
            self.decoder, images, t, noise, self.partition.mask(self.encode(images, draws), t, self.detach)
        )
        return LossReport(
            total=(weight * loss).mean(), per_image=loss, time_share=t.float() / self.partition.timesteps
        )


def solved_head_share(encoder: Encoder) -> float:
    """Share of the encoder's rate for a solved head, which fast steps would undo before the decoder can gain.

    Adam moves every weight alike, so that the more of them there are, the more each step shakes z.
    """
    return min(1.0, USUAL_WEIGHTS / encoder.head.weight.numel())


def reconstruction_loss(decoder: ShiftDecoder, images: Tensor, t: Tensor, noise: Tensor, z: Tensor) -> Tensor:
    """(B,) eq. 6 in its ε form, λ_t ||ε - (ε_θ - w_t g)||², for a z that is masked already."""
    schedule = decoder.backbone.schedule
    x_t = q_sample(images, noise, gather(schedule.alpha_bar, t, images))
    w_t, lam_t = gather(w_eps(schedule), t, images), gather(lambda_eps(schedule), t, images)
    return weighted_loss(noise, decoder(x_t, t, z), w_t, lam_t)


def draw_time(draws: Draws, timesteps: int, chances: Tensor | None) -> tuple[Tensor, Tensor]:
    """(B,) time-steps and (B,) weights that keep the expected loss that of uniform time-steps.

    `chances` (T,) sum to 1; None means uniform. Time-steps come from the inverse of their cumulative sum.
    """
    if chances is None:
        t = draws.integers("time-step", timesteps)
        return t, torch.ones(len(t))
    below = torch.searchsorted(chances.cumsum(0), draws.uniform("time-step"), right=True)
    t = below.clamp(max=timesteps - 1)
    return t, (1 / (timesteps * chances[t])).float()


def time_chances(loss_by_time: Tensor, floor: float = 0.5) -> Tensor:
    """(T,) chances of a time-step: half uniform, half by its share of the measured loss.

    The uniform half bounds the weights by 1 / floor, so that no rare time-step can shake the training.
    """
    share = loss_by_time.double() / loss_by_time.double().sum()
    return floor / len(share) + (1 - floor) * share


class DiTiMethod(Method):
    """Section 4: the code in subsets, each for a stretch of time-steps."""

    name, title, about = listed("diti")
    loss = "λ-weighted loss of eq. 6"
    needs_backbone = decodes = solvable = True
    uses: ClassVar[tuple[str, ...]] = ("subsets", "partition", "detach", "solution")

    def build(self, config: TrainConfig, backbone: Backbone | None, dataset: Dataset) -> Reconstruction:
        """Networks, partition and loss, before the first step."""
        config, backbone = resolve(config), _given(backbone)
        needs_curve = config.partition == "adaptive" or config.time_sampling == "loss"
        curve = frozen_loss_by_time(backbone, dataset) if needs_curve else None
        partition = self.cut(config, backbone.timesteps, curve)
        encoder, linear, partition = starting_point(config, backbone, dataset, partition)
        path: Any = "copy" if config.start == "solved" else config.start
        decoder = ShiftDecoder(backbone, config.code.code_dim, path, config.training.seed, linear)
        chances = time_chances(curve) if curve is not None and config.time_sampling == "loss" else None
        return Reconstruction(
            encoder,
            decoder,
            partition,
            detach=config.detach,
            time_chances=chances,
            encoder_rate=encoder_rate(config),
            starts_solved=config.start == "solved",
        )

    def validate(self, config: TrainConfig, backbone: Backbone | int) -> None:
        """InputError where the partition or a network cannot be built."""
        config, backbone = resolve(config), _given(backbone)
        self.cut(config, backbone.timesteps, torch.ones(backbone.timesteps))
        build_encoder(config.code, backbone, seed=0)
        ShiftDecoder(backbone, config.code.code_dim, "random" if config.start == "random" else "copy")

    def cut(self, config: TrainConfig, timesteps: int, curve: Tensor | None) -> Partition | None:
        """How z is cut; None for `matched`, which is measured."""
        if config.partition == "matched":
            Partition.balanced(timesteps, config.subsets, config.code.code_dim)  # refuses what cannot be cut
            return None
        measured = curve if config.partition == "adaptive" else None
        parameters = {} if measured is None else {"loss_by_time": measured.tolist()}
        return make_partition(config.partition, timesteps, config.subsets, config.code.code_dim, **parameters)

    def evaluate(self, objective: Reconstruction, dataset: Dataset) -> dict[str, Any]:
        """Validation losses with z, with z shuffled, and of the frozen model."""
        with inference(objective):
            return loss_curves(objective.encoder, objective.decoder, objective.partition, dataset).record()

    def model(self, objective: Reconstruction, config: TrainConfig, mean: Tensor, std: Tensor) -> DiTi:
        return DiTi(objective.encoder, objective.partition, mean, std, self.name, decoder=objective.decoder)

    def assess(self, model: DiTi, dataset: Dataset, folder: Path) -> Findings:
        return assess_diti(model, dataset, folder)

    def load(self, folder: Path) -> DiTi:
        return load_diti(folder)


class PDAEMethod(DiTiMethod):
    """The same with one subset."""

    name, title, about = listed("pdae")
    uses = ("solution",)

    def cut(self, config: TrainConfig, timesteps: int, curve: Tensor | None) -> Partition:
        if config.detach:
            raise InputError("--detach needs several subsets and pdae has one; use --method diti")
        return Partition.single(timesteps, config.code.code_dim)


def starting_point(
    config: TrainConfig, backbone: Backbone, dataset: Dataset, partition: Partition | None
) -> tuple[Encoder, LinearPart | None, Partition]:
    """Encoder, linear part of the decoder, and partition: from the closed-form solution, or the plain start.

    Where only the partition is `matched`, the encoder it was measured on comes with it.
    """
    if partition is not None and config.start != "solved":
        return new_encoder(config, backbone, dataset), None, partition
    encoder, linear, cut = solved_start(config, backbone, dataset, partition)
    return encoder, linear if config.start == "solved" else None, cut


def _given(backbone: Backbone | int | None) -> Backbone:
    if not isinstance(backbone, Backbone):
        raise InputError("diti and pdae learn over a frozen diffusion model; name one with --backbone")
    return backbone


@torch.no_grad()
def frozen_loss_by_time(backbone: Backbone, dataset: Dataset) -> Tensor:
    """(T,) the frozen model's weighted loss by time-step: means over equal stretches, made positive."""
    total, count = torch.zeros(CURVE_BINS, dtype=torch.float64), torch.zeros(CURVE_BINS, dtype=torch.float64)
    for pixels, t, noise in fixed_batches(
        dataset, backbone.timesteps, backbone.device, CURVE_IMAGES, split="train"
    ):
        weight = gather(lambda_eps(backbone.schedule), t, pixels).flatten()
        loss = (weight * fitted(partial(denoising_loss, backbone), pixels, t, noise)).cpu().double()
        place = (t.cpu() * CURVE_BINS) // backbone.timesteps
        total.index_add_(0, place, loss)
        count.index_add_(0, place, torch.ones_like(loss))
    means = (total / count.clamp(min=1)).clamp(min=1e-12)
    return means[torch.arange(backbone.timesteps) * CURVE_BINS // backbone.timesteps]
