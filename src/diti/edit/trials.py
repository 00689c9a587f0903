"""Directions that were tried out: learned from labels, then drawn on a few images, and kept with what was seen.

What is found so: where in a picture the attribute lives (`places.py`), how far the code goes for as much as was
asked (`gain.py`), and how far it may go (`reach.py`). Sparse ones, the paper's, stay as learned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from diti.core.device import AUTO, Device
from diti.core.errors import InputError
from diti.data.prepared import Dataset
from diti.data.sources import as_dataset
from diti.diffusion.files import may_keep
from diti.edit.direction_files import (
    direction_path,
    find_or_learn_direction,
    kept_names,
    load_direction,
    save_direction,
)
from diti.edit.directions import Direction, code_space_hash, fit_direction
from diti.edit.gain import TRUSTED, TRUSTED_BINARY, with_gain
from diti.edit.places import in_pictures
from diti.edit.reach import Trial, sides_of, with_reach
from diti.edit.reader import Reader, reader_of
from diti.representation.features import encode_dataset
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.loading import as_model
from diti.representation.models.model import Model


def learn_direction(
    model: Model | str | Path,
    dataset: Dataset | str | Path,
    attribute: str,
    dims: int | None = None,
    selection: str | None = None,
    seed: int = 0,
    codes: np.ndarray | None = None,
    device: Device = AUTO,
) -> Direction:
    """The direction of an attribute of labelled images, for `manipulate` and `edit`: see `fit_direction`.

    A model that can draw also tries it on a few images: where it belongs in a picture, how far the code goes for
    what is asked, and its safe range. A sparse one (dims, selection) stays as it is learned, as in the paper.

        smile = diti.learn_direction(model, data, "Smiling")
        edited = model.manipulate(images, smile, scale=1)  # from the usual face without to the usual one with it
    """
    model = as_model(model, device)
    dataset = as_dataset(dataset, model.size)
    direction = fit_direction(model, dataset, attribute, dims, selection, seed, codes)
    if not isinstance(model, DecodingModel) or not is_whole(direction):
        return direction
    return Trials(model, dataset, None if codes is None else lambda: codes).tried(direction, ranged=True)


def is_whole(direction: Direction) -> bool:
    """Whether it may move all dims; else it is the paper's."""
    return len(direction.dims) == len(direction.weight)


@dataclass(eq=False)
class Trials:
    """A model and labelled images on which its directions are tried; what they share is made once, when needed."""

    model: DecodingModel
    dataset: Dataset
    encoded: Callable[[], np.ndarray] | None = None  # gives the codes of all images, where they are at hand

    @cached_property
    def codes(self) -> np.ndarray:
        """float32 (N, D) of all images."""
        return encode_dataset(self.model, self.dataset) if self.encoded is None else self.encoded()

    @cached_property
    def trial(self) -> Trial:
        """The images that are drawn."""
        return Trial.of(self.model, self.dataset, self.codes)

    @cached_property
    def reader(self) -> Reader:
        """What reads the pictures."""
        return reader_of(self.model, self.dataset)

    def tried(self, direction: Direction, *, ranged: bool) -> Direction:
        """The direction with what it lacks. ranged: its safe range, too, which takes longest."""
        untried = direction.place is None and is_whole(direction)
        if not untried and not (ranged and direction.reach is None):
            return direction
        name = direction.attribute
        sides = sides_of(self.dataset.labels([name])[self.trial.rows, 0], self.dataset.is_binary(name))
        if untried:
            coefficient, place = in_pictures(self.dataset, name)
            column = self.dataset.attributes.index(name)
            direction = replace(direction, place=place)
            least = TRUSTED_BINARY if direction.metric == "AP" else TRUSTED
            trusted = float(self.reader.told[column]) >= least
            direction = with_gain(direction, self.trial, self.reader, column, sides, coefficient, trusted)
        return with_reach(direction, self.trial, sides) if ranged and direction.reach is None else direction

    def better(self, folder: Path, attribute: str) -> Direction | None:
        """The direction that the model folder keeps from more training images than these are."""
        if attribute not in kept_names(folder):
            return None
        try:
            found = load_direction(direction_path(folder, attribute))
        except InputError:  # damaged, or of another version: it is learned again
            return None
        more = found.images > len(self.dataset.rows("train"))
        return found if more and found.encoder == code_space_hash(self.model) else None

    def direction(
        self,
        folder: Path,
        attribute: str,
        dims: int | None = None,
        selection: str | None = None,
        seed: int = 0,
        *,
        ranged: bool = False,
    ) -> tuple[Direction, bool]:
        """The one that the model folder keeps, else a new one, tried and kept there; True if it is new.

        Unless it is said how to choose its dims, one that was kept from more images is taken as it is.
        """
        if dims is None and selection is None and (better := self.better(folder, attribute)) is not None:
            return better, False
        found, new = find_or_learn_direction(
            self.model, folder, self.dataset, attribute, dims, selection, seed, codes=lambda: self.codes
        )
        tried = self.tried(found, ranged=ranged)
        if tried is not found and may_keep(folder):
            save_direction(tried, folder)
        return tried, new
