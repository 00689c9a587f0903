"""Verbs for images without labels: see what a model found, and name it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from diti.core.errors import InputError
from diti.core.ranges import Range, Seed
from diti.verbs.common import CommaList, ComputeOn, Model, Number, Overwrite, next_command, options_of

SHEET = Range(1, 10_000)  # images on one


@dataclass(frozen=True, kw_only=True)
class Explore:
    """Show what a model found, without labels: the axes one can see, then z from fine to coarse, on one page."""

    model: Model  # model folder, shipped name or hub id
    data: str  # images, with or without labels: whatever --data accepts elsewhere
    out: Path = Path("explored")  # folder for index.html, explore.json and a picture per axis
    first: Annotated[int, *Range(1, 1_000)] = 16  # axes to draw, those that change pictures most
    axes: Annotated[int, *Range(1, 1_000)] = 3  # dims per subset, those that remove most of the loss
    faces: Annotated[int, *Range(1, 64)] = 3  # images that are pushed along each axis
    sampling_steps: int = 15  # network calls per image
    seed: Seed = 0
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.exploring.page import explore

        print(f"the page: {explore(**options_of(self)).page}")
        next_command("encode", self.model, self.data, "--out", "features.parquet")


@dataclass(frozen=True, kw_only=True)
class NameAxis:
    """Name an axis of the code, or one of its dims: the name then appears in tables, pages and commands."""

    model: Model  # model folder
    axis: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="AXIS")]  # a07, or a dim of z: 37, or z037
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")]  # of what grows along it: beard
    negative: str = ""  # of what is at its other end: clean-shaven

    def run(self) -> None:
        from diti.exploring.name import name_axis
        from diti.representation.models.axis_names import axis_number

        axis = axis_number(self.axis)
        if axis is None:
            raise InputError(f"AXIS {self.axis!r} is not the number of an axis; write it as a07, or a dim as z037")
        print(f"axis {axis} is now {name_axis(self.model, axis, self.name, self.negative)}")


@dataclass(frozen=True, kw_only=True)
class Search:
    """Find the images nearest to one, in the whole code or in chosen subsets, or the odd ones, as a sheet."""

    model: Model  # model folder, shipped name or hub id
    image: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="IMAGE")] = None  # to search for
    data: str  # images to search in: whatever --data accepts elsewhere
    subset: CommaList = "all"
    """Where to be near: all, fine, coarse, early, middle, late, I, I:J, or an axis by its name or as a07, z037."""
    axis: CommaList = ""  # be near on these axes alone, as a07 or by name; a dim as z037
    count: Annotated[Number, *SHEET, tyro.conf.arg(aliases=["-n"])] = None  # images to find; by default 24
    odd: Annotated[Number, *SHEET] = None
    """Find this many odd images instead: those that z explains least, or, in chosen subsets and for models without
    a frozen diffusion model, those whose codes lie farthest out."""
    index: bool = False
    """Search millions of codes through an index, made once in minutes and kept; needs the extra index."""
    out: Path = Path("found.png")  # sheet to write; a JSON file stands beside it
    overwrite: Overwrite = False
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.exploring.search import search

        print("\n".join(search(**options_of(self)).told))
