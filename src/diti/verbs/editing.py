"""Verbs that draw images: samples, variations, interpolations, manipulations."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import tyro

from diti.core.errors import InputError
from diti.core.ranges import Count, Seed
from diti.verbs.common import (
    CommaList,
    ComputeOn,
    File,
    Model,
    Name,
    Number,
    Overwrite,
    Picture,
    next_command,
    numbers,
    words,
)

HowMany = Annotated[int, tyro.conf.arg(aliases=["-n"])]


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
    seed: Seed = 0
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

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
class Mix:
    """Join two images by level: fine details of one with coarse features, light and layout, of the other."""

    model: Model  # model folder, shipped name or hub id
    first: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="A")]  # image file
    second: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="B")]  # image file
    fine: Literal["A", "B"] = "A"  # whose fine details: the first third of the subsets
    middle: Literal["A", "B"] = "A"  # whose middle third
    coarse: Literal["A", "B"] = "B"  # whose coarse features: the last third
    out: Path = Path("mix.png")  # picture to write: A, B and the mix
    sampling_steps: int = 25  # network calls from image to noise, and back
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.edit.levels import mix_files

        sources = {"early": self.fine, "middle": self.middle, "late": self.coarse}
        lines = mix_files(
            self.model, self.first, self.second, sources, self.out, sampling_steps=self.sampling_steps,
            overwrite=self.overwrite,
        )  # fmt: skip
        print("\n".join(lines))
        next_command("interpolate", self.model, self.first, self.second)


@dataclass(frozen=True, kw_only=True)
class Manipulate:
    """Change one thing about an image: an attribute, an axis of the code, or what some example images show."""

    model: Model  # model folder, shipped name or hub id
    image: Picture
    attribute: CommaList = ""  # attributes of the data, or directions that the model folder keeps
    data: Name = None  # labelled images to learn the direction from; learned once and kept with the model
    keep: CommaList = ""
    """What stays: attributes of the data, kept directions, axes, or example images of it; any number of them."""
    axis: CommaList = ""  # axes of the code, as a07 or by the name of diti name, or dims, as z037; each in a row
    like: CommaList = ""  # example images that have what you want; one is enough
    unlike: CommaList = ""  # example images that lack it; without them the average image
    pairs: CommaList = ""  # images of the same thing with and without it, in turn: with.png,without.png,...
    subset: CommaList = "all"  # of examples: the subsets that may move: fine, coarse, early, middle, late, I:J
    save_as: Name = None  # of examples: keep the direction under this name, for --attribute
    scale: Annotated[str | None, tyro.conf.arg(metavar="A,B,...")] = None
    """Strengths: 1 is the step from the usual image without it to the usual one with it, or one standard deviation
    of what is continuous and of an axis. Each is drawn with both signs; by default up to 2, where pictures stay
    like those of the data, in steps that look even. Of several attributes each has one, by default 1. Along an
    axis they are drawn as they are, by default -3,-2,-1,1,2,3."""
    paper_scale: Annotated[str | None, tyro.conf.arg(metavar="A,B,...")] = None
    """Instead of --scale, as in the paper: the code moves by s √d of its deviations; the authors take 0.3."""
    dims: Number = None
    """d': a sparse direction, that moves so many dims of the code; by default all, or with --selection 32 or a
    quarter of a short code."""
    selection: Literal["all", "l1", "weight", "probmask"] | None = None  # how the dims are chosen
    along: Literal["conditional", "pattern", "weight"] | None = None
    """What the code follows: how it varies with the attribute while all other attributes of the data stay
    (conditional), how it varies with it (pattern), or, as in the paper, the classifier's weights. By default
    conditional where the data has other attributes and no dims are chosen, else pattern."""
    local: bool = True  # change a picture only where the attributes live, as far as they were learned from labels
    out: Path = Path("manipulation.png")  # picture to write
    masked: bool = True  # at each time-step only the subsets up to it enter, as in training
    stop_guidance: float = 0.0  # share of the last steps, such as 0.3, left to the frozen model alone
    sampling_steps: int = 25  # network calls from image to noise, and back
    seed: Seed = 0
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

    def run(self) -> None:
        self._refuse_idle()
        if self.axis:
            self._along_axes()
            return
        from diti.edit.manipulate_files import manipulate_files
        from diti.edit.wishes import Wish

        if self.scale is not None and self.paper_scale is not None:
            raise InputError("--scale and --paper-scale say the same thing; give one of them")
        wish = Wish(
            self.attribute or None, self.data, files(self.like), files(self.unlike), files(self.pairs),
            self.subset, self.save_as, words(self.keep),
        )  # fmt: skip
        lines = manipulate_files(
            self.model, self.image, wish, self.dims, self._strengths(len(wish.attributes) > 1), self.out,
            paper=self.paper_scale is not None, selection=self.selection, along=self.along, local=self.local,
            masked=self.masked, stop_guidance=self.stop_guidance, sampling_steps=self.sampling_steps,
            seed=self.seed, overwrite=self.overwrite,
        )  # fmt: skip
        print("\n".join(lines))
        if self.data is not None:
            next_command("counterfactuals", self.model, "--data", self.data)
        elif self.save_as is not None:
            next_command("manipulate", self.model, self.image, "--attribute", self.save_as)

    def _strengths(self, several: bool) -> list[float] | None:
        """Those of one thing with both signs, those of several as they are."""
        option = "--scale" if self.paper_scale is None else "--paper-scale"
        given = self.scale if self.paper_scale is None else self.paper_scale
        if given is None:
            return None
        strengths = numbers(option, given)
        return strengths if several else sorted({sign * abs(s) for s in strengths for sign in (-1, 1)})

    def _along_axes(self) -> None:
        from diti.edit.axes import move_axes_files

        lines = move_axes_files(
            self.model, self.image, self.axis.split(","), numbers("--scale", self.scale or "-3,-2,-1,1,2,3"),
            self.out, keep=words(self.keep), data=self.data, masked=self.masked,
            sampling_steps=self.sampling_steps, overwrite=self.overwrite,
        )  # fmt: skip
        print("\n".join(lines))

    def _refuse_idle(self) -> None:
        """InputError for options that would change nothing beside the others."""
        if self.axis:
            reason = "--axis moves along axes alone"
            idle = (
                "attribute like unlike pairs subset save_as dims selection along local stop_guidance paper_scale"
            )
            idle += "" if self.keep else " data"
        elif self.like or self.pairs:
            option = "--like" if self.like else "--pairs"
            reason, idle = f"{option} makes a direction from the examples alone", "selection"
        elif self.data is not None:
            reason, idle = "--attribute learns from labels, in the whole code", "subset"
        else:
            reason, idle = "--attribute without --data takes a direction as it was kept", "subset dims selection"
        default = {field.name: field.default for field in fields(self)}
        given = [f"--{name.replace('_', '-')}" for name in idle.split() if getattr(self, name) != default[name]]
        if given and (self.axis or self.like or self.pairs or self.attribute):
            raise InputError(f"{reason}; leave {', '.join(given)} out")


def files(text: str) -> tuple[Path, ...]:
    """The files of a comma list."""
    return tuple(Path(word) for word in words(text))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Draw new images: through a model's own latent (see train-latent), or from a backbone."""

    model: Model  # model or backbone folder, shipped name or hub id
    count: HowMany = 16  # how many images
    out: Path = Path("samples.png")  # picture to write
    sampling_steps: int = 25  # network calls per image
    seed: Seed = 0
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

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
    count: HowMany = 8  # how many variations
    out: Path = Path("variations.png")  # picture to write
    sampling_steps: int = 25  # network calls per image
    seed: Seed = 0
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

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
    codes: Count = 600_000  # length, codes seen; the default takes a few minutes
    seed: Seed = 0
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.representation.train_latent import fit_latent

        facts = fit_latent(self.model, self.data, codes_seen=self.codes, seed=self.seed)
        if facts:
            print(
                f"a classifier tells drawn codes from real ones with AUROC {facts['auroc']:.2f} (0.5: "
                f"not at all), those of a Gaussian with {facts['auroc_gaussian']:.2f}\nwrote {self.model}/latent"
            )
        next_command("sample", self.model, "-n", 32, "--out", "samples.png")
