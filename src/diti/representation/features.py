"""Codes of a whole dataset, computed once and kept."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diti.core.ahead import Ahead
from diti.core.crew import has_crew, shared
from diti.core.device import decide, fitted, on_host, pinned, sent
from diti.core.errors import InputError
from diti.core.lanes import in_lanes, lanes_on
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.data.decode import decode
from diti.data.joined import in_part
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset, open_data
from diti.diffusion.unet import UNetBackbone
from diti.representation.kept import kept, place_of_kept, read_kept
from diti.representation.models.diffusion import DiTi
from diti.representation.models.explained import TIMES, explained_share
from diti.representation.models.inputs import as_batch
from diti.representation.models.loading import as_model, load
from diti.representation.models.metric import metric_root, regressed_metric
from diti.representation.models.model import BATCH, Model, images_at_once, inference
from diti.representation.networks.encoder import Encoder, load_encoder

MOST_KEPT = 2_500_000_000  # bytes of features that a training or solution leaves in the cache for the next one
ROWS_AT_ONCE = 65_536  # of codes that are worked on beside their file
METRIC_IMAGES = 8_192  # as many as a solution looks at

log = logging.getLogger(__name__)


def encode_dataset(
    model: Model | str | Path, dataset: Dataset | str | Path, *, mirrored: bool = False
) -> np.ndarray:
    """z float32 (N, D) of all images, in their order; computed only once for the same encoder and data."""
    model = as_model(model)
    return encoder_codes(model.encoder, as_dataset(dataset, model.size), mirrored=mirrored)


def encoder_codes(encoder: Encoder, dataset: Dataset, *, mirrored: bool = False) -> np.ndarray:
    """The same for an encoder without a model. Where its trunk's features are kept, z is made from them."""
    encoder.require_images()

    def compute() -> Iterator[np.ndarray]:
        seen = None if mirrored else kept_features(encoder, dataset)
        if seen is None:
            yield from _run(encoder, "code", dataset, mirrored)
            return
        with inference(encoder), torch.no_grad():
            for rows in parts_of(len(seen), BATCH):
                features = torch.from_numpy(np.array(seen[rows])).to(encoder.head.weight)
                yield encoder.code(features).cpu().numpy()

    return kept(f"{encoder_hash(encoder)}/{dataset.hash}/z/{mirrored}", len(dataset), compute)


def trunk_features(encoder: Encoder, dataset: Dataset) -> np.ndarray:
    """float32 (N, F): what the encoder's trunk sees in each image, before the linear layer to z."""
    return kept(
        _of_trunk(encoder, dataset), len(dataset), lambda: _run(encoder, "features", dataset, mirrored=False)
    )


def kept_features(encoder: Encoder, dataset: Dataset) -> np.ndarray | None:
    """The same where they were kept, else None."""
    return read_kept(place_of_kept(_of_trunk(encoder, dataset)), len(dataset))


def frozen_features(encoder: Encoder, dataset: Dataset) -> np.ndarray | None:
    """The same for a trunk that never learns, shared by all codes over it; None for others, or for too many."""
    size = len(dataset) * encoder.trunk.features * np.dtype(np.float32).itemsize
    return trunk_features(encoder, dataset) if encoder.frozen and size <= MOST_KEPT else None


def _of_trunk(encoder: Encoder, dataset: Dataset) -> str:
    """What the features of a trunk depend on: not on the layer after it, so that many codes can share them."""
    shape = {name: value for name, value in encoder.description.items() if name not in ("dims", "frozen")}
    return f"{_digest(shape, encoder.trunk)}/{dataset.hash}/features"


def explained_by_z(model: Model, dataset: Dataset) -> np.ndarray | None:
    """float32 (N,) share of each image that z explains, see `explained_share`; remembered as codes are.

    None for a model without a frozen diffusion model, where nothing says what there was to explain.
    """
    if not isinstance(model, DiTi):
        return None
    codes = encode_dataset(model, dataset)

    def compute() -> Iterator[np.ndarray]:
        parts, work = parts_of(len(dataset), model.at_once), _explaining(model, dataset, codes)
        with inference(model.encoder, model.decoder):
            if has_crew():
                elsewhere = "diti.representation.features.explained_elsewhere"
                found = shared(elsewhere, facts_of(dataset), model.save, parts, work)
            else:
                found = in_lanes(work, parts, lanes_on(model.device))
            yield from _shown("what z explains", dataset, found)

    return kept(f"{model_hash(model)}/{dataset.hash}/explained/{TIMES}", len(dataset), compute)[:, 0]


def _explaining(model: DiTi, dataset: Dataset, codes: np.ndarray | None = None) -> Callable[[slice], np.ndarray]:
    """What finds the share that z explains of some images, given all codes (N, D) or not."""

    @torch.no_grad()
    def work(rows: slice) -> np.ndarray:
        pixels = _pixels(model.encoder, dataset, rows)
        z = fitted(model.encoder, pixels) if codes is None else torch.from_numpy(codes[rows]).to(pixels)
        share = fitted(partial(explained_share, model), pixels, z)
        return share.float().cpu().numpy()[:, None]

    return work


def metric_of(model: Model, dataset: Dataset) -> Tensor:
    """The model's metric (D, D); if it has none, that of these images, and a line says so."""
    if model.metric is None:
        log.warning("the model has no metric yet: it is measured on %s", dataset.name)
        facts = f"{encoder_hash(model.encoder)}/{dataset.hash}/metric"
        model.metric = torch.from_numpy(kept(facts, model.dims, lambda: [metric_over(model, dataset).numpy()]))
    return model.metric


@torch.no_grad()
def metric_over(model: Model, dataset: Dataset) -> Tensor:
    """The metric (D, D) by one regression over some training images, or others where there are none."""
    encoder, weight = model.encoder, model.encoder.head.weight
    rows = dataset.rows("train") if len(dataset.rows("train")) else dataset.rows()
    if len(rows) > METRIC_IMAGES:
        rows = np.sort(numpy_generator(0, "metric").permutation(rows)[:METRIC_IMAGES])
    codes = None if model.mean is not None else torch.from_numpy(encode_dataset(model, dataset))
    mean, std = model.statistics(codes)
    seen = kept_features(encoder, dataset)
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]

    def features(part: np.ndarray) -> Tensor:
        if seen is not None:
            return torch.from_numpy(seen[part]).to(weight)
        return fitted(encoder.features, _pixels(encoder, dataset, part))

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        for part in parts:
            found = features(part)
            yield found.cpu(), (encoder.code(found).cpu() - mean) / std
            advance(len(part))

    with inference(encoder), progress_bar("the metric of z", len(rows)) as advance:
        return regressed_metric(pairs())


def _run(encoder: Encoder, what: str, dataset: Dataset, mirrored: bool) -> Iterator[np.ndarray]:
    """The code or the features of each image, in parts; the other processes help where there are some."""
    if dataset.size != encoder.size:
        log.warning("images of %d px are resized to the model's %d px", dataset.size, encoder.size)
    device = encoder.head.weight.device
    parts, work = (
        parts_of(len(dataset), images_at_once(encoder.size, device)),
        _looking(encoder, what, dataset, mirrored),
    )
    with inference(encoder):
        if has_crew():
            facts = {**facts_of(dataset), "what": what, "mirrored": mirrored}
            found = shared("diti.representation.features.helped", facts, encoder.save, parts, work)
        elif on_host(device):
            found = in_lanes(work, parts, lanes_on(device))
        else:
            found = _read_ahead(encoder, what, dataset, mirrored, parts)
        yield from _shown("encoding", dataset, found)


def _read_ahead(
    encoder: Encoder, what: str, dataset: Dataset, mirrored: bool, parts: list[slice]
) -> Iterator[np.ndarray]:
    """The same, while the next images are read: a device would wait for them."""
    device = encoder.head.weight.device
    see = _seeing(encoder, what, mirrored)
    finish = partial(pinned, device=device)
    with closing(
        Ahead(lambda start, count: _read(encoder, dataset, slice(start, start + count)), finish)
    ) as ahead:
        for rows in parts:
            yield see(sent(ahead(rows.start, rows.stop - rows.start, rows.stop), device))


def _seeing(encoder: Encoder, what: str, mirrored: bool) -> Callable[[Tensor], np.ndarray]:
    """What finds the code or the features of pixels on the encoder's device."""
    function = encoder if what == "code" else encoder.features

    @torch.no_grad()
    def see(pixels: Tensor) -> np.ndarray:
        return fitted(function, pixels.flip(-1) if mirrored else pixels).cpu().numpy()

    return see


def _looking(encoder: Encoder, what: str, dataset: Dataset, mirrored: bool) -> Callable[[slice], np.ndarray]:
    """What finds the code or the features of some images."""
    see = _seeing(encoder, what, mirrored)
    return lambda rows: see(_pixels(encoder, dataset, rows))


def helped(facts: dict[str, Any], folder: Path) -> Callable[[slice], np.ndarray]:
    """The same in another process, from the encoder in a folder."""
    encoder = load_encoder(folder).to(decide())
    return _looking(encoder, facts["what"], dataset_of(facts), facts["mirrored"])


def explained_elsewhere(facts: dict[str, Any], folder: Path) -> Callable[[slice], np.ndarray]:
    """What z explains in some images, in another process, from the model in a folder."""
    return _explaining(load(folder).with_backbone(), dataset_of(facts))


def facts_of(dataset: Dataset) -> dict[str, Any]:
    """Where another process finds the same images."""
    return {"path": str(dataset.path.absolute()), "hash": dataset.hash, "part": dataset.info.get("part")}


def dataset_of(facts: dict[str, Any]) -> Dataset:
    """The images that these facts are about; InputError where they are not here."""
    dataset = in_part(open_data(facts["path"]), facts["part"])
    if dataset.hash != facts["hash"]:
        raise InputError(f"{facts['path']} holds other images than on the first machine; copy it again")
    return dataset


def parts_of(count: int, at_once: int) -> list[slice]:
    """All rows, so many at once."""
    return [slice(start, min(start + at_once, count)) for start in range(0, count, at_once)]


def _pixels(encoder: Encoder, dataset: Dataset, rows: slice | np.ndarray) -> Tensor:
    """(B, 3, H, W) of the encoder's size, on its device."""
    return sent(_read(encoder, dataset, rows), encoder.head.weight.device)


def _read(encoder: Encoder, dataset: Dataset, rows: slice | np.ndarray) -> Tensor:
    """The same on the CPU."""
    images = np.asarray(dataset.images[rows])
    if dataset.size != encoder.size:
        images = np.stack([decode(image, encoder.size, "centre") for image in images])
    return as_batch(images, encoder.size)


def _shown(label: str, dataset: Dataset, parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The parts, with a bar while they are computed."""
    with progress_bar(label, len(dataset)) as advance:
        for part in parts:
            yield part
            advance(len(part))


def encoder_hash(encoder: Encoder) -> str:
    """Hex digest of an encoder's shape and every weight."""
    return _digest(encoder.description, encoder)


def model_hash(model: DiTi) -> str:
    """Hex digest of all that decides what a model makes of an image: networks, schedule and partition."""
    backbone = model.backbone
    schedule = [backbone.prediction_type, *backbone.schedule.betas.tolist()]
    shape, network = [backbone.digest()], model.decoder.own
    if isinstance(backbone, UNetBackbone):  # written like this by earlier versions, too
        config: Mapping[str, Any] = backbone.unet.config
        shape, network = [repr(backbone.wrapping), repr(sorted(config.items()))], model.decoder
    facts = {**model.decoder.description, "partition": model.partition.to_json(), "of": [schedule, shape]}
    return f"{encoder_hash(model.encoder)}/{_digest(facts, network)}"


def _digest(description: Mapping[str, Any], network: nn.Module) -> str:
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def codes_in_metric(model: Model, dataset: Dataset) -> np.ndarray:
    """M½u float32 (N, D) of all images, see `Model.in_metric`."""
    codes, measured = encode_dataset(model, dataset), measuring(model, dataset)
    return np.concatenate([measured(codes[rows]) for rows in parts_of(len(codes), ROWS_AT_ONCE)])


def measuring(model: Model, dataset: Dataset) -> Callable[[np.ndarray], np.ndarray]:
    """What turns codes z (B, D) of the images into M½u, float32 (B, D)."""
    known = model.mean is not None
    mean, std = model.statistics(None if known else torch.from_numpy(encode_dataset(model, dataset)))
    root = metric_root(metric_of(model, dataset))
    return lambda codes: ((torch.from_numpy(codes) - mean) / std @ root).numpy()
