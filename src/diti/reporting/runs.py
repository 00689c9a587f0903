"""Run folders as a report reads them: one `Run` each, and runs that differ in the seed alone as a `Group`."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diti.config import SolveConfig, TrainConfig, TrainingConfig
from diti.core.errors import InputError
from diti.core.runs import RunFolder, sha256_file
from diti.core.settings import differences, load_yaml
from diti.diffusion.files import read_settings
from diti.presets import TRAIN_PRESETS, train_preset
from diti.representation.registry import title_of
from diti.representation.settings import effective, resolve

if TYPE_CHECKING:
    from diti.data.prepared import Dataset

Record = dict[str, Any]

WORDS = {
    "partition": "{}",
    "subsets": "k = {}",
    "code.code_dim": "d = {}",
    "code.encoder": "{} encoder",
    "code.encoder_path": "features of the {} U-Net",
    "code.encoder_time": "features at t = {}",
    "training.images": "{} images",
    "solution.tau": "τ = {}",
    "solution.features_weight": "α = {}",
    "solution.lost_in": "lost in {}",
}
SPECIAL_WORDS = {
    ("views.augment", "none"): "without augmentation",
    ("views.augment", "no-colour"): "without colour augmentation",
    ("start", "copy"): "from the backbone",
    ("code.encoder_mirror", True): "mirrored features",
    ("code.encoder_pixels", True): "features and pixels",
}
FINENESS = ("stretches", "pixel_axes", "whitened", "tolerance")  # of a solution: how finely it is computed
MEASURED = {
    "probe": "probe.json",
    "analysis": "analysis/analysis.json",
    "counterfactuals": "counterfactuals/counterfactuals.json",
    "explored": "explored/explore.json",
}
MAKERS = ("train", "solve")  # verbs whose folders are runs


@dataclass(frozen=True)
class Run:
    """One finished run, and what was measured about it on one dataset; None where that is not measured yet."""

    path: Path
    config: TrainConfig
    facts: Record  # run.json: command, versions, data_name, data_hash
    checks: Record  # checks.json: what the end of the training measured
    images: int  # seen
    images_per_s: float | None  # median over the lines of the log
    peak_memory_mb: float | None  # where the log has it
    weights: dict[str, int]  # part of the model (encoder, decoder, unet) → how many numbers
    backbone_hash: str | None  # sha256 of the weights in unet/ or transformer/
    measured_on: str  # name of the dataset of the records below
    measured: Path  # folder of the records below and their figures
    probe: Record | None = None
    analysis: Record | None = None
    counterfactuals: Record | None = None
    explored: Record | None = None
    transferred: Record | None = None  # the probe on other images
    transferred_to: str = ""  # name of their dataset
    solved_in: float | None = None  # seconds, of a closed form

    @property
    def label(self) -> str:
        """Short name of the method and of what differs from its preset."""
        return self.label_without(())

    def label_without(self, known: Collection[str]) -> str:
        """The same without settings that the reader knows already."""
        solved = ", solved" if self.facts.get("verb") == "solve" else ""
        return label_of(self.config, known=known) + solved

    @property
    def seed(self) -> int:
        return self.config.training.seed

    @property
    def seconds(self) -> float | None:
        """Of a training: images / (images/s); pauses, validation and start are not in it. Of a solution: all."""
        return self.images / self.images_per_s if self.images_per_s else self.solved_in

    @property
    def budget(self) -> str:
        """What was spent on learning, in words: only runs with the same words are compared as equals."""
        if self.facts.get("verb") == "solve":
            return "solved in closed form"
        return f"{self.images:,} images" + (" after the closed form" if self.config.start == "solved" else "")

    @property
    def command(self) -> str:
        return str(self.facts.get("command", ""))

    @property
    def versions(self) -> dict[str, str]:
        return dict(self.facts.get("versions", {}))

    @property
    def data_name(self) -> str:
        """The dataset it was trained on."""
        return str(self.facts.get("data_name", ""))

    @property
    def data_hash(self) -> str:
        return str(self.facts.get("data_hash", ""))

    @property
    def encoder_hash(self) -> str | None:
        return (self.probe or {}).get("encoder")

    @property
    def records(self) -> dict[str, Record | None]:
        return {name: getattr(self, name) for name in ("checks", *MEASURED, "transferred")}

    @property
    def recipe(self) -> TrainConfig:
        """The settings without seed and without what cannot change the result; data and backbone by content."""
        config = effective(self.config)
        return dataclasses.replace(
            config,
            preset="",
            data=self.data_hash or config.data,
            backbone=self.backbone_hash or config.backbone,
            training=dataclasses.replace(config.training, seed=0),
        )


@dataclass(frozen=True)
class Group:
    """Runs with equal settings, each with another seed."""

    label: str
    runs: tuple[Run, ...]

    @property
    def budget(self) -> str:
        return self.runs[0].budget


def unequal_budgets(first: Group, second: Group) -> str:
    """A sentence that names both budgets; empty where they are equal."""
    if first.budget == second.budget:
        return ""
    return f"Budgets differ: {first.label} {first.budget}, {second.label} {second.budget}."


# ---- Reading -----------------------------------------------------------------------------------------------


def measured_folder(run: Path, dataset_name: str, dataset_hash: str) -> Path:
    """Where a run keeps what was measured about it on a dataset."""
    return run / "measured" / f"{dataset_name}-{dataset_hash[:8]}"


def read_run(path: Path, dataset: Dataset, other: Dataset | None = None) -> Run:
    """A finished run of `diti train` with its records on `dataset`; InputError for any other folder.

    other: images on which the code was probed, too.
    """
    check_finished(path)
    config = read_config(path)
    log = RunFolder(path).read_log()
    speeds = [line["images_per_s"] for line in log if "images_per_s" in line]
    files, measured = _weight_files(path), measured_folder(path, dataset.name, dataset.hash)
    network = files.get("unet") or files.get("transformer")
    return Run(
        path=path,
        config=config,
        facts=read_settings(path / "run.json"),
        checks=read_settings(path / "checks.json"),
        images=RunFolder(path).images_seen(),
        images_per_s=statistics.median(speeds) if speeds else None,
        solved_in=next((line["seconds"] for line in reversed(log) if "penalties" in line), None),
        peak_memory_mb=max((line["peak_memory_mb"] for line in log if "peak_memory_mb" in line), default=None),
        weights={part: count_numbers(file) for part, file in _weight_files(path).items()},
        backbone_hash=sha256_file(network) if network else None,
        measured_on=dataset.name,
        measured=measured,
        **_read_measured(measured),
        transferred=_read_measured(measured_folder(path, other.name, other.hash))["probe"] if other else None,
        transferred_to=other.name if other else "",
    )


def check_finished(path: Path) -> None:
    """InputError for anything but a folder that diti train or solve wrote to its end; says how to finish it."""
    absent = [name for name in ("config.yaml", "run.json") if not (path / name).is_file()]
    if absent:
        raise InputError(
            f"{path} is not a run folder ({', '.join(absent)} missing); name a folder written by: diti train"
        )
    if _verb(path) not in MAKERS:
        raise InputError(f"{path} was written by diti {_verb(path)}; name a folder written by: diti train")
    length = 0 if _verb(path) == "solve" else read_config(path).training.sure_images
    if missing := RunFolder(path).missing(length):
        command = read_settings(path / "run.json").get("command")
        raise InputError(f"{path} is not a finished run ({', '.join(missing)} missing); finish it with: {command}")


def _verb(path: Path) -> str:
    """The verb that wrote a run folder."""
    return str(read_settings(path / "run.json").get("verb"))


def read_config(path: Path) -> TrainConfig:
    """The settings of a run; those of a solved one as the training that would start from it."""
    if _verb(path) != "solve":
        return resolve(load_yaml(TrainConfig(), path / "config.yaml"))
    solved = load_yaml(SolveConfig(), path / "config.yaml")
    return resolve(
        TrainConfig(
            method=solved.method, preset="", data=solved.data, backbone=solved.backbone, subsets=solved.subsets,
            partition=solved.partition if solved.method == "diti" else "auto",
            start="solved", code=solved.code, solution=solved.solution,
            training=TrainingConfig(flip=solved.flip, seed=solved.seed),
        )
    )  # fmt: skip


def _read_measured(folder: Path) -> dict[str, Record | None]:
    files = {name: folder / file for name, file in MEASURED.items()}
    return {name: read_settings(file) if file.is_file() else None for name, file in files.items()}


def _weight_files(path: Path) -> dict[str, Path]:
    """Part of the model → its weights."""
    return {file.parent.name: file for file in sorted(path.glob("*/*model.safetensors"))}


def count_numbers(file: Path) -> int:
    """How many numbers a safetensors file holds, from its header alone."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as tensors:
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"{file} is not a whole safetensors file ({error}); copy it again") from None
    return sum(functools.reduce(int.__mul__, shape, 1) for shape in shapes)


# ---- Names -------------------------------------------------------------------------------------------------


def label_of(config: TrainConfig, only: Collection[str] | None = None, known: Collection[str] = ()) -> str:
    """The method's name and its settings that differ from the preset's (of these, `only` the named ones).

    known: settings to leave out.
    """
    config = effective(resolve(config))
    name = title_of(config.method) + ("-Detach" if config.method == "diti" and config.detach else "")
    shown = [s for s in unusual(config) if s not in known and (only is None or s in only)]
    return ", ".join([name, *(_words(setting, _value(config, setting)) for setting in shown)])


def unusual(config: TrainConfig) -> list[str]:
    """The settings that differ from the preset's and have an effect.

    How long and on what it was trained, and how finely it was solved, is left to the tables.
    """
    config = effective(resolve(config))
    skipped = frozenset({"method", "preset", "data", "backbone", "training", "detach", "start", *FINENESS})
    changed = differences(_usual(config, config.start), config, skipped)
    return changed + (["start"] if config.start != _usual(config, "auto").start else [])


def shared_settings(runs: Sequence[Run]) -> dict[str, str]:
    """Unusual settings that all of several runs have alike, in words: said once, not in every label."""
    first = runs[0].config
    if len({run.recipe for run in runs}) < 2:
        return {}
    shared = [
        setting
        for setting in unusual(first)
        if all(setting in unusual(r.config) and _value(r.config, setting) == _value(first, setting) for r in runs)
    ]
    return {setting: _words(setting, _value(first, setting)) for setting in shared}


def _usual(config: TrainConfig, start: Any) -> TrainConfig:
    """What its preset says, of the same method and encoder, when it starts from there; nothing without effect."""
    preset = train_preset(config.preset) if config.preset in TRAIN_PRESETS else TrainConfig()
    encoder = config.code.encoder
    usual = dataclasses.replace(preset, method=config.method, start=start)
    cut = resolve(dataclasses.replace(usual, code=dataclasses.replace(usual.code, encoder=encoder)))
    return effective(dataclasses.replace(usual, start=cut.start, partition=cut.partition))


def _value(config: TrainConfig, setting: str) -> Any:
    """The value of a setting named outer.inner."""
    return functools.reduce(getattr, setting.split("."), config)


def _words(setting: str, value: Any) -> str:
    """Such as `k = 8`, `balanced`, `learning rate = 0.0001`."""
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    if (setting, value) in SPECIAL_WORDS:
        return SPECIAL_WORDS[setting, value]
    plain = setting.split(".")[-1].replace("_", " ") + " = {}"
    return WORDS.get(setting, plain).format(shown)


# ---- Groups ------------------------------------------------------------------------------------------------


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs that differ in the seed alone, together, in the order given; no two labels are the same."""
    paths = [run.path.resolve() for run in runs]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise InputError(f"{runs[index].path} was given twice; name each run once")
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            # The same settings and seed again say nothing about other seeds: such a run stands alone.
            if group[0].recipe == run.recipe and run.seed not in [member.seed for member in group]:
                group.append(run)
                break
        else:
            groups.append([run])
    labels = _unique_labels([group[0] for group in groups])
    return [Group(label, tuple(group)) for label, group in zip(labels, groups, strict=True)]


def _unique_labels(firsts: Sequence[Run]) -> list[str]:
    """Of the first run of each group: the short label, what else differs, and the folder if nothing does."""
    shared = shared_settings(firsts)
    short = [run.label_without(shared) for run in firsts]
    labels = list(short)
    for place, run in enumerate(firsts):
        alike = [other for other, label in zip(firsts, short, strict=True) if label == short[place]]
        changed = {name: None for other in alike for name in differences(run.recipe, other.recipe)}
        if len({other.data_name for other in alike}) == 1:
            changed.pop("data", None)  # other images of the same name: the hash is in the table of commands
        labels[place] = ", ".join([short[place], *(_words(name, _shown(run, name)) for name in changed)])
    return [
        f"{label} ({run.path.name})" if labels.count(label) > 1 else label
        for label, run in zip(labels, firsts, strict=True)
    ]


def _shown(run: Run, setting: str) -> Any:
    """The value of a setting as people know it; the recipe has hashes in place of names."""
    names: Mapping[str, str] = {"data": run.data_name, "backbone": run.config.backbone}
    return names.get(setting, _value(run.recipe, setting))
