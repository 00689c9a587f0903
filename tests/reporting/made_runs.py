"""Runs with records made by the code that makes them in a report."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from diti.measure.counterfactual_scores import resamples, rows_and_mean, summary, transfer_record
from diti.presets import train_preset
from diti.probes.disentangle import disentanglement
from diti.probes.linear import Splits, probe
from diti.reporting.runs import Group, Run

USUAL = train_preset("toyfaces32")
NAMES = ["hat", "beard", "light"]  # two binary attributes and a continuous one
BINARY = np.array([True, True, False])
SPLITS = Splits(np.arange(300), np.arange(300, 400), np.arange(400, 600))


def probe_record(noise, seed=0, with_disentanglement=False):
    """A probe of 6 random dims, of which three hold the attributes under so much noise."""
    rng = np.random.default_rng(5)
    labels = np.stack([*(rng.random((2, 600)) < 0.4), rng.normal(size=600)], axis=1).astype(np.float64)
    codes = np.random.default_rng(seed).normal(size=(600, 6))
    codes[:, :3] = labels + noise * codes[:, :3]
    result = probe(codes, labels, NAMES, BINARY, SPLITS, seed=seed, resamples=100)
    record = {"encoder": f"{seed:064x}", "probe": json.loads(json.dumps(result.record()))}
    if with_disentanglement:
        found = disentanglement(
            codes, labels, NAMES, BINARY, [2, 4, 6], train=SPLITS.train, test=SPLITS.test, seed=0, permutations=2
        )
        record["disentanglement"] = json.loads(json.dumps(found.record()))
    return record


def counterfactual_record(change, leakage, seed=0):
    """Scores of 40 edits of two attributes and of 40 swaps between three groups, summed up as when measured."""
    rng, counts = np.random.default_rng(seed), resamples(40, 0)

    def around(mean):
        return mean + 0.05 * rng.normal(size=40)

    found = [
        {
            "upward": rng.random(40) < 0.5,
            "flips": (rng.random(40) < 0.7).astype(np.float64),
            "change": around(change),
            "leakage": around(leakage),
            "pixels": around(0.2),
            "distance": around(1.1),
        }
        for _ in range(2)
    ]
    shares = np.abs(rng.normal(0.2, 0.1, (1 + 3 + 3, 40, 2)))
    shares[0], shares[1] = 0, shares[1] + 0.5  # no swap moves nothing; the first group carries both attributes
    return {
        "manipulation": {
            "reconstruction": {"distance": rows_and_mean(around(1.0)[None], counts)[1]},
            **summary(["hat", "light"], found, counts),
        },
        "interpolation": {"x_t": {kind: transfer_record(shares, 3, counts) for kind in ("keep", "slerp")}},
    }


def make_run(config=USUAL, seed=0, **changes):
    facts = {"command": "diti train --seed 0", "versions": {"torch": "2.13"}, "data_name": "toyfaces"}
    run = Run(
        path=Path(f"{config.method}-{seed}"), checks={}, images=25_600, images_per_s=160.0,
        config=replace(config, training=replace(config.training, seed=seed)),
        facts=facts | {"data_hash": "ab" * 32}, peak_memory_mb=None, weights={"encoder": 1_200, "decoder": 3_400},
        backbone_hash="cd" * 32, measured_on="toyfaces", measured=Path("measured"),
    )  # fmt: skip
    return replace(run, **changes)


def make_group(noise=None, seeds=(0,), config=USUAL, **changes):
    """A group whose probes read codes of that noise; without noise nothing is measured."""
    records = [{} if noise is None else {"probe": probe_record(noise, seed)} for seed in seeds]
    runs = [make_run(config, seed, **(record | changes)) for seed, record in zip(seeds, records, strict=True)]
    return Group(runs[0].label, tuple(runs))


PDAE = replace(USUAL, method="pdae")


def column(table, heading):
    """The cells of a column by the name of their row."""
    place = list(table.columns).index(heading)
    return {row[0].text: row[place] for row in table.rows}
