"""DiTi and PDAE in closed form beside the baselines a critic will ask for, on toy faces.

`python -m benchmarks solve` gathers the evidence once per seed (other images first, other noise), solves every row
of the table from it and measures: share of the frozen model's loss removed, mean AP and r of a linear probe on
validation images, edits of 12 test faces by the paper's step (flips, change, leakage per change), whether the
subsets have the theorem's order, and DCI disentanglement of single dims, by which axes inside a subset are judged.
`python -m benchmarks.bench_solve MODEL ...` measures model folders the same way. Records are kept in
runs/bench-solve, so that a stopped benchmark continues.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.config import SolutionConfig, SolveConfig
from diti.core.images import MODEL_RANGE, to_float
from diti.core.runs import write_json
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.backbone import Backbone, load_backbone
from diti.edit.strength import PAPER_SCALE
from diti.measure.attribute_classifier import AttributeClassifier, train_classifier
from diti.measure.baselines import pixels_flat, principal_scores
from diti.measure.counterfactuals import CounterfactualOptions, EditStudy
from diti.probes.disentangle import dci_disentanglement, dci_importance
from diti.probes.linear import probe
from diti.probes.task import Splits
from diti.representation.checks import loss_curves
from diti.representation.features import encode_dataset
from diti.representation.finish import training_statistics
from diti.representation.models.diffusion import DiTi
from diti.representation.models.loading import load
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.partition import Partition, make_partition
from diti.representation.solve.evidence import gather_evidence, unsolved_encoder
from diti.representation.solve.keep import Unknown, not_known_yet, residual
from diti.representation.solve.order import lost_in_pixels, lost_shares, whiten
from diti.representation.solve.solution import KNOWN_PENALTY, Evidence, Solution, fitted, solve
from diti.theory import exact_pairs, mean_position, movement_shares, pixel_change, spearman

DATA, BACKBONE, OUT = "toyfaces:12000", "toyfaces32", Path("runs/bench-solve")
SEEDS = (0, 1, 2)
DIMS, SUBSETS, TAUS = 128, 16, (0.01, 0.03, 0.05, 0.1)  # τ beside the default
EDITED, PAIRS = 12, 32  # test faces edited; exact pairs per attribute for the order
RETURNED = 32  # test faces inverted and drawn again
HELD_OUT = 1_200  # training images on which the probe's penalty is chosen
SCORES = ("loss removed", "AP", "r", "flips", "change, sd", "leakage per change", "order", "DCI")
T_95 = {2: 12.706, 3: 4.303}  # Student's t of a 95 % interval over so many seeds


def main() -> None:
    dataset, backbone = open_data(DATA, 32), load_backbone(BACKBONE)
    classifier = train_classifier(dataset)
    for seed in SEEDS:
        measure_seed(dataset, backbone, classifier, seed)
    print_table([json.loads((OUT / f"seed-{seed}.json").read_text()) for seed in SEEDS])


def measure_seed(dataset: Dataset, backbone: Backbone, classifier: AttributeClassifier, seed: int) -> None:
    """All rows of one seed; those that are there already are kept."""
    path = OUT / f"seed-{seed}.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"rows": {}}
    config = SolveConfig(code_dim=DIMS, subsets=SUBSETS, seed=seed)
    encoder = unsolved_encoder(config, backbone)
    if set(ROWS) <= set(record["rows"]):
        return
    began = time.perf_counter()
    evidence = gather_evidence(config, backbone, dataset, encoder)
    gathered = time.perf_counter() - began
    for name, row in ROWS.items():
        if name in record["rows"]:
            continue
        began = time.perf_counter()
        solution = row(evidence, seed)
        if name == MAIN:
            record |= {"gathering": gathered, "seconds": gathered + time.perf_counter() - began}
            record |= {"images": evidence.train.images, "peak_gb": peak_gigabytes()}
            record["rows"]["plain ridge, no z"] = {"loss removed": solution.removed_without_z}
            pixels = principal_scores(lambda rows: pixels_flat(dataset, rows), dataset, DIMS)
            record["rows"]["PCA of pixels"] = probed(pixels, dataset)
        encoder.set_head(*solution.head(evidence))
        decoder = ShiftDecoder(backbone, DIMS, "none", linear=solution.linear_part(evidence))
        statistics = training_statistics(encoder, dataset)
        model = DiTi(encoder, solution.partition, *statistics, "diti", decoder=decoder.eval())
        folder = OUT / f"model-{seed}-{len(record['rows'])}"
        model.save(folder)
        found = measure(model, str(folder), dataset, classifier, name in PROBED_ROWS, name in EDITED_ROWS)
        if name in DCI_ROWS:
            found["DCI"] = single_dims(encode_dataset(model, dataset), dataset, seed)
        record["rows"][name] = found
        write_json(path, record)
        print(seed, name, {k: round(v, 4) for k, v in record["rows"][name].items()}, flush=True)


def measure(
    model: DiTi,
    source: str,
    dataset: Dataset,
    classifier: AttributeClassifier,
    code: bool = True,
    edits: bool = True,
) -> dict[str, float]:
    """The scores of one model; code: also of its code alone, which rows may share."""
    curves = loss_curves(model.encoder, model.decoder, model.partition, dataset)
    found = {"loss removed": curves.removed()}
    if code:
        found |= probed(encode_dataset(model, dataset), dataset)
    if code and model.partition.subsets > 1:
        found["order"] = order(model)
    if edits:
        options = CounterfactualOptions(images=EDITED, paper_scale=PAPER_SCALE, selection="l1", along="pattern")
        study = EditStudy(source, model, dataset, classifier, min(32, model.dims // 4), OUT / "pictures", options)
        mean = study.manipulation()["mean"]
        names = {"flips": "flips", "change": "change, sd", "leak_per_change": "leakage per change"}
        found |= {title: mean[key]["value"] for key, title in names.items()}
    return found


def probed(codes: np.ndarray, dataset: Dataset) -> dict[str, float]:
    """Mean AP and r on validation images; the probe's penalty is chosen on training images held out."""
    train, valid = dataset.rows("train"), dataset.rows("valid")
    splits = Splits(train[:-HELD_OUT], train[-HELD_OUT:], valid)
    binary = [dataset.is_binary(name) for name in dataset.attributes]
    scores = probe(codes, dataset.labels(), dataset.attributes, binary, splits, resamples=1)
    return {"AP": scores.mean_ap or float("nan"), "r": scores.mean_r or float("nan")}


def single_dims(codes: np.ndarray, dataset: Dataset, seed: int) -> float:
    """DCI disentanglement of single dims, by forests that are fitted on one half of the validation images."""
    valid = dataset.rows("valid")
    discrete = np.array([dataset.is_binary(name) for name in dataset.attributes])
    half = np.arange(len(valid)) % 2 == 0
    return dci_disentanglement(dci_importance(codes[valid], dataset.labels()[valid], discrete, half, seed)[0])


def order(model: DiTi) -> float:
    """Spearman of an attribute's pixel change and the mean position of the subsets that move with it."""
    pairs, changes, positions = exact_pairs(PAIRS, model.size, 0), [], []
    for name in pairs.counts:
        x0, y0 = pairs.load(name)
        changes.append(pixel_change(x0, y0).mean().item())
        shares = movement_shares(model.encode(x0), model.encode(y0), model.statistics()[1], model.partition)
        positions.append(mean_position(shares, model.partition))
    return spearman(changes, positions)


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


# ---- The rows ----------------------------------------------------------------------------------------------


def solved(subsets: int = SUBSETS, **settings: Any) -> Callable[[Evidence, int], Solution]:
    """Solved DiTi, or PDAE with one subset."""

    def row(evidence: Evidence, seed: int) -> Solution:
        chosen = replace(SolutionConfig(), **settings)
        return solve(evidence, DIMS, chosen, timesteps=timesteps(evidence), subsets=subsets, seed=seed)

    return row


def over(directions: Callable[[Evidence], Tensor], cut: str) -> Callable[[Evidence, int], Solution]:
    """The linear decoder over a code that was chosen in another way."""

    def row(evidence: Evidence, seed: int) -> Solution:
        found = whiten(directions(evidence), evidence.train.means(0).phi_phi)
        partition = make_partition(cut, timesteps(evidence), 1 if cut == "balanced" else SUBSETS, DIMS)
        return fitted(evidence, found, partition, lost_shares(found, lost_in_pixels(unknowns(evidence))))

    return row


def timesteps(evidence: Evidence) -> int:
    return evidence.stretches.bounds[-1]


def unknowns(evidence: Evidence) -> list[Unknown]:
    return [not_known_yet(means, KNOWN_PENALTY) for means in evidence.train]


def feature_components(evidence: Evidence) -> Tensor:
    """(E, D) the first principal components of the features, finest last as they come."""
    return torch.eye(len(evidence.look.whitening.variance), dtype=torch.float64)[:, :DIMS].flip(1)


def residual_components(evidence: Evidence) -> Tensor:
    """(E, D) principal components of what the features predict of the mean lost pixels."""
    weighted = zip(evidence.stretches.mass, unknowns(evidence), strict=True)
    pixels = torch.stack([float(mass) * unknown.pixels for mass, unknown in weighted]).sum(0)
    return torch.linalg.svd(pixels, full_matrices=False)[0][:, :DIMS]


def step_by_step(evidence: Evidence, seed: int) -> Solution:
    """The paper's induction to the letter: z_1 for stretch 1, z_2 for what is then left in stretch 2, ..."""
    width, found = DIMS // evidence.stretches.count, torch.zeros(0, dtype=torch.float64)
    for means in evidence.train:
        known = means.a_a, means.a_phi, means.a_rho
        if len(found):
            a_z, z_phi = means.a_phi @ found, found.T @ means.phi_phi
            top = torch.cat([means.a_a, a_z], 1)
            below = torch.cat([a_z.T, found.T @ means.phi_phi @ found], 1)
            known = (
                torch.cat([top, below]),
                torch.cat([means.a_phi, z_phi]),
                torch.cat([means.a_rho, found.T @ means.phi_rho]),
            )
        features = residual(known[0], known[1], known[1], means.phi_phi, KNOWN_PENALTY)
        pixels = residual(known[0], known[1], known[2], means.phi_rho, KNOWN_PENALTY)
        features += 1e-6 * features.diagonal().mean() * torch.eye(len(features), dtype=torch.float64)
        lower = torch.linalg.cholesky((features + features.T) / 2)
        chosen = torch.linalg.svd(torch.linalg.solve_triangular(lower, pixels, upper=False))[0][:, :width]
        new = torch.linalg.solve_triangular(lower.T, chosen, upper=True)
        found = torch.cat([found, new], 1) if len(found) else new
    found = found / (found.T @ evidence.train.means(0).phi_phi @ found).diagonal().sqrt()
    starts = [0, *(int(centre) + 1 for centre in evidence.stretches.centres[:-1])]
    partition = Partition.matched(timesteps(evidence), len(starts), DIMS, starts)
    return fitted(evidence, found, partition, lost_shares(found, lost_in_pixels(unknowns(evidence))))


MAIN = f"DiTi solved, τ = {SolutionConfig().tau:g}"
ROWS: dict[str, Callable[[Evidence, int], Solution]] = {
    MAIN: solved(),
    "PDAE solved": solved(subsets=1),
    **{f"DiTi solved, τ = {tau:g}": solved(tau=tau) for tau in TAUS},
    "DiTi solved, α = 0": solved(features_weight=0.0),
    "DiTi solved, axes as they come": solved(axes="ordered"),
    "PCA of features, linear g": over(feature_components, "balanced"),
    "PCA of features, linear g, staged-even": over(feature_components, "staged-even"),
    "PCA of the residual, linear g": over(residual_components, "balanced"),
    "step by step": step_by_step,
}
# The other solved rows have the code of the first, in another cut or turned: their probes are the same.
PROBED_ROWS = (
    MAIN,
    "DiTi solved, α = 0",
    "PCA of features, linear g",
    "PCA of features, linear g, staged-even",
    "PCA of the residual, linear g",
    "step by step",
)
EDITED_ROWS = (
    MAIN,
    "PDAE solved",
    "DiTi solved, τ = 0.05",
    "DiTi solved, axes as they come",
    "PCA of features, linear g",
    "step by step",
)
DCI_ROWS = (MAIN, "DiTi solved, axes as they come", "PCA of features, linear g")


# ---- The table ---------------------------------------------------------------------------------------------


def print_table(records: list[dict[str, Any]]) -> None:
    """Mean and 95 % interval over seeds."""
    for name in ("seconds", "images", "peak_gb"):
        print(f"{name}: {with_interval([record[name] for record in records])}")
    print(f"| | {' | '.join(SCORES)} |\n|{' --- |' * (len(SCORES) + 1)}")
    for name in records[0]["rows"]:
        print(f"| {name} | {' | '.join(cells([record['rows'][name] for record in records]))} |")


def cells(rows: list[dict[str, float]]) -> Iterator[str]:
    """One per score; a dash where a row does not have it."""
    for score in SCORES:
        yield with_interval([row[score] for row in rows]) if score in rows[0] else "–"


def with_interval(values: list[float]) -> str:
    """Mean and half the width of its 95 % interval."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.3g}"
    half = T_95[len(values)] * float(np.std(values, ddof=1)) / len(values) ** 0.5
    return f"{mean:.3f} ± {half:.3f}" if abs(mean) < 10 else f"{mean:,.0f} ± {half:,.0f}"


def measure_folders(folders: list[str]) -> None:
    """The same scores of model folders, such as trained ones or those over other backbones, at their own size."""
    classifiers: dict[int, AttributeClassifier] = {}
    for folder in folders:
        model = load(folder)
        if not isinstance(model, DiTi):
            raise SystemExit(f"{folder} holds a {model.method} model; name models of diti or pdae")
        dataset = open_data(DATA, model.size)
        if model.size not in classifiers:
            classifiers[model.size] = train_classifier(dataset)
        found = measure(model, folder, dataset, classifiers[model.size]) | round_trip_errors(model, dataset)
        print(folder, {k: float(f"{v:.4g}") for k, v in found.items()}, flush=True)


def round_trip_errors(model: DiTi, dataset: Dataset) -> dict[str, float]:
    """MSE, pixels in [-1, 1], of test images after the way to x0 and back alone, and of what inversion adds."""
    images = to_float(dataset.pixels(dataset.rows("test")[:RETURNED]))
    held = model.at_best(images)
    again = model.reconstruct(images, "inferred", value_range=MODEL_RANGE)
    return {
        "MSE of x0 and back": (held - images).square().mean().item(),
        "MSE of inversion": (again - held).square().mean().item(),
    }


if __name__ == "__main__":
    measure_folders(sys.argv[1:])
