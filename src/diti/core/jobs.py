"""Functions of this package in parallel, each in a process with one thread that ends when this process does.

On a machine without a GPU two such processes do twice the work of one with two threads, since the networks that
suit it are too small to split.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from diti.core.device import decide, on_host
from diti.core.machine import available_cores
from diti.core.runs import command_line

POLL_SECONDS, GRACE_SECONDS = 0.5, 10.0
# Unbuffered, so that the last line of the log is the last one printed, be it output or an error.
QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
WORKER = "diti.core.worker"  # the module that makes the call


@dataclass(frozen=True)
class Job:
    """A call to make."""

    name: str
    call: partial[Any]  # of a function of this package, with arguments that can be pickled
    log: Path  # file for what it prints


@dataclass(frozen=True)
class Child:
    """A running job."""

    job: Job
    process: subprocess.Popen[bytes]  # its standard input stays open as long as this process lives, see the worker
    began: float  # seconds since the epoch

    @property
    def ended(self) -> bool:
        """As of the last poll, so that all reads between two polls agree."""
        return self.process.returncode is not None

    @property
    def fault(self) -> str:
        """How it ended and the last line it printed; empty when all went well."""
        code = self.process.returncode
        if code == 0:
            return ""
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return ": ".join([ended, *last_line(self.job.log)])

    def has_ended(self) -> bool:
        """As of now."""
        if self.process.poll() is not None and self.process.stdin is not None:
            with suppress(BrokenPipeError):  # it did not read its call
                self.process.stdin.close()
        return self.ended


def usual_jobs() -> int:
    """How many in parallel: one per core, or one where a GPU is used."""
    return available_cores() if on_host(decide()) else 1


def threads_of_each(side_by_side: int) -> int:
    """Threads of a job: one, as there are usually as many jobs as cores; beside a GPU its share of the cores."""
    return 1 if on_host(decide()) else max(1, available_cores() // side_by_side)


def run_jobs(jobs: Sequence[Job], side_by_side: int, on_poll: Callable[[Child], None]) -> None:
    """Run all jobs in their order; `on_poll` is called with each child twice a second and once when it has ended.

    A job that fails does not stop the others. Ctrl-C, SIGTERM and a terminal that closes stop all of them.
    """
    waiting, running, threads = deque(jobs), list[Child](), threads_of_each(side_by_side)
    with _stopped_alike() as interrupts:
        try:
            while waiting or running:
                while waiting and len(running) < side_by_side:
                    with interrupts.postponed():  # a child that is not listed yet would not be stopped
                        running.append(_start(waiting.popleft(), threads))
                time.sleep(POLL_SECONDS)
                for child in list(running):
                    if child.has_ended():
                        running.remove(child)
                    on_poll(child)
        finally:
            _stop(running)


def last_line(log: Path) -> list[str]:
    """The last line of a file with something in it, if there is one."""
    printed = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.strip() for line in printed if line.strip()][-1:]


def _start(job: Job, threads: int) -> Child:
    job.log.parent.mkdir(parents=True, exist_ok=True)
    began = time.time()
    with job.log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", WORKER, str(job.log)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **QUIET, "OMP_NUM_THREADS": str(threads)},
            process_group=0,  # Ctrl-C reaches this process alone, which then stops each job once
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it died at once: the exit code shows it
        process.stdin.write(pickle.dumps((command_line(), job.call)))
        process.stdin.flush()
    return Child(job, process, began)


class _Interrupts:
    """A signal handler: KeyboardInterrupt, at once or after a block that must not be interrupted."""

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
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does. Only the main thread may set this."""
    interrupts = _Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    # nohup ignores SIGHUP, a shell's & ignores SIGINT, and that must stay so.
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupts) for number in numbers}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(children: Sequence[Child]) -> None:
    """Stop what still runs, as Ctrl-C would, so that each can save its state."""
    for child in children:
        child.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # even when Ctrl-C is pressed again
        for child in children:
            child.process.kill()  # does nothing to one that has ended
            child.process.wait()
            child.has_ended()
