"""How T time-steps are cut in K segments, and D dims are shared out among them: the arithmetic of partitions.

In whole numbers throughout: nothing depends on rounding.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence


def segment_bounds(timesteps: int, subsets: int) -> list[int]:
    """(K+1,) first time-step ceil(i T / K) of each of the K equal segments, then T."""
    return [-(-i * timesteps // subsets) for i in range(subsets + 1)]


def segments_per_stage(starts: Sequence[int], stage_ends: Sequence[int]) -> list[int]:
    """How many segments start in each stage; a stage runs up to its end, exclusive."""
    stages = [bisect.bisect_right(stage_ends, start) for start in starts]
    return [stages.count(stage) for stage in range(len(stage_ends))]


def hand_on(counts: Sequence[int], widths: Sequence[int]) -> list[tuple[int, int]]:
    """(segments, dims) of the stages with a segment; the others give their dims to the next, or else the last."""
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
    """End of each segment's dims; inside a stage (segments, dims) the widths differ by at most 1."""
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
    free: list[int] = []
    enough = list(range(len(weights)))
    while free != enough:
        free = enough
        weight = sum(weights[i] for i in free)
        rest = total - sum(minimum) + sum(minimum[i] for i in free)
        enough = [i for i in free if rest * weights[i] >= minimum[i] * weight]
    for i in free:
        parts[i] = rest * weights[i] // weight
    largest_first = sorted(free, key=lambda i: -(rest * weights[i] % weight))
    for i in largest_first[: total - sum(parts)]:
        parts[i] += 1
    return parts


def loss_per_segment(curve: Sequence[float], timesteps: int, subsets: int) -> list[int]:
    """(K,) the curve summed over each segment, exact up to a common factor; a bin may be cut by a boundary."""
    ratios = [value.as_integer_ratio() for value in curve]
    common = math.lcm(*(denominator for _, denominator in ratios))
    exact = [numerator * (common // denominator) for numerator, denominator in ratios]
    before = [0, *itertools.accumulate(exact)]

    def until(step: int) -> int:
        whole_bins, part = divmod(step * len(exact), timesteps)
        return before[whole_bins] * timesteps + (exact[whole_bins] * part if part else 0)

    marks = [until(step) for step in segment_bounds(timesteps, subsets)]
    return [after - earlier for earlier, after in itertools.pairwise(marks)]
