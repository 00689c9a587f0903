"""Is z used, where, and what does it keep: loss by time-step with z, with another image's z, and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.core.card import Findings
from diti.core.device import fitted
from diti.core.images import MODEL_RANGE, grid, save_figure, save_picture, to_float, to_uint8
from diti.core.loop import TIME_BINS, loss_by_time
from diti.data.prepared import Dataset
from diti.diffusion.validation import IMAGES, fixed_batches, fixed_rows
from diti.representation.models.decoding import DecodingModel, in_parts
from diti.representation.models.diffusion import DiTi
from diti.representation.models.model import images_at_once
from diti.representation.networks.shift import ShiftDecoder, losses_with
from diti.representation.partition import Partition

LARGE = 64  # px: of larger images not as many at once as are validated on together
STEP = 2 / 255  # of an 8-bit pixel in [-1, 1]
SHOWN = 8  # faces in the picture of reconstructions
RECONSTRUCTIONS = "validation images, redrawn from z and inferred noise, and from z and new noise"


@dataclass(frozen=True)
class LossCurves:
    """(N,) losses of eq. 6 on fixed validation images, and (N,) their t / T."""

    frozen: Tensor  # g = 0: the diffusion model alone
    with_z: Tensor
    shuffled: Tensor  # z of another image: if this is as low as with_z, z is not used
    time_share: Tensor

    def removed(self) -> float:
        """Share of the frozen model's loss that z removes."""
        return 1 - (self.with_z.mean() / self.frozen.mean()).item()

    def removed_shuffled(self) -> float:
        """The same with z shuffled between images."""
        return 1 - (self.shuffled.mean() / self.frozen.mean()).item()

    def record(self) -> dict[str, Any]:
        """For the log and for JSON."""
        return {
            "validation_loss": self.with_z.mean().item(),
            "validation_loss_frozen": self.frozen.mean().item(),
            "validation_loss_shuffled": self.shuffled.mean().item(),
            "loss_removed": self.removed(),
            "loss_removed_shuffled": self.removed_shuffled(),
            "validation_loss_by_time": loss_by_time(self.with_z, self.time_share),
            "validation_loss_frozen_by_time": loss_by_time(self.frozen, self.time_share),
            "validation_loss_shuffled_by_time": loss_by_time(self.shuffled, self.time_share),
        }


@torch.no_grad()
def loss_curves(
    encoder: Callable[[Tensor], Tensor],
    decoder: ShiftDecoder,
    partition: Partition,
    dataset: Dataset,
    images: int = IMAGES,
) -> LossCurves:
    """Losses with z, with z shuffled, and of the frozen model, on the same images, time-steps and noise."""
    found: list[tuple[Tensor, ...]] = []
    device = next(decoder.parameters()).device
    backbone = decoder.backbone
    for batch in fixed_batches(dataset, partition.timesteps, device, images, "valid", backbone.shape):
        pixels = batch[0]
        together = len(pixels) if backbone.size <= LARGE else images_at_once(backbone.size, device)
        z = torch.cat([fitted(encoder, part) for part in pixels.split(together)])
        for part, t, noise, *own in in_parts(together, *batch, z, z.roll(1, 0)):
            codes = [partition.mask(code, t) for code in own]
            losses = losses_with(decoder, fitted(backbone.encode, part), t, noise, codes)
            found.append((*losses, t / partition.timesteps))
    frozen, with_z, shuffled, share = (torch.cat(column).cpu().double() for column in zip(*found, strict=True))
    return LossCurves(frozen, with_z, shuffled, share)


def save_loss_figure(curves: LossCurves, path: Path) -> Path:
    """Figure A9 of the paper: loss by time-step, with z against the frozen model."""
    from matplotlib.figure import Figure

    middle = [(i + 0.5) / TIME_BINS for i in range(TIME_BINS)]
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for label, losses in (
        ("frozen model", curves.frozen),
        ("z of another image", curves.shuffled),
        ("z", curves.with_z),
    ):
        heights = [float("nan") if loss is None else loss for loss in loss_by_time(losses, curves.time_share)]
        axes.plot(middle, heights, marker="o", label=label)
    axes.set(xlabel="t / T", ylabel="weighted loss (eq. 6)", yscale="log")
    axes.set_title(f"z removes {curves.removed():.1%} of the loss; shuffled {curves.removed_shuffled():.1%}")
    axes.legend(frameon=False)
    return save_figure(figure, path)


def save_reconstructions(
    model: DecodingModel, dataset: Dataset, path: Path, features: np.ndarray | None = None
) -> dict[str, float]:
    """A picture of validation images and their reconstructions; returns the mean squared errors in [-1, 1].

    features: (N, F) of all images, for a model that encodes those of another network.
    """
    rows = dataset.rows("valid")
    rows = (rows if len(rows) else dataset.rows())[:SHOWN]
    images = to_float(dataset.pixels(rows))
    z = None if features is None else model.encode(features[rows])
    inferred = model.reconstruct(images, "inferred", value_range=MODEL_RANGE, z=z)
    random = model.reconstruct(images, "random", value_range=MODEL_RANGE, z=z)
    inferred, random, best = inferred.cpu(), random.cpu(), model.at_best(images).cpu()
    found = {
        "reconstruction_mse": (inferred - images).square().mean().item(),
        "reconstruction_mse_random_noise": (random - images).square().mean().item(),
    }
    rows_shown = {"image": images, "z, inferred x_T": inferred, "z, random x_T": random}
    if not torch.allclose(best, images, rtol=0, atol=STEP):
        rows_shown = {"image": images, "held at best": best, **rows_shown}
        found["held_mse"] = (best - images).square().mean().item()
        found["round_trip_mse"] = (inferred - best).square().mean().item()
    sheet = grid(to_uint8(torch.cat([*rows_shown.values()])), len(rows), row_labels=[*rows_shown])
    save_picture(sheet, path)
    return found


def assess_diti(model: DiTi, dataset: Dataset, folder: Path, features: np.ndarray | None = None) -> Findings:
    """Is z used, where, and what does it keep: three facts about z, and a picture of each.

    features: (N, F) of all images, for a model that encodes those of another network.
    """
    encoder: Callable[[Tensor], Tensor] = model.encoder
    if features is not None:
        codes = iter(model.encode(features[fixed_rows(dataset)]))
        encoder = lambda pixels: torch.stack(list(islice(codes, len(pixels))))  # noqa: E731 - they come in order
    curves = loss_curves(encoder, model.decoder, model.partition, dataset)
    save_loss_figure(curves, folder / "losses.png")
    errors = save_reconstructions(model, dataset, folder / "reconstructions.png", features)
    sentences: tuple[str, ...] = (
        f"z removes {curves.removed():.1%} of the frozen model's loss, z of another image "
        f"{curves.removed_shuffled():.1%}",
        f"reconstruction error (mean squared, pixels in [-1, 1]): {errors['reconstruction_mse']:.2g} with "
        f"inferred noise, {errors['reconstruction_mse_random_noise']:.2g} with random noise",
    )
    if "held_mse" in errors:
        sentences += (
            f"the way to x0 and back alone makes an error of {errors['held_mse']:.2g}; inverting and drawing "
            f"again moves what comes back from there by {errors['round_trip_mse']:.2g}",
        )
    pictures = {
        "losses.png": "loss by time-step with z, with the z of another image, and of the frozen model alone",
        "reconstructions.png": RECONSTRUCTIONS,
    }
    return Findings(curves.record() | errors, sentences, pictures)
