"""`diti convert`: files of other projects → a backbone folder, or a model folder if they hold an encoder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from diti.core.device import decide
from diti.core.errors import InputError
from diti.core.outputs import require_writable
from diti.data.prepared import require_training_images
from diti.data.sources import open_data
from diti.diffusion.backbone import require_nothing
from diti.diffusion.files import complaints_about
from diti.interop.authors import convert as convert_backbone
from diti.interop.authors_model import ModelFacts, convert_model, holds_model
from diti.representation.features import encode_dataset
from diti.representation.models.diffusion import DiTi
from diti.representation.partition import Partition, make_partition


def convert(
    src: str,
    out: Path,
    *,
    size: int | None = None,
    partition: str | None = None,
    subsets: int | None = None,
    data: str | None = None,
    prompt: str | None = None,
    label: int | None = None,
    blocks: Sequence[str] = (),
) -> list[str]:
    """Write the folder and return what to tell the user. prompt, label, blocks: of a pipeline of diffusers."""
    asked = {"prompt": prompt, "label": label, "blocks": list(blocks) or None}
    chosen = {name: value for name, value in asked.items() if value is not None}
    if os.path.lexists(out):
        raise InputError(f"--out {out} exists; choose a new folder")
    require_writable({"--out": [out / "unet"]}, [data])
    if not holds_model(Path(src)):
        if partition or subsets or data:
            raise InputError(f"--partition, --subsets and --data are for trained models, and {src} holds none")
        with complaints_about(Path(src)):
            backbone = convert_backbone(src, size, **chosen)
        backbone.save(out)
        weights = sum(p.numel() for p in backbone.parameters())
        told = f"wrote {out}: a backbone of {weights:,} weights, {backbone.size} px, T = {backbone.timesteps}"
        return [told, *([backbone.caution()] if backbone.caution() else [])]
    require_nothing(chosen, src)
    with complaints_about(Path(src)):
        model, facts, notes = model_from(Path(src), partition, subsets)
    if data is None:
        notes.append(
            "no --data: mean and std of z are not known; commands that need them use those of their own images"
        )
    else:
        dataset = require_training_images(open_data(data, model.size))
        codes = encode_dataset(model.to(decide()), dataset)[dataset.rows("train")]
        model.mean, model.std = model.statistics(torch.from_numpy(codes))
    model.save(out)
    step = f" after {facts.step:,} steps" if facts.step else ""
    cut = f"z of {model.dims} dims in {model.partition.subsets} subsets"
    return [f"wrote {out}: a {model.method} model{step}, {model.size} px, {cut}", *notes]


def model_from(src: Path, partition: str | None, subsets: int | None) -> tuple[DiTi, ModelFacts, list[str]]:
    """The model of the authors' files, its partition from the run's config or from the user's options."""
    backbone, encoder, decoder, facts = convert_model(src)
    notes = [f"left out of the checkpoint: {', '.join(facts.unused)}"] if facts.unused else []
    if partition or subsets:
        cut = make_partition(partition or "staged", backbone.timesteps, subsets or 64, encoder.dims)
    elif facts.partition is not None:
        cut = facts.partition
    else:
        cut = Partition.single(backbone.timesteps, encoder.dims)
        notes.append("no config of the run was found: taken as PDAE; for DiTi give --partition and --subsets")
    method = "diti" if cut.subsets > 1 else "pdae"
    return DiTi(encoder, cut, None, None, method, decoder=decoder), facts, notes
