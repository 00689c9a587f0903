"""A judge from elsewhere in the place of our classifier: pictures in, a table of what it reads in them out.

It is a function, or a program that is given picture files and prints CSV: a row per picture, its path under
`file`, a number per reading, nothing where it finds nothing to read. Notation: N pictures, A readings.
"""

from __future__ import annotations

import csv
import io
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import to_uint8
from diti.core.rng import numpy_generator
from diti.data.prepared import Dataset
from diti.measure.attribute_classifier import AttributeClassifier, measure_traits

Judge = Callable[[np.ndarray], Mapping[str, Sequence[float]]]
"""uint8 pictures (N, H, W, 3) → N numbers per reading; NaN where it finds nothing."""

Embed = Callable[[Tensor], np.ndarray]
"""Pictures (N, 3, H, W) in [-1, 1] → (N, V) numbers that say who a face is; NaN where it finds none."""

TESTED = 256  # pictures of the data on which its readings are compared with the labels


def judged_by(judge: str | Judge, dataset: Dataset) -> AttributeClassifier:
    """The judge as a classifier of what it and the labels of the data both tell; the labels are for comparison."""
    ask = partial(ask_program, judge) if isinstance(judge, str) else judge
    split = "test" if len(dataset.rows("test")) else "valid"
    tested = np.sort(numpy_generator(0, "judged").permutation(dataset.rows(split))[:TESTED])
    table = ask(dataset.pixels(tested))
    names = [name for name in dataset.attributes if name in table]
    if not names:
        raise InputError(
            f"the judge reads {', '.join(table) or 'nothing'}, but {dataset.path} has "
            f"{', '.join(dataset.attributes)}: at least one must have the same name"
        )
    reads, truth = _columns(table, names, len(tested)), dataset.labels(names)[tested]
    found = np.isfinite(reads).all(1)
    if found.sum() < 2:
        raise InputError(f"the judge finds something in {found.sum()} of {len(tested)} pictures of {dataset.path}")
    binary = [dataset.is_binary(name) for name in names]
    traits = measure_traits(names, binary, reads[found], truth[found])

    def read(pixels: Tensor) -> Tensor:
        return torch.from_numpy(_columns(ask(to_uint8(pixels)), names, len(pixels)))

    return AttributeClassifier(read, dataset.size, traits)


def recognised_by(who: str | Judge) -> Embed:
    """A recognition network from elsewhere, asked like a judge: all its readings together say who a face is."""
    ask = partial(ask_program, who) if isinstance(who, str) else who

    def embed(pixels: Tensor) -> np.ndarray:
        table = ask(to_uint8(pixels))
        if not table:
            raise InputError("what should tell who a face is gave no numbers; it must give some per picture")
        return _columns(table, list(table), len(pixels))

    return embed


def ask_program(command: str, pictures: np.ndarray) -> dict[str, list[float]]:
    """What a program reads in pictures (N, H, W, 3), which it is given as PNG files."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / f"{i:05d}.png") for i in range(len(pictures))]
        for file, pixels in zip(files, pictures, strict=True):
            Image.fromarray(pixels).save(file)
        return _parsed(command, _printed(command, files), files)


def _printed(command: str, files: Sequence[str]) -> str:
    try:
        done = subprocess.run([*shlex.split(command), *files], capture_output=True, text=True, check=False)
    except (OSError, ValueError) as error:
        raise InputError(f"the judge {command!r} cannot be started: {error}") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it printed no error"]
        raise InputError(f"the judge {command!r} ended with exit code {done.returncode}: {last[0]}")
    return done.stdout


def _parsed(command: str, text: str, files: Sequence[str]) -> dict[str, list[float]]:
    """Its CSV by reading, in the order of the files."""
    rows = {row.get("file"): row for row in csv.DictReader(io.StringIO(text))}
    if missing := [file for file in files if file not in rows]:
        raise InputError(
            f"the judge {command!r} printed no row for {len(missing)} of {len(files)} pictures; "
            "it must print CSV with the path of each under `file`"
        )
    names = [name for name in rows[files[0]] if name not in ("file", None)]
    try:
        return {name: [float(rows[file][name] or "nan") for file in files] for name in names}
    except ValueError as error:
        raise InputError(f"the judge {command!r} printed something that is not a number: {error}") from None


def _columns(table: Mapping[str, Sequence[float]], names: Sequence[str], count: int) -> np.ndarray:
    """float64 (N, A) of the named readings."""
    columns = [np.asarray(table.get(name, ()), np.float64) for name in names]
    if wrong := [name for name, column in zip(names, columns, strict=True) if column.shape != (count,)]:
        raise InputError(f"the judge did not give {count} numbers for {wrong[0]!r}; it must give one per picture")
    return np.stack(columns, axis=1)
