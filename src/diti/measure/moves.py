"""Which edit moves which reading, how much of what was asked; what should stay; and is it the same face?

All in standard deviations of what is read in the data, as if every image had been pushed upward.
Notation: N images, E edits, A readings, V numbers that say who a face is.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diti.core.errors import InputError, nearest
from diti.core.runs import atomic_path
from diti.measure.attribute_classifier import AttributeClassifier

Record = dict[str, Any]
LEAST = 0.5  # of what was asked that a reading should change by


@dataclass(frozen=True, eq=False)
class Moves:
    """What was found of each edit, one after the other."""

    classifier: AttributeClassifier
    fixed: tuple[str, ...] = ()  # readings that should stay, whatever is edited
    edited: list[str] = field(default_factory=list)  # E
    asked: list[float | None] = field(default_factory=list)  # (E,) of its own reading
    found: list[np.ndarray] = field(default_factory=list)  # (N, A) each, NaN where nothing was found

    def add(self, name: str, strength: float, moved: np.ndarray) -> None:
        """An edit of so many usual differences, and how it moved all readings (N, A)."""
        usual = self.classifier.traits[self.classifier.index(name)].usual
        self.edited.append(name)
        self.asked.append(None if usual is None else strength * usual)
        self.found.append(moved)

    def record(self) -> Record | None:
        """Of the readable readings: mean (E, A) signed and absolute, asked and got (E,), share found, fixed."""
        if not self.found:
            return None
        readable = self.classifier.readable
        read = [name for name, may in zip(self.classifier.attributes, readable, strict=True) if may]
        moved = np.stack(self.found)[:, :, readable]  # (E, N, A)
        mean, size = (_means(values) for values in (moved, np.abs(moved)))
        got = [mean[i, read.index(name)] for i, name in enumerate(self.edited)]
        return {
            "edited": self.edited,
            "read": read,
            "mean": _without_nan(mean),
            "absolute": _without_nan(size),
            "asked": self.asked,
            "got": _without_nan(np.array(got)),
            "found": float(np.isfinite(moved).all(-1).mean()),
            "fixed": self._fixed(read, mean, size),
        }

    def _fixed(self, read: Sequence[str], mean: np.ndarray, size: np.ndarray) -> Record | None:
        """How far the readings that should stay moved in edits of all others, and in the worst of them."""
        rows = [i for i, name in enumerate(self.edited) if name not in self.fixed]
        columns = [read.index(name) for name in self.fixed if name in read]
        if not rows or not columns:
            return None
        within = np.ix_(rows, columns)
        worst = np.unravel_index(np.nanargmax(size[within]), size[within].shape)
        return {
            "readings": [read[column] for column in columns],
            "absolute": float(np.nanmean(size[within])),
            "mean": float(np.nanmean(np.abs(mean[within]))),
            "most": float(np.nanmax(size[within])),
            "by": self.edited[rows[worst[0]]],
        }


def check_named(option: str, names: Sequence[str], allowed: Sequence[str]) -> None:
    """InputError for a name that is none of those that can be read."""
    for name in names:
        if name not in allowed:
            raise InputError(
                f"{option} names {name!r}; what can be read here is {', '.join(allowed)}.{nearest(name, allowed)}"
            )


def likeness(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """(N,) cosine between who a face is before and after an edit, (N, V) each; NaN where nobody was found."""
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.einsum("nv,nv->n", before, after) / lengths)


def strangers(faces: np.ndarray) -> float:
    """The mean cosine between different faces (N, V): what an edit that makes somebody else would give."""
    known = faces[np.isfinite(faces).all(1)]
    if len(known) < 2:
        return float("nan")
    unit = known / np.linalg.norm(known, axis=1, keepdims=True)
    cosines = unit @ unit.T
    return float(cosines[~np.eye(len(unit), dtype=bool)].mean())


def save_moves_table(record: Mapping[str, Any], path: Path) -> Path:
    """CSV: a row per edit and reading, its mean move, the mean of its size, and what was asked of it."""
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["edit", "reading", "mean_sd", "absolute_sd", "asked_sd"])
        for i, edit in enumerate(record["edited"]):
            for j, reading in enumerate(record["read"]):
                own = record["asked"][i] if edit == reading else 0.0
                writer.writerow([edit, reading, record["mean"][i][j], record["absolute"][i][j], own])
    return path


def moves_lines(record: Mapping[str, Any]) -> list[str]:
    """What to print of it."""
    lines = []
    if record["found"] < 1:
        lines.append(f"the judge found something to read in {record['found']:.1%} of the edited images")
    each = zip(record["edited"], record["asked"], record["got"], strict=True)
    told = [(name, asked, got) for name, asked, got in each if asked and got is not None]
    if told:
        share = np.mean([got / asked for _, asked, got in told])
        weak = [f"{name} {got / asked:.0%}" for name, asked, got in told if got < LEAST * asked]
        few = f"; less than half: {', '.join(weak)}" if weak else "; no reading got less than half"
        lines.append(f"asked and got: {share:.0%} of what was asked on average{few}")
    if fixed := record["fixed"]:
        lines.append(
            f"{', '.join(fixed['readings'])} should stay: moved by {fixed['absolute']:.3f} sd in an edit of "
            f"something else ({fixed['mean']:.3f} on average over images), most by that of {fixed['by']}: "
            f"{fixed['most']:.3f}"
        )
    return lines


def _means(values: np.ndarray) -> np.ndarray:
    """(E, A) over the images (E, N, A) in which something was found; NaN where nothing was."""
    known = np.isfinite(values)
    total, count = np.where(known, values, 0).sum(1), known.sum(1)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _without_nan(values: np.ndarray) -> Any:
    """Nested lists with None for NaN."""
    plain = values.astype(object)
    plain[~np.isfinite(values)] = None
    return plain.tolist()
