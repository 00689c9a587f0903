"""Verbs that read and measure: codes, probes, theory, labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from diti.core.ranges import NUMBER, Range, Seed
from diti.verbs.common import (
    CommaList,
    ComputeOn,
    File,
    Model,
    Name,
    Number,
    Overwrite,
    next_command,
    options_of,
    whole_numbers,
    words,
)


@dataclass(frozen=True, kw_only=True)
class Encode:
    """Write the code z of images to a table, a row per image in the order of the input.

    For diti and pdae models also the share of each image that z explains, in the column `explained`.
    """

    model: Model  # model folder, shipped name or hub id
    images: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="IMAGES")]  # whatever --data accepts
    out: Path = Path("features.parquet")  # table to write: .parquet or .csv; with --part a folder
    explained: bool = True
    """Also that share, remembered for diti search --odd: two calls of the frozen network per image, which take
    about ten times as long as encoding."""
    metric: bool = False
    """Instead of z, codes in which distances mean something: for neighbours, clusters and ridge."""
    part: Name = None
    """Only this part of the images, such as 3/16, for several machines; --out is then a folder, which holds a file
    for each part and is read as one table."""
    compile: bool = False  # torch.compile the encoder: a minute at the start, for millions of images on a GPU
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.representation.table import write_features

        print(write_features(**options_of(self)))


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Measure what the code knows about labelled attributes: probes, baselines, subsets; JSON and figures."""

    model: Model  # model folder, shipped name or hub id
    data: str  # images with attributes: whatever --data accepts elsewhere
    out: Path = Path("probe.json")  # JSON file; the figures are written beside it
    protocol: Literal["converged", "paper"] = "converged"
    """converged: L2 chosen on validation images, fitted to the optimum; paper: the authors' 15 epochs of Adam."""
    against: Name = None  # another model, or the JSON of an earlier probe, to compare attribute by attribute
    few_shot: CommaList = ""  # z and the baselines also with only this many labels, such as 10,100,1000
    baselines: bool = True  # also probe PCA of pixels, a random encoder and PCA of the frozen backbone's features
    wide_baseline: bool = False  # also all of those features, thousands of dims: minutes
    subsets: bool = True  # also the subset × attribute matrix, and the score against the number of subsets
    disentanglement: bool = False  # also DCI, FactorVAE score, MIG, SAP, TAD, taking the attributes as factors
    reconstruct: int = 0  # also reconstruct this many test images: MSE, PSNR, SSIM
    folds: bool = False  # score every image by k-fold, a person's images in one fold, not only the test images
    seed: Seed = 0
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.measure.probe_tables import print_probe
        from diti.measure.probing import pictures_of, probe
        from diti.representation.registry import find_method

        record = probe(**options_of(self) | {"few_shot": whole_numbers("--few-shot", self.few_shot)})
        print_probe(record)
        print(f"wrote {self.out} and {', '.join(path.name for path in pictures_of(record, self.out))}")
        method = find_method(record["method"])
        if method.needs_backbone:
            next_command("analyze", self.model, "--data", self.data, "--out", "analysis")
        elif method.decodes:
            next_command("counterfactuals", self.model, "--data", self.data)
        else:
            next_command("encode", self.model, self.data, "--out", "features.parquet")


@dataclass(frozen=True, kw_only=True)
class Analyze:
    """Check the theory on a model: at which time-step each attribute is lost, and which subset carries it."""

    model: Model  # model, or backbone (then everything about z is left out)
    data: str  # toyfaces, whose pairs are exact, or any images (then attributes need --pairs)
    out: Path = Path("analysis")  # folder for analysis.json and the figures
    pairs: File = None  # CSV or parquet of image pairs: attribute, first, second (paths beside the table)
    count: Annotated[int, *Range(1, 10_000)] = 64  # pairs per attribute
    tau: Annotated[float, *Range(0, 0.5, open=(0, 0.5))] = 0.1
    """An attribute counts as lost from the time-step on at which the mean error reaches this."""
    images: Annotated[int, *NUMBER] = 0
    """Length of each training on the true factors (sufficiency), images; 0 leaves it out."""
    seed: Seed = 0
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.measure.analysis import analyze, print_record

        print_record(analyze(**options_of(self)), self.out)


@dataclass(frozen=True, kw_only=True)
class Label:
    """Add an ONNX classifier's labels to a dataset folder, marked as predicted; needs the extra onnx."""

    data: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="DATA")]  # dataset folder of diti prepare
    model: Path  # ONNX file: images in, a score per name out
    names: Path  # text file, a name per line in the order of the outputs
    threshold: float = 0.5  # scores from this on give the label 1, lower ones 0
    normalisation: Literal["imagenet", "unit", "signed", "none"] = "imagenet"  # of the pixels, as it was trained
    activation: Literal["auto", "none", "sigmoid", "softmax"] = "auto"  # from outputs to scores
    layout: Literal["auto", "nchw", "nhwc"] = "auto"  # of the images it takes: where the channels are
    output: Name = None  # which output, of a model with several
    batch: int = 64  # images at once

    def run(self) -> None:
        from diti.data.predicted import label_dataset

        print(
            label_dataset(
                self.data, self.model, self.names, threshold=self.threshold, batch=self.batch, layout=self.layout,
                normalisation=self.normalisation, activation=self.activation, output=self.output,
            )
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Counterfactuals:
    """Measure and draw edits: does the wanted attribute change, what else moves, is the image still likely?"""

    model: Model  # model folder, shipped name or hub id
    data: str  # images with attributes: whatever --data accepts elsewhere
    out: Path = Path("counterfactuals")  # folder for counterfactuals.json and the figures 2a, 5 and 7
    images: int = 64  # test images edited, each along every attribute
    pairs: int = 48  # test pairs interpolated
    classifier_images: Number = None
    """Images that the attribute classifier is trained on, by default 32,000; it is kept for the data."""
    dims: Number = None  # d': dims that a sparse direction may move; by default all, or with --selection 32
    scale: float = 2.0  # strength: 1 is the usual difference with and without it, or one standard deviation
    paper_scale: Annotated[float | None, tyro.conf.arg(metavar="S")] = None
    """Instead of --scale, as in the paper: the code moves by s √d of its deviations; the authors take 0.3."""
    selection: Literal["all", "l1", "weight", "probmask"] | None = None  # how the dims are chosen
    along: Literal["conditional", "pattern", "weight"] | None = None
    """What the code follows; by default how it varies with the attribute while the other ones stay; weight as in
    the paper."""
    judge: Annotated[str | None, tyro.conf.arg(metavar="COMMAND")] = None
    """Program that reads pictures instead of a trained classifier: files in, CSV with a row per file out."""
    edits: CommaList = ""  # attributes to edit; by default all that can be read
    fixed: CommaList = ""  # readings that should stay when others are edited, such as those of the background
    identity: Annotated[str | None, tyro.conf.arg(metavar="COMMAND")] = None
    """Program like a judge, whose numbers together say who a face is."""
    seed: Seed = 0
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.measure.counterfactuals import counterfactuals, print_record

        lists = {"edits": words(self.edits), "fixed": words(self.fixed)}
        print_record(counterfactuals(**options_of(self) | lists), self.out)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Compare runs on one page: tables, figures and counterfactuals; measures what was not measured yet."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN ...")]
    """Run folders of diti train or solve, or folders of them such as diti sweep writes."""
    out: Path = Path("report")  # folder for index.html, report.json and a CSV file per table
    data: Name = None  # images with attributes to measure on; by default what the runs were trained on
    transfer: Name = None  # other images with attributes, on which the same codes are probed
    faces: int = 24  # test images edited per attribute; 0: none is edited or reconstructed
    pairs: int = 16  # test pairs interpolated
    changes: int = 12  # pairs per attribute for the time-step at which it is lost
    classifier_images: int = 32_000  # images that the attribute classifier is trained on
    baselines: bool = True  # also probe PCA of pixels, a random encoder and PCA of the backbone's features
    wide_baseline: bool = False  # also all of those features, thousands of dims: minutes
    disentanglement: bool = True  # also DCI, FactorVAE score, MIG, SAP, TAD: minutes for long codes
    paper: bool = False  # show the paper's numbers, greyed, even where the data are not the paper's
    seed: Seed = 0
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.reporting.build import report
        from diti.reporting.terminal import print_table

        built = report(**options_of(self))
        print_table(built.tables[0])
        print("\n".join([*built.headline, f"the page: {built.page}"]))
