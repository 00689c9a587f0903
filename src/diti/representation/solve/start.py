"""The closed-form solution as the start of a training: solved once for the same data, backbone and settings."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

from diti.config import SolveConfig, TrainConfig
from diti.core.errors import InputError
from diti.core.machine import cache_folder
from diti.core.meeting import told_by_main
from diti.core.processes import folder_from_main, place
from diti.core.runs import atomic_path, read_json, versions, write_json
from diti.data.prepared import Dataset
from diti.diffusion.backbone import Backbone
from diti.representation.networks.encoder import Encoder, load_encoder
from diti.representation.networks.linear import LinearPart
from diti.representation.networks.shift import load_decoder
from diti.representation.partition import Partition
from diti.representation.solve.evidence import gather_evidence, unsolved_encoder
from diti.representation.solve.solved import Solved, assemble


def solve_settings(config: TrainConfig) -> SolveConfig:
    """The settings of `diti solve` that a training implies."""
    return SolveConfig(
        method="pdae" if config.method == "pdae" else "diti",
        data=config.data,
        backbone=config.backbone,
        subsets=config.subsets,
        flip=config.training.flip,
        seed=config.training.seed,
        solution=config.solution,
        **config.code.features(),
    )


def solved_start(
    config: TrainConfig, backbone: Backbone, dataset: Dataset, partition: Partition | None
) -> tuple[Encoder, LinearPart, Partition]:
    """Encoder, linear part of the decoder and partition; partition: a cut to keep to, or None for `matched`."""
    settings = solve_settings(config)
    folder = _place(settings, backbone, dataset, partition)
    if not told_by_main(lambda: _kept(folder, backbone) is not None):  # one answer for all processes
        unsolved = unsolved_encoder(settings, backbone).to(backbone.device)
        evidence = gather_evidence(settings, backbone, dataset, unsolved)
        if place()[0] == 0:
            _keep(assemble(settings, backbone, unsolved, evidence, partition), folder)
    with folder_from_main(folder) as held:
        encoder, linear, cut = _read(held, backbone)
    if config.code.trunk == "fine-tuned":
        encoder = _free(encoder)
    return encoder, linear, cut


def remember(settings: SolveConfig, solved: Solved, backbone: Backbone, dataset: Dataset) -> None:
    """Keep a solution, so that a training with these settings starts from it instead of solving again."""
    if settings.images is None:  # no training asks for a pass of another length
        measured = settings.method == "diti" and settings.partition == "matched"
        as_trained = dataclasses.replace(settings, partition="matched")  # a training says its cut beside them
        cut = None if measured else solved.solution.partition
        _keep(solved, _place(as_trained, backbone, dataset, cut))


def _keep(solved: Solved, folder: Path) -> None:
    with atomic_path(folder) as temporary:
        solved.encoder.save(temporary / "encoder")
        solved.decoder.save(temporary / "decoder")
        write_json(temporary / "partition.json", solved.solution.partition.to_json())


def _kept(folder: Path, backbone: Backbone) -> tuple[Encoder, LinearPart, Partition] | None:
    """The solution in the cache; None where there is none, or a damaged one, which is solved again."""
    try:
        return _read(folder, backbone) if (folder / "partition.json").is_file() else None
    except InputError:
        return None


def _read(folder: Path, backbone: Backbone) -> tuple[Encoder, LinearPart, Partition]:
    linear = load_decoder(folder / "decoder", backbone).linear
    if linear is None:
        raise InputError(f"{folder} holds a decoder that was not solved; remove that folder to solve it again")
    cut = Partition.from_json(read_json(folder / "partition.json"))
    return load_encoder(folder / "encoder"), linear, cut


def _free(encoder: Encoder) -> Encoder:
    """The same encoder with a trunk that is trained, too."""
    free = Encoder({**encoder.description, "frozen": False})
    free.load_state_dict(encoder.state_dict())
    return free


def _place(settings: SolveConfig, backbone: Backbone, dataset: Dataset, partition: Partition | None) -> Path:
    """In the cache, by everything that the solution depends on; names of folders are left out."""
    plain = dataclasses.asdict(dataclasses.replace(settings, data="", backbone=""))
    cut = partition.to_json() if partition else None
    text = json.dumps([versions()["diti"], plain, backbone.digest(), dataset.hash, cut], sort_keys=True)
    return cache_folder() / "solved" / hashlib.sha256(text.encode()).hexdigest()[:24]
