"""`diti probe`: what the code of a model knows about attributes, beside what is known without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from diti.core.device import AUTO, Device
from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE, to_float
from diti.core.outputs import require_writable
from diti.core.ranges import NUMBER
from diti.core.runs import as_path, command_line, versions, write_json
from diti.core.settings import Settings
from diti.data.predicted import predicted_columns
from diti.data.prepared import Dataset, require_training_images
from diti.data.sources import as_dataset, place_of
from diti.diffusion.files import read_settings
from diti.measure import probe_figures as figures
from diti.measure.baselines import baselines, require_among_baselines, require_images_for_baselines
from diti.probes.disentangle import disentanglement
from diti.probes.few_shot import few_shot, require_counts
from diti.probes.linear import ProbeResult
from diti.probes.linear import probe as linear_probe
from diti.probes.matrix import SubsetProbe
from diti.probes.reconstruct import reconstruction_scores
from diti.probes.task import Splits
from diti.representation.features import encode_dataset, encoder_hash, metric_of, trunk_features
from diti.representation.models.diffusion import DiTi
from diti.representation.models.loading import as_model, load
from diti.representation.models.model import Model
from diti.representation.networks.encoder import OVER_BACKBONE, Encoder

FIGURES = ("attributes", "weights", "against", "subsets", "cumulative")  # beside the record
NOISES: tuple[Literal["inferred", "random"], ...] = ("inferred", "random")
MATRIX_ROWS = 20_000  # training images for the subset × attribute matrix, which takes hundreds of fits


@dataclass(frozen=True, kw_only=True)
class ProbeOptions(Settings):
    """What `diti probe` measures besides the probe itself."""

    protocol: str = "converged"
    against: str | None = None  # another model, or the JSON of an earlier probe
    few_shot: tuple[int, ...] = ()
    baselines: bool = True
    wide_baseline: bool = False
    subsets: bool = True
    disentanglement: bool = False
    reconstruct: Annotated[int, *NUMBER] = 0
    folds: bool = False
    seed: int = 0
    overwrite: bool = False  # also replace files that diti did not write

    def __post_init__(self) -> None:
        super().__post_init__()
        require_among_baselines(self.wide_baseline, self.baselines)


@dataclass(frozen=True)
class Labels:
    """Attributes of a dataset as arrays, with the rows to learn, choose and score on."""

    values: np.ndarray  # (N, A)
    names: list[str]
    binary: np.ndarray  # (A,) bool
    splits: Splits
    groups: np.ndarray | None  # (N,) person; or file, where a k-fold takes the place of test images
    notes: list[str] = field(default_factory=list)

    def probe(self, features: np.ndarray, seed: int, protocol: str = "converged", **more: Any) -> ProbeResult:
        """The linear probe of these attributes on features (N, D)."""
        return linear_probe(
            features, self.values, self.names, self.binary, self.splits,
            protocol=protocol, groups=self.groups, seed=seed, **more,
        )  # fmt: skip


def read_labels(dataset: Dataset | str | Path, folds: bool = False) -> Labels:
    """The attributes and splits of a dataset; where there are no test images, a k-fold by person or by file.

    folds: such a k-fold over all images, test images included.
    """
    dataset = as_dataset(dataset)
    if not dataset.attributes:
        raise InputError(
            f"{dataset.path} has no attributes to probe; add some with diti prepare --attributes TABLE.csv"
        )
    splits = Splits(*(dataset.rows(name) for name in ("train", "valid", "test")))
    if folds:
        splits = Splits(np.sort(np.concatenate([splits.train, splits.test])), splits.valid, splits.test[:0])
    column = "identity" if "identity" in dataset.table.column_names else "file"
    groups = dataset.table[column].to_numpy(zero_copy_only=False) if _grouped(column, splits) else None
    notes = []
    if len(splits.test) == 0:
        unit = {"identity": "person", "file": "file"}[column]
        why = "all images are" if folds else "the data has no test images:"
        notes.append(f"{why} scored by k-fold, all images of a {unit} in one fold")
    if predicted := sorted(predicted_columns(dataset)):
        notes.append(f"labels predicted by a network, not true ones: {', '.join(predicted)}")
    binary = np.array([dataset.is_binary(name) for name in dataset.attributes])
    return Labels(dataset.labels(), dataset.attributes, binary, splits, groups, notes)


def _grouped(column: str, splits: Splits) -> bool:
    return column == "identity" or len(splits.test) == 0


def probe(
    model: Model | str | Path,
    data: Dataset | str | Path,
    out: str | Path = "probe.json",
    *,
    protocol: Literal["converged", "paper"] = "converged",
    against: Model | str | Path | None = None,
    few_shot: Sequence[int] = (),
    baselines: bool = True,
    wide_baseline: bool = False,
    subsets: bool = True,
    disentanglement: bool = False,
    reconstruct: int = 0,
    folds: bool = False,
    seed: int = 0,
    overwrite: bool = False,
    device: Device = AUTO,
) -> dict[str, Any]:
    """Measure what the code knows of labelled attributes, as `diti probe` does; the record, also as JSON.

    protocol: converged, L2 chosen on validation images, or paper, the authors' 15 epochs of Adam. against: another
    model, or the JSON of an earlier probe. few_shot: numbers of labels. reconstruct: a number of test images.
    The figures are written beside `out`. device: where to compute, such as "cuda:1".

        diti.probe("runs/model", "data/mine", subsets=False)["probe"]["mean_ap"]
    """
    out = as_path(out, "out")
    other = _name_of(against) if against is not None else None
    options = ProbeOptions(
        protocol=protocol, against=other, few_shot=tuple(few_shot), baselines=baselines,
        wide_baseline=wide_baseline, subsets=subsets, disentanglement=disentanglement, reconstruct=reconstruct,
        folds=folds, seed=seed, overwrite=overwrite,
    )  # fmt: skip
    if out.suffix != ".json":
        raise InputError(f"--out {out} must end in .json; the figures are written beside it")
    beside = [figure_beside(out, what) for what in FIGURES]
    require_writable({"--out": [out, *beside]}, [place_of(data), other], overwrite=overwrite)
    held = against if isinstance(against, Model) else None
    study = ProbeStudy.of(as_model(model, device), data, out, options, held, _name_of(model))
    record = study.measure() | {"command": command_line(), "versions": versions()}
    write_json(out, record)
    return record


def _name_of(model: Model | str | Path) -> str:
    """For the record: what a model is called."""
    return repr(model) if isinstance(model, Model) else str(model)


def pictures_of(record: dict[str, Any], out: Path) -> list[Path]:
    """The figures that were written beside a record."""
    return [figure_beside(out, what) for what in FIGURES if what in ("attributes", "weights", *record)]


def figure_beside(out: Path, what: str) -> Path:
    """The file of a figure that belongs to a record."""
    return out.with_name(f"{out.stem}-{what}.png")


def read_other(source: str, names: list[str], device: Device = AUTO) -> Model | dict[str, Any]:
    """What --against names: a model, or the record of an earlier probe of some of the same attributes."""
    if not source.endswith(".json"):
        return load(source, device)
    record: Any = read_settings(Path(source)).get("probe")
    rows = record.get("rows") if isinstance(record, dict) else None
    try:
        known = {row["name"]: figures.score_of(row) for row in rows or ()}
    except (KeyError, TypeError, ValueError):
        known = {}
    if not isinstance(rows, list) or not known:
        raise InputError(f"--against {source} is not the record of a probe; name a file of diti probe, or a model")
    if not known.keys() & set(names):
        raise InputError(f"--against {source} and this probe share no attribute; probe both on the same data")
    assert isinstance(record, dict)
    return record


def sees_backbone(model: Model) -> Encoder | None:
    """The encoder of a model that sees images through its frozen backbone."""
    encoder = model.encoder
    through = isinstance(model, DiTi) and encoder.description["kind"] in OVER_BACKBONE and encoder.frozen
    return encoder if through else None


@dataclass(frozen=True)
class ProbeStudy:
    """One model on one labelled dataset, its codes computed once."""

    source: str
    model: Model
    dataset: Dataset
    labels: Labels
    codes: np.ndarray  # (N, D)
    out: Path
    options: ProbeOptions
    other: Model | dict[str, Any] | None = None  # to compare with: a model, or what an earlier probe found

    @classmethod
    def of(
        cls,
        source: Model | str | Path,
        data: Dataset | str | Path,
        out: Path,
        options: ProbeOptions,
        other: Model | dict[str, Any] | None = None,
        name: str | None = None,
    ) -> ProbeStudy:
        """other: what to compare with, if it is at hand; else what the options name. name: of the model."""
        model = as_model(source)
        if options.reconstruct:
            model.with_decoder()
        dataset = as_dataset(data, model.size)
        model.require_size(dataset.size)
        labels = read_labels(dataset, options.folds)
        if not options.folds:
            require_training_images(dataset)
        if options.baselines:
            require_images_for_baselines(dataset, model.dims)
        if options.few_shot:
            unseen = np.zeros((len(dataset), 1))  # in place of codes: what can be drawn does not depend on them
            require_counts(unseen, labels.values, labels.names, labels.binary, labels.splits, options.few_shot)
        if options.against and other is None:
            other = read_other(options.against, labels.names, model.device)
        if options.baselines and (seeing := sees_backbone(model)):
            trunk_features(seeing, dataset)  # a baseline needs them; z is made of these, without a second run
        codes = encode_dataset(model, dataset)
        return cls(name or _name_of(source), model, dataset, labels, codes, out, options, other)

    def measure(self) -> dict[str, Any]:
        """All that was asked for, as one JSON-able record."""
        options, result = self.options, self._probe(self.model, self.codes)
        record: dict[str, Any] = {
            "model": self.source, "encoder": encoder_hash(self.model.encoder), "method": self.model.method,
            "data": {"name": self.dataset.name, "hash": self.dataset.hash, "images": len(self.dataset)},
            "seed": options.seed, "notes": self.labels.notes, "probe": result.record(),
        }  # fmt: skip
        figures.save_attributes(result, self._beside("attributes"))
        figures.save_weights(result, self._beside("weights"))
        if options.baselines:
            record["baselines"] = self.baselines()
        if options.against:
            record["against"] = self.against(result)
        if options.subsets and self.model.partition.subsets > 1:
            record |= self.subsets()
        if options.few_shot:
            metric = metric_of(self.model, self.dataset).numpy()
            record["few_shot"] = self.few_labels(self.codes, metric)
        if options.disentanglement:
            record["disentanglement"] = self.disentanglement()
        if options.reconstruct:
            record["reconstruction"] = self.reconstruction()
        return record

    @property
    def _task(self) -> tuple[np.ndarray, np.ndarray, list[str], np.ndarray, Splits]:
        labels = self.labels
        return self.codes, labels.values, labels.names, labels.binary, labels.splits

    def _beside(self, what: str) -> Path:
        return figure_beside(self.out, what)

    def _probe(self, model: Model, codes: np.ndarray) -> ProbeResult:
        more = {}
        if self.options.protocol == "paper":  # the authors mirror half of the training images
            more["mirrored"] = encode_dataset(model, self.dataset, mirrored=True)[self.labels.splits.train]
        return self.labels.probe(codes, self.options.seed, self.options.protocol, **more)

    def baselines(self) -> list[dict[str, Any]]:
        """What the same probe finds without a trained encoder."""
        found = []
        source = self.model.backbone if isinstance(self.model, DiTi) else self.model.size
        dims, options = self.model.dims, self.options
        for name, features in baselines(
            source, self.dataset, dims, options.seed, options.wide_baseline, sees_backbone(self.model),
            device=self.model.device,
        ):  # fmt: skip
            item = {"name": name, "probe": self.labels.probe(features, options.seed).record()}
            own = np.diag(features[self.labels.splits.train].var(0)) if features.shape[1] == dims else None
            found.append(item | ({"few_shot": self.few_labels(features, own)} if options.few_shot else {}))
        return found

    def few_labels(self, features: np.ndarray, metric: np.ndarray | None) -> dict[str, Any]:
        """What the probe finds in features (N, F) with only a few labels.

        metric: (F, F) of the standardised features; for principal components their variances.
        """
        labels, options = self.labels, self.options
        return few_shot(
            features, labels.values, labels.names, labels.binary, labels.splits,
            options.few_shot, options.seed, progress=True, metric=metric,
        ).record()  # fmt: skip

    def against(self, result: ProbeResult) -> dict[str, Any]:
        """The probe of another model, or of an earlier run, and what differs (figure 4)."""
        name, other = str(self.options.against), self.other
        if isinstance(other, Model):
            other = self._probe(other, encode_dataset(other, self.dataset)).record()
        record = other or {}
        rows, others = result.record()["rows"], record.get("rows", ())
        gains = figures.gains_over(rows, others)
        if not gains:
            raise InputError(f"--against {name} and this probe share no attribute; probe both on the same data")
        alone = sorted({row["name"] for row in rows} ^ {row["name"] for row in others})
        if alone:
            self.labels.notes.append(f"in one of the two probes only, not compared: {', '.join(alone)}")
        figures.save_differences(gains, name, self._beside("against"))
        return {"name": name, "probe": record}

    def subsets(self) -> dict[str, Any]:
        """Which subset carries which attribute, and the score against the number of subsets."""
        split = "test" if len(self.labels.splits.test) else "valid"
        partition, seed = self.model.partition, self.options.seed
        probe = SubsetProbe.of(*self._task, partition.ends, split, rows=MATRIX_ROWS, seed=seed)
        matrix, growing = probe.matrix(progress=True), probe.cumulative(progress=True)
        times = [partition.time_range(i)[0] for i in range(partition.subsets)]
        figures.save_matrix(matrix, times, self._beside("subsets"))
        figures.save_cumulative(growing, self._beside("cumulative"))
        return {"subsets": matrix.record(), "cumulative": growing.record()}

    def disentanglement(self) -> dict[str, Any]:
        """DCI, FactorVAE score, MIG, SAP and TAD, taking the attributes as the factors."""
        labels, splits = self.labels, self.labels.splits
        test = splits.test if len(splits.test) else splits.valid
        return disentanglement(
            self.codes, labels.values, labels.names, labels.binary, self.model.partition.ends,
            train=splits.train, test=test, seed=self.options.seed,
        ).record()  # fmt: skip

    def reconstruction(self) -> dict[str, Any]:
        """MSE, PSNR and SSIM of test images, with the noise inferred from them and newly drawn."""
        rows = self.labels.splits.test if len(self.labels.splits.test) else self.labels.splits.valid
        images = to_float(self.dataset.pixels(rows[: self.options.reconstruct]))
        able = self.model.with_decoder()
        return {
            noise: reconstruction_scores(
                images,
                able.reconstruct(images, noise, value_range=MODEL_RANGE).cpu().clamp(-1, 1),
                seed=self.options.seed,
            ).record()
            for noise in NOISES
        }
