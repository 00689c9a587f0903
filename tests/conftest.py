"""Shared by all tests: real images on disk, the folder of real data, and the command line as a user runs it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from parity import write_large_layout
from pictures import picture

if TYPE_CHECKING:
    from diti.data.prepared import Dataset

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"
LONG_FILES = (
    "test_demo.py", "test_train.py", "test_pretrain.py", "test_sweep.py", "test_readme.py", "test_probing.py",
    "test_notebook.py",
    "test_tcvae.py", "test_ibgan.py", "test_simclr.py", "test_every_method.py", "test_verbs.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: `make test` gives whole files to its workers, and none should wait for another's last."""
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the user's cache."""
    monkeypatch.setenv("DITI_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def solved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `tiny_solved`; it takes seconds, so nobody may change it."""
    from tiny import tiny_solved

    folder = tmp_path_factory.mktemp("solved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(folder / "cache"))
        tiny_solved(folder / "model")
    return folder / "model"


@pytest.fixture(scope="session")
def solved_faces(solved_once: Path) -> Dataset:
    """What it was solved from; its path is a dataset folder."""
    from tiny import SOLVED_DATA

    from diti.data.sources import open_data

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DITI_CACHE", str(solved_once.parent / "cache"))
        return open_data(SOLVED_DATA, 16)


@pytest.fixture
def solved_folder(solved_once: Path, tmp_path: Path) -> Path:
    """A copy of it to work with."""
    return Path(shutil.copytree(solved_once, tmp_path / "solved-model"))


@pytest.fixture
def shared() -> Path:
    """Real data beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("the folder of real data (../shared) is not here")
    return SHARED


@pytest.fixture(scope="session", params=["small", "large"])
def parity(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authors' numbers: those that the repository holds, and all of them where they lie beside it."""
    if request.param == "small":
        return write_large_layout(tmp_path_factory.mktemp("parity"))
    if not (SHARED / "parity").is_dir():
        pytest.skip("the large fixture of the authors' numbers (../shared/parity) is not here")
    return SHARED / "parity"


@pytest.fixture
def diti() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own."""

    def run(*words: object, **keywords: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "diti", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, **keywords)  # type: ignore[call-overload]

    return run


@pytest.fixture
def diti_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in this process: the same words, without seconds of imports each time."""

    def run(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        from diti.cli import main

        command = ["diti", *map(str, words)]
        monkeypatch.setattr(sys, "argv", command)  # cards and records quote it
        if cwd is not None:
            monkeypatch.chdir(cwd)
        capsys.readouterr()
        code = main(command[1:])
        return subprocess.CompletedProcess(command, code, *capsys.readouterr())

    return run


@pytest.fixture
def one_thread() -> Iterator[None]:
    """The thread count of a child process, so that what is computed here has the same bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_processes() -> Callable[..., str]:
    """Run the command line in two processes that share the job; what both printed.

    They get what torchrun would tell them; its own start, tested with diti pretrain, costs seconds more.
    """

    def run(*words: object) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        pair = [
            subprocess.Popen(
                [sys.executable, "-m", "diti", *map(str, words)],
                env={**os.environ, "OMP_NUM_THREADS": "1", **group, "RANK": rank, "LOCAL_RANK": rank},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in "01"
        ]
        try:
            printed = [process.communicate(timeout=300)[0] for process in pair]
        finally:  # where one fails the other waits for it
            for process in pair:
                process.kill()
        assert [process.returncode for process in pair] == [0, 0], "".join(printed)[-4000:]
        return "".join(printed)

    return run


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Twelve small PNGs in two folders."""
    for index in range(12):
        path = tmp_path / "images" / "ab"[index % 2] / f"{index:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(index).save(path)
    return tmp_path / "images"
