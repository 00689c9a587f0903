"""`diti solve` and `diti.solve`: DiTi and PDAE in closed form, into a model folder of the usual kind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diti.config import SolveConfig, TrainingConfig, differences, from_options, load_yaml
from diti.core.errors import InputError
from diti.core.loop import make_accelerator
from diti.core.outputs import require_writable
from diti.core.runs import RunFolder, read_mapping
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.backbone import Backbone, load_backbone
from diti.representation.finish import finish, training_statistics
from diti.representation.methods.registry import Findings, find_method
from diti.representation.models.diffusion import DiTi
from diti.representation.partition import Partition, make_partition
from diti.representation.solve.evidence import (
    gather_evidence,
    new_encoder,
    require_features,
    require_images,
    split_rows,
)
from diti.representation.solve.figure import save_lost_figure
from diti.representation.solve.solved import Solved, assemble, solve_networks
from diti.representation.solve.start import remember

FREE = frozenset({"data"})  # what a continued run may name otherwise: its content is compared by hash


def solve_model(config: SolveConfig, out: Path, begun: Callable[[], None] = lambda: None) -> Findings | None:
    """Solve, or continue to solve, in the run folder `out`; None where it is solved already.

    `begun` is called once everything is checked.
    """
    return solve_models({out: config}, begun)[out]


def solve_models(
    configs: Mapping[Path, SolveConfig], begun: Callable[[], None] = lambda: None
) -> dict[Path, Findings | None]:
    """As `solve_model`, by run folder, of settings that have their `shared_pass` in common."""
    began = time.monotonic()
    first = next(iter(configs))
    config = max(configs.values(), key=lambda one: one.code_dim)  # what serves the longest code serves all
    # What is there already is told further on; this is about the place, and about what is read.
    places = {"--out": [out / "model.json" for out in configs]}
    require_writable(places, [config.data, config.backbone], overwrite=True)
    backbone = load_backbone(config.backbone)
    for one in configs.values():
        validate(one, backbone)
    accelerator = make_accelerator(TrainingConfig())
    main = accelerator.is_main_process
    found: dict[Path, Findings | None] = dict.fromkeys(configs)
    with ExitStack() as held:
        for out in configs:
            held.enter_context(RunFolder(out).held(main))
        with accelerator.main_process_first():
            dataset = open_data(config.data, backbone.size)
        backbone.require_size(dataset.size)
        for one in configs.values():
            require_images(one, len(split_rows(dataset, one.seed)[0]), backbone.size)
        todo = [out for out, one in configs.items() if not begin(one, RunFolder(out), dataset, backbone, main)]
        if not todo:
            return found
        accelerator.wait_for_everyone()
        begun()

        def log(**facts: Any) -> None:
            for out in todo if main else ():
                RunFolder(out).log(**facts)

        backbone.to(accelerator.device)
        encoder = new_encoder(config, backbone).to(accelerator.device)
        state = first / "state"
        evidence = gather_evidence(config, backbone, dataset, encoder, state=state, log=log)
        for out in todo:
            own = new_encoder(configs[out], backbone).to(accelerator.device)
            solved = assemble(configs[out], backbone, own, evidence, cut_by_hand(configs[out], backbone))
            found[out] = Findings()
            if main:
                seconds = time.monotonic() - began
                found[out] = write(configs[out], solved, dataset, RunFolder(out), seconds)
                remember(configs[out], solved, backbone, dataset)
        if main:
            shutil.rmtree(state, ignore_errors=True)  # hundreds of MB that nobody needs any more
    accelerator.end_training()
    return found


def shared_pass(config: SolveConfig) -> SolveConfig:
    """The settings as far as the pass over the images depends on them, the others as they usually are.

    By the rule its length depends on the code that is wanted.
    """
    usual, solution = SolveConfig(), config.solution
    by_rule = config.images is None
    few = by_rule or config.code_dim > solution.whitened  # then the code decides how many features are looked at
    return replace(
        config,
        method=usual.method,
        subsets=usual.subsets,
        partition=usual.partition,
        code_dim=config.code_dim if few else usual.code_dim,
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


def begin(config: SolveConfig, run: RunFolder, dataset: Dataset, backbone: Backbone, main: bool) -> bool:
    """Whether the folder holds this very solution already; if not, the main process begins the run there."""
    inputs = {
        "verb": "solve", "data_name": dataset.name, "data_hash": dataset.hash, "backbone_hash": backbone.digest(),
    }  # fmt: skip
    if solved_already(config, run.path, inputs):
        return True
    if main:
        run.begin(config, inputs, FREE)
        run.rewind_log(0)  # the looks of a stopped run are in its state: the pass tells them again
    return False


def validate(config: SolveConfig, backbone: Backbone, features: np.ndarray | None = None) -> None:
    """InputError for what cannot be solved, before any work. features: given ones (N, F)."""
    new_encoder(config, backbone, features)
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


def write(config: SolveConfig, solved: Solved, dataset: Dataset, run: RunFolder, seconds: float) -> Findings:
    """The model folder, with a figure of what is lost when."""
    method, solution = find_method(config.method), solved.solution
    model = as_model(config, solved, dataset)
    images = solved.evidence.train.images
    facts = {"loss_removed_from_sums": solution.removed, "loss_removed_without_z": solution.removed_without_z}
    origin = [
        f"solved in closed form from {images:,} images of `{config.data}` in {seconds:.0f} s, seed {config.seed}",
        f"without z the same regression removes {solution.removed_without_z:.1%} of the loss",
    ]
    lost = save_lost_figure(solution, solved.evidence.stretches, run.path / "lost.png")
    findings = finish(
        method, model, dataset, run, config.backbone, origin, {lost.name: "share lost by dim and time"}
    )
    run.log(images=images, seconds=seconds, penalties=solution.penalties, **facts)
    return findings


def as_model(config: SolveConfig, solved: Solved, dataset: Dataset) -> DiTi:
    """The solved networks with the statistics of their code."""
    if solved.encoder.description["kind"] == "given":  # whitened on the training images: mean 0, variance 1
        mean, std = solved.encoder.head.bias.detach().clone(), solved.encoder.head.bias.new_ones(config.code_dim)
    else:
        mean, std = training_statistics(solved.encoder, dataset)
    return DiTi(solved.encoder, solved.decoder.eval(), solved.solution.partition, mean, std, config.method)


def solve(
    data: str | Dataset,
    backbone: str | Backbone,
    *,
    features: Any = None,
    out: str | Path | None = None,
    **settings: Any,
) -> DiTi:
    """A solved model of images, in minutes: what `diti solve` does, from Python.

    settings: any option of `diti solve` by name, such as method, code_dim, subsets, tau, features_weight.
    features: (N, F) floats, a row per image of the data, of any other network: z is then made from these, and
    `model.encode` takes such rows. out: folder to save the model in.

        model = diti.solve("data/mine", "runs/backbone", code_dim=64, out="runs/solved")
    """
    frozen = load_backbone(backbone) if isinstance(backbone, str) else backbone
    dataset = open_data(data, frozen.size) if isinstance(data, str) else data
    frozen.require_size(dataset.size)
    config = from_options(SolveConfig(), settings, "diti.solve")
    given = None if features is None else require_features(features, dataset)
    validate(config, frozen, given)
    cut = cut_by_hand(config, frozen)
    model = as_model(config, solve_networks(config, frozen, dataset, features=given, partition=cut), dataset)
    if out is not None:
        model.save(Path(out))
    return model
