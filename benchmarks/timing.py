"""Timing that two candidates share: taken in turns, the best of several rounds of each."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_seconds(candidates: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Least seconds of each candidate; they take turns, so that a busy moment hits all alike."""
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best
