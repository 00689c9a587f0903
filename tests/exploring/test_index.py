"""An index finds what an exact search finds, in the places where distances are taken."""

import numpy as np
import pytest

from diti.core.errors import InputError
from diti.core.machine import cache_folder
from diti.exploring import index
from diti.exploring.search import nearest

MISSING = "the extra index is not installed (pip install 'diti-torch[index]')"


def codes_of(count: int) -> np.ndarray:
    """The first of a larger count are those of a smaller one."""
    mixed = np.random.default_rng(1).standard_normal((3, 8), dtype=np.float32)
    return np.random.default_rng(0).standard_normal((count, 3), dtype=np.float32) @ mixed


def stretched(codes: np.ndarray) -> np.ndarray:
    return codes[:, :5] * np.linspace(1, 2, 5, dtype=np.float32)


def test_it_finds_what_an_exact_search_finds(monkeypatch):
    pytest.importorskip("faiss", reason=MISSING)
    monkeypatch.setattr(index, "FEWEST", 2_000)
    codes = codes_of(4_000)
    made = index.open_index(codes, stretched, "these")
    assert made.recall >= index.ENOUGH and made.probes < made.lists.nlist, "it looks into some lists only"
    shares = []
    for wanted in stretched(codes_of(4_040)[4_000:]):  # others of the same kind
        exact = nearest(codes, wanted, 24, stretched)
        rows, distances = index.closest(made, codes, wanted, 24, stretched)
        shares.append(len(np.intersect1d(rows, exact.rows)) / 24)
        np.testing.assert_allclose(distances, np.linalg.norm(stretched(codes[rows]) - wanted, axis=1), rtol=1e-5)
        assert (np.diff(distances) >= 0).all()
    assert np.mean(shares) > 0.95
    kept = cache_folder() / "indexes"
    monkeypatch.setattr(index, "filled", lambda *_: pytest.fail("it was kept"))
    assert index.open_index(codes, stretched, "these").probes == made.probes
    with pytest.raises(pytest.fail.Exception):
        index.open_index(codes, lambda part: part, "these")
    assert len(list(kept.iterdir())) == 2


def test_it_looks_into_as_many_lists_as_are_needed(monkeypatch):
    faiss = pytest.importorskip("faiss", reason=MISSING)
    codes = np.random.default_rng(0).standard_normal((4_000, 8), dtype=np.float32)  # harder: 8 dims, not 3
    lists = index.filled(faiss, codes, stretched)
    probes = []
    for share in (0.5, 0.97, 2.0):
        monkeypatch.setattr(index, "ENOUGH", share)
        made = index.tuned(lists, codes, stretched)
        probes.append(made.probes)
        assert made.recall >= min(share, 0.97)
    assert 1 <= probes[0] < probes[1] < probes[2] == lists.nlist


def test_the_exact_search_it_is_measured_by(monkeypatch):
    monkeypatch.setattr(index, "ROWS_AT_ONCE", 70)
    codes = codes_of(500)
    wanted = stretched(codes[[3, 480]]) + 0.01
    for place, rows in zip(wanted, index.nearest_to_each(codes, wanted, stretched), strict=True):
        slow = np.argsort(np.linalg.norm(stretched(codes).astype(np.float64) - place, axis=1))[
            : index.NEIGHBOURS + 1
        ]
        assert sorted(rows) == sorted(slow)
    assert index.nearest_to_each(codes[:9], wanted, stretched).shape == (2, 9), "of few all"


def test_what_it_needs_is_told(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "faiss", None)
        with pytest.raises(InputError, match=r"--index needs the extra: pip install 'diti-torch\[index\]'"):
            index.open_index(codes_of(10), stretched, "few")
    pytest.importorskip("faiss", reason=MISSING)
    with pytest.raises(InputError, match="is for 10,000 codes or more, and these are 10; leave it out"):
        index.open_index(codes_of(10), stretched, "few")
