"""What all visitors share: the model, the data, and what was measured on them; nothing that a visitor gave.

Notation: N images, D dims of z, K subsets, A attributes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor

from diti.core.errors import InputError
from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.data.sources import BUILT_IN, built_in, open_data
from diti.diffusion.files import ASSETS, locate, may_keep
from diti.edit.compose import check_fits
from diti.edit.direction_files import find_or_learn_direction, kept_direction, kept_names
from diti.edit.directions import Direction, standardise
from diti.edit.interpolate import cut_of
from diti.edit.select import fit_linear
from diti.edit.trials import Trials
from diti.exploring.axes import extremes, removed_by
from diti.probes.matrix import SubsetMatrix, SubsetProbe
from diti.probes.task import Splits
from diti.representation.checks import LossCurves, loss_curves
from diti.representation.features import encode_dataset
from diti.representation.found_axes import axes_of
from diti.representation.models.axes import AXES, Axes, write_axes
from diti.representation.models.axis_names import (
    AxisName,
    Key,
    axis_key,
    axis_of,
    key_label,
    with_name,
    write_names,
)
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.diffusion import DiffusionModel, DiTi
from diti.representation.models.loading import load_with_decoder
from diti.representation.partition import Partition
from diti.studio.framing import Framing, framing_of
from diti.studio.session import FULL_STEPS, PREVIEW_STEPS

TOY_FACES = "toyfaces:800"  # drawn where a model of toy faces is opened without data
SHOWN = 24  # images offered for a click
BEST = 12  # axes offered at first, those that are seen best
MEASURED_IMAGES = 64  # for losses: to be looked at, not to be published
NO_DATA = (
    "There are no pictures to choose from: the data of this model is not here. Upload your own, or start the "
    "studio with --data."
)


@dataclass(eq=False)
class World:
    """One model and, where there are any, images."""

    model: DecodingModel
    folder: Path
    dataset: Dataset | None
    lock: threading.RLock = field(default_factory=threading.RLock)
    directions: dict[tuple[str, int], Direction] = field(default_factory=dict)
    strengths: dict[int, np.ndarray] = field(default_factory=dict)  # subset → loss removed by each dim

    @cached_property
    def partition(self) -> Partition:
        """That the page shows: the model's own, or a borrowed one where it has a single subset."""
        return cut_of(self.model, None)[0]

    @property
    def steps(self) -> tuple[int, ...]:
        """Network calls of a preview and of the full result; one number where decoding takes one step anyway."""
        return (PREVIEW_STEPS, FULL_STEPS) if isinstance(self.model, DiffusionModel) else (FULL_STEPS,)

    @property
    def frozen(self) -> DiTi:
        """The model, if it has a frozen diffusion model inside."""
        if not isinstance(self.model, DiTi):
            raise InputError(f"A {self.model.method} model has no frozen diffusion model to look into.")
        return self.model

    def data(self) -> Dataset:
        """The images, or a friendly line."""
        if self.dataset is None:
            raise InputError(NO_DATA)
        return self.dataset

    @cached_property
    def offered(self) -> np.ndarray:
        """Rows of the images that are offered for a click."""
        count = 0 if self.dataset is None else len(self.dataset)
        return np.sort(numpy_generator(0, "studio").permutation(count)[:SHOWN])

    @cached_property
    def framing(self) -> Framing | None:
        """How the images show faces, so that uploads can be cut out alike; None where they show none."""
        return framing_of([self.pixels(row) for row in self.offered.tolist()])

    def pixels(self, row: object) -> np.ndarray:
        """uint8 (H, W, 3) of a row that a page named; anything else is refused."""
        dataset = self.data()
        if not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < len(dataset):
            raise InputError("There is no such picture.")
        return np.ascontiguousarray(dataset.pixels(np.array([row]))[0])

    def random_row(self) -> int:
        return int(np.random.default_rng().integers(len(self.data())))

    # ---- Codes of the data -----------------------------------------------------------------------------------

    @cached_property
    def codes(self) -> np.ndarray:
        """float32 (N, D) of all images."""
        with self.lock:
            return encode_dataset(self.model, self.data())

    @property
    def first_look(self) -> str:
        """What to say while the codes are waited for: after the first time there is nothing to wait for."""
        return "Working …" if "codes" in self.__dict__ else "Reading the pictures once …"

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and std (D,) of z, of the images where the model does not know them."""
        known = self.model.mean is not None
        return self.model.statistics(None if known or self.dataset is None else torch.from_numpy(self.codes))

    def standard(self, codes: np.ndarray) -> np.ndarray:
        """Codes (N, D) in standard deviations."""
        mean, std = (s.numpy() for s in self.statistics())
        return standardise(codes, mean, std)

    # ---- Attributes ------------------------------------------------------------------------------------------

    @cached_property
    def attributes(self) -> list[str]:
        """Names that have a direction: kept in the model folder, or to be learned from the data's labels."""
        kept = kept_names(self.folder)
        labelled = [] if self.dataset is None else list(self.dataset.attributes)
        return list(dict.fromkeys([*kept, *labelled]))

    @cached_property
    def trials(self) -> Trials:
        """What directions are learned and tried with."""
        return Trials(self.model, self.data(), lambda: self.codes)

    def direction(self, attribute: str, dims: int) -> Direction:
        """The direction of one of the attributes with its safe range, found once for each number of dims."""
        key = attribute, dims
        with self.lock:
            if key not in self.directions:
                self.directions[key] = self._direction(attribute, dims)
            return self.directions[key]

    def learned(self, attribute: str) -> Direction:
        """The same as it was learned, which is enough to hold it."""
        with self.lock:
            found = self.directions.get((attribute, self.model.dims))
            return found or self._direction(attribute, self.model.dims, tried=False)

    def _direction(self, attribute: str, dims: int, tried: bool = True) -> Direction:
        if attribute not in self.attributes:
            raise InputError("There is no such attribute.")
        whole = dims == self.model.dims
        labelled = self.dataset is not None and attribute in self.dataset.attributes
        if self.dataset is None or not labelled or (whole and self._is_shipped(attribute)):
            direction = kept_direction(self.folder, attribute)
            check_fits(self.model, direction)
            return direction
        few = None if whole else dims
        if tried:
            return self.trials.direction(self.folder, attribute, few, ranged=True)[0]
        return find_or_learn_direction(
            self.model, self.folder, self.dataset, attribute, few, codes=lambda: self.codes
        )[0]

    def _is_shipped(self, attribute: str) -> bool:
        """Whether the model in the box knows a direction, from more images than are in the box."""
        return not may_keep(self.folder) and attribute in kept_names(self.folder)

    @cached_property
    def matrix(self) -> SubsetMatrix:
        """How well each subset alone tells each attribute."""
        dataset = self.data()
        names, train, held = dataset.attributes, dataset.rows("train"), self.held_apart()
        if not names or not len(train) or not len(held):
            raise InputError("The data has no labels, so it cannot be said which part tells what. The rest works.")
        binary, splits = [dataset.is_binary(name) for name in names], Splits(train, held[:0], held)
        with self.lock:
            probe = SubsetProbe.of(self.codes, dataset.labels(names), names, binary, splits, self.partition.ends)
            return probe.matrix()

    def held_apart(self) -> np.ndarray:
        """Rows that nothing is learned from: there is nothing to choose, so those for choosing count too."""
        return np.concatenate([self.data().rows(split) for split in ("valid", "test")])

    def ends_of(self, subset: int, attribute: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the images in which a subset alone sees least and most of an attribute."""
        dataset, train = self.data(), self.data().rows("train")
        z, kept = self.standard(self.codes), np.array(self.partition.dims_of(subset))
        if not len(kept):
            raise InputError("This part of the code is empty.")
        y = dataset.labels([attribute])[:, 0]
        fit = fit_linear(z[train], y[train], dataset.is_binary(attribute), kept)
        return extremes(fit.scores(z), dataset, count)

    @cached_property
    def losses(self) -> LossCurves:
        """By time-step: of the frozen model, with z, and with the z of another image."""
        model = self.frozen
        with self.lock:
            return loss_curves(model.encoder, model.decoder, model.partition, self.data(), MEASURED_IMAGES)

    # ---- Axes ------------------------------------------------------------------------------------------------

    @cached_property
    def found(self) -> Axes | None:
        """The axes that one can name; None where the model has none and there are no images to find them in."""
        with self.lock:
            try:
                return axes_of(self.model, self.dataset)
            except InputError:
                return None

    def axes(self, subset: int | None) -> list[Key]:
        """Of a subset the axes that live in it, then its dims; without one, those that are seen best."""
        keys: list[Key] = [axis_key(axis) for axis in range(len(self.found or ()))]
        if subset is None:
            return keys[:BEST] or self.axes(0)
        return [*(key for key in keys if self._home(key) == subset), *self.dims(subset)]

    def _home(self, key: Key) -> int | None:
        """The subset in which most of an axis lies."""
        if self.found is None or (axis := axis_of(key)) is None:
            return None
        squares = (self.found.directions[axis] / self.statistics()[1]).square()
        shares = [float(squares[list(self.partition.dims_of(k))].sum()) for k in range(self.partition.subsets)]
        return int(np.argmax(shares))

    def dims(self, subset: int) -> list[int]:
        """The dims of a subset, those that matter most first where that can be measured."""
        dims = np.array(self.partition.dims_of(subset), dtype=int)
        if not isinstance(self.model, DiTi) or self.dataset is None:
            return dims.tolist()
        with self.lock:
            if subset not in self.strengths:
                groups = [[int(dim)] for dim in dims]
                self.strengths[subset] = removed_by(self.model, self.dataset, groups, images=MEASURED_IMAGES)
        return dims[np.argsort(-self.strengths[subset], kind="stable")].tolist()

    def places(self, key: Key) -> np.ndarray:
        """(N,) where the images lie on an axis, or on a dim."""
        if self.found is None or (axis := axis_of(key)) is None:
            return np.asarray(self.codes[:, int(key)])
        return self.found.places(torch.from_numpy(self.codes), self.statistics()[0])[:, axis].numpy()

    def row_of(self, key: Key) -> int:
        """The number by which a page speaks of an axis or a dim: dims first."""
        axis = axis_of(key)
        return int(key) if axis is None else self.model.dims + axis

    def key_of(self, row: object, offered: Sequence[Key]) -> Key:
        """The axis or dim, one of those offered, that a page named by its number."""
        rows = {self.row_of(key): key for key in offered}
        if type(row) is not int or row not in rows:
            raise InputError("There is no such axis in this part.")
        return rows[row]

    def label(self, key: Key, own: dict[Key, AxisName]) -> str:
        """The name of an axis or a dim, that which the visitor gave for this visit too."""
        given = {**self.model.axis_names, **own}
        return given[key].name if key in given else key_label(key) if isinstance(key, str) else f"axis {key}"

    def name(self, own: dict[Key, AxisName], axis: Key, name: str, other_end: str) -> bool:
        """Name an axis in the model folder, or for this visit where the folder is not ours to change."""
        with self.lock:
            count = len(self.found or ())
            names = with_name({**self.model.axis_names, **own}, self.model.dims, axis, name, other_end, count)
            if not may_keep(self.folder):
                own[axis] = names[axis]
                return False
            if isinstance(axis, str) and self.found is not None and not (self.folder / AXES).is_file():
                write_axes(self.found, self.folder / AXES)  # a named axis must stay what it is
            write_names(self.folder, names)
            self.model.axis_names = names
            return True


def open_world(source: str, data: str | None) -> World:
    """Load the model and find its images; everything that can be wrong is said here."""
    folder, model = locate(source), load_with_decoder(source)
    if len(model.encoder.taken) == 1:
        raise InputError(f"{source} was solved over features of another network, and cannot encode pictures")
    model.validate_sampling_steps(FULL_STEPS)
    if data is not None:
        dataset = open_data(data, model.size)
        model.require_size(dataset.size)
        return World(model, folder, dataset)
    return World(model, folder, _own_data(folder, model.size))


def _own_data(folder: Path, size: int) -> Dataset | None:
    """The data that the model was made from if it is still there; of toy faces a few, newly drawn."""
    named = _shipped_data(folder) or _named_data(folder / "config.yaml")
    if built_in(named) == "toyfaces":
        return open_data(TOY_FACES, size)
    if not named:
        return None
    try:
        dataset = open_data(named, size)
    except InputError:  # moved or deleted since
        return None
    return dataset if dataset.size == size else None


def _shipped_data(folder: Path) -> str | None:
    """The built-in data of a model in the box, which bears its name: faces64-diti goes with faces."""
    shipped = ASSETS in folder.resolve().parents
    return next((name for name in BUILT_IN if folder.name.startswith(name)), None) if shipped else None


def _named_data(path: Path) -> str:
    """The data that a config names; empty where it names none that can be read."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    return str(found.get("data") or "") if isinstance(found, dict) else ""
