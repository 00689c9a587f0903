"""The command line: a verb is a record of its options with a `run` that calls one function of the package.

Heavy imports happen inside `run`, so that help and complaints come at once.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

import tyro

from diti.config import (
    DEFAULT_PRESET,
    PRESETS,
    PretrainConfig,
    TrainConfig,
    load_yaml,
    preset,
    to_yaml,
    train_preset,
)
from diti.core.errors import InputError, nearest

Name = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Number = Annotated[int | None, tyro.conf.arg(metavar="INT")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")]
Model = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
Given = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SRC")]


class Verb(Protocol):
    def run(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Show what the package does, on the built-in data, with no download."""

    out: Path = Path("runs/demo")  # folder for what the demo makes
    faces: int = 2_000  # number of toy faces to draw

    def run(self) -> None:
        from diti.demo import run_demo

        run_demo(self.out, self.faces)
        _next("diti train --data toyfaces --backbone toyfaces32 --out runs/model")


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Turn images of any kind into a dataset folder: decoded once, cropped, resized, with their attributes."""

    src: Given
    """Folder of images, parquet, CelebA, LFW, FFHQ, LSUN, Diff-AE LMDB, Shapes3D, dSprites, MPI3D, Cars3D, or
    toyfaces[:N]."""
    out: Path  # dataset folder to write; the same command continues a stopped run
    size: int = 64  # side of the images, px
    kind: Name = None  # read SRC as this kind (folder, parquet, celeba, lfw, ...) instead of detecting it
    crop: Name = None  # centre, celeba, lfw or whole; by default what the kind of data asks for
    attributes: File = None  # CSV, TSV or parquet, a row per image: file, split, identity, attributes
    ignore: Names = ()  # columns of the attribute table to leave out
    only_labelled: bool = False  # leave out images that the attribute table does not name
    workers: int = 0  # processes that decode; 0 = one per core
    overwrite: bool = False  # start again instead of continuing or keeping what is there

    def run(self) -> None:
        from diti.data.prepare import prepare
        from diti.data.prepared import is_dataset
        from diti.data.source import ReadOptions
        from diti.data.sources import find_source
        from diti.data.summary import print_summary

        options = ReadOptions(self.size, self.attributes, self.ignore, self.only_labelled)
        source = find_source(self.src, options, self.kind)
        if is_dataset(self.out) and not self.overwrite:
            print(f"{self.out} is complete already; --overwrite starts again")
        dataset = prepare(
            source, self.out, self.size, crop=self.crop, overwrite=self.overwrite, workers=self.workers
        )
        print_summary(dataset, source.notes)
        known = {32: "celeba32", 64: "celeba64", 128: "ffhq128"}
        shape = known.get(self.size, f"celeba32 --size {self.size}")
        _next(f"diti pretrain --data {self.out} --preset {shape} --out runs/backbone")


@dataclass(frozen=True, kw_only=True)
class Pretrain:
    """Train a diffusion backbone on images, without labels; the same command continues a stopped run."""

    out: Path  # folder of the run; becomes the backbone folder
    settings: tyro.conf.OmitArgPrefixes[PretrainConfig]
    config: File = None  # YAML file of settings, over the preset and under the options given here
    dry_run: bool = False  # print the resolved settings and stop

    def run(self) -> None:
        _show(self.settings, required=("data",))
        if self.dry_run:
            return
        from diti.diffusion.pretrain import pretrain

        pretrain(self.settings, self.out)
        _next(f"diti sample {self.out} -n 32 --out samples.png")


@dataclass(frozen=True, kw_only=True)
class Train:
    """Learn a representation of images over a frozen backbone, without labels; the same command continues."""

    out: Path  # folder of the run; becomes the model folder
    settings: tyro.conf.OmitArgPrefixes[TrainConfig]
    config: File = None  # YAML file of settings, over the preset and under the options given here
    dry_run: bool = False  # print the resolved settings and stop

    def run(self) -> None:
        _show(self.settings, required=("data", "backbone"))
        if self.dry_run:
            return
        from diti.representation.train import train_model

        facts = train_model(self.settings, self.out)
        if facts:
            print(
                f"z removes {facts['loss_removed']:.1%} of the frozen model's loss, z of another image "
                f"{facts['loss_removed_shuffled']:.1%}; reconstruction error {facts['reconstruction_mse']:.2g}\n"
                f"wrote {self.out}/losses.png, {self.out}/reconstructions.png and the model"
            )
        _next(f"diti encode {self.out} {self.settings.data} --out features.parquet")


@dataclass(frozen=True, kw_only=True)
class Encode:
    """Write the code z of images to a table, a row per image in the order of the input."""

    model: Model  # model folder, shipped name or hub id
    images: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="IMAGES")]  # whatever --data accepts
    out: Path = Path("features.parquet")  # table to write

    def run(self) -> None:
        from diti.representation.features import write_features
        from diti.representation.model import load

        print(write_features(load(self.model), self.images, self.out))


@dataclass(frozen=True, kw_only=True)
class Convert:
    """Bring a diffusion model from elsewhere: the authors' or PDAE's files, any diffusers UNet2DModel."""

    src: Given  # folder with config.yml and checkpoint, a .pt file, a diffusers folder, or a hub id
    out: Path  # folder to write: a backbone, or a model where the files hold an encoder
    size: Number = None  # side of the images, px; the authors' files do not always say it
    partition: Name = None  # of a trained model without a config of its run: staged, balanced
    subsets: Number = None  # K of that partition
    data: Name = None  # training images, for the mean and std of z of a trained model

    def run(self) -> None:
        from diti.interop.convert import convert

        lines = convert(
            self.src, self.out, size=self.size, partition=self.partition, subsets=self.subsets, data=self.data
        )
        print("\n".join(lines))
        _next(f"diti sample {self.out} -n 16 --out samples.png")


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a model's encoder as an ONNX file, to run without torch; needs the extra onnx."""

    model: Model  # model folder, shipped name or hub id
    out: Path = Path("encoder.onnx")  # file to write: float32 images (N, 3, H, W) in [-1, 1] → z (N, D)

    def run(self) -> None:
        from diti.interop.onnx import export_encoder
        from diti.representation.model import load

        print(export_encoder(load(self.model), self.out))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Draw new images from a backbone."""

    model: Model  # backbone folder, shipped name or hub id
    count: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 16  # how many images
    out: Path = Path("samples.png")  # picture to write
    calls: int = 25  # network calls per image
    seed: int = 0

    def run(self) -> None:
        from diti.diffusion.backbone import load_backbone
        from diti.diffusion.generate import save_samples

        print(f"wrote {save_samples(load_backbone(self.model), self.count, self.seed, self.calls, self.out)}")


@dataclass(frozen=True, kw_only=True)
class Presets:
    """List the presets and what each is for."""

    def run(self) -> None:
        for name, known in PRESETS.items():
            print(f"{name:<12} {known.purpose}")


VERBS: dict[str, Any] = {
    "demo": Demo,
    "prepare": Prepare,
    "pretrain": Pretrain,
    "train": Train,
    "encode": Encode,
    "convert": Convert,
    "export": Export,
    "sample": Sample,
    "presets": Presets,
}


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all went well, 2 and one line for bad input, 130 when stopped by hand."""
    # Must stand in the environment before torch is imported: busy waiting slows a shared machine manyfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words or words[0] in ("-h", "--help", "help"):
            _print_verbs()
        elif words[0] == "--version":
            from diti import __version__

            print(__version__)
        else:
            parse(words[0], words[1:]).run()
    except InputError as error:
        print(f"diti: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("diti: stopped; the same command continues where it can", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # full disk, missing permission: the files written so far are whole
        print(
            f"diti: {error.filename or 'a file'}: {error.strerror or error}; free space or choose another place",
            file=sys.stderr,
        )
        return 2
    return 0


def parse(verb: str, words: list[str]) -> Verb:
    """The record of a verb's options; tyro's boxed complaint becomes one line."""
    if verb not in VERBS:
        raise InputError(f"unknown verb {verb!r}; use {', '.join(VERBS)}.{nearest(verb, VERBS)}")
    default = {"default": _defaults(verb, words)} if verb in ("pretrain", "train") else {}
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            found: Verb = tyro.cli(VERBS[verb], args=words, prog=f"diti {verb}", **default)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise InputError(f"{_one_line(complaint.getvalue())} (diti {verb} --help lists the options)") from None
    return found


def _defaults(verb: str, words: list[str]) -> Any:
    """Preset first, then the YAML file; the command line comes over both when tyro parses it."""
    settings = (preset if verb == "pretrain" else train_preset)(_value_of("--preset", words) or DEFAULT_PRESET)
    if (config := _value_of("--config", words)) is not None:
        settings = load_yaml(settings, Path(config))
    return VERBS[verb](out=tyro.MISSING, settings=settings)


def _value_of(option: str, words: list[str]) -> str | None:
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and place + 1 < len(words):
            return words[place + 1]
    return None


def _one_line(box: str) -> str:
    """What tyro complains of, without its frame: the first part, and the options it thinks were meant."""
    lines = [re.sub(r"^[│| ]+|[│| ]+$", "", line) for line in box.splitlines()[1:-1]]
    parts = [part.strip() for part in re.split(r"[─-]{4,}", "\n".join(lines)) if part.strip()]
    if parts[0].startswith("Missing"):
        names = re.findall(r"^(?:--[\w-]+|[A-Z]{2,})", parts[0], re.MULTILINE)
        return f"missing: {', '.join(names)}"
    # One mistake: "Perhaps you meant: --size ..."; several: "Arguments similar to --sise: --size ..." for each.
    meant = [re.search(r"^ *(--[\w.-]+)", part, re.MULTILINE) for part in parts[1:]]
    hints = sorted(found[1] for found in meant if found)  # tyro lists them in no fixed order
    return " ".join(parts[0].split()) + (f". Did you mean {', '.join(hints)}?" if hints else "")


def _print_verbs() -> None:
    print("usage: diti VERB [options]      diti VERB --help tells the options of a verb\n")
    for name, verb in VERBS.items():
        print(f"  {name:<10} {verb.__doc__}")


def _show(settings: PretrainConfig | TrainConfig, required: Sequence[str]) -> None:
    """Print the resolved settings before anything runs; what has no default must have been given."""
    allowed = {
        "data": "a dataset folder, a folder of images, or toyfaces",
        "backbone": "a folder, a hub id, or toyfaces32",
    }
    for name in required:
        if not getattr(settings, name):
            raise InputError(f"--{name} is missing; name {allowed[name]}")
    _print_once(to_yaml(settings), end="")


def _print_once(text: str, end: str = "\n") -> None:
    """Print in the first process only, however many torchrun started."""
    if os.environ.get("RANK", "0") == "0":
        print(text, end=end)


def _next(command: str) -> None:
    """What a person would type now, by the name under which this command can be found."""
    typed = Path(sys.argv[0])  # such as .venv/bin/diti, which need not be on the PATH
    program = "diti" if shutil.which("diti") else str(typed) if typed.name == "diti" else "python -m diti"
    _print_once(f"next: {command.replace('diti', program, 1)}")
