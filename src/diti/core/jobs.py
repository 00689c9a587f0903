"""Several `diti` commands side by side, each a process with one thread that ends when this process does.

On a machine without a GPU two such processes do twice the work of one with two threads, since the networks that
suit it are too small to share.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diti.core.command_words import words_of
from diti.core.machine import available_cores

POLL_SECONDS, GRACE_SECONDS = 0.5, 10.0

# The child asks Linux to be killed when its parent ends, however it ends, and becomes the command. The check
# behind it is for a parent that ended before. Elsewhere a child outlives a parent that was killed outright.
TIED_TO_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what runs in the background
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@dataclass(frozen=True)
class Job:
    """A command to run."""

    name: str
    command: Any  # the record of a verb's options
    log: Path  # file for what it prints
    known: Any = None  # record of what the command assumes without being told, where not the verb's defaults

    @property
    def words(self) -> list[str]:
        """Of the command line, after `diti`."""
        return words_of(self.command, self.known)


@dataclass(frozen=True)
class Child:
    """A job on its way."""

    job: Job
    process: subprocess.Popen[bytes]
    began: float  # seconds since the epoch

    @property
    def ended(self) -> bool:
        """As of the last poll, so that one look at a child tells one story."""
        return self.process.returncode is not None

    @property
    def fault(self) -> str:
        """How it ended and the last line it printed; empty when all went well."""
        code = self.process.returncode
        if code == 0:
            return ""
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return ": ".join([ended, *last_line(self.job.log)])


def lanes() -> int:
    """How many jobs side by side: one per core, or one where there is a GPU."""
    import torch

    return 1 if torch.cuda.is_available() else available_cores()


def run_jobs(jobs: Sequence[Job], side_by_side: int, on_poll: Callable[[Child], None]) -> None:
    """Run all jobs in their order; `on_poll` is told of each child twice a second and once when it has ended.

    A job that fails does not stop the others. Ctrl-C, SIGTERM and a terminal that closes stop all of them.
    """
    waiting, running = deque(jobs), list[Child]()
    with _stopped_alike() as interrupts:
        try:
            while waiting or running:
                while waiting and len(running) < side_by_side:
                    with interrupts.postponed():  # a child that is not listed yet would not be stopped
                        running.append(_start(waiting.popleft()))
                time.sleep(POLL_SECONDS)
                for child in list(running):
                    if child.process.poll() is not None:
                        running.remove(child)
                    on_poll(child)
        finally:
            _stop(running)


def last_line(log: Path) -> list[str]:
    """The last line of a file that is not empty, if there is one."""
    printed = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.strip() for line in printed if line.strip()][-1:]


def _start(job: Job) -> Child:
    # Unbuffered, so that the last line of the log is the last that was said, be it output or a complaint.
    job.log.parent.mkdir(parents=True, exist_ok=True)
    began = time.time()
    with job.log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", TIED_TO_PARENT, str(os.getpid()), "-m", "diti", *job.words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"},
            process_group=0,  # Ctrl-C reaches this process alone, which then stops each job once
        )
    return Child(job, process, began)


class _Interrupts:
    """A handler of signals: KeyboardInterrupt, at once or at the end of what must not be cut in two."""

    def __init__(self) -> None:
        self._waits, self._came = False, False

    def __call__(self, number: int, frame: Any) -> None:
        if not self._waits:
            raise KeyboardInterrupt
        self._came = True

    @contextmanager
    def postponed(self) -> Iterator[None]:
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
        if self._came:
            raise KeyboardInterrupt


@contextmanager
def _stopped_alike() -> Iterator[_Interrupts]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does. Only the main thread may say so."""
    interrupts = _Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    # nohup ignores SIGHUP, a shell's & SIGINT, and that must stay so.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupts) for number in numbers}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(children: Sequence[Child]) -> None:
    """End what still runs, as Ctrl-C would, so that each can save where it is."""
    for child in children:
        child.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # also when Ctrl-C is pressed again
        for child in children:
            child.process.kill()  # nothing happens to one that has ended
            child.process.wait()
