"""Verbs that draw images: samples, variations, interpolations, manipulations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from diti.verbs.common import CommaList, File, Model, Number, Overwrite, Picture, next_command, numbers

Count = Annotated[int, tyro.conf.arg(aliases=["-n"])]


@dataclass(frozen=True, kw_only=True)
class Interpolate:
    """Move chosen subsets of the code of one image towards another's, the rest kept: a grid as in figure 5."""

    model: Model  # model folder, shipped name or hub id
    first: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="A")]  # image file
    second: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="B")]  # image file
    subset: CommaList = "early,middle,late"  # rows of the grid: early, middle, late, all, I or I:J
    scales: CommaList = "0,0.5,1"  # 0: the first image's part, 1: the second's; outside: extrapolation
    out: Path = Path("interpolation.png")  # picture to write
    x_t: Literal["slerp", "keep", "random"] = "slerp"  # noise: mixed along the sphere, kept, or drawn anew
    masked: bool = True  # at each time-step only the subsets up to it enter, as in training
    frames: File = None  # also write every image to this folder
    animate: File = None  # also write an animation, .gif or .webp
    sampling_steps: int = 25  # network calls from image to noise, and back
    seed: int = 0
    overwrite: Overwrite = False

    def run(self) -> None:
        from diti.edit.interpolate import interpolate_files
        from diti.representation.models.loading import load_with_decoder

        model = load_with_decoder(self.model)
        lines = interpolate_files(
            model, self.first, self.second, self.subset.split(","),
            numbers("--scales", self.scales), self.out, x_t=self.x_t, masked=self.masked, frames=self.frames,
            animate=self.animate, sampling_steps=self.sampling_steps, seed=self.seed, overwrite=self.overwrite,
        )  # fmt: skip
        print("\n".join(lines))
        if model.has_noise:
            next_command("vary", self.model, self.first, "--out", "variations.png")


@dataclass(frozen=True, kw_only=True)
class Manipulate:
    """Change one attribute of an image along a sparse classifier's direction, several strengths in a row."""

    model: Model  # model folder, shipped name or hub id
    image: Picture
    attribute: str  # name of an attribute of the data
    data: str  # labelled images to learn the direction from; learned once and kept with the model
    dims: Number = None  # d': dims of the code that a direction may move; by default 32, or a quarter of the code
    scale: CommaList = "0.15,0.3"  # strengths s, each drawn with both signs; the code moves by s √d deviations
    selection: Literal["l1", "weight", "probmask"] = "l1"  # how the dims are chosen
    along: Literal["pattern", "weight"] = "pattern"
    """What the code follows: how it varies with the attribute, or, as in the paper, the classifier's weights."""
    out: Path = Path("manipulation.png")  # picture to write
    masked: bool = True  # at each time-step only the subsets up to it enter, as in training
    stop_guidance: float = 0.0  # share of the last steps, such as 0.3, left to the frozen model alone
    sampling_steps: int = 25  # network calls from image to noise, and back
    seed: int = 0
    overwrite: Overwrite = False

    def run(self) -> None:
        from diti.edit.manipulate import manipulate_files

        strengths = {abs(number) for number in numbers("--scale", self.scale)}
        both_signs = sorted({-strength for strength in strengths} | strengths)
        lines = manipulate_files(
            self.model, self.image, self.attribute, self.data, self.dims, both_signs, self.out,
            selection=self.selection, along=self.along, masked=self.masked, stop_guidance=self.stop_guidance,
            sampling_steps=self.sampling_steps, seed=self.seed, overwrite=self.overwrite,
        )  # fmt: skip
        print("\n".join(lines))
        next_command("counterfactuals", self.model, "--data", self.data)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Draw new images: through a model's own latent (see train-latent), or from a backbone."""

    model: Model  # model or backbone folder, shipped name or hub id
    count: Count = 16  # how many images
    out: Path = Path("samples.png")  # picture to write
    sampling_steps: int = 25  # network calls per image
    seed: int = 0
    overwrite: Overwrite = False

    def run(self) -> None:
        from diti.edit.variations import save_samples

        lines = save_samples(
            self.model, self.count, self.out, seed=self.seed, sampling_steps=self.sampling_steps,
            overwrite=self.overwrite,
        )  # fmt: skip
        print("\n".join(lines))


@dataclass(frozen=True, kw_only=True)
class Vary:
    """Draw an image again with the same code and new noise: what z keeps and what it leaves open."""

    model: Model  # model folder, shipped name or hub id
    image: Picture
    count: Count = 8  # how many variations
    out: Path = Path("variations.png")  # picture to write
    sampling_steps: int = 25  # network calls per image
    seed: int = 0
    overwrite: Overwrite = False

    def run(self) -> None:
        from diti.edit.variations import save_variations

        lines = save_variations(
            self.model, self.image, self.count, self.out, seed=self.seed, sampling_steps=self.sampling_steps,
            overwrite=self.overwrite,
        )  # fmt: skip
        print("\n".join(lines))


@dataclass(frozen=True, kw_only=True)
class TrainLatent:
    """Learn the distribution of a model's codes, so that new images can be drawn; the same command continues."""

    model: Model  # model folder; what is learned is kept in it
    data: str  # the images the model was trained on
    codes: int = 600_000  # length, codes seen; the default takes a few minutes
    seed: int = 0

    def run(self) -> None:
        from diti.representation.train_latent import fit_latent

        facts = fit_latent(self.model, self.data, codes_seen=self.codes, seed=self.seed)
        if facts:
            print(
                f"a classifier tells drawn codes from real ones with AUROC {facts['auroc']:.2f} (0.5: not), "
                f"those of a Gaussian with {facts['auroc_gaussian']:.2f}\nwrote {self.model}/latent"
            )
        next_command("sample", self.model, "-n", 32, "--out", "samples.png")
