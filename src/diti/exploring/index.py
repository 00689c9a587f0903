"""An index over many codes, by faiss, for searching them again and again: it names candidates, whose distances are
then computed exactly.

Codes lie in lists around centres; a search looks into the nearest lists, at each code in a byte per number. Into
how many lists is found once, so that most of what an exact search finds is found. Kept in the cache.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diti.core.errors import InputError
from diti.core.machine import cache_folder
from diti.core.progress import progress_bar
from diti.core.rng import numpy_generator
from diti.core.runs import atomic_path, read_mapping, write_json

FEWEST = 10_000  # codes; an exact search of fewer takes milliseconds
PER_LIST = 50  # codes from which the centre of a list is found
ROWS_AT_ONCE = 65_536
TRIED, NEIGHBOURS, ENOUGH = 32, 24, 0.97  # searches on which the number of lists is chosen, and the share to find
MORE = 4  # candidates for each image wanted

Place = Callable[[np.ndarray], np.ndarray]  # codes (B, D) → places (B, d) between which distances are taken


@dataclass(frozen=True, eq=False)
class Index:
    """Lists of codes, and into how many of them a search looks."""

    lists: Any  # of faiss
    probes: int
    recall: float  # share of the nearest that it finds, as measured when it was made

    def candidates(self, wanted: np.ndarray, count: int) -> np.ndarray:
        """Rows (M,) near a place (d,), rising."""
        self.lists.nprobe = self.probes
        rows = self.lists.search(np.ascontiguousarray(wanted[None], np.float32), count)[1][0]
        return np.sort(rows[rows >= 0])


def open_index(codes: np.ndarray, place: Place, facts: str) -> Index:
    """The index of these codes (N, D), from the cache or made now. facts: what codes and places depend on."""
    faiss = _faiss()
    if len(codes) < FEWEST:
        raise InputError(f"--index is for {FEWEST:,} codes or more, and these are {len(codes):,}; leave it out")
    name = hashlib.sha256(f"{facts}/{len(codes)}".encode() + place(codes[:256]).tobytes()).hexdigest()[:24]
    path = cache_folder() / "indexes" / f"{name}.faiss"
    try:
        known = read_mapping(path.with_suffix(".json"))
        return Index(faiss.read_index(str(path)), int(known["probes"]), float(known["recall"]))
    except (InputError, KeyError, RuntimeError):  # not there, or damaged
        return _keep(faiss, tuned(filled(faiss, codes, place), codes, place), path)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise InputError("--index needs the extra: pip install 'diti-torch[index]'") from None
    return faiss


def filled(faiss: Any, codes: np.ndarray, place: Place) -> Any:
    """Lists around centres of some of the codes, with all of them in."""
    rng, count = numpy_generator(0, "index"), math.isqrt(len(codes))
    some = np.sort(rng.permutation(len(codes))[: PER_LIST * count])
    centred = place(np.asarray(codes[some]))
    lists = faiss.index_factory(centred.shape[1], f"IVF{count}_HNSW32,SQ8")
    lists.train(np.ascontiguousarray(centred, np.float32))
    with progress_bar("making an index", len(codes), unit="codes") as advance:
        for start in range(0, len(codes), ROWS_AT_ONCE):
            part = place(np.asarray(codes[start : start + ROWS_AT_ONCE]))
            lists.add(np.ascontiguousarray(part, np.float32))
            advance(len(part))
    return lists


def tuned(lists: Any, codes: np.ndarray, place: Place) -> Index:
    """Looks into as few lists as find ENOUGH of what all of them hold, doubling their number.

    Tried halfway between a code and the nearest other one: what is searched for is seldom among the codes.
    """
    rows = numpy_generator(1, "index").choice(len(codes), TRIED, replace=False)
    chosen = place(np.asarray(codes[np.sort(rows)]))
    whole = Index(lists, lists.nlist, 1.0)
    others = [closest(whole, codes, one, 2, place)[0][-1:] for one in chosen]
    wanted = [(one + place(np.asarray(codes[other]))[0]) / 2 for one, other in zip(chosen, others, strict=True)]

    def found(probes: int) -> list[np.ndarray]:
        index = Index(lists, probes, 0.0)
        return [closest(index, codes, one, NEIGHBOURS, place)[0] for one in wanted]

    best, probes = found(lists.nlist), 1
    while True:
        probes = min(2 * probes, lists.nlist)
        pairs = zip(found(probes), best, strict=True)
        recall = float(np.mean([len(np.intersect1d(one, all_of)) / len(all_of) for one, all_of in pairs]))
        if recall >= ENOUGH or probes == lists.nlist:
            return Index(lists, probes, recall)


def closest(
    index: Index, codes: np.ndarray, wanted: np.ndarray, count: int, place: Place
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and distances of the `count` codes nearest to a place (d,), of the candidates of an index."""
    rows = index.candidates(wanted, MORE * count)
    exact = np.linalg.norm(place(np.asarray(codes[rows])).astype(np.float64) - wanted, axis=1)
    order = np.argsort(exact, kind="stable")[:count]
    return rows[order], exact[order]


def _keep(faiss: Any, index: Index, path: Path) -> Index:
    with atomic_path(path) as temporary:
        faiss.write_index(index.lists, str(temporary))
    write_json(path.with_suffix(".json"), {"probes": index.probes, "recall": index.recall})
    return index
