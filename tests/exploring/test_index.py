"""An index finds what an exact search finds, in the places where distances are taken."""

import numpy as np
import pytest

from diti.core.errors import InputError
from diti.core.machine import cache_folder
from diti.exploring import index
from diti.exploring.search import nearest


def codes_of(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((count, 3), dtype=np.float32) @ rng.standard_normal((3, 8), dtype=np.float32)


def stretched(codes: np.ndarray) -> np.ndarray:
    return codes[:, :5] * np.linspace(1, 2, 5, dtype=np.float32)


def test_it_finds_what_an_exact_search_finds(monkeypatch):
    pytest.importorskip("faiss", reason="the extra index is not installed (pip install 'diti-torch[index]')")
    monkeypatch.setattr(index, "FEWEST", 2_000)
    codes = codes_of(4_000)
    made = index.open_index(codes, stretched, "these")
    assert made.recall >= index.ENOUGH and made.probes < made.lists.nlist, "it looks into some lists only"
    shares = []
    for wanted in stretched(codes[::400]) + 0.05:
        exact = nearest(codes, wanted, 24, stretched)
        rows, distances = index.closest(made, codes, wanted, 24, stretched)
        shares.append(len(np.intersect1d(rows, exact.rows)) / 24)
        np.testing.assert_allclose(distances, np.linalg.norm(stretched(codes[rows]) - wanted, axis=1), rtol=1e-5)
        assert (np.diff(distances) >= 0).all()
    assert np.mean(shares) > 0.9
    kept = cache_folder() / "indexes"
    monkeypatch.setattr(index, "filled", lambda *_: pytest.fail("it was kept"))
    assert index.open_index(codes, stretched, "these").probes == made.probes
    with pytest.raises(pytest.fail.Exception):
        index.open_index(codes, lambda part: part, "these")
    assert len(list(kept.iterdir())) == 2


def test_what_it_needs_is_told(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "faiss", None)
        with pytest.raises(InputError, match=r"--index needs the extra: pip install 'diti-torch\[index\]'"):
            index.open_index(codes_of(10), stretched, "few")
    pytest.importorskip("faiss", reason="the extra index is not installed (pip install 'diti-torch[index]')")
    with pytest.raises(InputError, match="is for 10,000 codes or more, and these are 10; leave it out"):
        index.open_index(codes_of(10), stretched, "few")
