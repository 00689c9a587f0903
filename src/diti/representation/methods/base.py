"""What objectives share: an encoder at its start, and what its trunk sees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from diti.config import TrainConfig, TrainingConfig
from diti.core.device import sent
from diti.core.images import to_float
from diti.core.objective import LossReport, Objective
from diti.core.processes import first_of_each_machine
from diti.core.rng import Draws
from diti.data.prepared import Dataset, Stream
from diti.diffusion.backbone import Backbone
from diti.representation.features import frozen_features, kept_features
from diti.representation.models.model import BATCH, inference
from diti.representation.networks.encoder import Encoder, build_encoder

HEAD_IMAGES = 4_096  # training images from which the head of a `backbone` encoder is fitted
CHECKED_IMAGES, CHECKED_BATCH, SEED = 1_024, 128, 0  # of the validation loss


@dataclass(frozen=True, eq=False)
class SeenBefore:
    """What a frozen trunk sees in the images of a run, by their position in its walk."""

    features: np.ndarray  # (N, F) of all images of the data
    walk: Stream

    def at(self, draws: Draws) -> Tensor:
        """(B,F) of the images that these random numbers are for."""
        return torch.from_numpy(self.features[self.walk.take(draws.start, draws.count)[0]])


class EncoderObjective(Objective):
    """An objective that trains an encoder, whatever else it trains."""

    makes_views = False  # whether the trunk looks at images other than those given
    seen_before: SeenBefore | None = None  # of the training images, see `see_before`

    def __init__(self, encoder: Encoder, encoder_rate: float = 1.0) -> None:
        super().__init__()
        self.encoder, self.encoder_rate = encoder, encoder_rate

    def features(self, images: Tensor, draws: Draws) -> Tensor:
        """(B,F) what the trunk sees in the images; looked up where a run knows it beforehand."""
        if self.seen_before is None or not self.training:
            return self.encoder.features(images)
        return sent(self.seen_before.at(draws), images.device).to(images.dtype)

    def encode(self, images: Tensor, draws: Draws) -> Tensor:
        """z (B,D) of the images as they are."""
        return self.encoder.code(self.features(images, draws))

    def rate_factor(self, name: str) -> float:
        """An encoder that starts from what the backbone knows must not lose it: it learns more slowly."""
        return self.encoder_rate if name.startswith("encoder.") else 1.0


def see_before(objective: EncoderObjective, training: TrainingConfig, dataset: Dataset) -> None:
    """Run a frozen trunk once over all images, where that is as good as running it in every step.

    It is not where images come mirrored and the trunk sees a difference, or where it looks at views of them.
    """
    encoder = objective.encoder
    if objective.makes_views or (training.flip and encoder.tells_sides):
        return
    features = first_of_each_machine(lambda: frozen_features(encoder, dataset))
    if features is not None:
        walk = Stream(dataset.rows("train"), training.seed, flip=training.flip)
        objective.seen_before = SeenBefore(features, walk)


def encoder_rate(config: TrainConfig) -> float:
    """Learning rate of the encoder as a share of the others'; one that starts from nothing learns as they do."""
    return config.code.encoder_rate if config.code.encoder == "backbone" else 1.0


def new_encoder(config: TrainConfig, backbone: Backbone | None, dataset: Dataset) -> Encoder:
    """The encoder of these settings before the first step; one made from the backbone starts as its PCA."""
    encoder = build_encoder(config.code, backbone or dataset.size, config.training.seed)
    if config.code.encoder == "backbone" and backbone is not None:
        encoder.to(backbone.device)
        fit_head(encoder, dataset, config.training.seed)
    return encoder


def fit_head(encoder: Encoder, dataset: Dataset, seed: int) -> None:
    """Start the head from the principal components of the trunk's features of some training images."""
    rows = dataset.rows("train")
    rows = np.sort(np.random.default_rng(seed).permutation(rows)[:HEAD_IMAGES])
    if encoder.frozen and (seen := kept_features(encoder, dataset)) is not None:
        encoder.fit_head_to(torch.from_numpy(seen[rows]), order="ascending")
        return
    parts = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
    encoder.fit_head((to_float(dataset.pixels(part)) for part in parts), order="ascending")


@torch.no_grad()
def checked_reports(
    objective: EncoderObjective, dataset: Dataset, rows: np.ndarray, batch: int
) -> Iterator[LossReport]:
    """What the objective says of each batch of these images, always with the same random numbers."""
    device = objective.encoder.head.weight.device
    with inference(objective):
        for start in range(0, len(rows), batch):
            pixels = to_float(dataset.pixels(rows[start : start + batch])).to(device)
            yield objective(pixels, Draws(SEED, start, len(pixels)))


def checked_rows(dataset: Dataset, least: int = 1) -> np.ndarray:
    """The first validation images, or training images where there are fewer than `least` of them."""
    rows = dataset.rows("valid")
    return (rows if len(rows) >= least else dataset.rows("train"))[:CHECKED_IMAGES]
