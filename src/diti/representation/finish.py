"""The end of every run that makes a model: statistics of z, the model folder, what is found out, and the card."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.core.card import Findings, picture_lines
from diti.core.device import fitted
from diti.core.images import to_float
from diti.core.progress import progress_bar
from diti.core.runs import RunFolder, write_json, write_text
from diti.data.prepared import Dataset
from diti.representation.features import frozen_features, metric_over
from diti.representation.found_axes import axes_over
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.model import BATCH, Model, code_statistics
from diti.representation.networks.encoder import Encoder
from diti.representation.registry import title_of


def finish(
    model: Model,
    assess: Callable[[Any, Dataset, Path], Findings],
    dataset: Dataset,
    run: RunFolder,
    backbone: str,
    origin: Sequence[str],
    pictures: Mapping[str, str] | None = None,
) -> Findings:
    """Write the model folder and what `assess` finds out about it.

    origin: for the card, how it was made. pictures: file in the folder → what it shows, besides those of `assess`.
    """
    if model.metric is None and model.mean is not None:
        model.metric = metric_over(model, dataset)
    if isinstance(model, DecodingModel) and len(model.encoder.taken) == 3 and model.mean is not None:
        model.axes = axes_over(model, dataset)
    model.save(run.path)
    findings = assess(model, dataset, run.path)
    findings = dataclasses.replace(findings, pictures={**findings.pictures, **(pictures or {})})
    write_json(run.path / "checks.json", findings.facts)
    write_text(run.path / "card.md", card(model, findings, backbone, origin))
    return findings


def training_statistics(encoder: Encoder, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Mean and std of z over the training split."""
    rows = dataset.rows("train")
    weight = encoder.head.weight
    seen = frozen_features(encoder, dataset)
    with progress_bar("statistics of z", len(rows)) as advance, torch.no_grad():

        def encode(part: np.ndarray) -> Tensor:
            advance(len(part))
            if seen is not None:
                return encoder.code(torch.from_numpy(seen[part]).to(weight)).cpu()
            return fitted(encoder, to_float(dataset.pixels(part)).to(weight)).cpu()

        return code_statistics(encode, iter([rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]))


def card(model: Model, findings: Findings, backbone: str, origin: Sequence[str]) -> str:
    """What the model is, how it was made, and what was measured about it."""
    over = f" over `{backbone}`" if backbone else ""
    cut = model.partition
    lines = [
        f"z: {model.dims} dims" + (f" in {cut.subsets} subsets ({cut.kind})" if cut.subsets > 1 else ""),
        *origin,
        *findings.sentences,
    ]
    listed = "\n".join(f"- {line}" for line in lines)
    return f"# {title_of(model.method)}{over}\n\n{listed}\n{picture_lines(findings.pictures)}"
