"""The code z cut in K subsets, one per equal segment of the T time-steps: the only source of masks (section 4.2).

Time-steps here count t = 0 .. T-1 (the paper counts 1 .. T). Time-step t belongs to subset floor(t K / T), which
is the authors' map in exact arithmetic; theirs divides floats, which agrees at every K they use but errs by one
step at a segment's start for some others (T = 1000, K = 30). Subset i owns the dims ends[i-1] .. ends[i] - 1.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from diti.core.errors import InputError, nearest

PARAMETERS: dict[str, tuple[str, ...]] = {  # kind → the parameters it takes
    "balanced": (),
    "staged": (),
    "staged-even": (),
    "custom": ("stages", "dims_per_stage", "ends"),
    "adaptive": ("loss_by_time",),
}
KINDS = tuple(PARAMETERS)
DEFAULT_KIND = "staged-even"

# The imbalanced partition of the paper's appendix, for 1000 time-steps and 512 dims.
STAGE_ENDS = (50, 100, 300, 500, 1000)
STAGE_DIMS = (10, 25, 327, 100, 50)

THIRDS = ("early", "middle", "late")  # figure 5
_JSON_KEYS = ("kind", "timesteps", "subsets", "dims", "ends", "parameters")


@dataclass(frozen=True)
class Partition:
    """Which dims of z the decoder may read at which time-step.

    `ends` is the record that everything follows from; `kind` and `parameters` say how it came about.
    """

    kind: str
    timesteps: int  # T
    dims: int  # D
    ends: tuple[int, ...]  # (K,) last dim of each subset, exclusive; equal neighbours make an empty subset
    parameters: tuple[tuple[str, tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        _check_sizes(self.timesteps, len(self.ends), self.dims)
        if any(a > b for a, b in itertools.pairwise((0, *self.ends))):
            raise InputError(f"the ends of the subsets must not fall, got {list(self.ends)}; sort them")
        if self.ends[-1] != self.dims:
            raise InputError(
                f"the last subset ends at dim {self.ends[-1]}, the code has {self.dims}; make them equal"
            )

    # ---- Constructors ---------------------------------------------------------------------------------------

    @classmethod
    def single(cls, timesteps: int, dims: int) -> Partition:
        """K = 1: nothing is ever masked, as in PDAE."""
        return cls.balanced(timesteps, 1, dims)

    @classmethod
    def balanced(cls, timesteps: int, subsets: int, dims: int) -> Partition:
        """Every subset gets D / K dims: subset i ends at floor((i + 1) D / K)."""
        _check_sizes(timesteps, subsets, dims)
        _check_one_dim_each("balanced", subsets, dims)
        return cls("balanced", timesteps, dims, tuple(even_ends([(subsets, dims)])))

    @classmethod
    def staged(cls, timesteps: int, subsets: int, dims: int) -> Partition:
        """The authors' imbalanced partition to the dim, for their checkpoints; subsets may be empty (K = 128).

        A stage's segments get floor(dims / segments) each and its last one also the rest; the dims of a stage in
        which no segment starts fall to the first segment after it.
        """
        _check_sizes(timesteps, subsets, dims)
        if (timesteps, dims) != (STAGE_ENDS[-1], sum(STAGE_DIMS)):
            raise InputError(
                f"staged is defined for {STAGE_ENDS[-1]} time-steps and {sum(STAGE_DIMS)} dims, got {timesteps} "
                f"and {dims}; use staged-even, which scales, or custom"
            )
        counts = segments_per_stage(segment_bounds(timesteps, subsets)[:-1], STAGE_ENDS)
        ends: list[int] = []
        for stage, count in enumerate(counts):
            before, width = sum(STAGE_DIMS[:stage]), STAGE_DIMS[stage]
            ends += [before + width // count * (i + 1) if i < count - 1 else before + width for i in range(count)]
        ends[-1] = dims  # K = 1 starts in no stage but the first
        return cls("staged", timesteps, dims, tuple(ends))

    @classmethod
    def staged_even(cls, timesteps: int, subsets: int, dims: int) -> Partition:
        """The paper's stages scaled to any T and D, dims spread evenly inside each, no subset empty (the default).

        It differs from `staged` inside a stage (there the last segment takes the whole remainder), and where a
        stage has fewer dims than segments: it then gets one each, at the cost of the other stages in proportion.
        """
        _check_sizes(timesteps, subsets, dims)
        _check_one_dim_each("staged-even", subsets, dims)
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
        """Own stages (their ends in time-steps) with their dims, spread evenly inside each; or own `ends` of subsets.

        The numbers are taken as given: a stage with fewer dims than segments has empty subsets. The dims of a stage
        in which no segment starts go to the next one.
        """
        _check_sizes(timesteps, subsets, dims)
        if ends is not None and stages is None and dims_per_stage is None:
            own = _whole_numbers("ends", ends)
            if len(own) != subsets:
                raise InputError(f"ends has {len(own)} numbers for {subsets} subsets; give one per subset")
            return cls("custom", timesteps, dims, own)
        if ends is not None or stages is None or dims_per_stage is None:
            raise InputError("a custom partition needs stages and dims_per_stage, or ends alone")
        stage_ends, widths = _whole_numbers("stages", stages), _whole_numbers("dims_per_stage", dims_per_stage)
        _check_stages(stage_ends, widths, timesteps, dims)
        counts = segments_per_stage(segment_bounds(timesteps, subsets)[:-1], stage_ends)
        parameters = (("stages", stage_ends), ("dims_per_stage", widths))
        return cls("custom", timesteps, dims, tuple(even_ends(hand_on(counts, widths))), parameters)

    @classmethod
    def adaptive(
        cls, timesteps: int, subsets: int, dims: int, loss_by_time: Sequence[float] | Tensor
    ) -> Partition:
        """Widths in proportion to each segment's share of a measured curve, at least one dim per subset.

        The curve (the loss, or how much it fell) has any number of equally long bins over the T time-steps.
        """
        _check_sizes(timesteps, subsets, dims)
        _check_one_dim_each("adaptive", subsets, dims)
        curve = _curve(loss_by_time)
        widths = apportion(dims, loss_per_segment(curve, timesteps, subsets), [1] * subsets)
        ends = tuple(itertools.accumulate(widths))
        return cls("adaptive", timesteps, dims, ends, (("loss_by_time", curve),))

    # ---- Subsets, their dims and their time-steps -----------------------------------------------------------

    @property
    def subsets(self) -> int:
        """K."""
        return len(self.ends)

    def subset_of(self, t: int | Tensor) -> Any:
        """Subset floor(t K / T) of time-step t = 0 .. T-1: an int for an int, an int64 tensor for a tensor."""
        if not isinstance(t, Tensor):
            step = _whole("time-step", t, 0)
            self._check_steps(step, step)
            return step * self.subsets // self.timesteps
        if t.is_floating_point() or t.is_complex() or t.dtype == torch.bool:
            raise InputError(f"time-steps must be whole numbers, got a tensor of {t.dtype}; use int64")
        if t.numel():
            self._check_steps(int(t.min()), int(t.max()))
        return torch.div(t.long() * self.subsets, self.timesteps, rounding_mode="floor")

    def dims_of(self, subset: int) -> range:
        """The dims that a subset owns; empty for an empty subset."""
        self._check_subset(subset)
        return range(self.ends[subset - 1] if subset else 0, self.ends[subset])

    def time_range(self, subset: int) -> tuple[int, int]:
        """First time-step of the subset's segment, and the one after its last."""
        self._check_subset(subset)
        bounds = self._bounds
        return bounds[subset], bounds[subset + 1]

    @cached_property
    def _bounds(self) -> tuple[int, ...]:
        return tuple(segment_bounds(self.timesteps, self.subsets))

    # ---- Masks ----------------------------------------------------------------------------------------------

    def visible(self, t: int | Tensor, device: torch.device | None = None) -> Tensor:
        """True where a dim belongs to the subset of t or to an earlier one: (D,) for an int, (B, D) for (B,)."""
        return self._owner_against(t, device, torch.le)

    def own(self, t: int | Tensor, device: torch.device | None = None) -> Tensor:
        """True where a dim belongs to the very subset of t."""
        return self._owner_against(t, device, torch.eq)

    def preceding(self, t: int | Tensor, device: torch.device | None = None) -> Tensor:
        """True where a dim belongs to a subset before that of t: visible without own."""
        return self._owner_against(t, device, torch.lt)

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

    def _owner_against(
        self, t: int | Tensor, device: torch.device | None, compare: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        current = torch.as_tensor(self.subset_of(t), device=device)
        if current.device not in self._owners:
            self._owners[current.device] = self._owner().to(current.device)
        return compare(self._owners[current.device], current[..., None])

    def _owner(self) -> Tensor:
        """(D,) the subset that owns each dim: every mask is a comparison with it."""
        widths = torch.tensor([len(self.dims_of(subset)) for subset in range(self.subsets)])
        return torch.repeat_interleave(torch.arange(self.subsets), widths)

    @cached_property
    def _owners(self) -> dict[torch.device, Tensor]:
        return {}

    # ---- Named groups of subsets ----------------------------------------------------------------------------

    def group(self, spec: str) -> frozenset[int]:
        """Subsets of `early`, `middle`, `late`, `all`, `I`, `I:J`, `:J`, `I:`, or a comma list of these.

        early, middle, late are t in (0, T/3], (T/3, 2T/3], (2T/3, T] of figure 5 (paper's t), taken at the first
        time-step of a subset's segment.
        """
        chosen = frozenset(itertools.chain.from_iterable(self._piece(piece.strip()) for piece in spec.split(",")))
        if not chosen:
            raise InputError(f"{spec!r} holds none of the {self.subsets} subsets; {self._allowed_groups()}")
        return chosen

    def subset_mask(self, spec: str) -> Tensor:
        """(D,) True at the dims of the subsets that `group(spec)` names."""
        chosen = self.group(spec)
        dims = torch.tensor([dim for subset in sorted(chosen) for dim in self.dims_of(subset)], dtype=torch.int64)
        if not len(dims):
            raise InputError(f"the subsets {spec!r} own no dims in this {self.kind} partition; choose others")
        return torch.zeros(self.dims, dtype=torch.bool).index_fill_(0, dims, True)

    def _piece(self, piece: str) -> Iterable[int]:
        if piece == "all":
            return range(self.subsets)
        if piece in THIRDS:
            return [i for i in range(self.subsets) if THIRDS[self._third(self._bounds[i])] == piece]
        found = re.fullmatch(r"([0-9]*)(:?)([0-9]*)", piece)
        if not piece or not found:
            raise InputError(
                f"{piece!r} names no subsets; {self._allowed_groups()}{nearest(piece, (*THIRDS, 'all'))}"
            )
        first = int(found[1] or 0)
        stop = int(found[3] or self.subsets) if found[2] else first + 1
        if not first < stop <= self.subsets:
            raise InputError(f"{piece!r} is empty or outside the {self.subsets} subsets; {self._allowed_groups()}")
        return range(first, stop)

    def _third(self, start: int) -> int:
        paper_t = start + 1
        return (3 * paper_t > self.timesteps) + (3 * paper_t > 2 * self.timesteps)

    def _allowed_groups(self) -> str:
        return (
            "use early, middle, late, all, I or I:J (J exclusive) with "
            f"0 <= I < J <= {self.subsets}, or several joined by commas."
        )

    # ---- For people and for files ---------------------------------------------------------------------------

    def feature_names(self) -> list[str]:
        """A name per dim: its index and the first time-step of its subset, such as z012_t0300."""
        wide, long = max(3, len(str(self.dims - 1))), max(4, len(str(self.timesteps - 1)))
        return [
            f"z{dim:0{wide}d}_t{self._bounds[subset]:0{long}d}"
            for subset in range(self.subsets)
            for dim in self.dims_of(subset)
        ]

    def describe(self) -> str:
        """A line per subset: its dims and its time-steps, both inclusive."""
        lines = [f"{self.kind}: {self.dims} dims in {self.subsets} subsets over {self.timesteps} time-steps"]
        for subset in range(self.subsets):
            owned, (start, stop) = self.dims_of(subset), self.time_range(subset)
            dims = f"{owned.start}-{owned.stop - 1}" if owned else "none"
            lines.append(f"  subset {subset:>3}  dims {dims:>9} ({len(owned)})  t {start}-{stop - 1}")
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
        if not isinstance(values, dict):
            raise InputError(f"a partition must be a mapping, got {type(values).__name__}")
        _check_names("key", values, _JSON_KEYS, "a partition")
        missing = [key for key in _JSON_KEYS if key not in values]
        if missing:
            raise InputError(f"the partition lacks {', '.join(missing)}; it needs {', '.join(_JSON_KEYS)}")
        _check_kind(values["kind"])
        ends = _whole_numbers("ends", values["ends"])
        if _whole("subsets", values["subsets"]) != len(ends):
            raise InputError(
                f"the partition says {values['subsets']} subsets but has {len(ends)} ends; correct one"
            )
        parameters = _parameters_from_json(values["kind"], values["parameters"])
        return cls(values["kind"], values["timesteps"], values["dims"], ends, parameters)

    # ---- Checks ---------------------------------------------------------------------------------------------

    def _check_steps(self, lowest: int, highest: int) -> None:
        if lowest < 0 or highest >= self.timesteps:
            wrong = lowest if lowest < 0 else highest
            raise InputError(f"time-step {wrong} is outside 0 .. {self.timesteps - 1}")

    def _check_subset(self, subset: int) -> None:
        if not 0 <= subset < self.subsets:
            raise InputError(f"subset {subset} is outside 0 .. {self.subsets - 1}")


def make_partition(kind: str, timesteps: int, subsets: int, dims: int, **parameters: Any) -> Partition:
    """The partition of that kind; `PARAMETERS` lists what each kind takes besides T, K and D."""
    _check_kind(kind)
    _check_names("parameter", parameters, PARAMETERS[kind], f"a {kind} partition")
    if kind == "adaptive" and not parameters:
        raise InputError(
            "an adaptive partition needs loss_by_time: the measured loss per time-step, or how much it fell"
        )
    build: dict[str, Callable[..., Partition]] = {
        "balanced": Partition.balanced,
        "staged": Partition.staged,
        "staged-even": Partition.staged_even,
        "custom": Partition.custom,
        "adaptive": Partition.adaptive,
    }
    return build[kind](timesteps, subsets, dims, **parameters)


# ---- Arithmetic, in whole numbers throughout: nothing depends on rounding ---------------------------------------


def segment_bounds(timesteps: int, subsets: int) -> list[int]:
    """(K+1,) first time-step ceil(i T / K) of each of the K equal segments, then T."""
    return [-(-i * timesteps // subsets) for i in range(subsets + 1)]


def segments_per_stage(starts: Sequence[int], stage_ends: Sequence[int]) -> list[int]:
    """How many segments start in each stage; a stage runs up to its end, exclusive."""
    stages = [bisect.bisect_right(stage_ends, start) for start in starts]
    return [stages.count(stage) for stage in range(len(stage_ends))]


def hand_on(counts: Sequence[int], widths: Sequence[int]) -> list[tuple[int, int]]:
    """(segments, dims) of the stages with a segment; the others' dims go to the next one, at the end to the last."""
    kept: list[tuple[int, int]] = []
    carried = 0
    for count, width in zip(counts, widths, strict=True):
        carried += width
        if count:
            kept.append((count, carried))
            carried = 0
    count, width = kept[-1]
    return [*kept[:-1], (count, width + carried)]


def even_ends(stages: Iterable[tuple[int, int]]) -> list[int]:
    """End of each segment's dims, where every stage (segments, dims) gives its segments widths that differ by 1."""
    ends: list[int] = []
    before = 0
    for count, width in stages:
        ends += [before + width * (i + 1) // count for i in range(count)]
        before += width
    return ends


def apportion(total: int, weights: Sequence[int], minimum: Sequence[int]) -> list[int]:
    """`total` in whole parts, proportional to the weights by largest remainder, part i at least minimum[i] >= 1.

    Parts that would fall short get their minimum, and the others share the rest in proportion.
    """
    parts = list(minimum)
    free = list(range(len(weights)))
    while True:
        weight = sum(weights[i] for i in free)
        rest = total - sum(minimum) + sum(minimum[i] for i in free)
        enough = [i for i in free if rest * weights[i] >= minimum[i] * weight]
        if len(enough) == len(free):
            break
        free = enough
    remainders = {}
    for i in free:
        parts[i], remainders[i] = divmod(rest * weights[i], weight)
    for i in sorted(free, key=lambda i: -remainders[i])[: total - sum(parts)]:
        parts[i] += 1
    return parts


def loss_per_segment(curve: Sequence[float], timesteps: int, subsets: int) -> list[int]:
    """(K,) the curve summed over each segment, exactly and up to a common factor; bins of the curve may be cut."""
    ratios = [value.as_integer_ratio() for value in curve]
    common = math.lcm(*(denominator for _, denominator in ratios))
    exact = [numerator * (common // denominator) for numerator, denominator in ratios]
    before = [0, *itertools.accumulate(exact)]

    def until(step: int) -> int:
        whole_bins, part = divmod(step * len(exact), timesteps)
        return before[whole_bins] * timesteps + (exact[whole_bins] * part if part else 0)

    marks = [until(step) for step in segment_bounds(timesteps, subsets)]
    return [after - earlier for earlier, after in itertools.pairwise(marks)]


# ---- Checks of what is given ----------------------------------------------------------------------------------


def _check_names(what: str, given: Iterable[str], allowed: Sequence[str], where: str) -> None:
    for name in given:
        if name not in allowed:
            valid = ", ".join(allowed) or "none"
            raise InputError(f"{where} has no {what} {name!r}; valid: {valid}.{nearest(str(name), allowed)}")


def _check_kind(kind: Any) -> None:
    if kind not in KINDS:
        raise InputError(f"partition {kind!r} is unknown; use {', '.join(KINDS)}.{nearest(str(kind), KINDS)}")


def _check_sizes(timesteps: int, subsets: int, dims: int) -> None:
    for name, value in (("timesteps", timesteps), ("subsets", subsets), ("dims", dims)):
        _whole(name, value)
    if subsets > timesteps:
        raise InputError(f"{subsets} subsets do not fit in {timesteps} time-steps; use at most one per time-step")


def _check_one_dim_each(kind: str, subsets: int, dims: int) -> None:
    if subsets > dims:
        raise InputError(
            f"{kind} gives every subset a dim, {subsets} subsets do not fit in {dims} dims; use fewer"
        )


def _check_stages(stage_ends: tuple[int, ...], widths: tuple[int, ...], timesteps: int, dims: int) -> None:
    if len(stage_ends) != len(widths):
        raise InputError(f"{len(stage_ends)} stages but {len(widths)} dims_per_stage; give one each")
    if any(a >= b for a, b in itertools.pairwise((0, *stage_ends))) or stage_ends[-1:] != (timesteps,):
        raise InputError(f"stages must rise from above 0 to the {timesteps} time-steps, got {list(stage_ends)}")
    if sum(widths) != dims:
        raise InputError(
            f"dims_per_stage sums to {sum(widths)} but the code has {dims} dims; change one of the two"
        )


def _whole(name: str, value: Any, lowest: int = 1) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < lowest:
        raise InputError(f"{name} must be a whole number of at least {lowest}, got {value!r}")
    return number


def _whole_numbers(name: str, values: Any) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{name} must be a list of whole numbers, got {values!r}")
    return tuple(_whole(f"each number of {name}", value, 0) for value in values)


def _curve(values: Any) -> tuple[float, ...]:
    try:
        curve = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"loss_by_time must be a list of numbers, got {type(values).__name__}") from None
    if curve.ndim != 1 or not curve.isfinite().all() or (curve < 0).any() or not (curve > 0).any():
        raise InputError(
            f"loss_by_time must be a list of finite numbers >= 0, not all 0 (got shape {tuple(curve.shape)}); "
            "set negative ones to 0"
        )
    return tuple(curve.tolist())


def _parameters_from_json(kind: str, values: Any) -> tuple[tuple[str, tuple[float, ...]], ...]:
    if not isinstance(values, dict):
        raise InputError(f"parameters of a partition must be a mapping, got {type(values).__name__}")
    _check_names("parameter", values, PARAMETERS[kind], f"a {kind} partition")
    return tuple(
        (name, _curve(numbers) if name == "loss_by_time" else _whole_numbers(name, numbers))
        for name, numbers in values.items()
    )
