"""The networks of a solution: encoder, linear decoder and partition."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diti.config import SolveConfig
from diti.data.prepared import Dataset
from diti.diffusion.backbone import Backbone
from diti.representation.networks.encoder import Encoder
from diti.representation.networks.linear import LinearPart
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.partition import Partition
from diti.representation.solve.evidence import Log, gather_evidence, unsolved_encoder
from diti.representation.solve.solution import Evidence, Solution, solve


@dataclass(frozen=True, eq=False)
class Solved:
    """A solved model's parts, and what they follow from."""

    encoder: Encoder
    linear: LinearPart
    decoder: ShiftDecoder  # which has this linear part, and no other
    solution: Solution
    evidence: Evidence


def solve_networks(
    config: SolveConfig,
    backbone: Backbone,
    dataset: Dataset,
    *,
    features: np.ndarray | None = None,
    partition: Partition | None = None,
    state: Path | None = None,
    log: Log = lambda **facts: None,
) -> Solved:
    """Gather the evidence and solve. features: given ones (N, F). partition: a cut to keep to."""
    encoder = unsolved_encoder(config, backbone, features)
    encoder.to(backbone.device)
    evidence = gather_evidence(config, backbone, dataset, encoder, features, state, log)
    return assemble(config, backbone, encoder, evidence, partition)


def assemble(
    config: SolveConfig,
    backbone: Backbone,
    encoder: Encoder,
    evidence: Evidence,
    partition: Partition | None = None,
) -> Solved:
    """The solution that these settings have for what was measured."""
    solution = solve(
        evidence,
        config.code_dim,
        config.solution,
        timesteps=backbone.timesteps,
        subsets=config.subsets if config.method == "diti" else 1,
        seed=config.seed,
        partition=partition,
    )
    encoder.set_head(*solution.head(evidence))
    linear = solution.linear_part(evidence)
    decoder = ShiftDecoder(backbone, config.code_dim, "none", linear=linear)
    return Solved(encoder, linear, decoder, solution, evidence)
