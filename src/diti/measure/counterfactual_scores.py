"""Counterfactual images, measured: does an edit show what was wanted, what else moves, is the image still likely?

An `AttributeClassifier` says what an image shows. Everything is compared with the model's reconstruction,
not with the original, so that an error of reconstruction does not count as an edit. One model gives one JSON
record; comparing models is putting records side by side.

Notation: N images or pairs, A attributes, G groups of dims, D dims of z.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.core.images import MODEL_RANGE
from diti.core.progress import progress_bar
from diti.core.rng import torch_generator
from diti.diffusion.generate import SAMPLING_STEPS
from diti.diffusion.sampler import OnStep
from diti.edit.compose import push, strength_at
from diti.edit.directions import Direction, code_space_hash
from diti.edit.interpolate import cut_of, moved_dims
from diti.edit.invert import Inverted
from diti.edit.manipulate import SCALE
from diti.edit.places import touch_of, touched
from diti.measure.attribute_classifier import AttributeClassifier
from diti.measure.judge import Embed
from diti.measure.moves import Moves, likeness, strangers
from diti.measure.reference import Reference
from diti.probes.disentangle import concentration
from diti.probes.scores import RESAMPLES, bootstrap_counts, mean_over_attributes, percentile_interval
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.inputs import Images, as_batch
from diti.representation.partition import THIRDS, Partition

NOISES = ("keep", "slerp")  # x_T stays that of A; goes all the way to that of B
DIFFERENT = 1.0  # spreads by which A and B must differ in an attribute for its transfer to be measured
SHARE_BOUNDS = (-0.5, 1.5)  # transfer shares are clipped to these
SCORES = ("flips", "change", "leakage", "pixels", "distance")  # of an edit, see `manipulation_scores`
MOVES = 0.1  # an attribute whose shares sum to less is moved by no group: its concentration is not defined

Record = dict[str, Any]


# ---- Scores of arrays --------------------------------------------------------------------------------------


def flips(before: np.ndarray, after: np.ndarray, upward: np.ndarray) -> np.ndarray:
    """(N,) 1 where the read probability ends on the wanted side of 0.5, 0 where not; all arrays (N,).

    NaN where `before`, the reconstruction, is on the wanted side already: there is nothing to flip.
    """
    arrived = ((after > 0.5) == upward).astype(np.float64)
    return np.where((before > 0.5) == upward, np.nan, arrived)


def wanted_change(before: np.ndarray, after: np.ndarray, upward: np.ndarray, spread: float) -> np.ndarray:
    """(N,) change in the wanted direction, in spreads of the data."""
    return np.where(upward, 1, -1) * (after - before) / spread


def leakage(before: np.ndarray, after: np.ndarray, spread: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(N,) mean absolute change, in spreads (A,), of the attributes `others`, bool (A,); reads (N, A)."""
    if not others.any():
        return np.full(len(before), np.nan)
    return (np.abs(after - before) / spread)[:, others].mean(1)


def signed_moves(before: np.ndarray, after: np.ndarray, upward: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """(N, A) changes of all reads (N, A), in spreads (A,), as if every image had been pushed upward."""
    return np.where(upward, 1, -1)[:, None] * (after - before) / spread


def rms_change(before: Tensor, after: Tensor) -> np.ndarray:
    """(N,) root mean square difference of images (N, 3, H, W) in [-1, 1]."""
    return (after - before).double().square().mean((1, 2, 3)).sqrt().numpy()


def transfer_shares(
    edited: np.ndarray, read_a: np.ndarray, read_b: np.ndarray, spread: np.ndarray, least: float = DIFFERENT
) -> np.ndarray:
    """(read(edited) - read(A)) / (read(B) - read(A)), clipped: 0 stayed A, 1 became B. Edited (..., N, A).

    NaN for the pairs whose ends (N, A) differ by less than `least` spreads (A,) in the attribute.
    """
    way = read_b - read_a  # (N, A)
    differ = np.abs(way) >= least * spread
    return np.where(differ, np.clip((edited - read_a) / np.where(differ, way, 1), *SHARE_BOUNDS), np.nan)


def concentration_over_groups(shares: np.ndarray) -> np.ndarray:
    """`concentration` of the shares (..., G) above 0: 1 = one group moves it, 0 = all alike.

    NaN where the shares above 0 sum to less than MOVES.
    """
    positive = np.where(np.isfinite(shares), shares, 0).clip(min=0)
    return np.where(positive.sum(-1) >= MOVES, concentration(positive), np.nan)


def means(values: np.ndarray) -> np.ndarray:
    """Mean along the last axis over what is not NaN; NaN where nothing is."""
    return resampled_means(values, np.ones((values.shape[-1], 1)))[0]


def resampled_means(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(B, ...) the same when value n (..., N) counts counts[n, b] times (N, B)."""
    defined = np.isfinite(values)
    number = np.moveaxis(defined @ counts, -1, 0).astype(np.float64)
    total = np.moveaxis(np.where(defined, values, 0) @ counts, -1, 0)
    return np.divide(total, number, out=np.full(number.shape, np.nan), where=number > 0)


def resamples(count: int, seed: int) -> np.ndarray:
    """float64 (N, B) how often each image is drawn in each bootstrap resample."""
    return np.concatenate(list(bootstrap_counts(count, RESAMPLES, seed)), axis=1).astype(np.float64)


def interval(value: np.ndarray, draws: np.ndarray) -> Record | None:
    """One value with its 95 % interval over resamples (B,); None where it is not defined."""
    if not np.isfinite(value).all():
        return None
    low, high = percentile_interval(draws)
    return {"value": value.item(), "low": float(low), "high": float(high)}


def intervals(values: np.ndarray, draws: np.ndarray) -> list[Record | None]:
    """`interval` of each of (A,) with resamples (B, A)."""
    return [interval(value, column) for value, column in zip(values, draws.T, strict=True)]


def rows_and_mean(values: np.ndarray, counts: np.ndarray) -> tuple[list[Record | None], Record | None]:
    """Mean over images of each row (A, N), and the mean of the rows, with intervals."""
    point, draws = means(values), resampled_means(values, counts)  # (A,), (B, A)
    return intervals(point, draws), interval(mean_over_attributes(point[None]), mean_over_attributes(draws))


# ---- Algorithm 3 -------------------------------------------------------------------------------------------


def manipulation_scores(
    model: DecodingModel,
    classifier: AttributeClassifier,
    directions: Sequence[Direction],
    images: Images,
    reference: Reference,
    *,
    scale: float = SCALE,
    paper_scale: float | None = None,
    fixed: Sequence[str] = (),
    identity: Embed | None = None,
    masked: bool = True,
    sampling_steps: int = SAMPLING_STEPS,
    seed: int = 0,
    progress: bool = False,
) -> Record:
    """Every image is pushed along every direction, away from what the classifier sees in the original.

    scale: strength, in usual differences, see `edit/strength.py`; paper_scale: the paper's s instead.

    That is towards the other answer of a binary attribute, and towards the other side of the data's centre of a
    continuous one. Per attribute, with intervals by a bootstrap over images (`seed`):
    flips: share of images read as wanted, of those whose reconstruction is not yet (binary only);
    change: towards what is wanted, in standard deviations of what the classifier sees in the data;
    leakage: mean absolute change of the other readable attributes, in their standard deviations;
    pixels: RMS change in [-1, 1]; distance: to the data, see `distance_is`;
    leak_per_change: leakage per unit of change, see there why.
    identity: cosine of who the face is before and after, where something says who (`identity`);
    And moves, see `moves.py`: which edit moves which reading, and how far those that should stay (`fixed`).
    """
    check_directions(model, classifier, directions)
    scored = [d for d in directions if classifier.readable[classifier.index(d.attribute)]]
    originals = as_batch(images, model.size, MODEL_RANGE)
    found: list[dict[str, np.ndarray]] = []
    moves = Moves(classifier, tuple(fixed))
    steps = editing_steps(model, len(originals), len(scored), sampling_steps)
    with progress_bar("measuring edits", steps, unit="steps", shown=progress) as advance:
        on_step: OnStep = lambda index, total, x: advance()  # noqa: E731
        unedited = Unedited.of(model, classifier, originals, sampling_steps, masked=masked, on_step=on_step)
        strengths = strengths_of(scored, scale, paper_scale)
        who = None if identity is None else identity(unedited.rebuilt)
        edits = zip(scored, strengths, unedited.edits(scored, strengths, on_step), strict=True)
        for direction, strength, (upward, edited) in edits:
            after = classifier(edited)
            moves.add(
                direction.attribute, strength, signed_moves(unedited.before, after, upward, classifier.spread)
            )
            found.append(
                edit_scores(classifier, direction.attribute, unedited.before, after, upward)
                | {"pixels": rms_change(unedited.rebuilt, edited), "distance": reference.distances(edited)}
                | ({} if who is None or identity is None else {"identity": likeness(who, identity(edited))})
            )
    seen, rebuilt = unedited.seen, unedited.rebuilt
    counts = resamples(len(seen), seed)
    own_error = {"pixels": rms_change(originals, rebuilt), "distance": reference.distances(rebuilt)}
    return {
        "kind": "manipulation",
        "method": model.method,
        "images": len(seen),
        "settings": {
            "scale": scale if paper_scale is None else None,
            "paper_scale": paper_scale,
            "masked": masked,
            "sampling_steps": sampling_steps,
            "seed": seed,
        },
        "distance_is": reference.about,
        "unreadable": [d.attribute for d in directions if d not in scored],
        "leakage_over": [trait.name for trait in classifier.traits if trait.readable],
        "moves": moves.record(),
        "strangers": None if who is None else strangers(who),
        "reconstruction": {name: rows_and_mean(values[None], counts)[1] for name, values in own_error.items()},
        **summary([d.attribute for d in scored], found, counts),
    }


@dataclass(frozen=True, eq=False)
class Unedited:
    """Images before any edit: inverted, rebuilt and read, once for all edits of them."""

    classifier: AttributeClassifier
    start: Inverted
    seen: np.ndarray  # (N, A) read in the images
    rebuilt: Tensor  # (N, 3, H, W) from the unchanged codes
    before: np.ndarray  # (N, A) read in these

    @classmethod
    def of(
        cls,
        model: DecodingModel,
        classifier: AttributeClassifier,
        originals: Tensor,
        sampling_steps: int,
        *,
        masked: bool = True,
        on_step: OnStep | None = None,
    ) -> Unedited:
        """Of images (N, 3, H, W)."""
        start = Inverted.of(model, originals, sampling_steps, masked=masked, on_step=on_step)
        rebuilt = start.shown(start.z, start.x_T, on_step)
        return cls(classifier, start, classifier(originals), rebuilt, classifier(rebuilt))

    def edits(
        self, directions: Sequence[Direction], strengths: Sequence[float], on_step: OnStep | None = None
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Per direction: bool (N,) where the attribute is to rise, and the images (N, 3, H, W) pushed that way.

        Few images are pushed along several directions in one batch.
        """
        start, together = self.start, directions_at_once(self.start.model, len(self.seen))
        for first in range(0, len(directions), together):
            part = directions[first : first + together]
            rises = [opposite(self.classifier, direction.attribute, self.seen) for direction in part]
            codes = [
                torch.where(torch.from_numpy(up)[:, None], push(start.z, d, s), push(start.z, d, -s))
                for d, s, up in zip(part, strengths[first:], rises, strict=False)
            ]
            edited = start.shown(torch.cat(codes), torch.cat([start.x_T] * len(part)), on_step)
            each = zip(part, strengths[first:], rises, edited.split(len(self.seen)), strict=False)
            for direction, strength, up, drawn in each:
                signs = torch.from_numpy(np.where(up, 1.0, -1.0)).float()[:, None, None, None]
                yield up, touched(drawn, self.rebuilt, touch_of({direction: strength}), signs)


def strengths_of(directions: Sequence[Direction], scale: float, paper_scale: float | None = None) -> list[float]:
    """How far each is followed: alike in usual differences, or by the paper's s."""
    return [scale if paper_scale is None else strength_at(direction, paper_scale) for direction in directions]


def directions_at_once(model: DecodingModel, images: int) -> int:
    """How many directions that many images are pushed along in one batch of the decoder."""
    return max(1, model.at_once // images)


def editing_steps(model: DecodingModel, images: int, directions: int, sampling_steps: int) -> int:
    """How often `on_step` is called by `Unedited.of` and then by its `edits`."""
    together = directions_at_once(model, images)
    batches = [min(together, directions - first) for first in range(0, directions, together)]
    return sum(model.steps_of(count, sampling_steps) for count in (images, images, *(images * b for b in batches)))


def check_directions(
    model: DecodingModel, classifier: AttributeClassifier, directions: Sequence[Direction]
) -> None:
    """InputError for a direction of another model, or of an attribute that the classifier was not trained on."""
    digest = code_space_hash(model)
    for direction in directions:
        classifier.index(direction.attribute)
        if direction.encoder != digest:
            raise InputError(
                f"the direction of {direction.attribute!r} was learned from an encoder other than this model's; "
                "learn it again for this model"
            )


def opposite(classifier: AttributeClassifier, attribute: str, seen: np.ndarray) -> np.ndarray:
    """bool (N,) True where the attribute, read (N, A), is to rise: it is below 0.5, or below the data's centre."""
    trait = classifier.traits[classifier.index(attribute)]
    return np.asarray(seen[:, classifier.index(attribute)] <= (0.5 if trait.binary else trait.centre))


def edit_scores(
    classifier: AttributeClassifier, attribute: str, before: np.ndarray, after: np.ndarray, upward: np.ndarray
) -> dict[str, np.ndarray]:
    """What the classifier says of an edit, each (N,): reads (N, A) before and after, and the wanted side (N,)."""
    own = classifier.index(attribute)
    others = classifier.readable & (np.arange(len(classifier.traits)) != own)
    nothing = np.full(len(before), np.nan)
    return {
        "upward": upward,
        "flips": flips(before[:, own], after[:, own], upward) if classifier.traits[own].binary else nothing,
        "change": wanted_change(before[:, own], after[:, own], upward, classifier.spread[own]),
        "leakage": leakage(before, after, classifier.spread, others),
    }


def summary(names: Sequence[str], found: Sequence[dict[str, np.ndarray]], counts: np.ndarray) -> Record:
    """Per attribute, and over all of them, the mean of each score with its interval."""
    attributes: Record = {}
    for name, scores in zip(names, found, strict=True):
        raised, flippable = int(scores["upward"].sum()), int(np.isfinite(scores["flips"]).sum())
        attributes[name] = {"raised": raised, "lowered": len(scores["upward"]) - raised, "flippable": flippable}
    overall: Record = {}
    scored = [score for score in (*SCORES, "identity") if found and score in found[0]]
    stacked = {score: np.stack([scores[score] for scores in found]) for score in scored}  # (A, N) each
    for score, values in stacked.items():
        rows, overall[score] = rows_and_mean(values, counts)
        for name, row in zip(names, rows, strict=True):
            attributes[name][score] = row
    if found:
        leaked, changed = stacked["leakage"], stacked["change"]
        overall["leak_per_change"] = leak_per_change(leaked, changed, counts)
        for i, name in enumerate(names):
            attributes[name]["leak_per_change"] = leak_per_change(leaked[[i]], changed[[i]], counts)
    return {"attributes": attributes, "mean": overall}


def leak_per_change(leaked: np.ndarray, changed: np.ndarray, counts: np.ndarray) -> Record | None:
    """Mean leakage / mean wanted change of attributes (A, N), with its interval; None where nothing was gained.

    At an equal scale the leakage alone favours a model whose edits move little: one that moves nothing has none.
    A resample without a gain counts as infinitely leaky; an upper end that reaches those is None.
    """
    leak, gain = (mean_over_attributes(means(values)[None]).item() for values in (leaked, changed))
    if not (gain > 0 and np.isfinite(leak)):
        return None
    leaks, gains = (mean_over_attributes(resampled_means(values, counts)) for values in (leaked, changed))
    draws = np.where(gains > 0, leaks / np.where(gains > 0, gains, 1), np.inf)
    low, high = np.quantile(draws, (0.025, 0.975), method="nearest")
    return {"value": leak / gain, "low": float(low), "high": float(high) if np.isfinite(high) else None}


# ---- Algorithm 2 -------------------------------------------------------------------------------------------


def interpolation_scores(
    model: DecodingModel,
    classifier: AttributeClassifier,
    a: Images,
    b: Images,
    subsets: Sequence[str] = THIRDS,
    *,
    x_t: Sequence[str] = NOISES,
    masked: bool = True,
    partition: Partition | None = None,
    random_groupings: int = 3,
    sampling_steps: int = SAMPLING_STEPS,
    seed: int = 0,
    progress: bool = False,
) -> Record:
    """Which group of dims carries which attribute: each is swapped whole from B into A, the other dims stay A's.

    A model of one subset borrows a balanced split. Per kind of x_t, with intervals by a bootstrap over pairs:
    transfer (G, A): share of the way from A to B that the attribute goes, as read;
    noise_alone (A,): the same by x_T alone, with no dim swapped (0 where x_T is kept);
    concentration (A,): 1 where one group alone adds to noise_alone, 0 where all add alike, see
    `concentration_over_groups`;
    concentration_random: the mean over groupings of as many dims drawn at random (`seed`), decoded with the same
    masks; above_random: the difference of the two.
    """
    firsts, seconds = (as_batch(images, model.size, MODEL_RANGE) for images in (a, b))
    check_pairs(firsts, seconds, subsets, x_t, random_groupings)
    cut, notes = cut_of(model, partition)
    own = torch.stack([moved_dims(cut, subset) for subset in subsets])  # (G, D)
    swaps = torch.cat([own, *(shuffled_dims(own, seed, i) for i in range(random_groupings))])  # (G + R G, D)
    swaps = torch.cat([torch.zeros_like(own[:1]), swaps])  # first, no dim moves
    pairs, readable = len(firsts), classifier.readable
    both, one = (model.steps_of(count, sampling_steps) for count in (2 * pairs, pairs))
    steps = 2 * both + len(x_t) * len(swaps) * one
    with progress_bar("measuring swaps", steps, unit="steps", shown=progress) as advance:
        on_step: OnStep = lambda index, total, x: advance()  # noqa: E731
        ends = Inverted.of(model, torch.cat([firsts, seconds]), sampling_steps, masked=masked, on_step=on_step)
        read_a, read_b = np.split(classifier(ends.shown(ends.z, ends.x_T, on_step))[:, readable], 2)
        reads = {kind: read_swaps(ends, classifier, swaps, kind, on_step)[:, :, readable] for kind in x_t}
    spread, counts = classifier.spread[readable], resamples(pairs, seed)
    shares = {kind: transfer_shares(read, read_a, read_b, spread) for kind, read in reads.items()}
    settings = {"masked": masked, "sampling_steps": sampling_steps, "seed": seed}
    return {
        "kind": "interpolation",
        "method": model.method,
        "pairs": pairs,
        "settings": settings | {"random_groupings": random_groupings},
        "partition": cut.kind,
        "notes": notes,
        "groups": list(subsets),
        "group_dims": own.sum(1).tolist(),
        "attributes": [trait.name for trait in classifier.traits if trait.readable],
        "unreadable": [trait.name for trait in classifier.traits if not trait.readable],
        "differing_pairs": np.isfinite(shares[x_t[0]][0]).sum(0).tolist(),
        "x_t": {kind: transfer_record(share, len(subsets), counts) for kind, share in shares.items()},
    }


def read_swaps(
    ends: Inverted, classifier: AttributeClassifier, swaps: Tensor, x_t: str, on_step: OnStep
) -> np.ndarray:
    """(S, N, A) reads of A with the dims of each row of swaps (S, D) of B; `ends`: N images A, then N B."""
    (z_a, z_b), (noise_a, noise_b) = ends.z.chunk(2), ends.x_T.chunk(2)
    noise = noise_a if x_t == "keep" else noise_b  # the end of the slerp
    return np.stack([classifier(ends.shown(torch.where(moved, z_b, z_a), noise, on_step)) for moved in swaps])


def check_pairs(a: Tensor, b: Tensor, subsets: Sequence[str], x_t: Sequence[str], random_groupings: int) -> None:
    """InputError for what cannot be measured."""
    if len(a) != len(b):
        raise InputError(f"{len(a)} images A and {len(b)} images B were given; give pairs")
    if len(subsets) < 2:
        raise InputError(f"subsets are {list(subsets)}; give two or more to tell which one moves an attribute")
    if not x_t or not set(x_t) <= set(NOISES):
        raise InputError(f"x_t is {list(x_t)}; allowed: {', '.join(NOISES)}")
    if random_groupings < 1:
        raise InputError(f"random_groupings is {random_groupings}; give 1 or more, they say what chance gives")


def shuffled_dims(groups: Tensor, seed: int, index: int) -> Tensor:
    """(G, D) groups of as many dims, drawn at random."""
    order = torch.randperm(groups.shape[1], generator=torch_generator(seed, "random-grouping", index))
    return groups[:, order]


def transfer_record(shares: np.ndarray, groups: int, counts: np.ndarray) -> Record:
    """Transfer and concentration with intervals; shares (1 + G + R G, N, A): no swap, own groups, random ones."""
    by_pair = np.moveaxis(shares, 1, -1)  # (S, A, N)
    point, draws = means(by_pair)[None], resampled_means(by_pair, counts)  # (1, S, A), (B, S, A)
    found, drawn = (concentrations(transfer, groups) for transfer in (point, draws))
    record: Record = {
        "transfer": [intervals(point[0, g], draws[:, g]) for g in range(1, groups + 1)],
        "noise_alone": intervals(point[0, 0], draws[:, 0]),
    }
    for name, values in found.items():  # (1, A)
        record[name] = intervals(values[0], drawn[name])
        record[f"mean_{name}"] = interval(*(mean_over_attributes(v) for v in (values, drawn[name])))
    return record


def concentrations(transfer: np.ndarray, groups: int) -> dict[str, np.ndarray]:
    """(B, A) of the own groups, on average of the random ones, and the difference; transfer (B, 1 + G + R G, A).

    A group counts with what it adds to the transfer by x_T alone, which every group would share otherwise.
    """
    added = transfer[:, 1:] - transfer[:, :1]
    tables = added.reshape(len(transfer), -1, groups, transfer.shape[-1])  # (B, 1 + R, G, A)
    found = concentration_over_groups(np.moveaxis(tables, 2, -1))  # (B, 1 + R, A)
    own, chance = found[:, 0], means(np.moveaxis(found[:, 1:], 1, -1))
    return {"concentration": own, "concentration_random": chance, "above_random": own - chance}
