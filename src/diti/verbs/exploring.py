"""Verbs for images without labels: see what a model found, and name it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from diti.verbs.common import CommaList, Model, Number, Overwrite, next_command


@dataclass(frozen=True, kw_only=True)
class Explore:
    """Show what a model found, without labels: its axes from fine to coarse on one page, drawn and measured."""

    model: Model  # model folder, shipped name or hub id
    data: str  # images, with or without labels: whatever --data accepts elsewhere
    out: Path = Path("explored")  # folder for index.html, explore.json and a picture per axis
    axes: int = 3  # of each subset the axes that remove most of the loss
    faces: int = 3  # images that are pushed along each axis
    sampling_steps: int = 15  # network calls per image
    seed: int = 0
    overwrite: Overwrite = False

    def run(self) -> None:
        from diti.explore.page import explore_verb

        explored = explore_verb(
            self.model, self.data, self.out, axes=self.axes, faces=self.faces, sampling_steps=self.sampling_steps,
            seed=self.seed, overwrite=self.overwrite,
        )  # fmt: skip
        print(f"the page: {explored.page}")
        next_command("encode", self.model, self.data, "--out", "features.parquet")


@dataclass(frozen=True, kw_only=True)
class NameAxis:
    """Name an axis of the code: the name then stands in tables, pages and commands."""

    model: Model  # model folder
    axis: Annotated[tyro.conf.Positional[int], tyro.conf.arg(metavar="AXIS")]  # its number, as in z037
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]  # of what grows along it: beard
    negative: str = ""  # of what is at its other end: clean-shaven

    def run(self) -> None:
        from diti.explore.name import name_axis

        print(f"axis {self.axis} is now {name_axis(self.model, self.axis, self.name, self.negative)}")


@dataclass(frozen=True, kw_only=True)
class Search:
    """Find the images nearest to one, in the whole code or in chosen subsets, or the odd ones, as a sheet."""

    model: Model  # model folder, shipped name or hub id
    image: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="IMAGE")] = None  # to search for
    data: str  # images to search in: whatever --data accepts elsewhere
    subset: CommaList = "all"  # where to be near: all, fine, coarse, early, middle, late, I, I:J, or a named axis
    count: Annotated[int, tyro.conf.arg(aliases=["-n"])] = 24  # images to find
    odd: Number = None
    """Find so many odd images instead: those that z explains least, or, in chosen subsets and of models without a
    frozen diffusion model, those whose codes lie farthest out."""
    out: Path = Path("found.png")  # sheet to write; a JSON file stands beside it
    overwrite: Overwrite = False

    def run(self) -> None:
        from diti.explore.search import search

        lines = search(
            self.model, self.data, self.out, image=self.image, odd=self.odd, count=self.count, subset=self.subset,
            overwrite=self.overwrite,
        )  # fmt: skip
        print("\n".join(lines))
