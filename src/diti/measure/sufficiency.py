"""Does the true z, ordered and disentangled, remove the loss of eq. 6? End of appendix C, trained on toy faces.

Notation: N faces, D dims of z.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.config import TrainingConfig
from diti.core.device import sent
from diti.core.images import to_float
from diti.core.loop import loss_by_time, make_accelerator, train
from diti.core.objective import LossReport, Objective
from diti.core.rng import Draws, torch_generator
from diti.core.runs import RunFolder
from diti.data import toyfaces
from diti.diffusion.backbone import Backbone
from diti.representation.methods.diti import draw_time, reconstruction_loss
from diti.representation.models.model import inference
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.partition import Partition
from diti.theory import UNSEEN

HARMONICS = 4  # numbers by which a continuous factor enters the decoder
CHECK_FACES, FACES_AT_ONCE = 1_024, 128


def factor_codes(factors: toyfaces.Factors, order: Sequence[str]) -> Tensor:
    """(N, D) the true factors of toy faces as z: ±1 for a binary one, √2 cos(π k u), k = 1..4, for the others.

    Every number has mean 0 and variance 1. The cosines spare the decoder learning what a colour wheel is.
    """
    columns: list[np.ndarray] = []
    for attribute in map(toyfaces.find, order):
        u = (factors[attribute.name].astype(np.float64) - attribute.low) / (attribute.high - attribute.low)
        columns += [2 * u - 1] if attribute.binary else _waves(u)
    return torch.from_numpy(np.stack(columns, axis=1)).float()


def _waves(u: np.ndarray) -> list[np.ndarray]:
    return [math.sqrt(2) * np.cos(math.pi * k * u) for k in range(1, HARMONICS + 1)]


def factor_partition(order: Sequence[str], entries: Sequence[float], timesteps: int) -> Partition:
    """Factor order[i] enters at time-step entries[i] (rising): one subset per time-step, most of them empty."""
    widths = [1 if toyfaces.find(name).binary else HARMONICS for name in order]
    ends = [sum(w for w, entry in zip(widths, entries, strict=True) if entry <= t) for t in range(timesteps)]
    ends[-1] = sum(widths)
    return Partition.custom(timesteps, timesteps, sum(widths), ends=ends)


class FactorReconstruction(Objective):
    """Eq. 6 with the true factors in the place of f(x0): only g is trained."""

    def __init__(self, decoder: ShiftDecoder, partition: Partition, order: Sequence[str], seed: int) -> None:
        super().__init__()
        self.decoder, self.partition, self.order, self.seed = decoder, partition, order, seed

    def faces(self, start: int, count: int) -> Tensor:
        """Pictures of the faces at these positions: face i depends on (seed, i) only, and so do its factors."""
        return to_float(toyfaces.render(toyfaces.sample(count, self.seed, start), self.decoder.backbone.size))

    def losses(self, images: Tensor, t: Tensor, noise: Tensor, start: int) -> Tensor:
        """(B,) eq. 6 of the faces start .. start + B - 1."""
        z = sent(factor_codes(toyfaces.sample(len(images), self.seed, start), self.order), images.device)
        return reconstruction_loss(self.decoder, images, t, noise, self.partition.mask(z, t))

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        t = sent(draw_time(draws, self.partition.timesteps, None)[0], images.device)
        noise = draws.normal("noise", tuple(images.shape[1:]), images.device)
        loss = self.losses(images, t, noise, draws.start)
        return LossReport(total=loss.mean(), per_image=loss, time_share=t.float() / self.partition.timesteps)

    @torch.no_grad()
    def check(self, faces: int = CHECK_FACES) -> dict[str, Any]:
        """Mean loss on faces that were not trained on, whole and by time; all time-steps alike."""
        device = next(self.decoder.parameters()).device
        rng = torch_generator(self.seed, "sufficiency-check")
        t = (torch.arange(faces) * self.partition.timesteps // faces)[torch.randperm(faces, generator=rng)]
        found = []
        with inference(self):
            for start in range(0, faces, FACES_AT_ONCE):
                steps = t[start : start + FACES_AT_ONCE].to(device)
                images = self.faces(UNSEEN + start, len(steps))
                noise = torch.randn(images.shape, generator=rng).to(device)
                found.append(self.losses(images.to(device), steps, noise, UNSEEN + start).cpu())
        losses = torch.cat(found).double()
        shares = t / self.partition.timesteps
        return {"loss": losses.mean().item(), "loss_by_time": loss_by_time(losses, shares)}


def sufficiency(
    backbone: Backbone, lost: Mapping[str, float], images: int, seed: int, faces: int = CHECK_FACES
) -> dict[str, Any]:
    """Does the true, ordered, disentangled z remove the loss of eq. 6? End of appendix C, on toy faces.

    Each factor enters at its t(Z_i) (`lost`); against it the same factors in reversed order: the one lost last
    enters when the first is lost. Same budget (`images` seen), same faces, noise and first weights.
    """
    order = sorted(lost, key=lambda name: lost[name])
    entries = [lost[name] for name in order]
    record: dict[str, Any] = {"images": images, "order": order, "entries": entries}
    for name, arrangement in (("ordered", order), ("reversed", order[::-1])):
        partition = factor_partition(arrangement, entries, backbone.timesteps)
        decoder = ShiftDecoder(backbone, partition.dims, "copy", seed)
        objective = FactorReconstruction(decoder, partition, arrangement, seed)
        frozen = objective.check(faces)  # g is 0 before training
        record.setdefault("frozen", frozen)
        record[name] = _trained(objective, images, seed, f"factors {name}", faces)
        record[name]["removed"] = 1 - record[name]["loss"] / frozen["loss"]
    return record


def _trained(objective: FactorReconstruction, images: int, seed: int, label: str, faces: int) -> dict[str, Any]:
    """Train g for `images` images and check it with its averaged weights."""
    config = TrainingConfig(
        images=images, train_batch_size=32, learning_rate=1e-3, lr_schedule="cosine",
        lr_warmup_images=images // 10, ema_decay=0.999, flip=False, seed=seed,
        validate_images=images, checkpoint_images=images,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        weights = train(
            objective,
            objective.faces,
            config,
            RunFolder(Path(folder)),
            label=label,
            evaluate=lambda seen: {},
            accelerator=make_accelerator(config, objective.decoder.backbone.device),
        )
    with weights.averaged():
        return objective.check(faces)
