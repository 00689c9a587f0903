"""From settings, a backbone and images to the evidence that a solution follows from.

Notation: N training images, F features, D length of z, P pixel axes, E whitened features.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.config import SolveConfig
from diti.core.device import fitted, sent
from diti.core.errors import InputError
from diti.core.lanes import lanes_on
from diti.core.processes import State, is_main, state_from_main
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.core.state import save_state
from diti.data.prepared import Dataset, Stream
from diti.diffusion.backbone import Backbone
from diti.diffusion.kinds.watched import WatchedBackbone
from diti.representation.features import kept_features
from diti.representation.networks.encoder import Encoder, build_encoder, given_encoder
from diti.representation.networks.pixel_axes import most_axes
from diti.representation.solve.collect import BATCH, Pass, collect, loaded, next_mark
from diti.representation.solve.look import LOOKED_AT, FeatureMap, Look, Shape, Walk, first_look
from diti.representation.solve.solution import Evidence, quick_removed
from diti.representation.solve.stretches import make_stretches
from diti.representation.solve.sums import Sums

VALIDATION = 512  # images on which penalties are chosen, and on which the rule looks
DRAWS_OF_ONE = 8  # most draws of the same validation image: more of them would tell little
HELD_OUT = 0.1  # of the training images, where the data has no validation images
PER_DIM = 4  # images that each dim of z needs at least
PER_AXIS = 8  # images for each pixel axis
SHOWN, SHOWN_PER_DIM = 1_024, 4  # images whose reconstructions are looked at, at least, and per dim of z

TOLD_MINUTES = 2  # from which on a pass is announced
LOOK, VALIDATED = "look", "validation"  # folders of the state, beside those of the pass

Log = Callable[..., None]

logger = logging.getLogger(__name__)


def unsolved_encoder(config: SolveConfig, backbone: Backbone, features: np.ndarray | None = None) -> Encoder:
    """The encoder whose last layer is to be found: over the backbone's features, or over given ones (N, F)."""
    if features is None:
        return build_encoder(config.code, backbone, config.seed).eval()
    return given_encoder(backbone.size, config.code_dim, features.shape[1]).eval()


def gather_evidence(
    config: SolveConfig,
    backbone: Backbone,
    dataset: Dataset,
    encoder: Encoder,
    features: np.ndarray | None = None,
    state: Path | None = None,
    log: Log = lambda **facts: None,
) -> Evidence:
    """Look, then pass over the images. state: folder to continue from. log: told how the rule went."""
    train_rows, valid_rows = split_rows(dataset, config.seed)
    images, settings, dims = len(train_rows), config.solution, config.code_dim
    require_images(config, images, backbone.shape)
    walk, valid_walk = _walks(config, backbone, dataset, encoder, features, (train_rows, valid_rows))
    stretches = make_stretches(backbone.schedule, min(settings.stretches, backbone.timesteps))
    regressors = 1 + pixel_axes_count(config, images, backbone.shape) + dims
    validated = min(VALIDATION, DRAWS_OF_ONE * len(valid_rows))
    if is_main():
        first = config.images or next_mark(regressors, [], settings.tolerance)
        looked = min(LOOKED_AT, images) if features is None else 0
        tell_duration(backbone, walk, looked, validated + first, stretches.count)
    look = _looked(config, encoder, backbone.shape, walk, images, state)
    trunk = encoder.features_of if settings.lost_in == "features" else None
    job = Pass(backbone, stretches, look, config.seed, trunk, shown_images=max(SHOWN, SHOWN_PER_DIM * dims))
    valid = _validation_sums(job, valid_walk, validated, state)

    def removed(sums: Sums) -> float:
        return quick_removed(Evidence(stretches, look, sums, valid), dims, settings.features_weight)

    train = collect(
        job, walk, removed, regressors=regressors, images=config.images, tolerance=settings.tolerance,
        state=state, log=log,
    )  # fmt: skip
    return Evidence(stretches, look, train, valid)


@torch.no_grad()
def tell_duration(backbone: Backbone, walk: Walk, looked: int, drawn: int, stretches: int) -> None:
    """A line that says how long it will take at least, where that is long: by a batch through the networks.

    looked, drawn: images of the first look, and those that are drawn in each stretch of time.
    """
    if not isinstance(backbone, WatchedBackbone):
        return  # the U-Nets made here are done in minutes
    count, device = min(BATCH, walk.at_once), backbone.device
    x = torch.zeros(count, *backbone.shape, device=device)
    pixels = torch.zeros(count, 3, backbone.size, backbone.size, device=device)
    t = torch.zeros(count, dtype=torch.int64, device=device)
    at_call = _seconds(lambda: fitted(backbone.x0, x, t)) / count / lanes_on(device)
    at_image = _seconds(lambda: fitted(walk.encode, pixels)) / count / lanes_on(device)
    minutes = ((looked + drawn * stretches) * at_call + (looked + drawn) * at_image) / 60
    if minutes >= TOLD_MINUTES:
        logger.warning(
            "a call of the network takes %.2g s per image: a first look at %s images and the pass over the "
            "first %s, %s times each, take about %.0f minutes; fewer --stretches, or fewer --images, shorten it",
            at_call, f"{looked:,}", f"{drawn:,}", stretches, minutes,
        )  # fmt: skip


def _seconds(work: Callable[[], Tensor]) -> float:
    """That it takes the second time: the first is slower, and finds what fits."""
    work().sum().item()
    began = time.monotonic()
    work().sum().item()
    return time.monotonic() - began


def split_rows(dataset: Dataset, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to solve on, and rows to choose penalties on: the data's own validation images, or some held out."""
    train, valid = dataset.rows("train"), dataset.rows("valid")
    if len(valid):
        return train, valid
    mixed = numpy_generator(seed, "solve-held-out").permutation(train)
    held_out = max(1, round(HELD_OUT * len(train)))
    return np.sort(mixed[held_out:]), np.sort(mixed[:held_out])


def pixel_axes_count(config: SolveConfig, images: int, shape: Shape) -> int:
    """P: as many principal axes of the pixels as wanted, or as images and pixels allow."""
    return max(1, min(config.solution.pixel_axes, images // PER_AXIS, most_axes(*shape[:2])))


def require_images(config: SolveConfig, images: int, shape: Shape) -> None:
    """InputError for fewer training images, or a shorter pass over them, than the regressions need."""
    dims = config.code_dim
    if images < PER_DIM * dims:
        most = images // PER_DIM
        remedy = f"use --code-dim {most} or less, or " if most else ""
        raise InputError(
            f"{images} training images are too few for a code of {dims} dims: {remedy}give at least "
            f"{PER_DIM * dims} training images"
        )
    regressors = 1 + pixel_axes_count(config, images, shape) + dims
    if config.images is not None and config.images < 2 * regressors:
        raise InputError(
            f"--images {config.images} is too short: each regression has {regressors} regressors and needs twice "
            f"as many images; give at least {2 * regressors}, or leave --images out"
        )


def feature_map(encoder: Encoder, given: np.ndarray | None) -> FeatureMap:
    """What is seen in images: by the encoder's frozen trunk, or rows of an array (N, F), given or kept."""
    if given is None:
        return lambda x0, rows: fitted(encoder.features_of, x0)

    def look_up(x0: Tensor, rows: np.ndarray) -> Tensor:
        return sent(torch.from_numpy(np.asarray(given[rows], np.float32)), x0.device)

    return look_up


def require_features(features: Any, dataset: Dataset) -> np.ndarray:
    """Given features as an array (N, F) with a row per image, all finite."""
    array = np.asarray(features)
    if array.ndim != 2 or len(array) != len(dataset) or not np.issubdtype(array.dtype, np.floating):
        raise InputError(
            f"features are {array.dtype} of shape {array.shape}; give floats ({len(dataset)}, F), a row per image "
            "of the data in its order"
        )
    if not np.isfinite(array).all():
        raise InputError("some of the given features are not finite; replace them before solving")
    return array


def _walks(
    config: SolveConfig,
    backbone: Backbone,
    dataset: Dataset,
    encoder: Encoder,
    features: np.ndarray | None,
    rows: tuple[np.ndarray, np.ndarray],
) -> tuple[Walk, Walk]:
    """Over training and validation images, with what is seen in them: computed once where mirroring allows it."""
    device = backbone.device
    # Given features are those of the images as they are, not of their mirror images.
    flip = config.flip and features is None
    if features is None and not (flip and encoder.tells_sides):
        features = kept_features(encoder, dataset)
    seen = feature_map(encoder, features)
    train, valid = Stream(rows[0], config.seed, flip=flip), Stream(rows[1], config.seed, flip=False)
    return (
        Walk(dataset, train, seen, device, "solve-train", backbone.encode),
        Walk(dataset, valid, seen, device, "solve-valid", backbone.encode),
    )


def _looked(
    config: SolveConfig, encoder: Encoder, shape: Shape, walk: Walk, images: int, state: Path | None
) -> Look:
    """The first look at some training images, or that of a run that was stopped.

    With another number of threads axes may get other signs, and the sums of a state belong to its own axes.
    """

    def look() -> State:
        if (found := loaded(state and state / LOOK)) is not None:
            return found
        whitened = min(config.solution.whitened, encoder.trunk.features, images // PER_DIM)
        pixels = pixel_axes_count(config, images, shape)
        made = first_look(walk, min(LOOKED_AT, images), shape, pixels, whitened, config.code_dim, config.seed)
        return made.state(), {}

    found = state_from_main(look)  # on other devices axes may get other signs, too
    assert found is not None
    return Look.restored(found[0], shape, walk)


def _validation_sums(job: Pass, walk: Walk, images: int, state: Path | None) -> Sums:
    """Sums over validation images, computed once for a run that was stopped; with what the job saw at first."""
    sums = job.new_sums()
    if (found := state_from_main(lambda: loaded(state and state / VALIDATED))) is not None:
        sums.restore(found[0])
        return sums
    with progress_bar("validation images", images, shown=is_main()) as advance:
        for _ in job.extend(sums, walk, images, advance):
            pass
    if state is not None and is_main():  # not earlier: a refused, broken backbone must leave nothing behind
        save_state(state / LOOK, len(job.look.phi), job.look.state(), {})
        save_state(state / VALIDATED, images, sums.state(), {})
    return sums
