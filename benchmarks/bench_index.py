"""When an exact search is slow, and what an index gains: `python -m benchmarks.bench_index 200000 1000000`.

Codes of 128 numbers, half of whose variance lies in 24 directions, searched as `diti search` does with its metric.
Prints seconds of an exact search, seconds and memory to make the index, seconds of a search by it, and which share
of the 24 nearest to new codes of the same kind it finds; all seconds are those of the CPU. Needs the extra index.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.bench_millions import own_memory
from diti.exploring.index import Place, closest, open_index
from diti.exploring.search import nearest

DIMS, HIDDEN, WANTED, SEARCHES, AT_ONCE = 128, 24, 24, 20, 100_000


def main(counts: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DITI_CACHE"] = folder
        for count in counts:
            show(made(Path(folder), count))


def show(codes: np.ndarray) -> None:
    root = np.diag(np.linspace(2, 0.5, DIMS)).astype(np.float32)

    def place(part: np.ndarray) -> np.ndarray:
        return part @ root

    queries = place(drawn(np.random.default_rng(2**32), SEARCHES))
    exact, seconds = timed([lambda q=q: nearest(codes, q, WANTED, place).rows for q in queries])
    print(f"{len(codes):>10,} codes: exact {seconds:.2f} s a search", flush=True)
    by_index(codes, place, queries, exact)


def by_index(codes: np.ndarray, place: Place, queries: np.ndarray, exact: list[np.ndarray]) -> None:
    before, began = own_memory(os.getpid()), time.process_time()
    index = open_index(codes, place, "benchmark")
    made_in, grown = time.process_time() - began, own_memory(os.getpid()) - before
    found, seconds = timed([lambda q=q: closest(index, codes, q, WANTED, place)[0] for q in queries])
    share = np.mean([len(np.intersect1d(a, b)) / WANTED for a, b in zip(found, exact, strict=True)])
    print(
        f"{'':>10}  index: made in {made_in:.0f} s, {grown / 1e6:,.0f} MB; {1000 * seconds:.1f} ms a search, "
        f"{share:.1%} of the nearest ({index.probes} of {index.lists.nlist} lists)",
        flush=True,
    )


def timed(searches: list) -> tuple[list[np.ndarray], float]:
    began = time.process_time()
    found = [search() for search in searches]
    return found, (time.process_time() - began) / len(searches)


def made(folder: Path, count: int) -> np.ndarray:
    """Codes (count, DIMS) in a memory map, as kept codes are."""
    codes = np.lib.format.open_memmap(folder / f"{count}.npy", "w+", np.float32, (count, DIMS))
    for number, start in enumerate(range(0, count, AT_ONCE)):
        part = drawn(np.random.default_rng(number + 1), min(AT_ONCE, count - start))
        codes[start : start + len(part)] = part
    return codes


def drawn(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Codes (rows, DIMS)."""
    mixed = np.random.default_rng(0).standard_normal((HIDDEN, DIMS), dtype=np.float32) / HIDDEN**0.5
    own = rng.standard_normal((rows, DIMS), dtype=np.float32)
    return rng.standard_normal((rows, HIDDEN), dtype=np.float32) @ mixed + own


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [200_000, 1_000_000])
