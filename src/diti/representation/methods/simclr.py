"""SimCLR: two views of an image get codes that are closer to each other than to those of all other images.

Chen et al. 2020. Notation: N images in the batch over all processes, B of them in this one, P projection_dim.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diti.config import TrainConfig, ViewsConfig
from diti.core.errors import InputError
from diti.core.objective import LossReport
from diti.core.processes import gather_rows
from diti.core.rng import Draws
from diti.data.augment import two_views
from diti.data.prepared import Dataset
from diti.diffusion.backbone import Backbone
from diti.representation.methods.base import (
    CHECKED_IMAGES,
    EncoderObjective,
    checked_reports,
    checked_rows,
    encoder_rate,
    new_encoder,
)
from diti.representation.methods.method import Method
from diti.representation.networks.encoder import Encoder
from diti.representation.networks.network_files import drawn_from
from diti.representation.registry import listed


class Contrast(EncoderObjective):
    """Views → z → a projection, by two layers that are dropped after the training → NT-Xent."""

    compares_images = True
    makes_views = True

    def __init__(
        self, encoder: Encoder, views: ViewsConfig, *, batch: int, seed: int = 0, encoder_rate: float = 1.0
    ) -> None:
        super().__init__(encoder, encoder_rate)
        self.views, self.batch = views, batch
        with drawn_from(seed, "projection"):
            self.projection = projection_head(encoder.dims, views.projection_dim)

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        views = torch.cat(two_views(images, draws, self.views))  # (2B,3,H,W): one pass for both
        first, second = self.projection(self.encoder(views)).chunk(2)
        # Validation runs in one process while the others wait, so nothing can be gathered then.
        loss, nearest = nt_xent(first, second, self.views.temperature, gathered=self.training)
        return LossReport(loss.mean(), loss, parts={"top1": nearest.mean()})


def projection_head(dims: int, width: int) -> nn.Sequential:
    """(B,D) → (B,P): linear, ReLU, linear; section 2.1."""
    return nn.Sequential(nn.Linear(dims, dims), nn.ReLU(), nn.Linear(dims, width))


def nt_xent(first: Tensor, second: Tensor, temperature: float, *, gathered: bool = True) -> tuple[Tensor, Tensor]:
    """(B,) losses of the images, and the share (B,) of their two views that are nearest to each other.

    Eq. 1 of Chen et al. for view i with partner j: -log(exp(s_ij / τ) / Σ_{k≠i} exp(s_ik / τ)), k over all 2N
    views, s their cosine similarity; an image's loss is the mean of its two directions. `first` and `second` are
    (B,P), row i of both from one image. gathered: they are also compared with those of the other processes.
    """
    own = F.normalize(torch.stack([first, second], 1), dim=2)  # (B,2,P)
    everyone, place = gather_rows(own) if gathered else (own, 0)
    if len(everyone) < 2:
        raise InputError("simclr compares the images of a batch, and this one has 1; use 2 or more, preferably 32")
    i = torch.arange(2 * len(own), device=own.device)
    itself = 2 * place + i  # (2B,) place among the 2N views, which stand in pairs
    partner = itself ^ 1
    similarity = own.flatten(0, 1) @ everyone.flatten(0, 1).T / temperature  # (2B,2N)
    similarity = similarity.index_put((i, itself), similarity.new_full((), float("-inf")))
    loss = F.cross_entropy(similarity, partner, reduction="none")
    nearest = (similarity.argmax(1) == partner).float()
    return loss.view(-1, 2).mean(1), nearest.view(-1, 2).mean(1)


class SimCLRMethod(Method):
    """Its models encode, and nothing else."""

    name, title, about = listed("simclr")
    loss = "cross-entropy of finding the other view"
    uses = ("views",)

    def build(self, config: TrainConfig, backbone: Backbone | None, dataset: Dataset) -> Contrast:
        _require_others(config)
        if len(dataset.rows("train")) < 2:
            raise InputError(f"{dataset.path} has 1 training image, and simclr compares images; give more")
        return Contrast(
            new_encoder(config, backbone, dataset),
            config.views,
            batch=config.training.train_batch_size,
            seed=config.training.seed,
            encoder_rate=encoder_rate(config),
        )

    def validate(self, config: TrainConfig, backbone: Backbone | int) -> None:
        """InputError where an image has no others to be compared with, or the encoder cannot be built."""
        _require_others(config)
        super().validate(config, backbone)

    def evaluate(self, objective: Contrast, dataset: Dataset) -> dict[str, Any]:
        """Loss and top1 on fixed validation images with fixed views; training images where there are too few.

        Only whole batches, of the training's size: the loss grows with the number of images that are compared.
        """
        batch = min(objective.batch, CHECKED_IMAGES)
        rows = checked_rows(dataset, least=batch)
        batch = min(batch, len(rows))
        reports = checked_reports(objective, dataset, rows[: len(rows) // batch * batch], batch)
        found = [torch.stack([report.total, report.parts["top1"]]).cpu().double() for report in reports]
        loss, top1 = torch.stack(found).mean(0).tolist()
        return {"validation_loss": loss, "validation_top1": top1}


def _require_others(config: TrainConfig) -> None:
    if config.training.train_batch_size < 2:
        raise InputError(
            "--train-batch-size is 1, and simclr compares the images of a batch; use 2 or more, preferably 32"
        )
