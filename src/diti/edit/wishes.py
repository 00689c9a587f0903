"""What a person wants changed and kept, in words, and the directions and axes that this means."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from diti.core.errors import InputError, nearest
from diti.core.images import PICTURES
from diti.data.prepared import Dataset
from diti.data.sources import open_data
from diti.diffusion.files import may_keep
from diti.edit.compose import What, handle_of
from diti.edit.direction_files import (
    direction_path,
    find_or_learn_direction,
    kept_direction,
    kept_names,
    save_direction,
)
from diti.edit.directions import CONTINUOUS, Direction, how_to_choose
from diti.edit.examples import codes_of, example_direction, example_direction_files, pair_direction_files
from diti.edit.trials import Trials
from diti.representation.found_axes import find_key
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.inputs import read_images


@dataclass(frozen=True)
class Wish:
    """What directions are to be learned from: attributes of labelled data, or example images; and what stays."""

    attribute: str | None = None  # one, or several with commas between
    data: str | None = None
    like: tuple[Path, ...] = ()
    unlike: tuple[Path, ...] = ()
    pairs: tuple[Path, ...] = ()  # with it, without it, with it, without it, ...
    subset: str = "all"  # of examples: the part of the code that the direction may move
    save_as: str | None = None  # of examples: a name under which the model folder keeps the direction
    keep: tuple[str, ...] = ()  # attributes, axes, and example images of what stays

    @property
    def attributes(self) -> list[str]:
        """The names of what changes."""
        return [word.strip() for word in (self.attribute or "").split(",") if word.strip()]

    @property
    def examples(self) -> tuple[Path, ...]:
        """All example images of what changes."""
        return (*self.like, *self.unlike, *self.pairs)

    @property
    def files(self) -> tuple[Path, ...]:
        """All images that are read."""
        return (*self.examples, *(Path(word) for word in self.keep if is_picture(word)))

    def check(self) -> None:
        """InputError where it is not clear what is wanted."""
        if [bool(self.attributes), bool(self.like), bool(self.pairs)].count(True) != 1:
            raise InputError(
                "name what to change, in one way: --attribute NAME, --axis AXIS, or example images with --like or "
                "--pairs"
            )
        if len(set(self.attributes)) < len(self.attributes):
            raise InputError(f"--attribute {self.attribute} names one thing twice; name each once")
        if both := set(self.attributes) & set(self.keep):
            raise InputError(f"{both.pop()} is to be changed and kept; take it out of --attribute or of --keep")
        if self.unlike and not self.like:
            raise InputError("--unlike goes with --like; name images that have what you want with --like")
        if len(self.pairs) % 2:
            raise InputError(
                f"--pairs names {len(self.pairs)} images; give them in pairs: with.png,without.png,..."
            )
        if self.examples and self.data and not self.keep:
            raise InputError("--data is for --attribute; examples with --like or --pairs need none")
        if self.save_as is not None and not self.examples:
            raise InputError("--save-as is for examples; a direction of --attribute is kept under its own name")


def is_picture(word: str) -> bool:
    """Whether a word names an image file."""
    return Path(word).suffix.lower() in PICTURES


@dataclass(frozen=True, eq=False)
class Means:
    """A model, its folder and, where it was named, labelled data: what wishes are fulfilled with."""

    model: DecodingModel
    folder: Path
    dataset: Dataset | None = None

    @cached_property
    def trials(self) -> Trials | None:
        """What directions are learned and tried with."""
        return None if self.dataset is None else Trials(self.model, self.dataset)

    @classmethod
    def of(cls, model: DecodingModel, folder: Path, data: str | None) -> Means:
        """With the data opened."""
        if data is None:
            return cls(model, folder)
        dataset = open_data(data, model.size)
        model.require_size(dataset.size)
        return cls(model, folder, dataset)

    def directions(
        self, wish: Wish, dims: int | None, selection: str | None, seed: int
    ) -> tuple[list[Direction], list[str]]:
        """What changes, and what to print about it."""
        if wish.examples:
            direction, lines = self._from_examples(wish, dims)
            return [direction], lines
        found, lines = [], []
        for name in wish.attributes:
            direction, said = self._named(name, dims, selection, seed)
            found.append(direction)
            lines += said
        return found, lines

    def _from_examples(self, wish: Wish, dims: int | None) -> tuple[Direction, list[str]]:
        name = wish.save_as or "like the examples"
        if wish.pairs:
            direction, lines = pair_direction_files(self.model, name, wish.pairs, dims, wish.subset)
        else:
            direction, lines = example_direction_files(self.model, name, wish.like, wish.unlike, dims, wish.subset)
        if wish.save_as is not None:
            if not may_keep(self.folder):
                raise InputError(f"--save-as: {self.folder} is read-only or ships with diti; use a copy of it")
            lines.append(f"kept the direction in {save_direction(direction, self.folder)}")
        return direction, lines

    def _named(self, name: str, dims: int | None, selection: str | None, seed: int) -> tuple[Direction, list[str]]:
        """From the labels, else from the model folder."""
        if self.trials is None:
            direction = kept_direction(self.folder, name)
            return direction, [direction.summary(), "direction taken from the model folder"]
        direction, new = self.trials.direction(self.folder, name, dims, selection, seed, ranged=True)
        lines = [direction.summary()]
        if not new:
            few = len(self.trials.dataset.rows("train"))
            more = (
                f", from {direction.images:,} images, more than the {few:,} here" if direction.images > few else ""
            )
            return direction, [*lines, f"direction learned earlier, taken from the model folder{more}"]
        if direction.method == CONTINUOUS and how_to_choose(self.model, dims, selection)[0] < self.model.dims:
            lines.append(f"{name} is continuous: the direction is that of a ridge regression, its dims by weight")
        if may_keep(self.folder):
            lines.append(f"kept the direction in {direction_path(self.folder, name)}")
        return direction, lines

    def check(self, wish: Wish) -> None:
        """InputError, before any work, for what nobody knows."""
        labels = [] if self.dataset is None else self.dataset.attributes
        if self.dataset is not None:
            self.dataset.labels(wish.attributes)
        known = kept_names(self.folder)
        for word in (word for word in wish.keep if not is_picture(word) and word not in (*labels, *known)):
            try:
                find_key(self.model, word)
            except InputError as error:
                names = list(dict.fromkeys([*labels, *known]))
                told = f"; directions: {', '.join(names)}.{nearest(word, names)}" if names else ""
                raise InputError(f"--keep {word!r}: {error}{told}") from None
        read_images([Path(word) for word in wish.keep if is_picture(word)], self.model.size)

    def kept(self, wish: Wish) -> list[What]:
        """What stays: labels of the data, kept directions, axes by number or name, and what images show."""
        found = [self._to_keep(word) for word in wish.keep if not is_picture(word)]
        if pictures := [Path(word) for word in wish.keep if is_picture(word)]:
            pixels, _ = read_images(pictures, self.model.size)
            shown = codes_of(self.model, pixels)
            found.append(
                example_direction(self.model, "what the images to keep show", shown, torch.zeros(0)[:, None])
            )
        for what in found:
            handle_of(self.model, what)  # complains of what does not belong to the model
        return found

    def _to_keep(self, word: str) -> What:
        if self.dataset is not None and word in self.dataset.attributes:
            better = None if self.trials is None else self.trials.better(self.folder, word)
            return better or find_or_learn_direction(self.model, self.folder, self.dataset, word)[0]
        return kept_direction(self.folder, word) if word in kept_names(self.folder) else word
