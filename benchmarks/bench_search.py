"""Search in 200,000 codes of 128 dims: what `diti search` does once images are encoded, beside scikit-learn.

`python -m benchmarks search` times the search alone, and with it the reading of the kept codes and their
standardising; scikit-learn's brute force is given codes that are standardised already.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from sklearn.neighbors import NearestNeighbors

from benchmarks.timing import best_seconds
from diti.edit.directions import standardise
from diti.exploring.search import Found, nearest
from diti.representation.kept import read_kept

IMAGES, DIMS, WANTED = 200_000, 128, 24
GOAL = 1.0  # seconds


def main() -> None:
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=DIMS).astype(np.float32), rng.uniform(0.5, 2, DIMS).astype(np.float32)
    codes = rng.standard_normal((IMAGES, DIMS), dtype=np.float32) * std + mean
    standard = standardise(codes, mean, std)
    wanted = standard[7] + 0.1
    brute = NearestNeighbors(n_neighbors=WANTED, algorithm="brute").fit(standard)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "codes.npy"
        np.save(path, codes)

        def from_disk() -> Found:
            kept = read_kept(path, IMAGES)
            assert kept is not None
            return nearest(standardise(kept, mean, std), wanted, WANTED)

        best = best_seconds(
            {
                "diti, from the kept codes": from_disk,
                "diti, the search alone": lambda: nearest(standard, wanted, WANTED),
                "scikit-learn, brute force": lambda: brute.kneighbors(wanted[None]),
            }
        )
    same = nearest(standard, wanted, WANTED).rows == brute.kneighbors(wanted[None])[1][0]
    print(f"the {WANTED} nearest of {IMAGES:,} codes of {DIMS} dims; {same.mean():.0%} are those of scikit-learn")
    for name, seconds in best.items():
        print(f"  {name:<26} {seconds:6.3f} s (goal {GOAL:g} s)")
