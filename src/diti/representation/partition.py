"""The code z cut in K subsets, each visible from a time-step on: the only source of masks (section 4.2).

Time-steps here count t = 0 .. T-1 (the paper counts 1 .. T). Subset i owns the dims ends[i-1] .. ends[i] - 1 and
is visible from the start of the i-th of K equal segments on, so that time-step t belongs to subset floor(t K / T).
This is the authors' map in exact arithmetic; theirs divides floats, which agrees at every K they use but errs by
one step at a segment's start for some others (T = 1000, K = 30). Only `matched` has starts of its own.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import torch
from torch import Tensor

from diti.core.device import on_host
from diti.core.errors import InputError, nearest
from diti.representation.partition_checks import (
    check_count,
    check_ends,
    check_names,
    check_sizes,
    check_stages,
    check_starts,
    loss_curve,
    whole_number,
    whole_numbers,
)
from diti.representation.partition_widths import (
    apportion,
    even_ends,
    hand_on,
    loss_per_segment,
    segment_bounds,
    segments_per_stage,
)

PARAMETERS: dict[str, tuple[str, ...]] = {  # kind → what it takes besides T, K and D
    "balanced": (),
    "staged": (),
    "staged-even": (),
    "custom": ("stages", "dims_per_stage", "ends"),
    "adaptive": ("loss_by_time",),
    "matched": ("starts",),
}
_MEASURED = {  # what was measured for a kind, which it cannot be made without
    "adaptive": "an adaptive partition needs loss_by_time, the loss measured per time-step; give it",
    "matched": "a matched partition needs starts, the time-step from which each subset is visible; give one each",
}
KINDS = tuple(PARAMETERS)

# The imbalanced partition of the paper's appendix, for 1000 time-steps and 512 dims.
STAGE_ENDS = (50, 100, 300, 500, 1000)
STAGE_DIMS = (10, 25, 327, 100, 50)

THIRDS = ("early", "middle", "late")  # figure 5
LEVELS = {"fine": "early", "coarse": "late"}  # words for people
_JSON_KEYS = ("kind", "timesteps", "subsets", "dims", "ends", "parameters")


@dataclass(frozen=True)
class Partition:
    """Which dims of z the decoder may read at which time-step.

    `ends` is the record that everything follows from, in `matched` together with the starts, which are among its
    `parameters`; `kind` and `parameters` otherwise say how it came about.
    """

    kind: str
    timesteps: int  # T
    dims: int  # D
    ends: tuple[int, ...]  # (K,) last dim of each subset, exclusive; equal neighbours make an empty subset
    parameters: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        check_sizes(self.timesteps, len(self.ends), self.dims)
        check_ends(self.ends, self.dims)
        if self.kind == "matched":
            check_starts(dict(self.parameters).get("starts", ()), self.timesteps, self.subsets)

    @classmethod
    def single(cls, timesteps: int, dims: int) -> Partition:
        """K = 1: nothing is ever masked, as in PDAE."""
        return cls.balanced(timesteps, 1, dims)

    @classmethod
    def balanced(cls, timesteps: int, subsets: int, dims: int) -> Partition:
        """Every subset gets D / K dims: subset i ends at floor((i + 1) D / K)."""
        timesteps, subsets, dims = check_sizes(timesteps, subsets, dims, fill="balanced")
        return cls("balanced", timesteps, dims, tuple(even_ends([(subsets, dims)])))

    @classmethod
    def staged(cls, timesteps: int, subsets: int, dims: int) -> Partition:
        """The authors' imbalanced partition to the dim, for their checkpoints; subsets may be empty (K = 128).

        A stage's segments get floor(dims / segments) each and its last one also the rest; the dims of a stage in
        which no segment starts fall to the first segment after it.
        """
        timesteps, subsets, dims = check_sizes(timesteps, subsets, dims)
        if (timesteps, dims) != (STAGE_ENDS[-1], sum(STAGE_DIMS)):
            raise InputError(
                f"staged is defined for {STAGE_ENDS[-1]} time-steps and {sum(STAGE_DIMS)} dims, got {timesteps} "
                f"and {dims}; use staged-even, which scales, or custom"
            )
        ends: list[int] = []
        before = 0
        counts = segments_per_stage(segment_bounds(timesteps, subsets)[:-1], STAGE_ENDS)
        for count, width in zip(counts, STAGE_DIMS, strict=True):
            ends += [before + width // count * (i + 1) for i in range(count - 1)]
            before += width
            ends += [before] if count else []
        ends[-1] = dims  # differs only at K = 1, whose one segment starts in the first stage
        return cls("staged", timesteps, dims, tuple(ends))

    @classmethod
    def staged_even(cls, timesteps: int, subsets: int, dims: int) -> Partition:
        """The paper's stages scaled to any T and D, dims spread evenly inside each, no subset empty.

        It differs from `staged` inside a stage (there the last segment takes the whole remainder), and where a
        stage has fewer dims than segments: it then gets one each, at the cost of the other stages in proportion.
        """
        timesteps, subsets, dims = check_sizes(timesteps, subsets, dims, fill="staged-even")
        starts = [start * STAGE_ENDS[-1] for start in segment_bounds(timesteps, subsets)[:-1]]
        stages = hand_on(segments_per_stage(starts, [end * timesteps for end in STAGE_ENDS]), STAGE_DIMS)
        counts = [count for count, _ in stages]
        widths = apportion(dims, [width for _, width in stages], counts)
        return cls("staged-even", timesteps, dims, tuple(even_ends(zip(counts, widths, strict=True))))

    @classmethod
    def custom(
        cls,
        timesteps: int,
        subsets: int,
        dims: int,
        stages: Sequence[int] | None = None,
        dims_per_stage: Sequence[int] | None = None,
        *,
        ends: Sequence[int] | None = None,
    ) -> Partition:
        """Own stages (their ends in time-steps) with their dims, spread evenly inside each; or own `ends`.

        The numbers are taken as given: a stage with fewer dims than segments has empty subsets. The dims of a
        stage in which no segment starts go to the next one, after the last to the one before.
        """
        timesteps, subsets, dims = check_sizes(timesteps, subsets, dims)
        if ends is not None and stages is None and dims_per_stage is None:
            own = whole_numbers("ends", ends)
            check_count("ends", own, subsets)
            return cls("custom", timesteps, dims, own)
        if ends is not None or stages is None or dims_per_stage is None:
            raise InputError("a custom partition needs stages and dims_per_stage, or ends alone")
        stage_ends, widths = whole_numbers("stages", stages), whole_numbers("dims_per_stage", dims_per_stage)
        check_stages(stage_ends, widths, timesteps, dims)
        counts = segments_per_stage(segment_bounds(timesteps, subsets)[:-1], stage_ends)
        parameters = (("stages", stage_ends), ("dims_per_stage", widths))
        return cls("custom", timesteps, dims, tuple(even_ends(hand_on(counts, widths))), parameters)

    @classmethod
    def adaptive(cls, timesteps: int, subsets: int, dims: int, loss_by_time: Any) -> Partition:
        """Widths in proportion to each segment's share of a measured curve, at least one dim per subset.

        The curve (the loss, or how much it fell) is a list, array or tensor of equal bins over the T time-steps.
        """
        timesteps, subsets, dims = check_sizes(timesteps, subsets, dims, fill="adaptive")
        curve = loss_curve("loss_by_time", loss_by_time)
        widths = apportion(dims, loss_per_segment(curve, timesteps, subsets), [1] * subsets)
        return cls("adaptive", timesteps, dims, tuple(itertools.accumulate(widths)), (("loss_by_time", curve),))

    @classmethod
    def matched(cls, timesteps: int, subsets: int, dims: int, starts: Sequence[int]) -> Partition:
        """Equal widths as in `balanced`, subset i visible from the measured time-step starts[i] on.

        Starts may be equal; before the first one nothing is visible.
        """
        timesteps, subsets, dims = check_sizes(timesteps, subsets, dims, fill="matched")
        parameters = (("starts", whole_numbers("starts", starts)),)
        return cls("matched", timesteps, dims, tuple(even_ends([(subsets, dims)])), parameters)

    @property
    def subsets(self) -> int:
        """K."""
        return len(self.ends)

    @overload
    def subset_of(self, t: int) -> int: ...
    @overload
    def subset_of(self, t: Tensor) -> Tensor: ...
    def subset_of(self, t: int | Tensor) -> int | Tensor:
        """The last subset visible at time-step t = 0 .. T-1: an int for an int, an int64 tensor for a tensor.

        It is -1, no subset, before the first start of a `matched` partition: nothing is visible yet.
        """
        if not isinstance(t, Tensor):
            return self._subset_at[whole_number("time-step", t, 0, self.timesteps)]
        if t.is_floating_point() or t.is_complex() or t.dtype == torch.bool:
            raise InputError(f"time-steps must be whole numbers, got a tensor of {t.dtype}; use int64")
        for extreme in (
            t.aminmax() if on_host(t) and t.numel() else ()
        ):  # elsewhere it would stall the queue of work
            whole_number("time-step", int(extreme), 0, self.timesteps)
        return self._tables(t.device)[0].take(t.long())  # a copy: indexing by one t would give a view of the table

    def dims_of(self, subset: int) -> range:
        """The dims that a subset owns; empty for an empty subset."""
        subset = whole_number("subset", subset, 0, self.subsets)
        return range(self.ends[subset - 1] if subset else 0, self.ends[subset])

    def time_range(self, subset: int) -> tuple[int, int]:
        """First time-step at which the subset is visible, and the next one at which another joins it, or T."""
        start = self._bounds[whole_number("subset", subset, 0, self.subsets)]
        return start, self._bounds[bisect.bisect_right(self._bounds, start)]

    def visible(self, t: int | Tensor, device: torch.device | None = None) -> Tensor:
        """True where a dim belongs to the subset of t or to an earlier one: (D,) for an int, (B, D) for (B,)."""
        return self._against(t, device, torch.le)

    def own(self, t: int | Tensor, device: torch.device | None = None) -> Tensor:
        """True where a dim belongs to the very subset of t, or to one with the same start."""
        return self._against(t, device, torch.eq)

    def preceding(self, t: int | Tensor, device: torch.device | None = None) -> Tensor:
        """True where a dim belongs to a subset that starts before that of t: visible without own."""
        return self._against(t, device, torch.lt)

    def mask(self, z: Tensor, t: int | Tensor, detach: bool = False) -> Tensor:
        """z̄_t = [z_1, .., z_t, 0, .., 0] of section 4.2, for z (B, D) and one t for all or t (B,).

        With `detach` ("DiTi-Detach") the preceding subsets enter without gradient; the values are the same.
        """
        if z.ndim == 0 or z.shape[-1] != self.dims:
            raise InputError(f"the code has shape {tuple(z.shape)}, the partition is for {self.dims} dims")
        if isinstance(t, Tensor) and t.ndim and t.shape != z.shape[:-1]:
            raise InputError(f"{tuple(t.shape)} time-steps for codes of shape {tuple(z.shape)}; give one per code")
        if detach:
            z = torch.where(self.own(t, z.device), z, z.detach())
        return torch.where(self.visible(t, z.device), z, 0)

    def _against(self, t: int | Tensor, device: torch.device | None, compare: Callable[..., Tensor]) -> Tensor:
        current = torch.as_tensor(self.subset_of(t), device=device)  # () or (B,)
        return compare(self._tables(current.device)[1], current[..., None])

    def _tables(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """(T,) the subset of each time-step, and (D,) that of each dim's start: every mask compares the two.

        So subsets with equal starts count as the last of them.
        """
        if device not in self._tables_on:
            of_dims = [self._subset_at[self._bounds[subset]] for subset in self._owner]
            found = torch.tensor(self._subset_at, device=device), torch.tensor(of_dims, device=device)
            self._tables_on[device] = found
        return self._tables_on[device]

    @cached_property
    def _tables_on(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    @cached_property
    def _owner(self) -> list[int]:
        """(D,) the subset that owns each dim."""
        return [subset for subset in range(self.subsets) for _ in self.dims_of(subset)]

    @cached_property
    def _subset_at(self) -> list[int]:
        """(T,) the last subset that has started at each time-step, -1 where none has."""
        return [bisect.bisect_right(self._bounds, t) - 1 for t in range(self.timesteps)]

    @cached_property
    def _bounds(self) -> list[int]:
        """(K+1,) the time-step from which each subset is visible, then T: all masks and times follow."""
        if self.kind == "matched":
            return [*map(int, dict(self.parameters)["starts"]), self.timesteps]
        return segment_bounds(self.timesteps, self.subsets)

    def group(self, spec: str | int) -> frozenset[int]:
        """Subsets of `early`, `middle`, `late`, `all`, `I`, `I:J`, `:J`, `I:`, or a comma list of these.

        `third` says what is early, middle and late; early may be called `fine` and late `coarse`.
        """
        words = (piece.strip() for piece in str(spec).split(","))
        pieces = [self._piece(LEVELS.get(word, word)) for word in words]
        return frozenset(itertools.chain.from_iterable(pieces))

    def third(self, subset: int) -> str:
        """early, middle or late: t in (0, T/3], (T/3, 2T/3] or (2T/3, T] of figure 5 (the paper's t) at its start.

        In `matched` a third of the subsets by number: all measured starts may lie in one third of the time.
        """
        subset = whole_number("subset", subset, 0, self.subsets)
        if self.kind == "matched":
            return THIRDS[3 * subset // self.subsets]
        t = self._bounds[subset] + 1  # as the paper counts
        return THIRDS[(3 * t > self.timesteps) + (3 * t > 2 * self.timesteps)]

    def subset_mask(self, spec: str | int) -> Tensor:
        """(D,) True at the dims of the subsets that `group(spec)` names."""
        chosen = self.group(spec)
        mask = torch.tensor([subset in chosen for subset in self._owner])
        if not mask.any():
            raise InputError(f"the subsets {spec!r} own no dims in this {self.kind} partition; choose others")
        return mask

    def _piece(self, piece: str) -> Sequence[int]:
        chosen: Sequence[int] = ()
        if piece == "all":
            chosen = range(self.subsets)
        elif piece in THIRDS:
            chosen = [i for i in range(self.subsets) if self.third(i) == piece]
        elif piece and (found := re.fullmatch(r"([0-9]*)(:?)([0-9]*)", piece)):
            first = int(found[1] or 0)
            stop = int(found[3] or self.subsets) if found[2] else first + 1
            chosen = range(first, stop) if stop <= self.subsets else ()
        if not chosen:
            allowed = f"early, middle, late, all, I, I:J (0 <= I < J <= {self.subsets}), :J, I:, or a comma list"
            hint = nearest(piece, (*THIRDS, "all")) if piece not in THIRDS else ""
            raise InputError(f"{piece!r} names no subset of this partition; use {allowed}.{hint}")
        return chosen

    def feature_names(self) -> list[str]:
        """A name per dim: its index and the first time-step of its subset, such as z012_t0300."""
        wide, long = max(3, len(str(self.dims - 1))), max(4, len(str(self.timesteps - 1)))
        starts = [self._bounds[subset] for subset in self._owner]
        return [f"z{dim:0{wide}d}_t{start:0{long}d}" for dim, start in enumerate(starts)]

    def describe(self) -> str:
        """A line per subset: its dims and its time-steps, both inclusive; in `matched` its first time-step."""
        lines = [f"{self.kind}: {self.dims} dims in {self.subsets} subsets over {self.timesteps} time-steps"]
        for subset in range(self.subsets):
            owned, (start, stop) = self.dims_of(subset), self.time_range(subset)
            dims = f"{owned.start}-{owned.stop - 1}" if owned else "none"
            times = f"visible from t {start}" if self.kind == "matched" else f"t {start}-{stop - 1}"
            lines.append(f"  subset {subset:>3}  dims {dims:>9} ({len(owned)})  {times}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads back to an equal partition."""
        return {
            "kind": self.kind,
            "timesteps": self.timesteps,
            "subsets": self.subsets,
            "dims": self.dims,
            "ends": list(self.ends),
            "parameters": {name: list(values) for name, values in self.parameters},
        }

    @classmethod
    def from_json(cls, values: Any) -> Partition:
        """The partition of `to_json`; missing or unknown keys and numbers that do not add up are errors."""
        check_names("key", values, _JSON_KEYS, "a partition")
        missing = [key for key in _JSON_KEYS if key not in values]
        if missing:
            raise InputError(f"the partition lacks {', '.join(missing)}; it needs {', '.join(_JSON_KEYS)}")
        _check_kind(values["kind"])
        ends = whole_numbers("ends", values["ends"])
        timesteps, subsets, dims = check_sizes(values["timesteps"], values["subsets"], values["dims"])
        if subsets != len(ends):
            raise InputError(f"the partition says {subsets} subsets but has {len(ends)} ends; correct one")
        kind, given = values["kind"], values["parameters"]
        recorded = [name for name in PARAMETERS[kind] if name != "ends"]  # ends has a place of its own
        check_names("parameter", given, recorded, f"a {kind} partition")
        read: Callable[..., Any] = loss_curve if kind == "adaptive" else whole_numbers
        parameters = tuple((name, read(name, given[name])) for name in given)
        return cls(kind, timesteps, dims, ends, parameters)


def make_partition(kind: str, timesteps: int, subsets: int, dims: int, **parameters: Any) -> Partition:
    """The partition of that kind; `PARAMETERS` lists what each kind takes besides T, K and D."""
    _check_kind(kind)
    check_names("parameter", parameters, PARAMETERS[kind], f"a {kind} partition")
    if kind in _MEASURED and not parameters:
        raise InputError(_MEASURED[kind])
    build: Callable[..., Partition] = getattr(Partition, kind.replace("-", "_"))
    return build(timesteps, subsets, dims, **parameters)


def _check_kind(kind: Any) -> None:
    if kind not in KINDS:
        raise InputError(f"partition {kind!r} is unknown; use {', '.join(KINDS)}.{nearest(str(kind), KINDS)}")
