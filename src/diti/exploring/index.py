"""An index over many codes, by faiss, for searching them again and again: it names candidates, whose distances are
then computed exactly.

Codes lie in lists around centres; a search looks into the nearest lists, at each code in a byte per number. Into
how many lists is measured once, against an exact search: so many that 97 % of the nearest are found, however many
codes there are. Kept in the cache.
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
CLOSE = 8  # that number is found to within an eighth
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
        # The centres are found through a graph, which with its usual patience leads to half of them at most.
        _faiss().ParameterSpace().set_index_parameter(self.lists, "quantizer_efSearch", 2 * self.probes)
        rows = self.lists.search(np.ascontiguousarray(wanted[None], np.float32), count)[1][0]
        return np.sort(rows[rows >= 0])


def open_index(codes: np.ndarray, place: Place, facts: str) -> Index:
    """The index of these codes (N, D), from the cache or made now. facts: what codes and places depend on."""
    faiss = _faiss()
    if len(codes) < FEWEST:
        raise InputError(f"--index is for {FEWEST:,} codes or more, and these are {len(codes):,}; leave it out")
    name = hashlib.sha256(f"{facts}/{len(codes)}/exact".encode() + place(codes[:256]).tobytes()).hexdigest()[:24]
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
    """Looks into as few lists as find ENOUGH of the nearest, which an exact search tells.

    Tried on codes that are there, each searched for without itself: its neighbours are those that another code of
    the same kind would have, so that what is found of them is what will be found for an image that is not there.
    """
    rows = np.sort(numpy_generator(1, "index").choice(len(codes), TRIED, replace=False))
    wanted = place(np.asarray(codes[rows]))
    near = nearest_to_each(codes, wanted, place)
    exact = [np.setdiff1d(others, own) for others, own in zip(near, rows, strict=True)]

    def recall(probes: int) -> float:
        index = Index(lists, probes, 0.0)
        found = (closest(index, codes, one, NEIGHBOURS + 1, place)[0] for one in wanted)
        return float(np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, exact, strict=True)]))

    too_few, probes = 0, 1
    while (reached := recall(probes)) < ENOUGH and probes < lists.nlist:
        too_few, probes = probes, min(2 * probes, lists.nlist)
    while probes - too_few > max(1, probes // CLOSE):
        between = (too_few + probes) // 2
        if (share := recall(between)) < ENOUGH:
            too_few = between
        else:
            probes, reached = between, share
    return Index(lists, probes, reached)


def nearest_to_each(codes: np.ndarray, wanted: np.ndarray, place: Place) -> np.ndarray:
    """Rows (Q, NEIGHBOURS + 1) of the codes (N, D) nearest to each of several places (Q, d), in no order."""
    count = NEIGHBOURS + 1
    rows: np.ndarray = np.zeros((len(wanted), 0), np.int64)
    squares: np.ndarray = np.zeros((len(wanted), 0), np.float32)
    for start in range(0, len(codes), ROWS_AT_ONCE):
        part = place(np.asarray(codes[start : start + ROWS_AT_ONCE]))
        more = np.einsum("nd,nd->n", part, part) - 2 * wanted @ part.T  # |p - w|² but for |w|²
        first = np.argpartition(more, min(count, len(part)) - 1)[:, :count]
        rows = np.concatenate([rows, start + first], 1)
        squares = np.concatenate([squares, np.take_along_axis(more, first, 1)], 1)
        best = np.argpartition(squares, min(count, squares.shape[1]) - 1)[:, :count]
        rows, squares = (np.take_along_axis(one, best, 1) for one in (rows, squares))
    return rows


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
