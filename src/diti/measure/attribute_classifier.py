"""An attribute classifier: a small network on pixels that says what an image shows, to measure edits with.

It learns from labels and never sees a code z, so that it judges the images of all models alike. What it cannot
read on images it was not trained on is marked as such. Notation: N or B images, A attributes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diti.config import TrainingConfig
from diti.core.device import AUTO, Device, decide, fitted, sent
from diti.core.errors import InputError, nearest
from diti.core.images import MODEL_RANGE, to_float
from diti.core.loop import make_accelerator, train
from diti.core.machine import cache_folder
from diti.core.objective import LossReport, Objective
from diti.core.rng import Draws
from diti.core.runs import RunFolder
from diti.data.prepared import Dataset, Stream
from diti.diffusion.files import complaints_about, load_strictly
from diti.probes.scores import average_precision, pearson
from diti.representation.models.inputs import Images, as_batch
from diti.representation.models.model import BATCH, inference
from diti.representation.networks.network_files import WEIGHTS, drawn_from, read_network, write_network
from diti.representation.networks.trunks import ResidualTrunk

# Of the 22 attributes of toy faces at 32 px, 24,000 to 32,000 images make 20 readable; 10,000 make 11 so. A fourth
# level of 128 and batches of 64 took 40,000 images and 1.3 times as long, and read real faces no better.
IMAGES = 32_000  # training images seen; about a minute at 32 px on one core
CHANNELS = (32, 64, 128)  # width of each level of the network, finest first
TESTED = 4_000  # images on which the classifier itself is measured
LEAST_ACCURACY, LEAST_R = 0.8, 0.6  # balanced accuracy, Pearson's r: below, an attribute counts as not readable
# Before its last layer the classifier tells faces cut in halves (distance 1.27), turned upside down (2.64) and
# with swapped colours (1.30) from toy faces (1). The backbone's features tell them too (1.58, 2.53, 1.44), but
# models edit in a code made of those.
TRUNK = "the attribute classifier before its last layer"
FORMAT = 1


@dataclass(frozen=True)
class Trait:
    """One attribute as a classifier sees it."""

    name: str
    binary: bool  # read as a probability; else as a value in the units of its labels
    centre: float  # mean of what is read over the data
    spread: float  # its standard deviation
    readable: bool = True
    usual: float | None = None  # what a strength of 1 asks for, in spreads; None: kept by an earlier version
    quality: dict[str, float | None] = field(default_factory=dict)  # AP and accuracy, or r


@dataclass(frozen=True, eq=False)
class AttributeClassifier:
    """classifier(images) → (N, A). Any function of pixels can stand in for the trained network."""

    read: Callable[[Tensor], Tensor]  # (B, 3, H, W) in [-1, 1] → (B, A)
    size: int  # side of the images, px
    traits: tuple[Trait, ...]  # A
    trunk: nn.Module = field(default_factory=nn.Flatten)  # (B, 3, H, W) → (B, F) what it sees before it answers
    trunk_is: str = "pixels"

    @property
    def attributes(self) -> list[str]:
        return [trait.name for trait in self.traits]

    @property
    def spread(self) -> np.ndarray:
        """float64 (A,), never 0."""
        return np.maximum([trait.spread for trait in self.traits], 1e-12)

    @property
    def readable(self) -> np.ndarray:
        """bool (A,)."""
        return np.array([trait.readable for trait in self.traits], bool)

    def index(self, attribute: str) -> int:
        """The column of an attribute."""
        if attribute not in self.attributes:
            known, hint = ", ".join(self.attributes[:8]), nearest(attribute, self.attributes)
            raise InputError(f"the classifier does not know the attribute {attribute!r} (it knows {known}).{hint}")
        return self.attributes.index(attribute)

    @torch.no_grad()
    def __call__(self, images: Images) -> np.ndarray:
        """float64 (N, A): a probability per binary attribute, a value per continuous one."""
        pixels = as_batch(images, self.size, MODEL_RANGE)
        return torch.cat([fitted(self.read, part).cpu() for part in pixels.split(BATCH)]).double().numpy()


class ReaderNetwork(nn.Module):
    """A residual trunk and one linear layer: logits of binary attributes, standardised values of the others."""

    binary: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, size: int, channels: Sequence[int], attributes: int) -> None:
        super().__init__()
        self.trunk = ResidualTrunk(size, channels)
        self.head = nn.Linear(self.trunk.features, attributes)
        self.register_buffer("binary", torch.zeros(attributes, dtype=torch.bool))
        self.register_buffer("mean", torch.zeros(attributes))
        self.register_buffer("std", torch.ones(attributes))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, A)."""
        return self.head(self.trunk(x))

    def read(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) → (B, A) probabilities and values."""
        with inference(self):
            raw = self(x.to(self.mean.device))
        return torch.where(self.binary, torch.sigmoid(raw), raw * self.std + self.mean)


class Reading(Objective):
    """Log loss of binary attributes, squared error of standardised continuous ones.

    The labels of a batch are found by its positions in the same walk over the rows that its images come from.
    """

    def __init__(self, network: ReaderNetwork, labels: np.ndarray, stream: Stream) -> None:
        super().__init__()
        self.network = network
        self.labels = torch.from_numpy(labels)  # float32 (N, A)
        self.stream = stream

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        """images (B, 3, H, W) of the positions that `draws` begins at."""
        rows, _ = self.stream.take(draws.start, draws.count)
        loss = reading_loss(self.network, images, sent(self.labels[rows], images.device))
        return LossReport(total=loss.mean(), per_image=loss)


def reading_loss(network: ReaderNetwork, images: Tensor, labels: Tensor) -> Tensor:
    """(B,) mean over attributes; labels (B, A) with NaN where missing."""
    raw = network(images)  # (B, A)
    seen = torch.isfinite(labels)
    known = torch.where(seen, labels, 0.0)
    log_loss = F.binary_cross_entropy_with_logits(raw, known, reduction="none")
    squared = (raw - (known - network.mean) / network.std).square()
    return (torch.where(network.binary, log_loss, squared) * seen).mean(1)


@dataclass(frozen=True, kw_only=True)
class ReaderConfig:
    """Everything, besides the data, that decides what a classifier becomes."""

    attributes: tuple[str, ...] = ()
    channels: tuple[int, ...] = CHANNELS
    training: TrainingConfig = field(default_factory=TrainingConfig)


def reader_config(attributes: Sequence[str], channels: Sequence[int], images: int, seed: int) -> ReaderConfig:
    """How a classifier is trained. Images are not mirrored: some attributes say left and right."""
    training = TrainingConfig(
        images=images,
        train_batch_size=32,
        learning_rate=2e-3,
        lr_warmup_images=images // 20,
        lr_schedule="cosine",
        ema_decay=0.99,
        flip=False,
        seed=seed,
        log_images=max(1, images // 20),
        validate_images=images,
        checkpoint_images=max(1, images // 10),
    )
    return ReaderConfig(attributes=tuple(attributes), channels=tuple(channels), training=training)


def train_classifier(
    dataset: Dataset,
    *,
    attributes: Sequence[str] | None = None,
    images: int = IMAGES,
    seed: int = 0,
    channels: Sequence[int] = CHANNELS,
    folder: Path | None = None,
    device: Device = AUTO,
) -> AttributeClassifier:
    """The classifier of a labelled dataset: loaded if it was trained before, else trained, or continued.

    It lies in a subfolder, named by data hash and settings, of `folder` (by default of the cache).
    """
    names = dataset.attributes if attributes is None else list(attributes)
    labels = dataset.labels(names)
    tested = _tested_rows(dataset, names)
    config = reader_config(names, channels, images, seed)
    place = (folder or cache_folder() / "classifiers") / _key(dataset, config)
    with alone(place):
        if (place / WEIGHTS).is_file():
            try:
                return load_classifier(place, device)
            except InputError:  # damaged: it can be trained again
                shutil.rmtree(place)
        _make_reader(dataset, config, labels, tested, place, device)
    return load_classifier(place, device)


def _make_reader(
    dataset: Dataset, config: ReaderConfig, labels: np.ndarray, tested: np.ndarray, place: Path, device: Device
) -> None:
    """Train a classifier, measure it on the `tested` rows and leave it in a folder."""
    names = config.attributes
    network = new_network(dataset, config, labels)
    _train(network, dataset, labels, config, RunFolder(place), device)
    reads = AttributeClassifier(network.read, dataset.size, ())(dataset.pixels(tested))
    traits = measure_traits(names, network.binary.cpu().tolist(), reads, labels[tested])
    description = {
        "format": FORMAT,
        "data": dataset.name,
        "data_hash": dataset.hash,
        "size": dataset.size,
        "channels": list(config.channels),
        "traits": [asdict(trait) for trait in traits],
    }
    write_network(place, description, network.state_dict())  # the weights last: they say that all is there


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Waits until no other process makes the classifier of this folder: models are measured side by side."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f".{place.name}.lock").open("w") as handle:
        fcntl.lockf(handle, fcntl.LOCK_EX)  # ends with the handle, and with the process
        yield


def load_classifier(folder: Path, device: Device = AUTO) -> AttributeClassifier:
    """The classifier that `train_classifier` left in a folder."""
    description, state = read_network(folder)
    if description.get("format") != FORMAT:
        raise InputError(f"{folder} was written by another version; delete it and train the classifier again")
    with complaints_about(folder / "config.json"):
        traits = tuple(Trait(**trait) for trait in description["traits"])
        network = ReaderNetwork(description["size"], description["channels"], len(traits))
    load_strictly(network, state, str(folder))
    network.to(decide(device))
    return AttributeClassifier(network.read, description["size"], traits, network.trunk, TRUNK)


def new_network(dataset: Dataset, config: ReaderConfig, labels: np.ndarray) -> ReaderNetwork:
    """The network before its first step, with the statistics of the training labels (N, A)."""
    known = labels[dataset.rows("train")]
    with drawn_from(config.training.seed, "reader-weights"):
        network = ReaderNetwork(dataset.size, config.channels, len(config.attributes))
    network.binary.copy_(torch.tensor([dataset.is_binary(name) for name in config.attributes]))
    network.mean.copy_(torch.from_numpy(np.nanmean(known, axis=0)))
    network.std.copy_(torch.from_numpy(np.maximum(np.nanstd(known, axis=0), 1e-6)))
    return network


def _train(
    network: ReaderNetwork,
    dataset: Dataset,
    labels: np.ndarray,
    config: ReaderConfig,
    run: RunFolder,
    device: Device,
) -> None:
    """Leave the network with its averaged weights."""
    accelerator = make_accelerator(config.training, device)
    run.begin(config, {"verb": "train a classifier", "data_name": dataset.name, "data_hash": dataset.hash})
    stream = Stream(dataset.rows("train"), config.training.seed, flip=False)
    weights = train(
        Reading(network, labels, stream),
        lambda start, count: to_float(dataset.pixels(stream.take(start, count)[0])),
        config.training,
        run,
        label="training the classifier",
        evaluate=lambda seen: {},
        accelerator=accelerator,
    )
    for name, parameter in weights.params.items():
        parameter.data.copy_(weights.average[name])
    accelerator.end_training()


# ---- How well it reads -------------------------------------------------------------------------------------


def measure_traits(
    names: Sequence[str], binary: Sequence[bool], reads: np.ndarray, truth: np.ndarray
) -> tuple[Trait, ...]:
    """What is read (N, A) against the labels (N, A) of images that were not trained on."""
    scores = {"AP": average_precision(reads, truth), "accuracy": balanced_accuracy(reads, truth)}
    r = pearson(reads, truth)
    traits = []
    for i, (name, two_valued) in enumerate(zip(names, binary, strict=True)):
        quality = {key: float(score[i]) for key, score in scores.items()} if two_valued else {"r": float(r[i])}
        readable = quality["accuracy"] >= LEAST_ACCURACY if two_valued else quality["r"] >= LEAST_R
        known = {key: score if np.isfinite(score) else None for key, score in quality.items()}
        centre, spread = float(reads[:, i].mean()), float(reads[:, i].std())
        usual = usual_spreads(reads[:, i], truth[:, i]) if two_valued else 1.0
        traits.append(Trait(name, two_valued, centre, spread, readable, usual, known))
    return tuple(traits)


def usual_spreads(reads: np.ndarray, truth: np.ndarray) -> float | None:
    """What is read (N,) in images with an attribute, less that in those without, in standard deviations of it."""
    sides = reads[truth == 1], reads[truth == 0]
    if not all(map(len, sides)) or reads.std() == 0:
        return None
    return float((sides[0].mean() - sides[1].mean()) / reads.std())


def balanced_accuracy(reads: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(A,) mean of the shares of positives read above 0.5 and of negatives read below; NaN where one has none."""
    found = []
    for says, is_so in zip((reads > 0.5).T, truth.T, strict=True):
        sides = [says[is_so == 1], ~says[is_so == 0]]
        found.append(np.mean([side.mean() for side in sides]) if all(map(len, sides)) else np.nan)
    return np.array(found)


def _tested_rows(dataset: Dataset, names: Sequence[str]) -> np.ndarray:
    """Test rows, or validation rows where there are none; a clear line where a classifier cannot be trained."""
    tested = dataset.rows("test") if len(dataset.rows("test")) else dataset.rows("valid")
    if not names:
        raise InputError(f"{dataset.path} has no attributes; a classifier learns from labelled images")
    if len(tested) == 0 or len(dataset.rows("train")) == 0:
        raise InputError(
            f"{dataset.path} lacks train rows, or test rows to measure the classifier on; it needs both"
        )
    return tested[:TESTED]


def _key(dataset: Dataset, config: ReaderConfig) -> str:
    """Name of a classifier's folder: the data's hash and all settings."""
    facts: dict[str, Any] = {"data": dataset.hash, "format": FORMAT, **asdict(config)}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
