"""`--preset auto`: the preset that suits images of a size and number, and the machine at hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from diti.config import DEFAULT_PRESET, PretrainConfig
from diti.core.device import AUTO, Device, decide, on_host
from diti.core.errors import InputError
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset, place_of
from diti.presets import PRESETS

FOLDS = (2, 1, 4, 8, 16, 32)  # pixel-unshuffle factors to choose from, the best first
GRID = 16  # side of the finest level of the CPU presets, px
LARGEST = 64  # side of the largest grid: a level before the others costs as much as each of them
LEVELS_HALVE = 4  # three levels halve the grid twice
NARROWEST = 32  # channels of a level: 16 cannot carry the 12 of folded noise
LARGE = 64  # px, beyond which such a network is slow
FEW = 5_000  # training images below which the narrower network learns as much in a third of the time
ON_GPU = {64: "celeba64", 128: "ffhq128"}


def suited_to(data: str | Path | Dataset, device: Device = AUTO) -> tuple[PretrainConfig, str]:
    """Settings for these images and this machine, and why these."""
    drawn = place_of(data).partition(":")[0] == "toyfaces"  # at any size: at that of its preset
    dataset = as_dataset(data, PRESETS[DEFAULT_PRESET].config.backbone.size if drawn else None)
    return suited(dataset.size, len(dataset.rows("train")), not on_host(decide(device)))


def suited(size: int, images: int, gpu: bool) -> tuple[PretrainConfig, str]:
    """Settings for a number of training images of a side, px, and the reason for them."""
    if gpu and size in ON_GPU:
        return _settings_of(ON_GPU[size]), f"preset {ON_GPU[size]}: made for {size} px on a GPU"
    narrow = images < FEW
    name, fold = "toyfaces32" if narrow else "celeba32", suited_fold(size)
    config = _settings_of(name)
    side = size // fold
    more = levels_before(side)
    first = config.backbone.channels[0]
    channels = (*(max(NARROWEST, first >> level) for level in range(more, 0, -1)), *config.backbone.channels)
    shape = dataclasses.replace(
        config.backbone, size=size, unshuffle=fold, channels=channels, attention=(side >> more + 1,)
    )
    width = "narrower" if narrow else "wider"
    place = "a GPU" if gpu else "a CPU"
    reason = (
        f"preset {name}: the {width} network, for {images:,} images; {size} px folded {fold}×{fold}, so that "
        f"{place} processes a grid of {side} px at {len(channels)} levels"
    )
    if size > LARGE:
        reason += f"; learns slowly at {size} px: diti prepare --size 64 makes a better start"
    return dataclasses.replace(config, backbone=shape), reason


def suited_fold(size: int) -> int:
    """2, which loses nothing: the finest level has more channels than the folded image. Others if 2 does not fit.

    Noise that is folded further does not fit through a CPU network.
    """
    fitting = [fold for fold in FOLDS if size % (LEVELS_HALVE * fold) == 0 and size // fold >= GRID // 2]
    if not fitting:
        near = max(8, 8 * round(size / 8))
        raise InputError(f"images of {size} px cannot be halved twice; use diti prepare with --size {near}")
    return next((fold for fold in fitting if size // fold <= LARGEST), max(fitting))


def levels_before(side: int) -> int:
    """How many levels come before those of the preset, each with twice the grid of the next."""
    more = 0
    while side % (2 * LEVELS_HALVE << more) == 0 and side >> more + 1 >= GRID:
        more += 1
    return more


def _settings_of(name: str) -> PretrainConfig:
    return dataclasses.replace(PRESETS[name].config, preset=name)
