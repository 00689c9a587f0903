"""`diti analyze`: the paper's theory on a model: when attributes are lost, in which order, where z keeps them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor

from diti import theory
from diti.core.device import AUTO, Device
from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, to_float
from diti.core.outputs import require_writable
from diti.core.progress import Advance, progress_bar
from diti.core.ranges import NUMBER, Range, check_number
from diti.core.rng import torch_generator
from diti.core.runs import as_path, versions, write_json
from diti.data.attributes import SPLITS
from diti.data.predicted import predicted_columns
from diti.data.prepared import Dataset, require_training_images
from diti.data.sources import as_dataset, place_of
from diti.data.toyfaces import NAMES
from diti.diffusion.backbone import Backbone, is_code, load_backbone
from diti.diffusion.files import locate
from diti.diffusion.unet import require_unet
from diti.measure import theory_figures as figures
from diti.measure.sufficiency import CHECK_FACES, sufficiency
from diti.probes.matrix import SubsetProbe, carriers
from diti.probes.task import Splits
from diti.representation.checks import loss_curves, save_loss_figure
from diti.representation.features import encode_dataset
from diti.representation.models.diffusion import DiTi
from diti.representation.models.loading import as_backbone, as_model
from diti.representation.models.model import Model

SHOWN = 4  # images of figure 1b
FILES = (
    "analysis.json", "overlap.png", "reconstructions_by_time.png", "losses.png", "attribute_loss.png",
    "ordering.png",
)  # fmt: skip
FEWEST_RANKED = 3  # attributes that an order needs
COUNTS, TAUS = Range(1, 10_000), Range(0, 0.5, open=(0, 0.5))  # pairs per attribute, degrees of loss
PROBED_ROWS = 20_000  # training images that the probes of single subsets are fitted to
CLOSED, MEASURED = "lost_at_closed_form", "lost_at_monte_carlo"


def analyze(
    model: Model | Backbone | str | Path,
    data: Dataset | str | Path,
    out: str | Path = "analysis",
    *,
    pairs: str | Path | None = None,
    count: int = 64,
    tau: float = 0.1,
    images: int = 0,
    seed: int = 0,
    overwrite: bool = False,
    device: Device = AUTO,
) -> dict[str, Any]:
    """Check the theory on a model, as `diti analyze` does; writes `out`/analysis.json and PNGs beside it.

    model: a model, or a backbone alone: then all about z is left out. pairs: table of image pairs that differ in
    one attribute; toy faces need none. count: pairs per attribute. tau: degree from which on an attribute counts
    as lost. images: length of each of two training runs on the true factors of toy faces; 0 leaves them out.
    device: where to compute, such as "cuda:1".
    """
    out, place = as_path(out, "out"), place_of(data)
    pairs = None if pairs is None else as_path(pairs, "pairs")
    for name, number, allowed in (("count", count, COUNTS), ("tau", tau, TAUS), ("images", images, NUMBER)):
        check_number(name, number, allowed)
    require_writable({"--out": [out / name for name in FILES]}, [place, pairs], overwrite=overwrite)
    backbone, trained = open_model(model, device)
    dataset = require_training_images(as_dataset(data, backbone.size))
    backbone.require_size(dataset.size)
    found = _find_pairs(dataset, pairs, count, backbone.size, seed)
    if images:
        require_unet(backbone)
    if images and (found is None or pairs is not None):
        raise InputError("--images trains on the true factors of toy faces; use --data toyfaces without --pairs")
    record: dict[str, Any] = {
        "model": str(model), "method": trained.method if trained else None, "data": place,
        "dataset_hash": dataset.hash,
        "timesteps": backbone.timesteps, "tau": tau, "count": count, "seed": seed, "versions": versions(),
        "predicted": sorted(predicted_columns(dataset)), "left_out": [],
    }  # fmt: skip
    draw_pictures(record, backbone, trained, dataset, out)
    if found is None:
        record["left_out"].append(
            f"{place} has no exact pairs: curves of attributes need --pairs (attribute, first, second)"
        )
    else:
        measure_attributes(record, backbone, trained, found)
        if trained is not None:
            probe_subsets(record, trained, dataset)
        rank_attributes(record)
        drawn = (
            figures.save_attribute_loss(record["attributes"], record["grid"], tau, out / "attribute_loss.png"),
            figures.save_ordering(record["attributes"], record["grid"], out / "ordering.png"),
        )
        record["figures"] += [figure.name for figure in drawn]
    if images:
        faces = min(CHECK_FACES, images)  # a check no longer than the training
        record["sufficiency"] = sufficiency(backbone, _times(record, MEASURED), images, seed, faces)
    write_json(out / "analysis.json", record)
    return record


def open_model(source: Model | Backbone | str | Path, device: Device = AUTO) -> tuple[Backbone, DiTi | None]:
    """The backbone of a model folder and the model, or a backbone alone."""
    if isinstance(source, Backbone):
        return as_backbone(source, device).eval(), None
    if isinstance(source, Model) or (not is_code(source) and (locate(source) / "model.json").is_file()):
        model = as_model(source, device).with_backbone()
        return model.backbone, model
    return load_backbone(source, device).eval(), None


def _find_pairs(dataset: Dataset, table: Path | None, count: int, size: int, seed: int) -> theory.Pairs | None:
    """Pairs of the given table, exact ones of toy faces, or None."""
    if table is not None:
        return theory.given_pairs(table, count, size)
    return theory.exact_pairs(count, size, seed) if set(dataset.attributes) == set(NAMES) else None


# ---- What needs no attributes -----------------------------------------------------------------------------


def draw_pictures(
    record: dict[str, Any], backbone: Backbone, model: DiTi | None, dataset: Dataset, out: Path
) -> None:
    """Figures 1a and 1b, and with z the loss by time-step (A9)."""
    rows = dataset.rows("valid")
    shown = to_float(dataset.pixels((rows if len(rows) else dataset.rows())[:SHOWN]))
    u_theta = theory.reconstructor(backbone)
    drawn = [
        figures.save_overlap_figure(backbone.schedule, out / "overlap.png"),
        figures.save_reconstructions_by_time(
            u_theta, backbone.schedule, shown, record["seed"], out / "reconstructions_by_time.png", backbone
        ),
    ]
    if model is None:
        record["left_out"].append(f"{record['model']} is a backbone alone: left out what needs z (A9, subsets)")
    else:
        curves = loss_curves(model.encoder, model.decoder, model.partition, dataset)
        record["loss"] = curves.record()
        drawn.append(save_loss_figure(curves, out / "losses.png"))
    record["figures"] = [figure.name for figure in drawn]


# ---- What needs pairs that differ in one attribute ----------------------------------------------------------


def measure_attributes(
    record: dict[str, Any], backbone: Backbone, model: DiTi | None, pairs: theory.Pairs
) -> None:
    """Curves and t(Z_i) of every attribute, how z moves with it, and part 2 of the theorem."""
    grid = theory.time_grid(backbone.timesteps)
    record["grid"], record["attributes"] = grid, {}
    distances: dict[str, Tensor] = {}
    with progress_bar("attributes", 2 * len(grid) * sum(pairs.counts.values())) as advance:
        for name in pairs.counts:
            pixels = pairs.load(name)
            x0, y0 = (theory.held_by(backbone, images) for images in pixels)
            distances[name] = theory.pixel_change(x0, y0)
            found = _curves(record, backbone, x0, y0, distances[name], advance)
            record["attributes"][name] = found | (_subsets(model, *pixels) if model else {})
    record["dominance"] = {
        key: theory.dominance_kept(distances, _times(record, key)) for key in (CLOSED, MEASURED)
    }


def _curves(
    record: dict[str, Any], backbone: Backbone, x0: Tensor, y0: Tensor, distance: Tensor, advance: Advance
) -> dict[str, Any]:
    """Mean Err over t in closed form and by Monte Carlo, and when each passes tau for good."""
    schedule, grid, tau = backbone.schedule, record["grid"], record["tau"]
    closed = theory.closed_form_curve(distance, schedule)  # (T,)
    rng = torch_generator(record["seed"], "attribute-loss")  # the same noise for all attributes
    measured = theory.monte_carlo_curve(
        theory.reconstructor(backbone), schedule, x0, y0, grid, rng, advance=advance
    ).mean(1)
    return {
        "pairs": len(x0),
        "pixel_change": distance.mean().item(),
        CLOSED: theory.lost_at(closed, range(schedule.timesteps), tau),
        MEASURED: theory.lost_at(measured, grid, tau),
        "closed_form": closed[grid].tolist(),
        "monte_carlo": measured.tolist(),
    }


def _subsets(model: DiTi, x: Tensor, y: Tensor) -> dict[str, Any]:
    """How z moves when the attribute changes: share and argmax of the subsets, mean position in time."""
    z, moved = (model.encode(pixels, value_range=MODEL_RANGE).cpu() for pixels in (x, y))
    shares = theory.movement_shares(z, moved, model.statistics(z)[1], model.partition)
    return {
        "subset": int(shares.argmax()),
        "subset_position": theory.mean_position(shares, model.partition),
        "subset_shares": shares.tolist(),
    }


def probe_subsets(record: dict[str, Any], model: DiTi, dataset: Dataset) -> None:
    """The subset from which a linear probe reads each attribute best, where the data have its labels."""
    names = [name for name in record["attributes"] if name in dataset.attributes]
    splits = Splits(*(dataset.rows(split) for split in SPLITS))
    if not names or not len(splits.train) or not len(splits.valid):
        record["left_out"].append(
            f"{record['data']} has no labels of these attributes in train and valid: no probe of subsets"
        )
        return
    matrix = SubsetProbe.of(
        encode_dataset(model, dataset), dataset.labels(names), names, [dataset.is_binary(name) for name in names],
        splits, model.partition.ends, split="valid", rows=PROBED_ROWS, seed=record["seed"],
    ).matrix(progress=True)  # fmt: skip
    record["probe"] = matrix.protocol
    for carrier in carriers(matrix):
        if carrier.subset is not None:
            record["attributes"][carrier.name] |= {
                "probed_subset": carrier.subset,
                "probed_score": carrier.score,
                "probed_position": theory.subset_position(carrier.subset, model.partition),
            }


def rank_attributes(record: dict[str, Any]) -> None:
    """Whether all measures put the attributes in one order."""
    count = len(record["attributes"])
    if count < FEWEST_RANKED:
        record["left_out"].append(f"{count} attributes have no order to speak of: it needs {FEWEST_RANKED}")
    else:
        record["ordering"] = theory.rank_agreement(_columns(record), record["seed"])


def _times(record: dict[str, Any], key: str) -> dict[str, float]:
    """t(Z_i) of all attributes, T where one is never lost."""
    last = float(record["timesteps"])
    return {name: last if a[key] is None else a[key] for name, a in record["attributes"].items()}


def _columns(record: dict[str, Any]) -> dict[str, list[float]]:
    """What the theorem says has one order: a number per attribute each."""
    attributes = record["attributes"].values()
    columns = {"pixel_change": [a["pixel_change"] for a in attributes]}
    columns |= {key: list(_times(record, key).values()) for key in (CLOSED, MEASURED)}
    for key in ("subset_position", "probed_position"):
        if any(key in a for a in attributes):
            columns[key] = [a.get(key, math.nan) for a in attributes]
    return columns


# ---- For the reader at the terminal -------------------------------------------------------------------------


def print_record(record: dict[str, Any], out: Path) -> None:
    """A table of attributes, coarse to fine, and a line for each further result."""
    from rich.console import Console
    from rich.table import Table

    for reason in record["left_out"]:
        print(reason)
    if "attributes" in record:
        table = Table(
            "attribute", title=f"lost with degree {record['tau']:g}, time-steps 0..{record['timesteps'] - 1}"
        )
        for heading in ("pixel change", "t, eq. 5", "t, model", "subset moved", "subset probed"):
            table.add_column(heading, justify="right")
        for name, a in sorted(record["attributes"].items(), key=lambda item: -item[1]["pixel_change"]):
            subsets = [str(a.get(key, "–")) for key in ("subset", "probed_subset")]
            table.add_row(name, f"{a['pixel_change']:.2f}", _step(a[CLOSED]), _step(a[MEASURED]), *subsets)
        Console().print(table)
    if record["predicted"]:
        print(f"labels predicted by a network, not true ones: {', '.join(record['predicted'])}")
    for pair in record.get("ordering", ()):
        if pair["rho"] is not None:
            bounds = f"{pair['low']:.2f} to {pair['high']:.2f}"
            print(f"rank correlation {pair['first']} ~ {pair['second']}: {pair['rho']:.2f} ({bounds})")
    if "sufficiency" in record:
        shares = {name: record["sufficiency"][name]["removed"] for name in ("ordered", "reversed")}
        print(
            f"true factors remove {shares['ordered']:.1%} of the loss, in reversed order {shares['reversed']:.1%}"
        )
    print(f"wrote {out / 'analysis.json'}, {', '.join(record['figures'])}")


def _step(time: float | None) -> str:
    return "never" if time is None else f"{time:.0f}"
