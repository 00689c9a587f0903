"""Verbs that make something to use: datasets, backbones, models, other formats of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from diti.config import PretrainConfig, SolveConfig, TrainConfig
from diti.core.device import HOST
from diti.core.errors import InputError
from diti.core.ranges import COUNT, NUMBER, SIDES
from diti.presets import PRESETS
from diti.verbs.common import (
    ComputeOn,
    File,
    Given,
    Model,
    Name,
    Names,
    Number,
    Overwrite,
    next_command,
    print_once,
    require,
    show,
)


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Solve DiTi and PDAE on the built-in faces, measure both and write one page; no download, four minutes."""

    out: File = None  # folder for all of it; by default runs/demo, runs/demo-quick or runs/demo-full
    quick: bool = False  # two minutes, rough numbers
    full: bool = False  # three seeds each, with intervals over seeds
    train: bool = False  # also train both further from their solutions, and show what that adds
    faces: Number = None  # number of toy faces, instead of the usual number
    images: Annotated[Number, *COUNT] = None  # with --train: images that each training sees, instead of 40,000
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.demo import TRAINED, choose_length, run_demo

        if self.images is not None and not self.train:
            raise InputError("--images is the length of the training runs; give --train too, or leave it out")
        trained = (self.images or TRAINED) if self.train else 0
        name, length = choose_length(self.quick, self.full, self.faces, trained)
        out = self.out or Path("runs", name)
        run_demo(out, length)
        faces = (out / "photographs" / "a.png", out / "photographs" / "b.png")
        next_command(
            "interpolate", "faces64-diti", *faces, "--out", "between.png", "--animate", "between.gif"
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Turn images of any kind into a dataset folder: decoded once, cropped, resized, with their attributes."""

    src: Given
    """Folder of images, parquet, tar shards, CelebA, LFW, FFHQ, LSUN, Diff-AE LMDB, Shapes3D, dSprites, MPI3D,
    Cars3D, or faces[:N], toyfaces[:N]."""
    out: Path  # dataset folder to write; the same command continues a stopped run
    size: Number = None  # side of the images, px; by default their own, where all are squares of one size
    kind: Name = None  # read SRC as this kind (folder, parquet, celeba, lfw, ...) instead of detecting it
    crop: Name = None  # centre, celeba, lfw or whole; by default what the kind of data asks for
    attributes: File = None  # CSV, TSV or parquet, a row per image: file, split, identity, attributes
    ignore: Names = ()  # columns of the attribute table to leave out
    only_labelled: bool = False  # leave out images that the attribute table does not name
    part: Name = None
    """Only this part of the images, such as 3/16, for several machines: into a folder in --out, which is one
    dataset when all parts are there."""
    workers: int = 0  # processes that decode; 0 = one per core
    overwrite: bool = False  # start again instead of continuing or keeping what is there

    def run(self) -> None:
        from diti.core.part import Part
        from diti.data.prepare import prepare
        from diti.data.prepared import is_dataset
        from diti.data.source import ReadOptions
        from diti.data.sources import find_source
        from diti.data.summary import print_summary

        options = ReadOptions(self.size, self.attributes, self.ignore, self.only_labelled)
        source = find_source(self.src, options, self.kind)
        place = self.out if self.part is None else self.out / Part.read(self.part).name
        if is_dataset(place) and not self.overwrite:
            print(f"{place} is complete already; --overwrite starts again")
        dataset = prepare(
            source, self.out, self.size, crop=self.crop, part=self.part, overwrite=self.overwrite,
            workers=self.workers,
        )  # fmt: skip
        print_summary(dataset, source.notes)
        next_command("pretrain", "--data", self.out, "--preset", "auto", "--minutes", 45, "--out", "runs/backbone")


@dataclass(frozen=True, kw_only=True)
class Pretrain:
    """Train a diffusion backbone on images, without labels; the same command continues a stopped run."""

    out: Path  # folder of the run; becomes the backbone folder
    settings: tyro.conf.OmitArgPrefixes[PretrainConfig]
    config: File = None  # YAML file of settings, over the preset and under the options given here
    dry_run: bool = False  # print the resolved settings and stop
    device: ComputeOn = "auto"

    def run(self) -> None:
        require(self.settings, "data")
        if self.dry_run:
            show(self.settings)
            return
        from diti.diffusion.pretrain import pretrain_backbone

        pretrain_backbone(self.settings, self.out, begun=lambda: show(self.settings))
        next_command("solve", "--data", self.settings.data, "--backbone", self.out, "--out", "runs/model")


@dataclass(frozen=True, kw_only=True)
class Solve:
    """Find DiTi or PDAE in closed form over a frozen diffusion model, in minutes; a stopped run continues."""

    out: Path  # folder of the run; becomes the model folder
    settings: tyro.conf.OmitArgPrefixes[SolveConfig]
    dry_run: bool = False  # print the resolved settings and stop
    device: ComputeOn = "auto"

    def run(self) -> None:
        require(self.settings, "data", "backbone")
        if self.dry_run:
            show(self.settings)
            return
        from diti.representation.solve.run import solve_model

        found = solve_model(self.settings, self.out, begun=lambda: show(self.settings))
        if found is None:
            print_once(f"{self.out} is solved already")
        elif found.facts:
            print_once(found.printed(self.out))
        next_command("explore", self.out, "--data", self.settings.data, "--out", "explored")


@dataclass(frozen=True, kw_only=True)
class Train:
    """Learn a representation of images without labels; the same command continues a stopped run."""

    out: Path  # folder of the run; becomes the model folder
    settings: tyro.conf.OmitArgPrefixes[TrainConfig]
    config: File = None  # YAML file of settings, over the preset and under the options given here
    dry_run: bool = False  # print the resolved settings and stop
    device: ComputeOn = "auto"

    @classmethod
    def description(cls) -> str:
        """For --help."""
        from diti.representation.registry import known_methods

        methods = "\n".join(f"  {name:<8} {about}" for name, about in known_methods().items())
        return f"{cls.__doc__}\n\nMethods:\n{methods}"

    def run(self) -> None:
        from diti.representation.registry import find_method
        from diti.representation.settings import idle_settings, resolve

        require(self.settings, "data")
        method = find_method(self.settings.method)
        settings = resolve(self.settings)
        if method.wants_backbone(settings) and not method.needs_backbone and not settings.backbone:
            raise InputError(
                f"--backbone is missing, and --encoder {settings.code.encoder} is made from it; "
                "name a folder, a hub id, faces64 or toyfaces32, or use --encoder residual"
            )
        require(settings, *(["backbone"] if method.needs_backbone else []))
        idle = idle_settings(method.name)
        if self.dry_run:
            show(settings, idle)
            return
        from diti.representation.train import train_model

        found = train_model(settings, self.out, begun=lambda: show(settings, idle))
        if found.facts:
            print_once(found.printed(self.out))
        if method.needs_backbone:  # its axes can be drawn
            next_command("explore", self.out, "--data", self.settings.data, "--out", "explored")
        else:
            next_command("encode", self.out, self.settings.data, "--out", "features.parquet")


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Bring a diffusion model from elsewhere: the authors' or PDAE's files, a pipeline of diffusers."""

    src: Given  # folder with config.yml and checkpoint, a .pt file, a diffusers folder, or a hub id
    out: Path  # folder to write: a backbone, or a model where the files hold an encoder
    size: Annotated[Number, *SIDES] = None  # side of the images, px; the authors' files do not always say it
    partition: Name = None  # of a trained model without a config of its run: staged, balanced
    subsets: Number = None  # K of that partition
    data: Name = None  # training images, for the mean and std of z of a trained model
    prompt: Name = None  # of a text-conditional pipeline: what it is always told, instead of nothing
    label: Annotated[Number, *NUMBER] = None  # of a class-conditional pipeline: its class, instead of none
    blocks: Names = ()  # of a pipeline: names of the blocks whose outputs are the features
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.interop.convert import convert

        lines = convert(
            self.src, self.out, size=self.size, partition=self.partition, subsets=self.subsets, data=self.data,
            prompt=self.prompt, label=self.label, blocks=self.blocks,
        )  # fmt: skip
        print("\n".join(lines))
        if not (self.out / "model.json").is_file():
            next_command("sample", self.out, "-n", 16, "--out", "samples.png")
        elif self.data is not None:
            next_command("encode", self.out, self.data, "--out", "features.parquet")


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a model's encoder as an ONNX file, to run without torch; needs the extra onnx."""

    model: Model  # model folder, shipped name or hub id
    out: Path = Path("encoder.onnx")  # file to write: float32 images (N, 3, H, W) in [-1, 1] → z (N, D)
    overwrite: Overwrite = False

    def run(self) -> None:
        from diti.interop.onnx import check_file, export_encoder
        from diti.representation.models.loading import load

        check_file(self.out, overwrite=self.overwrite)
        print(export_encoder(load(self.model, HOST), self.out))


@dataclass(frozen=True, kw_only=True)
class Presets:
    """List the presets and what each is for."""

    def run(self) -> None:
        for name, known in PRESETS.items():
            print(f"{name:<12} {known.purpose}")
        print(f"{'auto':<12} the one of these that suits the images of --data and this machine (pretrain)")
