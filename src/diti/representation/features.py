"""Codes of a whole dataset, computed once and kept, as arrays and as a table."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor, nn

from diti.core.device import AUTO, Device, fitted, sent
from diti.core.errors import InputError
from diti.core.lanes import in_lanes, lanes_on
from diti.core.machine import cache_folder
from diti.core.outputs import require_writable
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.core.runs import as_path, atomic_path
from diti.data.decode import decode
from diti.data.prepare import SKIPPED
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset, place_of
from diti.diffusion.unet import UNetBackbone
from diti.representation.models.diffusion import DiTi
from diti.representation.models.explained import TIMES, explained_share
from diti.representation.models.inputs import Images, as_batch
from diti.representation.models.loading import as_model
from diti.representation.models.metric import metric_root, regressed_metric
from diti.representation.models.model import BATCH, Model, images_at_once, inference
from diti.representation.networks.encoder import Encoder

WRITERS = {
    ".parquet": pyarrow.parquet.write_table,
    ".csv": pyarrow.csv.write_csv,
}  # by the ending of a table's file
MOST_KEPT = 2_500_000_000  # bytes of features that a training or solution leaves in the cache for the next one
METRIC_IMAGES = 8_192  # as many as a solution looks at
EXPLAINED = "explained"  # column of the table; those of z begin with z and a digit

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

    def compute() -> np.ndarray:
        seen = None if mirrored else kept_features(encoder, dataset)
        if seen is None:
            return _run(encoder, encoder, dataset, mirrored)
        with inference(encoder), torch.no_grad():
            parts = torch.from_numpy(seen).split(BATCH)
            return torch.cat([encoder.code(part.to(encoder.head.weight)).cpu() for part in parts]).numpy()

    return _kept(f"{encoder_hash(encoder)}/{dataset.hash}/z/{mirrored}", len(dataset), compute)


def trunk_features(encoder: Encoder, dataset: Dataset) -> np.ndarray:
    """float32 (N, F): what the encoder's trunk sees in each image, before the linear layer to z."""
    return _kept(
        _of_trunk(encoder, dataset), len(dataset), lambda: _run(encoder, encoder.features, dataset, mirrored=False)
    )


def kept_features(encoder: Encoder, dataset: Dataset) -> np.ndarray | None:
    """The same where they were kept, else None."""
    return read_kept(_place(_of_trunk(encoder, dataset)), len(dataset))


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
    codes = torch.from_numpy(encode_dataset(model, dataset))

    def work(rows: slice) -> np.ndarray:
        pixels = _pixels(model.encoder, dataset, rows)
        share = fitted(partial(explained_share, model), pixels, codes[rows].to(pixels))
        return share.float().cpu().numpy()[:, None]

    def compute() -> np.ndarray:
        with inference(model.decoder):
            return _joined(
                "what z explains", dataset, in_lanes(work, _parts(dataset, model.at_once), lanes_on(model.device))
            )

    return _kept(f"{model_hash(model)}/{dataset.hash}/explained/{TIMES}", len(dataset), compute)[:, 0]


def metric_of(model: Model, dataset: Dataset) -> Tensor:
    """The model's metric (D, D); if it has none, that of these images, and a line says so."""
    if model.metric is None:
        log.warning("the model has no metric yet: it is measured on %s", dataset.name)
        facts = f"{encoder_hash(model.encoder)}/{dataset.hash}/metric"
        model.metric = torch.from_numpy(_kept(facts, model.dims, lambda: metric_over(model, dataset).numpy()))
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
        return encoder.features(_pixels(encoder, dataset, part))

    def pairs() -> Iterator[tuple[Tensor, Tensor]]:
        for part in parts:
            found = features(part)
            yield found.cpu(), (encoder.code(found).cpu() - mean) / std
            advance(len(part))

    with inference(encoder), progress_bar("the metric of z", len(rows)) as advance:
        return regressed_metric(pairs())


def _run(encoder: Encoder, function: Callable[[Tensor], Tensor], dataset: Dataset, mirrored: bool) -> np.ndarray:
    """What a function of an encoder says of each image."""

    def work(rows: slice) -> np.ndarray:
        pixels = _pixels(encoder, dataset, rows)
        return fitted(function, pixels.flip(-1) if mirrored else pixels).cpu().numpy()

    if dataset.size != encoder.size:
        log.warning("images of %d px are resized to the model's %d px", dataset.size, encoder.size)
    with inference(encoder):
        parts = _parts(dataset, images_at_once(encoder.size, encoder.head.weight.device))
        return _joined("encoding", dataset, in_lanes(work, parts, lanes_on(encoder.head.weight.device)))


def _kept(facts: str, rows: int, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """The array that belongs to these facts from the cache, else computed and put there."""
    path = _place(facts)
    if (kept := read_kept(path, rows)) is not None:
        return kept
    found = compute()
    try:
        with atomic_path(path) as temporary, temporary.open("wb") as handle:
            np.save(handle, found)
    except OSError as error:  # nothing depends on the cache
        log.warning("the codes could not be kept for next time: %s: %s", path, error.strerror or error)
    return found


def _place(facts: str) -> Path:
    return cache_folder() / "features" / f"{hashlib.sha256(facts.encode()).hexdigest()[:24]}.npy"


def read_kept(path: Path, rows: int) -> np.ndarray | None:
    """A kept array with that many rows; None where it is missing, damaged or incomplete."""
    try:
        kept = np.array(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError):
        return None
    return kept if kept.dtype == np.float32 and kept.ndim == 2 and len(kept) == rows else None


def _parts(dataset: Dataset, at_once: int) -> list[slice]:
    return [slice(start, start + at_once) for start in range(0, len(dataset), at_once)]


def _pixels(encoder: Encoder, dataset: Dataset, rows: slice | np.ndarray) -> Tensor:
    """(B, 3, H, W) of the encoder's size, on its device."""
    images = np.asarray(dataset.images[rows])
    if dataset.size != encoder.size:
        images = np.stack([decode(image, encoder.size, "centre") for image in images])
    return sent(as_batch(images, encoder.size), encoder.head.weight.device)


def _joined(label: str, dataset: Dataset, parts: Iterable[np.ndarray]) -> np.ndarray:
    """The rows of all parts, with a bar while they are computed."""
    found = np.empty((0, 0), np.float32)
    done = 0
    with progress_bar(label, len(dataset)) as advance:
        for part in parts:
            if not done:  # once, instead of joining the parts at the end: they may be gigabytes
                found = np.empty((len(dataset), part.shape[1]), part.dtype)
            found[done : done + len(part)] = part
            done += len(part)
            advance(len(part))
    return found


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


def check_table_file(out: Path) -> None:
    """Refuse, before any work, a kind of table that cannot be written."""
    if out.suffix.lower() not in WRITERS:
        raise InputError(f"--out {out} must end in {' or '.join(WRITERS)}; these are the tables it can write")


def encode(
    model: Model | str | Path,
    images: Images | Dataset,
    out: str | Path | None = None,
    *,
    explained: bool = True,
    metric: bool = False,
    overwrite: bool = False,
    device: Device = AUTO,
) -> np.ndarray:
    """z float32 (N, D) of images, a row per image in their order, as `diti encode` writes it to a table.

    images: a Dataset, the name of one or whatever else --data accepts, or images themselves, as `Model.encode`
    takes them. out: table to write, .parquet or .csv, of images that have names. explained: also the share of each
    image that z explains, in that table, where the model can tell. metric: instead of z, codes in which distances
    mean something, see `Model.in_metric`. device: where to compute, such as "cuda:1"; by default where a given
    model is, else a GPU where torch finds one.

        z = diti.encode("runs/model", "photos", "features.parquet")
    """
    if isinstance(images, Dataset | str | Path):
        if out is not None:
            options = {"explained": explained, "metric": metric, "overwrite": overwrite}
            return write_features(model, images, as_path(out, "out"), **options, device=device)[0]
        model = as_model(model, device)
        dataset = as_dataset(images, model.size)
        return codes_in_metric(model, dataset) if metric else encode_dataset(model, dataset)
    if out is not None:
        raise InputError("out is a table with names of images, which arrays lack; give a folder or a Dataset")
    model = as_model(model, device)
    z = model.encode(images)
    return (model.in_metric(z) if metric else z).cpu().numpy()


def codes_in_metric(model: Model, dataset: Dataset) -> np.ndarray:
    """M½u float32 (N, D) of all images, see `Model.in_metric`."""
    codes = torch.from_numpy(encode_dataset(model, dataset))
    mean, std = model.statistics(codes)
    return ((codes - mean) / std @ metric_root(metric_of(model, dataset))).numpy()


def write_features(
    model: Model | str | Path,
    images: Dataset | str | Path,
    out: Path,
    *,
    explained: bool = True,
    metric: bool = False,
    overwrite: bool = False,
    device: Device = AUTO,
) -> tuple[np.ndarray, str]:
    """z (N, D), also as a table with the file's name and split, a row per image; and what was written.

    explained: also the share of each image that z explains, where the model can tell, in a column of that name.
    metric: instead of z, codes in which distances mean something.
    """
    check_table_file(out)
    require_writable({"--out": [out]}, [place_of(images)], overwrite=overwrite)
    model = as_model(model, device)
    dataset = as_dataset(images, model.size)
    codes = codes_in_metric(model, dataset) if metric else encode_dataset(model, dataset)
    shares = explained_by_z(model, dataset) if explained else None
    columns: dict[str, pa.Array] = {name: dataset.table[name] for name in ("file", "split")}
    columns |= {name: pa.array(codes[:, i]) for i, name in enumerate(model.feature_names())}
    columns |= {} if shares is None else {EXPLAINED: pa.array(shares)}  # last: others keep their places
    with atomic_path(out) as temporary:
        WRITERS[out.suffix.lower()](pa.table(columns), temporary)
    skipped = dataset.info["skipped"]
    note = f"; {skipped} unreadable images are named in {dataset.path / SKIPPED}" if skipped else ""
    told = "" if shares is None else f"; for half the images z explains {np.median(shares):.0%} or more"
    return codes, f"wrote {out}: {len(dataset):,} images × {model.dims} dims{note}{told}"
