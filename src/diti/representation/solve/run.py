"""`diti solve` and `diti.solve`: DiTi and PDAE in closed form, into a model folder of the usual kind."""

from __future__ import annotations

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from diti.config import SolveConfig, TrainingConfig
from diti.core.card import Findings
from diti.core.device import AUTO, HOST, Device
from diti.core.errors import InputError
from diti.core.loop import compile_networks, make_accelerator
from diti.core.meeting import meet, told_by_main
from diti.core.outputs import require_writable
from diti.core.processes import require_alone
from diti.core.runs import RunFolder, as_path, read_mapping
from diti.core.settings import differences, from_options, load_yaml
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset, place_of
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.kinds.watched import WatchedBackbone
from diti.diffusion.start_run import open_together
from diti.representation.checks import assess_diti
from diti.representation.finish import finish, training_statistics
from diti.representation.models.diffusion import DiTi
from diti.representation.models.loading import as_backbone, backbone_name, load
from diti.representation.models.metric import solved_metric
from diti.representation.models.model import Model
from diti.representation.partition import Partition, make_partition
from diti.representation.solve.evidence import (
    gather_evidence,
    require_features,
    require_images,
    split_rows,
    unsolved_encoder,
)
from diti.representation.solve.figure import save_lost_figure
from diti.representation.solve.solved import Solved, assemble, solve_networks
from diti.representation.solve.start import remember

FREE = frozenset({"data", "backbone", "compile"})  # what a continued run may name differently: hashes are compared


@dataclass(frozen=True)
class Held:
    """What the caller holds already of what the settings would name."""

    backbone: Backbone | None = None
    dataset: Dataset | None = None
    features: np.ndarray | None = None  # (N, F), which have no name


def solve_model(config: SolveConfig, out: Path, begun: Callable[[], None] = lambda: None) -> Findings | None:
    """Solve, or continue to solve, in the run folder `out`; None where it is solved already.

    `begun` is called once everything is checked.
    """
    return solve_models({out: config}, begun)[out]


def solve_models(
    configs: Mapping[Path, SolveConfig],
    begun: Callable[[], None] = lambda: None,
    held: Held | None = None,
    device: Device = AUTO,
) -> dict[Path, Findings | None]:
    """As `solve_model`, by run folder, of settings that have their `shared_pass` in common."""
    held = held or Held()
    began = time.monotonic()
    first = next(iter(configs))
    config = max(configs.values(), key=lambda one: one.code_dim)  # what serves the longest code serves all
    # What is already there is checked later; this is about the place, and about what is read.
    places = {"--out": [out / "model.json" for out in configs]}
    require_writable(places, [config.data, config.backbone], overwrite=True)
    backbone = held.backbone or load_backbone(config.backbone, HOST)
    accelerator = make_accelerator(TrainingConfig(), device)
    backbone.to(accelerator.device)  # before it is asked for its features' shapes, which is a run of the network
    for one in configs.values():
        validate(one, backbone, held.features)
    main = accelerator.is_main_process
    found: dict[Path, Findings | None] = dict.fromkeys(configs)  # in other processes they are empty
    with ExitStack() as folders:
        for out in configs:
            folders.enter_context(RunFolder(out).held(main))
        data = config.data if held.dataset is None else held.dataset
        dataset = open_together(data, backbone.size)
        backbone.require_size(dataset.size)
        for one in configs.values():
            require_images(one, len(split_rows(dataset, one.seed)[0]), backbone.shape)
        inputs = inputs_of(dataset, backbone, held.features)
        begun_now = told_by_main(lambda: [not begin(one, RunFolder(out), inputs) for out, one in configs.items()])
        todo = [out for out, new in zip(configs, begun_now, strict=True) if new]
        if not todo:
            if main:
                remove_states(configs)
            return found
        begun()
        if main and (caution := backbone.caution()):
            logging.getLogger(__name__).warning(caution)

        def log(**facts: Any) -> None:
            for out in todo if main else ():
                RunFolder(out).log(**facts)

        if config.compile:
            compile_networks(backbone)
        encoder = unsolved_encoder(config, backbone, held.features).to(accelerator.device)
        state = first / "state"
        evidence = gather_evidence(config, backbone, dataset, encoder, held.features, state=state, log=log)
        found |= dict.fromkeys(todo, Findings())
        for out in todo if main else ():
            own = unsolved_encoder(configs[out], backbone, held.features).to(accelerator.device)
            solved = assemble(configs[out], backbone, own, evidence, cut_by_hand(configs[out], backbone))
            seconds = time.monotonic() - began
            found[out] = write(configs[out], solved, dataset, RunFolder(out), seconds, held.features)
            if held.features is None:  # no training asks for a solution over others
                remember(configs[out], solved, backbone, dataset)
        if main:
            remove_states(configs)
    meet()  # the first one writes
    accelerator.end_training()
    return found


def remove_states(folders: Iterable[Path]) -> None:
    """Remove hundreds of MB that are of no use once everything is solved."""
    for folder in folders:
        shutil.rmtree(folder / "state", ignore_errors=True)


def shared_pass(config: SolveConfig) -> SolveConfig:
    """The settings as far as the pass over the images depends on them, the others as they usually are.

    By the rule its length depends on the code that is wanted.
    """
    usual, solution = SolveConfig(), config.solution
    by_rule = config.images is None
    return replace(
        config,
        method=usual.method,
        subsets=usual.subsets,
        partition=usual.partition,
        code_dim=config.code_dim if by_rule else 1,  # whatever the code, it must not raise what is looked at
        solution=replace(
            solution,
            tau=usual.solution.tau,
            axes=usual.solution.axes,
            features_weight=solution.features_weight if by_rule else usual.solution.features_weight,
        ),
    )


def cut_by_hand(config: SolveConfig, backbone: Backbone) -> Partition | None:
    """The partition that is asked for, or None where it follows from what is lost."""
    if config.method != "diti" or config.partition == "matched":
        return None
    return make_partition(config.partition, backbone.timesteps, config.subsets, config.code_dim)


def inputs_of(dataset: Dataset, backbone: Backbone, features: np.ndarray | None) -> dict[str, Any]:
    """What a solution depends on besides its settings, for run.json."""
    return {
        "verb": "solve", "data_name": dataset.name, "data_hash": dataset.hash, "backbone_hash": backbone.digest(),
        "features_hash": None if features is None else hashlib.sha256(features.tobytes()).hexdigest(),
    }  # fmt: skip


def begin(config: SolveConfig, run: RunFolder, inputs: dict[str, Any]) -> bool:
    """Whether the folder holds this very solution already; if not, the run begins there."""
    if solved_already(config, run.path, inputs):
        return True
    # The state may be that of another run, which shares the pass: what was made here already is made again.
    run.begin(config, inputs, FREE, needs_state=False)
    run.rewind_log(0)  # the looks of a stopped run are in its state: the pass tells them again
    return False


def validate(config: SolveConfig, backbone: Backbone, features: np.ndarray | None = None) -> None:
    """InputError for what cannot be solved, before any work. features: given ones (N, F)."""
    if config.compile and isinstance(backbone, WatchedBackbone):
        raise InputError(f"--compile is not for a {backbone.kind}, whose blocks are looked at; leave it out")
    unsolved_encoder(config, backbone, features)
    if features is not None and config.solution.lost_in == "features":
        raise InputError(
            'lost_in is "features", but features of another network were given, and it cannot be shown what the '
            'diffusion model reconstructs; use lost_in="pixels"'
        )
    if config.method == "diti" and config.subsets > config.code_dim:
        raise InputError(
            f"{config.subsets} subsets do not fit in {config.code_dim} dims: each needs one; use fewer --subsets"
        )
    cut_by_hand(config, backbone)


def solved_already(config: SolveConfig, out: Path, inputs: dict[str, Any]) -> bool:
    """Whether the folder holds this very solution; InputError where it holds another finished model."""
    if not (out / "model.json").is_file():
        return False
    facts = read_mapping(out / "run.json") if (out / "run.json").is_file() else {}
    if facts.get("verb") != "solve":
        raise InputError(f"--out {out} holds a model that diti solve did not write; choose a new or empty folder")
    changed = differences(load_yaml(SolveConfig(), out / "config.yaml"), config, FREE)
    changed += [name for name, value in inputs.items() if facts.get(name) != value]
    if changed:
        raise InputError(
            f"--out {out} holds a solution with other settings ({', '.join(changed)}); choose another folder"
        )
    return not RunFolder(out).missing()


def write(
    config: SolveConfig,
    solved: Solved,
    dataset: Dataset,
    run: RunFolder,
    seconds: float,
    features: np.ndarray | None = None,
) -> Findings:
    """The model folder, with a figure of what is lost when. features: given ones (N, F)."""
    solution, model = solved.solution, solved_model(config, solved, dataset)
    images = solved.evidence.train.images
    facts = {"loss_removed_from_sums": solution.removed, "loss_removed_without_z": solution.removed_without_z}
    origin = [
        f"solved in closed form from {images:,} images of `{config.data}` in {seconds:.0f} s, seed {config.seed}",
        f"without z the same regression removes {solution.removed_without_z:.1%} of the loss",
    ]
    run.log(images=images, seconds=seconds, penalties=solution.penalties, **facts)
    lost = save_lost_figure(solution, solved.evidence.stretches, run.path / "lost.png")
    pictures = {lost.name: "share lost by dim and time"}
    assess = partial(assess_diti, features=features)
    return finish(model, assess, dataset, run, config.backbone, origin, pictures)


def solved_model(config: SolveConfig, solved: Solved, dataset: Dataset) -> DiTi:
    """The solved networks with the statistics of their code."""
    if solved.encoder.description["kind"] == "given":  # whitened on the training images: mean 0, variance 1
        mean = solved.encoder.head.bias.detach().cpu().clone()
        std = torch.ones_like(mean)
    else:
        mean, std = training_statistics(solved.encoder, dataset)
    metric = solved_metric(solved.solution.directions, solved.evidence.look.whitening.variance, std)
    parts = (solved.encoder, solved.solution.partition, mean, std, config.method)
    return DiTi(*parts, decoder=solved.decoder.eval(), metric=metric)


def solve(
    data: str | Path | Dataset,
    backbone: str | Path | Backbone | Model,
    *,
    out: str | Path | None = None,
    features: Any = None,
    method: Literal["diti", "pdae"] = "diti",
    code_dim: int = 128,
    subsets: int = 16,
    images: int | None = None,
    seed: int = 0,
    device: Device = AUTO,
    **settings: Any,
) -> DiTi:
    """A solved model of images, in minutes: what `diti solve` does, from Python.

    backbone: a folder, shipped name or hub id, a backbone itself, or a model, whose backbone is taken.
    out: folder of the run, with all that `diti solve` writes; a stopped one is continued. Without it nothing is
    written. images: length of the pass; by default as many as needed.
    device: where to compute, such as "cuda:1"; by default where a given backbone is, else a GPU if there is one.
    features: (N, F) floats, a row per image of the data, of any other network: z is then made from these, and
    `model.encode` takes such rows. settings: any other option of `diti solve` by name, such as tau, flip.

        model = diti.solve("data/mine", "runs/backbone", code_dim=64, out="runs/solved")
    """
    options = {"method": method, "code_dim": code_dim, "subsets": subsets, "images": images, "seed": seed}
    names = {"data": place_of(data), "backbone": backbone_name(backbone)}
    config = from_options(SolveConfig(), {**options, **settings, **names}, "diti.solve")
    if out is not None:
        require_alone("diti.solve", "solve")
        require_writable({"out": [as_path(out, "out") / "model.json"]}, [config.data], overwrite=True)
    frozen = as_backbone(backbone, device)
    dataset = as_dataset(data, frozen.size)
    frozen.require_size(dataset.size)
    given = None if features is None else require_features(features, dataset)
    if out is not None:
        solve_models({Path(out): config}, held=Held(frozen, dataset, given), device=frozen.device)
        again = frozen if isinstance(frozen, WatchedBackbone) else None  # others lie in the folder as they are
        return cast(DiTi, load(out, frozen.device, backbone=again))
    validate(config, frozen, given)
    cut = cut_by_hand(config, frozen)
    return solved_model(config, solve_networks(config, frozen, dataset, features=given, partition=cut), dataset)
