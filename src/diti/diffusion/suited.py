"""`--preset auto`: the preset that suits images of a size and number, and the machine at hand."""

from __future__ import annotations

import dataclasses

from diti.config import PRESETS, PretrainConfig
from diti.core.errors import InputError

FOLDS = (1, 2, 4, 8, 16, 32)  # pixel-unshuffle factors to choose from
GRID = 16  # side at which a U-Net for a CPU sees an image, px: what it costs hardly depends on the image's own
LEVELS_HALVE = 4  # three levels halve the grid twice
FEW = 5_000  # training images below which the narrower network learns as much in a third of the time
ON_GPU = {64: "celeba64", 128: "ffhq128"}


def suited(size: int, images: int, gpu: bool) -> tuple[PretrainConfig, str]:
    """Settings for so many training images of a side, px, and why these."""
    if gpu and size in ON_GPU:
        return _named(ON_GPU[size]), f"preset {ON_GPU[size]}: made for {size} px on a GPU"
    narrow = images < FEW
    name, fold = "toyfaces32" if narrow else "celeba32", suited_fold(size)
    config = _named(name)
    side = size // fold
    shape = dataclasses.replace(config.backbone, size=size, unshuffle=fold, attention=(side // 2,))
    width = (
        f"the narrower network, for {images:,} images" if narrow else f"the wider network, for {images:,} images"
    )
    place = "a GPU" if gpu else "a CPU"
    reason = f"preset {name}: {width}; {size} px folded {fold}×{fold}, so that {place} sees a grid of {side} px"
    return dataclasses.replace(config, backbone=shape), reason


def suited_fold(size: int) -> int:
    """The factor that folds an image to a grid of about 16 px which two levels can halve."""
    fitting = [fold for fold in FOLDS if size % (LEVELS_HALVE * fold) == 0 and size // fold >= GRID // 2]
    if not fitting:
        near = max(8, 8 * round(size / 8))
        raise InputError(f"images of {size} px cannot be halved twice; use diti prepare with --size {near}")
    return min(fitting, key=lambda fold: (abs(size // fold - GRID), fold))


def _named(name: str) -> PretrainConfig:
    return dataclasses.replace(PRESETS[name].config, preset=name)
