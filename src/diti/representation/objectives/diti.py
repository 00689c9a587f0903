"""DiTi: at time-step t only the subsets up to t may help g to make up for what the diffusion model lost. Eq. 6.

PDAE is the same with one subset.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diti.core.loop import LossReport, Objective
from diti.core.rng import Draws
from diti.diffusion.schedule import (
    gather,
    lambda_eps,
    q_sample,
    reconstruction_loss_eps,
    w_eps,
)
from diti.representation.encoder import Encoder
from diti.representation.partition import Partition
from diti.representation.shift import ShiftDecoder


class Reconstruction(Objective):
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
    ) -> None:
        super().__init__()
        self.encoder, self.decoder, self.partition = encoder, decoder, partition
        self.detach, self.time_chances, self.encoder_rate = detach, time_chances, encoder_rate

    def rate_factor(self, name: str) -> float:
        """An encoder that starts from what the backbone knows must not lose it: it learns more slowly."""
        return self.encoder_rate if name.startswith("encoder.") else 1.0

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        t, weight = draw_time(draws, self.partition.timesteps, self.time_chances)
        t, weight = t.to(images.device), weight.to(images.device)
        noise = draws.normal("noise", tuple(images.shape[1:])).to(images.device)
        loss = reconstruction_loss(
            self.decoder, images, t, noise, self.partition.mask(self.encoder(images), t, self.detach)
        )
        return LossReport(
            total=(weight * loss).mean(), per_image=loss, time_share=t.float() / self.partition.timesteps
        )


def reconstruction_loss(decoder: ShiftDecoder, images: Tensor, t: Tensor, noise: Tensor, z: Tensor) -> Tensor:
    """(B,) eq. 6 in its ε form, λ_t ||ε - (ε_θ - w_t g)||², for a z that is masked already."""
    schedule = decoder.backbone.schedule
    x_t = q_sample(images, noise, gather(schedule.alpha_bar, t, images))
    eps_theta, g = decoder(x_t, t, z)
    return reconstruction_loss_eps(
        noise, eps_theta, g, gather(w_eps(schedule), t, images), gather(lambda_eps(schedule), t, images)
    )


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
