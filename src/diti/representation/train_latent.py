"""`diti train-latent`: learn to draw new codes of a trained model, and measure how good they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.config import WITHOUT_EFFECT, TrainingConfig
from diti.core.device import AUTO, Device, sent
from diti.core.errors import InputError
from diti.core.loop import make_accelerator, train
from diti.core.objective import LossReport, Objective
from diti.core.processes import is_main
from diti.core.rng import Draws, torch_generator
from diti.core.runs import RunFolder, write_json
from diti.data.prepared import Stream, require_training_images
from diti.data.sources import open_data
from diti.diffusion.sampler import EpsFn
from diti.diffusion.schedule import Schedule, dm_loss_eps, gather, q_sample
from diti.representation.features import encode_dataset
from diti.representation.models.latent import encoder_file_hash
from diti.representation.models.loading import load_with_decoder
from diti.representation.networks.latent import FOLDER, Latent, LatentShape, default_shape, new_latent

CODES_SEEN = 600_000  # about three minutes on two cores at D = 128
VALIDATION_DRAWS = 8_192  # (code, time-step, noise) triples of the validation loss
COMPARED = 2_048  # codes on each side of a two-sample check
FREE = WITHOUT_EFFECT | {"data"}


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Everything that decides what `diti train-latent` computes; the lengths in `training` count codes."""

    data: str = ""
    shape: LatentShape = field(default_factory=LatentShape)
    training: TrainingConfig = field(default_factory=TrainingConfig)


def latent_config(data: str, shape: LatentShape, codes_seen: int = CODES_SEEN, seed: int = 0) -> LatentConfig:
    """How a latent is trained. Intervals follow from the length, so that short runs are logged too."""
    tenth = max(1, codes_seen // 10)
    training = TrainingConfig(
        images=codes_seen,
        train_batch_size=256,
        learning_rate=1e-3,
        lr_warmup_images=tenth // 2,
        lr_schedule="cosine",
        ema_decay=0.999,
        flip=False,
        seed=seed,
        log_images=max(1, tenth // 5),
        validate_images=tenth,
        checkpoint_images=tenth,
    )
    return LatentConfig(data=data, shape=shape, training=training)


class LatentDenoising(Objective):
    """E ||ε - ε_θ(z_t, t)||² over standardised codes, uniform time-steps and noise."""

    def __init__(self, latent: Latent) -> None:
        super().__init__()
        self.latent = latent

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        """`images` are standardised codes (B, D): the loop asks for nothing else of them."""
        steps = self.latent.shape.timesteps
        t = sent(draws.integers("time-step", steps), images.device)
        noise = draws.normal("noise", (self.latent.dims,), images.device)
        loss = noise_loss(self.latent, images, t, noise, self.latent.schedule)
        return LossReport(total=loss.mean(), per_image=loss, time_share=t.float() / steps)


def noise_loss(eps_fn: EpsFn, codes: Tensor, t: Tensor, noise: Tensor, schedule: Schedule) -> Tensor:
    """(B,) eq. A2 over standardised codes (B, D)."""
    noisy = q_sample(codes, noise, gather(schedule.alpha_bar, t, codes))
    return dm_loss_eps(noise, eps_fn(noisy, t))


def fit_latent(
    model_folder: str | Path, data: str, *, codes_seen: int = CODES_SEEN, seed: int = 0, device: Device = AUTO
) -> dict[str, Any]:
    """Train, or continue to train, `latent/` of a model folder on codes of `data`; returns what was measured."""
    folder = Path(model_folder)
    if not folder.is_dir():
        raise InputError(f"{model_folder} is not a folder; a latent is written into a model folder on this disk")
    model = load_with_decoder(folder, device)
    dataset = require_training_images(open_data(data, model.size))
    model.require_size(dataset.size)
    shape = default_shape(model.dims, encoder_file_hash(folder))
    config = latent_config(data, shape, codes_seen, seed)
    with RunFolder(folder / FOLDER).held(is_main()):
        run = start_latent_run(folder, config, {"data_name": dataset.name, "data_hash": dataset.hash})
        codes = torch.from_numpy(encode_dataset(model, dataset))  # once; the loop sees no image
        latent = new_latent(shape, *model.statistics(codes[dataset.rows("train")]), seed)
        held_out = dataset.rows("valid") if len(dataset.rows("valid")) else dataset.rows("train")
        return train_latent(latent, codes[dataset.rows("train")], codes[held_out], config, run, model.device)


def start_latent_run(model_folder: Path, config: LatentConfig, inputs: dict[str, Any]) -> RunFolder:
    """The run in `latent/`, which must be this one or none."""
    run = RunFolder(model_folder / FOLDER)
    try:
        run.begin(config, {"verb": "train-latent", **inputs}, FREE)
    except InputError as error:
        found = str(error).partition(";")[0]  # the rest advises another --out, which is not possible here
        raise InputError(
            f"{found}; repeat its command to continue it, or remove {run.path} to start again"
        ) from None
    return run


def train_latent(
    latent: Latent,
    train_codes: Tensor,
    held_out: Tensor,
    config: LatentConfig,
    run: RunFolder,
    device: Device = AUTO,
) -> dict[str, Any]:
    """Train on codes (N, D) in z's own scale, write `latent/` and what was measured on the held-out codes."""
    accelerator = make_accelerator(config.training, device)
    known, unseen = latent.standardise(train_codes), latent.standardise(held_out)
    stream = Stream(np.arange(len(known)), config.training.seed, flip=False)
    weights = train(
        LatentDenoising(latent),
        lambda start, count: known[stream.take(start, count)[0]],
        config.training,
        run,
        label="training the latent",
        evaluate=lambda seen: {"validation_loss": latent_loss(latent, unseen)},
        accelerator=accelerator,
    )
    facts: dict[str, Any] = {}
    if accelerator.is_main_process:
        with weights.averaged():
            latent.save(run.path.parent)
            facts = {"codes_seen": config.training.images, **quality(latent.eval(), known, unseen)}
        write_json(run.path / "checks.json", facts)
    accelerator.end_training()
    return facts


# ---- How good the drawn codes are --------------------------------------------------------------------------


@dataclass(frozen=True)
class Gaussian:
    """The baseline: a normal distribution with the mean and full covariance of the training codes."""

    mean: Tensor  # (D,)
    variances: Tensor  # (D,) along the axes
    axes: Tensor  # (D, D) orthonormal columns

    @classmethod
    def fit(cls, codes: Tensor) -> Gaussian:
        variances, axes = torch.linalg.eigh(torch.cov(codes.T.double()).reshape(codes.shape[1], -1))
        return cls(codes.mean(0), variances.clamp(min=0).float(), axes.float())

    def sample(self, count: int, seed: int) -> Tensor:
        """(count, D)."""
        noise = torch.randn((count, len(self.mean)), generator=torch_generator(seed, "gaussian"))
        return self.mean + (noise * self.variances.sqrt()) @ self.axes.T

    def eps(self, x: Tensor, abar: Tensor) -> Tensor:
        """E[ε | x] = √(1 - ᾱ) (ᾱ Σ + (1 - ᾱ) I)⁻¹ (x - √ᾱ μ): no network can do better on such codes."""
        along = (x - abar.sqrt() * self.mean) @ self.axes
        return (1 - abar).sqrt() * (along / (abar * self.variances + 1 - abar)) @ self.axes.T


def quality(latent: Latent, train_codes: Tensor, held_out: Tensor) -> dict[str, float]:
    """The latent, the Gaussian baseline, and real training codes, each against held-out codes; standardised."""
    gaussian = Gaussian.fit(train_codes)
    schedule = latent.schedule
    facts = {
        "validation_loss": latent_loss(latent, held_out),
        "validation_loss_gaussian": validation_loss(
            lambda x, t: gaussian.eps(x, gather(schedule.alpha_bar, t, x)), held_out, schedule
        ),
    }
    count = min(COMPARED, len(train_codes), len(held_out))
    real = some_rows(held_out, count, seed=0)
    compared = {
        "": latent.standardise(latent.sample(count, seed=0)),
        "_gaussian": gaussian.sample(count, seed=0),
        "_real": some_rows(train_codes, count, seed=1),
    }
    for name, codes in compared.items():
        facts[f"energy_distance{name}"] = energy_distance(codes, real)
        facts[f"auroc{name}"] = two_sample_auroc(codes, real)
    return facts


def some_rows(codes: Tensor, count: int, seed: int) -> Tensor:
    """`count` different rows, the same for the same seed."""
    return codes[torch.randperm(len(codes), generator=torch_generator(seed, "compared-codes"))[:count]]


@torch.no_grad()
def validation_loss(eps_fn: EpsFn, codes: Tensor, schedule: Schedule, device: torch.device | None = None) -> float:
    """Mean of `noise_loss` over fixed codes, time-steps and noise, all time-steps alike. device: the network's."""
    rng = torch_generator(0, "latent-validation")
    rows = torch.arange(VALIDATION_DRAWS) % len(codes)
    t = (torch.arange(VALIDATION_DRAWS) * schedule.timesteps // VALIDATION_DRAWS)[
        torch.randperm(VALIDATION_DRAWS, generator=rng)
    ]
    noise = torch.randn((VALIDATION_DRAWS, codes.shape[1]), generator=rng)
    where = device or codes.device
    loss = noise_loss(eps_fn, codes[rows].to(where), t.to(where), noise.to(where), schedule)
    return loss.cpu().double().mean().item()


def latent_loss(latent: Latent, codes: Tensor) -> float:
    """The same of a latent, where it is."""
    return validation_loss(latent, codes, latent.schedule, latent.mean.device)


def energy_distance(a: Tensor, b: Tensor) -> float:
    """2 E|a - b| - E|a - a'| - E|b - b'| over pairs of different codes; 0 on average for equal distributions."""
    within = [torch.cdist(x, x).double().sum() / (len(x) * (len(x) - 1)) for x in (a, b)]
    return (2 * torch.cdist(a, b).double().mean() - within[0] - within[1]).item()


def two_sample_auroc(drawn: Tensor, real: Tensor) -> float:
    """How well boosted trees, fitted on one half, tell drawn from real codes in the other; 0.5 is not at all.

    Trees see what a linear classifier cannot: two distributions of the same mean and covariance.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    codes = torch.cat([drawn, real]).numpy()
    is_drawn = np.arange(len(codes)) < len(drawn)
    fitted = np.arange(len(codes)) % 2 == 0
    trees = HistGradientBoostingClassifier(random_state=0).fit(codes[fitted], is_drawn[fitted])
    return float(roc_auc_score(is_drawn[~fitted], trees.predict_proba(codes[~fitted])[:, 1]))
