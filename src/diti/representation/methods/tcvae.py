"""β-TCVAE (Chen et al. 2018): a VAE whose KL divergence is cut in three, so that dependent dims can cost most.

q(z|x) is a normal distribution around the encoder's z, each dim with its own variance; the model's z is that mean.
Notation: B images of this process, M of the whole batch, N of the data set, D length of z.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from diti.config import TrainConfig, VAEConfig
from diti.core.card import Findings
from diti.core.images import MODEL_RANGE, grid, save_picture, to_float, to_uint8
from diti.core.objective import LossReport
from diti.core.processes import gather_rows
from diti.core.rng import Draws
from diti.data.prepared import Dataset
from diti.diffusion.backbone import Backbone
from diti.representation.methods.base import EncoderObjective, checked_rows, encoder_rate, new_encoder
from diti.representation.methods.method import Method
from diti.representation.models.direct import DirectModel, load_direct
from diti.representation.networks.encoder import Encoder, build_encoder
from diti.representation.networks.image_decoder import VAEDecoder, vae_decoder_from_description
from diti.representation.partition import Partition
from diti.representation.registry import listed

START_STD = 0.1  # of each dim of q(z|x): small, so that the decoder can tell codes apart from the first step
ACTIVE_VARIANCE = 0.01  # a dim whose mean varies less than this over images says nothing (Burda et al. 2016)
SHOWN = 8  # images in a row of a picture


class Decomposition(NamedTuple):
    """KL(q(z|x) || p(z)) of each image, (B,) nats from one z each: the three add up to log q(z|x) - log p(z)."""

    mutual_information: Tensor  # log q(z|x) - log q(z)
    total_correlation: Tensor  # log q(z) - Σ_d log q(z_d)
    dimension_kl: Tensor  # Σ_d log q(z_d) - log p(z)


def tc_decomposition(
    z: Tensor, mean: Tensor, log_var: Tensor, first: int = 0, data_count: int = 1
) -> Decomposition:
    """Chen et al. eq. 2, with q(z) and q(z_d) by minibatch-weighted sampling, 1/(NM) Σ_j q(z|x_j) (their eq. S3).

    z (B, D) is drawn from q(z|x) of the rows `first`.. of mean and log_var (M, D), which hold the whole batch.
    """
    # N (data_count) adds log N, (D - 1) log N and -D log N to the three: constants without a gradient. With N = 1
    # they are exact for the batch as its own data set, so biased for a larger one: the first is at most log M.
    by_dim = normal_log_density(z[:, None], mean, log_var)  # (B, M, D)
    by_image = by_dim.sum(2)  # (B, M): log q(z_i|x_j)
    own = by_image.diagonal(first)  # (B,)
    log_weight = -math.log(data_count * len(mean))
    joint = by_image.logsumexp(1) + log_weight  # (B,)
    product = (by_dim.logsumexp(1) + log_weight).sum(1)  # (B,)
    prior = normal_log_density(z, torch.zeros_like(z), torch.zeros_like(z)).sum(1)  # (B,)
    return Decomposition(own - joint, joint - product, product - prior)


def normal_log_density(z: Tensor, mean: Tensor, log_var: Tensor) -> Tensor:
    """log N(z; mean, exp(log_var)), of each number."""
    return -0.5 * ((z - mean).square() * (-log_var).exp() + log_var + math.log(2 * math.pi))


class TotalCorrelationVAE(EncoderObjective):
    """Reconstruction from a z drawn from q(z|x), and the three weighted parts of its KL divergence."""

    compares_images = True

    def __init__(
        self, encoder: Encoder, decoder: VAEDecoder, settings: VAEConfig, encoder_rate: float = 1.0
    ) -> None:
        super().__init__(encoder, encoder_rate)
        self.decoder, self.settings = decoder, settings
        self.log_var_head = nn.utils.skip_init(nn.Linear, encoder.head.in_features, encoder.dims)
        nn.init.zeros_(self.log_var_head.weight)
        nn.init.constant_(self.log_var_head.bias, 2 * math.log(START_STD))

    def rate_factor(self, name: str) -> float:
        """The variances are read from the same features as z, and learn as slowly."""
        return self.encoder_rate if name.startswith("log_var_head.") else super().rate_factor(name)

    def posterior(self, images: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """Mean and log variance (B, D) of q(z|x); the trunk runs once."""
        encoder = self.encoder
        features = (self.features(images, draws) - encoder.feature_mean) / encoder.feature_std
        return encoder.head(features).float(), self.log_var_head(features).float()

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        mean, log_var = self.posterior(images, draws)
        noise = draws.normal("posterior", (self.encoder.dims,), images.device)
        z = mean + (0.5 * log_var).exp() * noise
        squares = (self.decoder(z).float() - images).square().flatten(1).sum(1)  # (B,)
        pixels, weight = images[0].numel(), self.settings
        kl = self.decompose(z, mean, log_var)
        # In nats, without the constant of the normal density, divided by the number of pixel values: of order 1
        # for images of any size, so that the usual gradient clipping fits.
        loss = (
            squares / (2 * weight.pixel_std**2)
            + weight.mi_weight * kl.mutual_information
            + weight.tc_weight * kl.total_correlation
            + weight.dim_kl_weight * kl.dimension_kl
        ) / pixels
        parts = {name: nats.mean() for name, nats in kl._asdict().items()}
        return LossReport(loss.mean(), loss, parts={"reconstruction": squares.mean() / pixels, **parts})

    def decompose(self, z: Tensor, mean: Tensor, log_var: Tensor) -> Decomposition:
        """Over the batch of all processes; validation is done by one, which must not wait for the others."""
        if not self.training:
            return tc_decomposition(z, mean, log_var)
        gathered, first = gather_rows(torch.stack([mean, log_var], 1))  # (M, 2, D)
        return tc_decomposition(z, gathered[:, 0], gathered[:, 1], first)


class TCVAEMethod(Method):
    """Its decoder draws an image from z in one go."""

    name, title, about = listed("tcvae")
    loss = "pixel error and weighted KL, nats per pixel value"
    decodes = True
    uses = ("vae",)

    def build(self, config: TrainConfig, backbone: Backbone | None, dataset: Dataset) -> TotalCorrelationVAE:
        encoder = new_encoder(config, backbone, dataset)
        decoder = VAEDecoder(encoder.size, encoder.dims, seed=config.training.seed)
        return TotalCorrelationVAE(encoder, decoder, config.vae, encoder_rate(config))

    def validate(self, config: TrainConfig, backbone: Backbone | int) -> None:
        encoder = build_encoder(config.code, backbone, seed=0)
        VAEDecoder(encoder.size, encoder.dims)

    def model(self, objective: TotalCorrelationVAE, config: TrainConfig, mean: Tensor, std: Tensor) -> DirectModel:
        """The trained networks as a model; all dims of z belong together."""
        single = Partition.single(1, len(mean))
        return DirectModel(objective.encoder, single, mean, std, self.name, decoder=objective.decoder)

    def assess(self, model: DirectModel, dataset: Dataset, folder: Path) -> Findings:
        """How well images come back, how many dims of z are used, and what codes from the prior look like."""
        images = to_float(dataset.pixels(checked_rows(dataset)))
        z = model.encode(images, value_range=MODEL_RANGE)
        decoded = model.decode(z, model.infer_noise(images, z, value_range=MODEL_RANGE)).cpu()
        drawn = model.prior.sample(2 * SHOWN, seed=0)
        samples = model.decode(drawn, model.new_noise(len(drawn), seed=0, purpose="samples"))
        shown = torch.cat([images[:SHOWN], decoded[:SHOWN]])
        sheet = grid(to_uint8(shown), len(images[:SHOWN]), row_labels=["image", "decoded"])
        save_picture(sheet, folder / "reconstructions.png")
        save_picture(grid(to_uint8(samples), SHOWN), folder / "samples.png")
        facts = {
            "reconstruction_mse": (decoded - images).square().mean().item(),
            "mean_image_mse": (images - images.mean(0)).square().mean().item(),
            "active_dims": active_dims(z),
            "dims": model.dims,
        }
        pictures = {
            "reconstructions.png": "validation images, redrawn from z in one step",
            "samples.png": "images of codes from the prior",
        }
        return Findings(facts, sentences(facts), pictures)

    def load(self, folder: Path) -> DirectModel:
        return load_direct(folder, vae_decoder_from_description)


def active_dims(z: Tensor) -> int:
    """How many dims of the posterior means (N, D) vary over the images."""
    return int((z.var(0, correction=0) > ACTIVE_VARIANCE).sum())


def sentences(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The facts for people."""
    active, dims = facts["active_dims"], facts["dims"]
    used = f"{active} of {dims} dims of z vary over images"
    if active < dims / 2:
        used = (
            f"posterior collapse: only {used}, the others are noise; a lower --pixel-std or --tc-weight keeps more"
        )
    return (
        f"reconstruction error (mean squared, pixels in [-1, 1]): {facts['reconstruction_mse']:.2g}; "
        f"the mean image has {facts['mean_image_mse']:.2g}",
        used,
    )
