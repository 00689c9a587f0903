"""IB-GAN (Jeon et al., AAAI 2021): a GAN whose images reveal their code, which passed a bottleneck.

    z ~ N(0, I),  r ~ e(r | z),  x = G(r);    min over G, e, q  max over the discriminator of
    GAN - λ I_L + β I_U,    I_L = E log q(z | x) + H(z) <= I(z; x) <= I(z; r) <= E KL(e(r | z) || N(0, I)) = I_U

The mean of q(z | x) is the encoder, which learns from generated images alone. Both bounds count per dim of z, so
that the same weights serve any length of code.

What keeps it stable: hinge losses (Lim & Ye 2017), a discriminator with spectral norm (Miyato et al. 2018) that
looks through the frozen diffusion model where there is one (Sauer et al. 2021) and sees how much images of a group
differ (Karras et al. 2018), rates of their own for the networks (Heusel et al. 2017), Adam with β1 = 0.5, no batch
norm, and a generator averaged over steps. All networks take one step together: the sum of the losses gives each
the gradient of its own.
Notation: B images, D length of z, R length of r.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diti.config import TrainConfig
from diti.core.card import Findings
from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, grid, save_picture, to_float, to_uint8
from diti.core.objective import LossReport
from diti.core.rng import Draws
from diti.data.prepared import Dataset
from diti.diffusion.backbone import Backbone
from diti.representation.methods.base import (
    CHECKED_BATCH,
    SEED,
    EncoderObjective,
    checked_rows,
    encoder_rate,
    new_encoder,
)
from diti.representation.methods.coverage import variety
from diti.representation.methods.method import Method
from diti.representation.models.decoding import in_parts
from diti.representation.models.direct import DirectModel, Prior, load_direct
from diti.representation.models.model import inference
from diti.representation.networks.adversarial import (
    Discriminator,
    Generator,
    generator_from_description,
    look,
    new_discriminator,
    score_as_given,
)
from diti.representation.networks.encoder import Encoder, build_encoder
from diti.representation.networks.image_decoder import OneStepDecoder
from diti.representation.partition import Partition
from diti.representation.registry import listed

GENERATOR_RATE, DISCRIMINATOR_RATE, STD_RATE = 0.4, 1.0, 10.0  # of the learning rate
SHOWN_SAMPLES, SHOWN_RECONSTRUCTIONS, COLUMNS = 64, 16, 16


def gaussian_kl(mean: Tensor, log_std: Tensor) -> Tensor:
    """(B, R) -> (B,): KL(N(μ, σ²) || N(0, 1)) = ½ (μ² + σ² - 1) - log σ, summed over dims. I_U is its mean."""
    return ((mean.square() + (2 * log_std).exp() - 1) / 2 - log_std).sum(1)


def information_bound(z: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """(B, D) -> (B,): log q(z | x) + H(z) for z ~ N(0, I), q = N(mean, std²); ½ log 2π is in both and cancels.

    I_L is its mean: ½ - (z - mean)² / (2 std²) - log std, summed over dims.
    """
    return (0.5 - ((z - mean) / log_std.exp()).square() / 2 - log_std).sum(1)


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """(B, L) -> (B,): hinge loss of scores, real ones above 1, generated ones below -1; mean over the views."""
    return ((1 - real).relu() + (1 + fake).relu()).mean(1)


def generator_loss(fake: Tensor) -> Tensor:
    """(B, L) -> (B,): the generator's part of the hinge loss, a high score; mean over the views."""
    return -fake.mean(1)


class InformationBottleneckGAN(EncoderObjective):
    """Generator, discriminator and encoder with the sum of their losses."""

    betas = (0.5, 0.99)
    compares_images = True  # the discriminator sees the spread of groups
    steady = False  # the losses of opponents rise and fall
    makes_views = True  # the encoder reads drawn images

    def __init__(
        self,
        encoder: Encoder,
        generator: Generator,
        discriminator: Discriminator,
        *,
        info_weight: float,
        bottleneck_weight: float,
        encoder_rate: float = 1.0,
    ) -> None:
        super().__init__(encoder, encoder_rate)
        self.generator, self.discriminator = generator, discriminator
        self.code_log_std = nn.Parameter(torch.zeros(generator.dims))  # of q(z | x)
        self.info_weight, self.bottleneck_weight = info_weight, bottleneck_weight

    def rate_factor(self, name: str) -> float:
        rates = {"generator": GENERATOR_RATE, "discriminator": DISCRIMINATOR_RATE, "code_log_std": STD_RATE}
        return rates.get(name.split(".")[0], super().rate_factor(name))

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        """The discriminator judges detached images, and the generator is judged by fixed weights."""
        z = draws.normal("code", (self.generator.dims,), images.device)
        noise = draws.normal("bottleneck", (self.generator.noise_dims,), images.device)
        mean, log_std = self.generator.bottleneck(z)  # (B, R) of r
        fake_views, read = look(self.encoder, self.generator.draw(mean, log_std, noise))
        with torch.no_grad():
            real_views, _ = look(self.encoder, images)
        real_score = self.discriminator(real_views)
        fake_score = self.discriminator([view.detach() for view in fake_views])
        judged = discriminator_loss(real_score, fake_score)
        adversarial = generator_loss(score_as_given(self.discriminator, fake_views))
        information = information_bound(z, read, self.code_log_std) / z.shape[1]
        bottleneck = gaussian_kl(mean, log_std) / z.shape[1]
        loss = judged + adversarial - self.info_weight * information + self.bottleneck_weight * bottleneck
        parts = {
            "discriminator": judged,
            "adversarial": adversarial,
            "information": information,
            "bottleneck": bottleneck,
            "real_score": real_score,
            "fake_score": fake_score,
        }
        return LossReport(loss.mean(), loss, parts={name: part.mean() for name, part in parts.items()})


class IBGANMethod(Method):
    """Its decoder is the generator, and draws an image from z and noise in one go."""

    name, title, about = listed("ibgan")
    loss = "sum of generator, discriminator and information"
    decodes = True
    uses = ("gan",)

    def build(self, config: TrainConfig, backbone: Backbone | None, dataset: Dataset) -> InformationBottleneckGAN:
        if len(dataset.rows("train")) < 2:
            raise InputError(
                f"{dataset.path} has 1 training image, and a generator could only ever draw that one; give more"
            )
        encoder = new_encoder(config, backbone, dataset)
        pixels = to_float(dataset.pixels(dataset.rows("train")[:CHECKED_BATCH]))
        return InformationBottleneckGAN(
            encoder,
            generator_for(config, encoder.size),
            new_discriminator(encoder, pixels, config.gan.discriminator_width, config.training.seed),
            info_weight=config.gan.info_weight,
            bottleneck_weight=config.gan.bottleneck_weight,
            encoder_rate=encoder_rate(config),
        )

    def validate(self, config: TrainConfig, backbone: Backbone | int) -> None:
        generator_for(config, build_encoder(config.code, backbone, seed=0).size)

    def evaluate(self, objective: InformationBottleneckGAN, dataset: Dataset) -> dict[str, Any]:
        """The loss on fixed validation images, and how much the generated images differ."""
        images = validation_images(dataset)
        found = variety(images, draw_images(objective.generator, len(images)))
        return super().evaluate(objective, dataset) | found.record()

    def model(
        self, objective: InformationBottleneckGAN, config: TrainConfig, mean: Tensor, std: Tensor
    ) -> DirectModel:
        """The encoder, and the generator as its decoder."""
        single = Partition.single(1, len(mean))
        return DirectModel(objective.encoder, single, mean, std, self.name, decoder=objective.generator)

    def assess(self, model: DirectModel, dataset: Dataset, folder: Path) -> Findings:
        """Did the generator collapse, what does it draw, and what does a code keep of an image."""
        images = validation_images(dataset)
        samples = draw_images(model.decoder, len(images))
        found = variety(images, samples)
        save_picture(grid(to_uint8(samples[:SHOWN_SAMPLES]), COLUMNS), folder / "samples.png")
        back = model.reconstruct(images, value_range=MODEL_RANGE).cpu()
        error = (back - images).square().mean().item()
        shown = torch.cat([images[:SHOWN_RECONSTRUCTIONS], back[:SHOWN_RECONSTRUCTIONS]])
        labels = ["image", "reconstruction"]
        save_picture(grid(to_uint8(shown), len(shown) // 2, row_labels=labels), folder / "reconstructions.png")
        facts = found.record() | {"mode_collapse": found.collapsed, "reconstruction_mse": error}
        sentences = (
            found.sentence(),
            f"reconstruction error (mean squared, pixels in [-1, 1]): {error:.2g} through z; "
            f"{mean_image_error(images):.2g} by the mean image",
        )
        pictures = {
            "samples.png": "images of random codes",
            "reconstructions.png": "validation images, and what the generator makes of their z in one step",
        }
        return Findings(facts, sentences, pictures)

    def load(self, folder: Path) -> DirectModel:
        return load_direct(folder, generator_from_description)


def generator_for(config: TrainConfig, size: int) -> Generator:
    """The generator of these settings, for images of that side, px."""
    description = {
        "kind": "ibgan",
        "size": size,
        "dims": config.code.code_dim,
        "bottleneck": config.gan.bottleneck_dim,
        "channels": config.gan.generator_channels,
    }
    return generator_from_description(description, config.training.seed)


@torch.no_grad()
def draw_images(generator: OneStepDecoder, count: int, seed: int = SEED) -> Tensor:
    """(count, 3, H, W) from codes and noise of the prior, always the same ones."""
    device = next(generator.parameters()).device
    z, noise = (
        Prior(dims).sample(count, seed + i) for i, dims in enumerate((generator.dims, generator.noise_dims))
    )
    with inference(generator):
        parts = in_parts(CHECKED_BATCH, z.to(device), noise.to(device))
        return torch.cat([generator(*part).cpu() for part in parts])


def validation_images(dataset: Dataset) -> Tensor:
    """(N, 3, H, W) of which two or more can be compared with each other."""
    return to_float(dataset.pixels(checked_rows(dataset, least=2)))


def mean_image_error(images: Tensor) -> float:
    """Mean squared error of the mean image as reconstruction: what a code that says nothing reaches."""
    return (images - images.mean(0)).square().mean().item()
