"""Shared by all tests: real images on disk, the folder of real data, and the command line as a user runs it."""

from __future__ import annotations

import gc
import itertools
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from pairs import places
from parity import write_large_layout
from pictures import picture

if TYPE_CHECKING:
    from diti.data.prepared import Dataset

# A shell lets what it starts in the background ignore Ctrl-C, and so would every process that a test stops by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared"
WITHOUT_SHARED = f"needs real data, which are not shipped; they are looked for in {SHARED}"
LONG_FILES = (
    "test_demo.py", "test_on_device.py", "test_train.py", "test_pretrain.py", "test_fuzz.py",
    "test_studio_page.py", "test_sweep.py", "test_prepare.py", "test_every_method.py", "test_solve_verb.py",
    "test_sweep_solutions.py", "test_public.py", "test_probing.py", "test_readme.py", "test_notebook.py",
    "test_cli.py", "test_crafted_requests.py", "test_verbs.py",
)  # fmt: skip
NUMBERS = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle-files", type=int, metavar="SEED", help="run the files in the order of this seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files first: `make test` gives whole files to its workers, and none should wait for another's last."""
    places = {name: place for place, name in enumerate(LONG_FILES)}
    if (seed := config.getoption("--shuffle-files")) is not None:
        names = sorted({item.path.name for item in items})
        places = {name: place for place, name in enumerate(random.Random(seed).sample(names, len(names)))}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was skipped, why, and how to have it run; CI skips nothing that it could have."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, count in Counter(report.longrepr[2] for report in skipped).most_common():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or fills the user's cache. (pytest itself names a folder by looking through all others.)"""
    folder = tmp_path_factory.getbasetemp() / "caches" / str(next(NUMBERS))
    folder.mkdir(parents=True)
    monkeypatch.setenv("DITI_CACHE", str(folder))


@pytest.fixture(autouse=True)
def _no_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test reads from the error stream must not depend on how long the tests before it took."""
    monkeypatch.setattr("diti.core.progress.LINE_SECONDS", math.inf)


@pytest.fixture(scope="session", autouse=True)
def _few_faces_are_drawn_here() -> Iterator[None]:
    """Toy faces are drawn faster than processes start; the tests of preparing ask for these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diti.data.prepare.WORTH_WORKERS", 2_000)
        yield


@pytest.fixture(scope="module", autouse=True)
def _what_is_left_open_is_told_here() -> Iterator[None]:
    """What nobody closed (files, sockets, loops) warns when it is collected: in its own module, not in another."""
    gc.freeze()  # to look through everything that is imported takes half a second
    yield
    gc.collect()


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
        pytest.skip(WITHOUT_SHARED)
    return SHARED


@pytest.fixture(scope="session", params=["small", "large"])
def parity(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The authors' numbers: those that the repository holds, and all of them where they lie beside it."""
    if request.param == "small":
        return write_large_layout(tmp_path_factory.mktemp("parity"))
    if not (SHARED / "parity").is_dir():
        pytest.skip(WITHOUT_SHARED)
    return SHARED / "parity"


@pytest.fixture
def diti() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own."""

    def run(*words: object, **keywords: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "diti", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=900, **keywords)  # type: ignore[call-overload]

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


# Two processes that share a job: what torchrun would tell them, without its start and with one import for both.
PAIR = """
import os, sys
from diti.cli import main
import diti.representation.train, diti.representation.solve.run
pair = []
for rank in "01":
    if not (number := os.fork()):
        os.environ.update(RANK=rank, LOCAL_RANK=rank)
        if apart := os.environ.get("APART"):  # two machines: each has its folders and its cache
            os.makedirs(f"{apart}/{rank}", exist_ok=True)
            os.chdir(f"{apart}/{rank}")
            os.environ.update(LOCAL_RANK="0", DITI_CACHE=f"{apart}/{rank}/cache")
        sys.exit(main(sys.argv[1:]))
    pair.append(number)
while pair and not os.wait()[1]:
    pair.pop()
sys.exit(len(pair))
"""


@pytest.fixture
def two_processes() -> Callable[..., str]:
    """Run the command line in two processes that share the job; what both printed.

    apart: a folder in which each of them has its own working folder and cache, as on two machines. The start by
    torchrun is tested with diti pretrain.
    """

    def run(*words: object, apart: Path | None = None) -> str:
        place = {} if apart is None else {"APART": str(apart)}
        with subprocess.Popen(
            [sys.executable, "-c", PAIR, *map(str, words)],
            env=places()[0] | place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        ) as pair:
            try:
                printed = pair.communicate(timeout=900)[0]
            finally:  # where one fails the other waits for it
                with suppress(ProcessLookupError):
                    os.killpg(pair.pid, signal.SIGKILL)
        assert pair.returncode == 0, printed[-4000:]
        return printed

    return run


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Twelve small PNGs in two folders."""
    for index in range(12):
        path = tmp_path / "images" / "ab"[index % 2] / f"{index:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(index).save(path)
    return tmp_path / "images"
