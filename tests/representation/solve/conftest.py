"""A folder with the tiny backbone, and a cache that the tests of one file share."""

import pytest
from tiny import tiny_backbone

from diti.representation.solve import evidence


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With `backbone` in it."""
    path = tmp_path_factory.mktemp("solve")
    tiny_backbone().save(path / "backbone")
    return path


@pytest.fixture(scope="module")
def shared_cache(folder):
    """For what is made once for a file: no test reads or fills the user's cache. Few images are validated on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(folder / "cache"))
        patch.setattr(evidence, "VALIDATION", 128)
        yield


@pytest.fixture(autouse=True)
def same_cache(request, own_cache, monkeypatch):
    """Tests of a file that has a shared cache use it, too."""
    if "shared_cache" in request.fixturenames:
        monkeypatch.setenv("DITI_CACHE", str(request.getfixturevalue("folder") / "cache"))
