"""The probe with few labels: what a practitioner with 10, 100 or 1000 labelled images gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.probes.choose import fit_best_scaled
from diti.probes.fit import Standard, label_patterns
from diti.probes.scores import average_precision, pearson
from diti.probes.task import LeftOut, Splits, Task, checked_task, label_folds

L2_GRID = 10.0 ** np.arange(3, -4, -1)  # few labels need stronger penalties than many
MULTIPLES = tuple(2.0**k for k in range(-2, 13))  # of a fit: only the order of images is scored
BORROWED = 4.0  # weight of all attributes' mean loss beside an attribute's own: few labels of one say little
FOLDS = 5
POWERS = (0.5, 0.375, 0.0)  # of the metric: lengths of the features, a little less of that, all dims alike
TELLING = 32  # labels from which on cross-validation can tell powers apart; below, the first is taken
FEWEST = 4  # labels that can be drawn and split into folds


@dataclass(frozen=True)
class FewShotResult:
    """Test scores by number of labels: AP of binary attributes, r of continuous ones."""

    protocol: str
    counts: tuple[int, ...]  # (C,) labelled images
    names: tuple[str, ...]  # (A,)
    scores: tuple[str, ...]  # (A,) ap or r
    value: np.ndarray  # (C, A) mean over the repeats
    spread: np.ndarray  # (C, A) standard deviation over the repeats
    mean_ap: np.ndarray  # (C, 2) mean over the binary attributes and its spread over the repeats; NaN if none
    mean_r: np.ndarray  # (C, 2) the same for the continuous attributes
    left_out: tuple[LeftOut, ...]

    def record(self) -> dict[str, Any]:
        """JSON-able."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("value", "spread", "mean_ap", "mean_r"):
            found[name] = _without_nan(found[name])
        found["left_out"] = [dataclasses.asdict(item) for item in self.left_out]
        return found


def require_counts(
    features: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    binary: Sequence[bool] | np.ndarray,
    splits: Splits,
    counts: Sequence[int],
) -> Task:
    """The task with the attributes that can be scored; InputError for counts of labels that cannot be drawn."""
    task = checked_task(features, labels, names, binary, splits).usable(
        {"train": splits.train, "test": splits.test}
    )
    most = int(np.isfinite(task.labels[splits.train]).sum(0).min())
    if not counts or min(counts) < FEWEST or max(counts) > most:
        raise InputError(
            f"--few-shot {','.join(map(str, counts))} cannot be drawn: give numbers from {FEWEST} to {most:,}, "
            "the labelled training images of the rarest attribute"
        )
    return task


def few_shot(
    features: np.ndarray,
    labels: np.ndarray,
    names: Sequence[str],
    binary: Sequence[bool] | np.ndarray,
    splits: Splits,
    counts: Sequence[int] = (10, 100, 1000),
    seed: int = 0,
    repeats: int = 5,
    progress: bool = False,
    metric: np.ndarray | None = None,
    powers: Sequence[float] = POWERS,
) -> FewShotResult:
    """Fit to `counts` labelled training images, drawn again in each repeat, and score the test images.

    Penalty and scaling are chosen by cross-validation inside those few images. Codes are standardised with all
    training images, which needs no labels, and scaled by one of the `powers` of their metric (D, D), if given.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; draw the labels at least once")
    task = require_counts(features, labels, names, binary, splits, counts)
    standard = Standard.of(features, splits.train)
    train, held = standard.apply(features, splits.train), standard.apply(features, splits.test)
    roots = [] if metric is None else scalings(train, metric, powers)
    x, test = ([codes @ root for root in roots] or [codes] for codes in (train, held))
    y, truth = task.labels[splits.train], task.labels[splits.test]
    found = np.zeros((len(counts), repeats, len(task.names)))
    with progress_bar("few labels", found[..., 0].size, unit="draws", shown=progress) as advance:
        for c, count in enumerate(counts):
            for repeat in range(repeats):
                found[c, repeat] = _one_draw(task, x, y, test, truth, count, seed, repeat)
                advance()
    ap, r = (_mean_of_kind(found[:, :, task.binary == kind]) for kind in (True, False))
    both = _mean_and_spread(np.swapaxes(found, 1, 2))
    scaled = "" if metric is None else f" and one of the powers {tuple(powers)} of the metric"
    text = (
        f"fits to that many labelled training images, {repeats} draws; L2 per attribute from {L2_GRID[0]:g} to "
        f"{L2_GRID[-1]:g}{scaled} by {FOLDS}-fold cross-validated loss of the best multiple inside them, "
        f"{BORROWED:g} parts of all attributes' mean to one of its own; scored on test; spread is the standard "
        "deviation over the draws"
    )
    kinds = tuple("ap" if kind else "r" for kind in task.binary)
    return FewShotResult(text, tuple(counts), task.names, kinds, both[..., 0], both[..., 1], ap, r, task.left_out)


def scalings(x: Tensor, metric: np.ndarray, powers: Sequence[float]) -> list[Tensor]:
    """(D, D) each: powers of a metric, for standardised codes x (N, D), which then have mean variance 1.

    So a penalty means the same for each.
    """
    values, axes = np.linalg.eigh(np.asarray(metric, np.float64))
    roots = [torch.from_numpy(axes * values.clip(0) ** power @ axes.T).float() for power in powers]
    return [root / (x @ root).var(0).mean().sqrt() for root in roots]


def _one_draw(
    task: Task,
    x: Sequence[Tensor],
    y: np.ndarray,
    test: Sequence[Tensor],
    truth: np.ndarray,
    count: int,
    seed: int,
    repeat: int,
) -> np.ndarray:
    """Test score (A,) of each attribute after one draw of `count` labels; a constant prediction has r 0."""
    rng = numpy_generator(seed, f"few-shot {count}", repeat)
    found = np.zeros(len(task.names))
    for kind in task.kinds:
        of_kind = np.flatnonzero(task.binary == kind)
        for labelled, places in label_patterns(y[:, of_kind]):
            columns = of_kind[places]
            rows, few = draw_labels(y[:, columns], labelled, count, kind, rng)
            folds = label_folds(few, kind, FOLDS, rng)
            tried = x if count >= TELLING else x[:1]
            drawn = [scaled[rows] for scaled in tried]
            best, model = fit_best_scaled(drawn, few, kind, folds, L2_GRID, MULTIPLES, BORROWED)
            score = average_precision if kind else pearson
            found[columns] = np.nan_to_num(score(model.predict(test[best]), truth[:, columns]))
    return found


def draw_labels(
    y: np.ndarray, labelled: np.ndarray, count: int, binary: bool, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their labels (rows, A), exactly `count` labels per attribute, NaN elsewhere.

    All attributes share one draw from the `labelled` rows. A binary attribute of which the draw has only one
    class swaps one of these labels for an image of the other class.
    """
    drawn = rng.choice(labelled, count, replace=False)
    rows, few = list(drawn), [y[drawn]]
    for column in range(y.shape[1]) if binary else ():
        shown = np.unique(y[drawn, column])
        if len(shown) == 2:
            continue
        few[0][rng.integers(count), column] = np.nan
        other = rng.choice(labelled[y[labelled, column] != shown[0]])
        extra = np.full((1, y.shape[1]), np.nan)
        extra[0, column] = y[other, column]
        rows.append(other)
        few.append(extra)
    return np.array(rows), np.concatenate(few)


def _mean_of_kind(found: np.ndarray) -> np.ndarray:
    """(C, repeats, attributes of one kind) → (C, 2); NaN where there is no such attribute."""
    if found.shape[2] == 0:
        return np.full((len(found), 2), np.nan)
    return _mean_and_spread(found.mean(2))


def _mean_and_spread(found: np.ndarray) -> np.ndarray:
    """(..., repeats) → (..., 2): mean and standard deviation over the repeats (0 for one repeat)."""
    spread = found.std(-1, ddof=1) if found.shape[-1] > 1 else np.zeros(found.shape[:-1])
    return np.stack([found.mean(-1), spread], axis=-1)


def _without_nan(values: np.ndarray) -> Any:
    """Nested lists with None for NaN."""
    plain = values.astype(object)
    plain[~np.isfinite(values)] = None
    return plain.tolist()
