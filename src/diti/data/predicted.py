"""`diti label`: what an ONNX image classifier says about a dataset, as columns of its table marked as predicted.

For each output NAME the table gets `NAME_score` (float) and `NAME` (0/1: score ≥ threshold). `dataset.json` names
the model of each such column under "predicted"; everything that shows attributes calls `predicted_columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image
from rich.markup import escape

from diti.core.errors import InputError, nearest
from diti.core.locks import locked
from diti.core.progress import progress_bar
from diti.core.runs import atomic_path, sha256_file, write_json
from diti.data.attributes import RESERVED, attribute_kinds
from diti.data.contents import TABLE, entries_of, read_contents
from diti.data.joined import part_folders
from diti.data.prepared import INFO, Dataset, is_dataset, open_dataset

NORMALISATIONS = {  # RGB pixels p in 0..255 enter as (p - shift) / scale
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
    "unit": ((0, 0, 0), (255, 255, 255)),  # 0 .. 1
    "signed": ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5)),  # -1 .. 1
    "none": ((0, 0, 0), (1, 1, 1)),  # 0 .. 255
}
ACTIVATIONS = ("auto", "none", "sigmoid", "softmax")
LAYOUTS = ("auto", "nchw", "nhwc")
INPUT_TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
}
SCORE = "_score"  # ending of the column of scores
UNFINISHED = "unknown: diti label was stopped while writing; run it again"
MOST_NAMES = 12  # more are counted, not listed


def predicted_columns(dataset: Dataset) -> dict[str, dict[str, Any]]:
    """The columns that a model wrote, each with {"model": file name, "sha256": of that file, "threshold": ...}."""
    marks: dict[str, dict[str, Any]] = dataset.info.get("predicted", {})
    return {column: mark for column, mark in marks.items() if column in dataset.table.column_names}


def label_dataset(
    folder: Path,
    model: Path,
    names_file: Path,
    *,
    threshold: float = 0.5,
    batch: int = 64,
    layout: str = "auto",
    normalisation: str = "imagenet",
    activation: str = "auto",
    output: str | None = None,
) -> str:
    """Run the classifier `model` over all images of a dataset folder and add its columns; says what was written.

    `names_file` holds a name per line, in the order of the model's outputs; `output` picks one of several heads.
    Images are resized where the model has a fixed size. Float inputs get pixels by `normalisation`: imagenet (mean
    and std of ImageNet), unit (0..1), signed (-1..1), none (0..255); uint8 inputs get the pixels as they are.
    `activation` turns the outputs into scores: none, sigmoid, softmax, or auto, which is none where all outputs of
    the set lie in [0, 1] and sigmoid where they do not.
    """
    _check_choice("--normalisation", normalisation, NORMALISATIONS)
    _check_choice("--activation", activation, ACTIVATIONS)
    _check_choice("--layout", layout, LAYOUTS)
    if batch < 1:
        raise InputError(f"--batch {batch} is too small; use 1 or more images")
    if not (0 <= threshold <= 1 or (activation == "none" and np.isfinite(threshold))):
        raise InputError(f"--threshold {threshold} is out of range; scores are probabilities: use 0 to 1")
    if part_folders(folder):
        raise InputError(
            f"{folder} holds prepared parts; label each of them: diti label {part_folders(folder)[0]}"
        )
    if not is_dataset(folder):
        raise InputError(
            f"{folder} is not a dataset folder, and labels need a table; "
            f"run diti prepare {folder} --out DIR first, then diti label DIR"
        )
    names = read_names(names_file)
    with locked(folder):
        dataset = open_dataset(folder)
        _check_columns(dataset, names, names_file)
        classifier = open_classifier(model, layout, output)
        raw = _run(classifier, dataset, names, names_file, batch, normalisation)
        scores, applied = activate(raw, activation)
        bad = np.flatnonzero(~np.isfinite(scores).all(axis=1))
        if len(bad):
            raise InputError(
                f"{model} gives no finite score for {len(bad):,} images, the first is "
                f"{dataset.table['file'][int(bad[0])]}; try another --normalisation or another model"
            )
        mark = {"model": model.name, "sha256": sha256_file(model), "threshold": threshold}
        _write(dataset, with_predictions(dataset.table, names, scores, threshold), _columns(names), mark)
    return _summary(folder, model, names, scores, threshold, applied)


def _check_choice(option: str, word: str, allowed: Sequence[str] | dict[str, Any]) -> None:
    if word not in allowed:
        raise InputError(f"{option} {word} is unknown; use {', '.join(allowed)}.{nearest(word, allowed)}")


def read_names(path: Path) -> list[str]:
    """One name per line, in order; InputError for a file without names, a repeated name, or an empty line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except OSError as error:
        raise InputError(
            f"--names {path} cannot be read ({error.strerror}); name a file with a name per line"
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"--names {path} is not UTF-8 text; name a file with a name per line") from None
    names = [line.strip() for line in lines]
    if not names:
        raise InputError(f"--names {path} is empty; write a name per line, in the order of the model's outputs")
    for row, name in enumerate(names):
        if not name:
            raise InputError(f"--names {path}: line {row + 1} is empty; every output needs a name")
        if name in names[:row]:
            raise InputError(f"--names {path}: line {row + 1} repeats {name!r}; every output needs its own name")
    return names


def _columns(names: Sequence[str]) -> list[str]:
    return [column for name in names for column in (name, name + SCORE)]


def _check_columns(dataset: Dataset, names: Sequence[str], names_file: Path) -> None:
    """A true attribute is never overwritten; an earlier prediction is."""
    columns = _columns(names)
    kept = {*RESERVED, *dataset.table.column_names} - predicted_columns(dataset).keys()
    for place, column in enumerate(columns):
        if column in kept:
            raise InputError(
                f"{dataset.path} has a column {column!r} of its own, which a prediction may not replace; "
                f"change the name in {names_file}"
            )
        if column in columns[:place]:
            raise InputError(f"--names {names_file}: two outputs would both write {column!r}; change one name")


@dataclass(frozen=True)
class Classifier:
    """An ONNX model that takes images, and how it wants them."""

    session: Any  # onnxruntime.InferenceSession
    file: Path
    output: str
    channels_first: bool
    dtype: type[np.generic]
    batch: int | None  # None: any number of images
    height: int | None  # px; None: any
    width: int | None

    def __call__(self, pixels: np.ndarray, normalisation: str) -> np.ndarray:
        """uint8 (B, H, W, 3) → the model's outputs, float32 (B, K)."""
        count = len(pixels)
        if self.batch is not None and count < self.batch:  # the last ones: repeat an image to fill the batch
            pixels = np.concatenate([pixels, pixels[-1:].repeat(self.batch - count, axis=0)])
        fed = self._input(resized(pixels, self.height, self.width), normalisation)
        try:
            found = self.session.run([self.output], {self.session.get_inputs()[0].name: fed})[0]
        except _onnx_errors() as error:
            raise InputError(f"{self.file} fails on images of shape {fed.shape}: {_reason(error)}") from None
        if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiub" or found.shape[:1] != fed.shape[:1]:
            shape = getattr(found, "shape", type(found).__name__)
            raise InputError(
                f"{self.file}: output {self.output!r} is {shape} for {len(fed)} images; it must be a row of "
                "numbers per image: name another with --output"
            )
        return found.reshape(len(found), -1)[:count].astype(np.float32)

    def _input(self, pixels: np.ndarray, normalisation: str) -> np.ndarray:
        if self.dtype is not np.uint8:
            shift, scale = np.array(NORMALISATIONS[normalisation], np.float32)
            pixels = ((pixels - shift) / scale).astype(self.dtype)
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2) if self.channels_first else pixels)


def resized(pixels: np.ndarray, height: int | None, width: int | None) -> np.ndarray:
    """uint8 (B, H, W, 3) at another size, antialiased; None keeps a side as it is."""
    size = (width or pixels.shape[2], height or pixels.shape[1])
    if size == (pixels.shape[2], pixels.shape[1]):
        return pixels
    return np.stack([np.asarray(Image.fromarray(p).resize(size, Image.Resampling.BICUBIC)) for p in pixels])


def open_classifier(file: Path, layout: str = "auto", output: str | None = None) -> Classifier:
    """Open an ONNX file and read what it takes; InputError for anything but one RGB image input."""
    try:
        import onnxruntime
    except ImportError:
        raise InputError('diti label needs onnxruntime: pip install "diti-torch[onnx]"') from None
    if not file.is_file():
        raise InputError(f"--model {file} is not a file; name an ONNX file")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors arrive as exceptions
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # slow where cores are shared
    try:
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    except _onnx_errors() as error:
        raise InputError(f"--model {file} cannot be opened as ONNX: {_reason(error)}") from None
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type not in INPUT_TYPES or len(inputs[0].shape) != 4:
        taken = ", ".join(f"{i.name} {i.type} {i.shape}" for i in inputs) or "nothing"
        raise InputError(f"--model {file} takes {taken}; it must take one batch of RGB images, float or uint8")
    shape = [side if isinstance(side, int) and side > 0 else None for side in inputs[0].shape]
    first = _channels_first(shape, layout, f"--model {file} takes {inputs[0].shape}")
    height, width = shape[2:] if first else shape[1:3]
    dtype = INPUT_TYPES[inputs[0].type]
    return Classifier(session, file, _output(session, file, output), first, dtype, shape[0], height, width)


def _channels_first(shape: list[int | None], layout: str, given: str) -> bool:
    """Whether the input is (N, 3, H, W) rather than (N, H, W, 3)."""
    if layout == "auto" and 3 in (shape[1], shape[3]):
        return shape[1] == 3
    if layout == "auto" and None in (shape[1], shape[3]):
        raise InputError(
            f"{given}, which does not show where the channels are; add --layout nchw or --layout nhwc"
        )
    if layout == "auto" or shape[1 if layout == "nchw" else 3] not in (3, None):
        raise InputError(f"{given}; it must take RGB images, (N, 3, H, W) or (N, H, W, 3)")
    return layout == "nchw"


def _output(session: Any, file: Path, wanted: str | None) -> str:
    """The output to read: the only one, or the one that was asked for."""
    known = [out.name for out in session.get_outputs()]
    if wanted is None and len(known) == 1:
        return str(known[0])
    if wanted is None:
        raise InputError(f"--model {file} has {len(known)} outputs; name one with --output: {', '.join(known)}")
    if wanted not in known:
        raise InputError(f"--output {wanted} is not in {file}; use {', '.join(known)}.{nearest(wanted, known)}")
    return wanted


def _onnx_errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises for a broken file or a wrong input; its classes have no common base class."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    broken = (state.InvalidGraph, state.InvalidProtobuf, state.NoSuchFile, state.NotImplemented)
    return (*broken, state.Fail, state.InvalidArgument, state.RuntimeException, RuntimeError, ValueError)


def _reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _run(
    classifier: Classifier, dataset: Dataset, names: list[str], names_file: Path, batch: int, normalisation: str
) -> np.ndarray:
    """The model's outputs for all images, in order: float32 (N, K)."""
    step = classifier.batch or batch
    found = []
    with progress_bar(f"labelling {escape(dataset.title)}", len(dataset)) as advance:
        for start in range(0, len(dataset), step):
            outputs = classifier(dataset.images[start : start + step], normalisation)
            if outputs.shape[1] != len(names):
                raise InputError(
                    f"{classifier.file} gives {outputs.shape[1]} outputs per image and {names_file} holds "
                    f"{len(names)} names; write a name per output"
                )
            found.append(outputs)
            advance(len(outputs))
    return np.concatenate(found)


def activate(outputs: np.ndarray, activation: str) -> tuple[np.ndarray, str]:
    """Scores (N, K) of outputs (N, K), and the activation that was applied."""
    if activation == "auto":
        inside = bool(((outputs >= 0) & (outputs <= 1)).all())
        activation = "none" if inside else "sigmoid"
    if activation == "sigmoid":
        outputs = 0.5 * (1 + np.tanh(outputs / 2))  # 1 / (1 + exp(-x)) without overflow
    elif activation == "softmax":
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        outputs = powers / powers.sum(axis=1, keepdims=True)
    return outputs, activation


def with_predictions(table: pa.Table, names: Sequence[str], scores: np.ndarray, threshold: float) -> pa.Table:
    """The table with the columns of each name; an existing column keeps its place."""
    for name, score in zip(names, scores.T, strict=True):
        values = {name: pa.array((score >= threshold).astype(np.int8)), name + SCORE: pa.array(score)}
        for column, array in values.items():
            if column in table.column_names:
                table = table.set_column(table.column_names.index(column), column, array)
            else:
                table = table.append_column(column, array)
    return table


def _write(dataset: Dataset, table: pa.Table, columns: list[str], mark: dict[str, Any]) -> None:
    """Replace table and description so that a kill at any moment leaves a folder that opens and is correct.

    Two files cannot be replaced at once. So the description first says that these columns are predicted, by a
    model not yet known; then the table changes; then the description is completed. A folder left in between is as
    usable as before, and the same command completes it.
    """
    before = predicted_columns(dataset)
    pending = {column: {**mark, "model": UNFINISHED, "sha256": ""} for column in columns}
    with atomic_path(dataset.path / TABLE) as temporary:
        pyarrow.parquet.write_table(table, temporary)
        write_json(dataset.path / INFO, {**dataset.info, "predicted": {**before, **pending}})
    complete = {
        **dataset.info,
        **attribute_kinds(table),
        "predicted": {**before, **dict.fromkeys(columns, mark)},
        **entries_of(read_contents(dataset.path)),
    }
    write_json(dataset.path / INFO, complete)


def _summary(
    folder: Path, model: Path, names: Sequence[str], scores: np.ndarray, threshold: float, applied: str
) -> str:
    made = "outputs taken as scores" if applied == "none" else f"{applied} of the outputs"
    lines = [f"{folder}: {len(scores):,} images labelled by {model.name} ({made}, threshold {threshold:g})"]
    positive = (scores >= threshold).mean(axis=0)
    for name, share, mean in list(zip(names, positive, scores.mean(axis=0), strict=True))[:MOST_NAMES]:
        lines.append(f"  {name}: {share:.1%} positive, mean score {mean:.3g}")
    if len(names) > MOST_NAMES:
        lines.append(f"  and {len(names) - MOST_NAMES} more")
    lines.append(f"columns NAME (0/1) and NAME{SCORE} are marked as predicted in {folder / INFO}")
    return "\n".join(lines)
