"""The presets: named starting points of `diti pretrain` and `diti train`, one visible table each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from diti.config import BackboneConfig, EncoderConfig, PretrainConfig, TrainConfig, TrainingConfig
from diti.core.errors import InputError, nearest

AUTO = "auto"  # in the place of a preset's name: the one that suits the images


@dataclass(frozen=True)
class Preset:
    """A named starting point for `diti pretrain`."""

    config: PretrainConfig
    purpose: str


def _preset(
    size: int,
    unshuffle: int,
    channels: tuple[int, ...],
    layers: int,
    attention: tuple[int, ...],
    head: int,
    images: int,
    batch: int,
    rate: float,
    optimizer: Literal["adam", "muon"],
    purpose: str,
    **training: Any,
) -> Preset:
    shape = BackboneConfig(
        size=size, unshuffle=unshuffle, channels=channels, layers=layers, attention=attention, head_channels=head
    )
    length = TrainingConfig(images=images, train_batch_size=batch, learning_rate=rate, **training)
    return Preset(PretrainConfig(backbone=shape, optimizer=optimizer, training=length), purpose)


def _train_preset(
    encoder: Literal["backbone", "residual", "authors"],
    code_dim: int,
    subsets: int,
    images: int,
    batch: int,
    rate: float,
    **training: Any,
) -> TrainConfig:
    length = TrainingConfig(images=images, train_batch_size=batch, learning_rate=rate, **training)
    return TrainConfig(
        code=EncoderConfig(encoder=encoder, code_dim=code_dim),
        subsets=subsets,
        time_sampling="loss" if encoder == "backbone" else "uniform",  # the authors': uniform
        training=length,
    )


def preset(name: str, also: Sequence[str] = ()) -> PretrainConfig:
    """The preset of that name. also: other names that are allowed, for the message."""
    if name not in PRESETS:
        allowed = [*PRESETS, *also]
        raise InputError(f"preset {name!r} is unknown; use {', '.join(allowed)}.{nearest(name, allowed)}")
    return dataclasses.replace(PRESETS[name].config, preset=name)


def train_preset(name: str) -> TrainConfig:
    """How `diti train` trains over the backbone of that preset."""
    preset(name)
    return dataclasses.replace(TRAIN_PRESETS[name], preset=name)


_QUICK = {
    "lr_schedule": "cosine",
    "lr_warmup_images": 6_400,
    "ema_decay": 0.999,
    "validate_images": 64_000,
    "checkpoint_images": 32_000,
}
_PRETRAINED = {**_QUICK, "lr_schedule": "hold"}
_LONG = {
    "lr_warmup_images": 640_000,
    "validate_images": 1_000_000,
    "checkpoint_images": 500_000,
    "log_images": 12_800,
}

# fmt: off
PRESETS: dict[str, Preset] = {
    # name                size fold widths                     layers attention head  images      batch rate  by
    "toyfaces32": _preset(32,  2,   (32, 32, 64),              1,     (8,),     16,      660_000,  32,  4e-3, "muon", "the built-in faces on a laptop, under an hour", **_PRETRAINED),
    "celeba32":   _preset(32,  2,   (64, 64, 128),             1,     (8,),     32,      400_000,  32,  4e-3, "muon", "real faces on a laptop, about an hour", **_PRETRAINED),
    "celeba64":   _preset(64,  1,   (64, 128, 256, 512),       2,     (16,),    64,   38_000_000, 128,  1e-4, "adam", "CelebA at the paper's size, on a GPU", **_LONG),
    "ffhq128":    _preset(128, 1,   (128, 128, 256, 384, 512), 2,     (16,),    64,   64_000_000, 128,  1e-4, "adam", "FFHQ at the paper's size, on GPUs", **_LONG),
    "bedroom128": _preset(128, 1,   (128, 128, 256, 384, 512), 2,     (16,),    64,  120_000_000, 128,  1e-4, "adam", "LSUN bedrooms at the paper's size, on GPUs; no flip", **{**_LONG, "flip": False}),
}

TRAIN_PRESETS: dict[str, TrainConfig] = {
    # name                      encoder     D    K   images      batch rate
    "toyfaces32": _train_preset("backbone", 128, 16,    100_000,  32,  1e-3, **_QUICK),
    "celeba32":   _train_preset("backbone", 128, 16,    100_000,  32,  1e-3, **_QUICK),
    "celeba64":   _train_preset("authors",  512, 64, 38_000_000, 128,  1e-4, **_LONG),
    "ffhq128":    _train_preset("authors",  512, 64, 64_000_000, 128,  1e-4, **_LONG),
    "bedroom128": _train_preset("authors",  512, 64, 64_000_000, 128,  1e-4, **{**_LONG, "flip": False}),
}
# fmt: on
