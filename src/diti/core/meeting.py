"""How processes wait for each other: by looking, again and again, into a store that all of them can reach.

Nobody waits inside a collective operation while another prepares data, validates or writes: that would end after a
time-out, or never. Every process gives a sign of life, and ends when another has failed or fallen silent.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from diti.core.launch import COUNT, LOCAL_RANK, RANK, processes

SIGN_SECONDS, SILENT_SECONDS = 1.0, 30.0  # between two signs of life; without one
FIRST_LOOK, LAST_LOOK = 0.001, 0.25  # seconds between two looks: they grow
FAREWELL_SECONDS = (20.0, 3.0)  # that the first process waits for the others at its end, and where it failed
LOST = 3  # exit code of a process that was left by another
PIECE = 4_000_000  # bytes: the store takes no more at once


class Meeting:
    """This process's place among those of the job, and what they tell each other."""

    def __init__(self) -> None:
        import torch.distributed as dist

        store, self.rank, self.count = next(iter(dist.rendezvous("env://")))  # type: ignore[attr-defined]
        self.store: Any = dist.PrefixStore("diti", store)  # type: ignore[attr-defined]
        self.met = 0
        self._ended = threading.Event()
        own = self.store.clone()  # type: ignore[attr-defined]
        self._watcher = threading.Thread(target=self._watch, args=(own,), daemon=True)
        self._watcher.start()

    # ---- Waiting ------------------------------------------------------------------------------------------------

    def meet(self) -> None:
        """Wait until every process has come here."""
        self.met += 1
        key = f"met/{self.met}"
        if self.store.add(f"{key}/came", 1) == self.count:
            self.store.set(f"{key}/all", "")
        self.wait_for(f"{key}/all")

    def told(self, tell: Callable[[], Any]) -> Any:
        """What the first process finds, which goes on at once."""
        self.met += 1
        key = f"told/{self.met}"
        if self.rank == 0:
            self.send(key, json.dumps(tell()).encode())
        self.wait_for(key)
        return json.loads(self.take(key))

    def wait_for(self, key: str) -> None:
        """Until somebody has set a key."""
        pause = FIRST_LOOK
        while not self.store.check([key]):
            time.sleep(pause)
            pause = min(LAST_LOOK, 1.5 * pause)

    def send(self, key: str, data: bytes) -> None:
        """Any number of bytes, which `take` takes."""
        pieces = range(0, len(data), PIECE)
        for number, start in enumerate(pieces):
            self.store.set(f"{key}/{number}", data[start : start + PIECE])
        self.store.set(key, str(len(pieces)))

    def take(self, key: str, last: bool = False) -> bytes:
        """What was sent; last: nobody else will ask for it."""
        count = int(self.store.get(key))
        found = b"".join(self.store.get(f"{key}/{number}") for number in range(count))
        if last:
            for gone in (key, *(f"{key}/{number}" for number in range(count))):
                self.store.delete_key(gone)
        return found

    # ---- Signs of life ------------------------------------------------------------------------------------------

    def leave(self, failed: str = "") -> None:
        """This process needs the others no longer; failed: why it ends, so that they end too."""
        if not self._ended.is_set():
            self._ended.set()
            self.store.set(f"left/{self.rank}", failed)
            # An interpreter that ends while a thread of its own is inside the store is aborted by C++.
            self._watcher.join(FAREWELL_SECONDS[bool(failed)])
            if self.rank == 0:  # the store may end with it, and others may still be reading
                self._see_others_off(FAREWELL_SECONDS[bool(failed)])

    def _see_others_off(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.store.check([f"left/{rank}" for rank in range(self.count)]):
            time.sleep(LAST_LOOK / 10)

    def _watch(self, store: Any) -> None:
        """Give signs, and end this process when another failed: it may be waiting where nothing wakes it."""
        heard = {rank: ("", time.monotonic()) for rank in range(self.count) if rank != self.rank}
        number = 0
        while not self._ended.wait(SIGN_SECONDS):
            number += 1
            try:
                store.set(f"sign/{self.rank}", str(number))
                lost = next((line for rank in list(heard) if (line := _news(store, rank, heard))), "")
            except RuntimeError:  # the store has ended, and with it the process or launcher that held it
                lost = "the first process has ended"
            if lost and not self._ended.wait(SIGN_SECONDS):  # time for a line of this process's own
                print(f"diti: {lost}; this one ends too: the same command continues", file=sys.stderr, flush=True)
                os._exit(LOST)


def _news(store: Any, rank: int, heard: dict[int, tuple[str, float]]) -> str:
    """What is wrong with a process; nothing where it gives signs, or left in order."""
    if store.check([f"left/{rank}"]):
        heard.pop(rank)
        line = store.get(f"left/{rank}").decode()
        return f"process {rank} has failed ({line})" if line else ""
    sign = store.get(f"sign/{rank}").decode() if store.check([f"sign/{rank}"]) else ""
    last, since = heard[rank]
    now = time.monotonic()
    heard[rank] = (sign, now if sign != last else since)
    silent = now - heard[rank][1]
    return f"process {rank} gives no sign of life since {silent:.0f} s" if silent > SILENT_SECONDS else ""


@cache
def meeting() -> Meeting:
    """That of this process."""
    return Meeting()


_hand_in_hand: list[Meeting] = []  # while a command runs that the processes share


def together() -> bool:
    """Whether this process shares its work with others: in a command, or in a group of torch.

    A script that calls functions of this package in several processes may do another thing in each.
    """
    if processes() == 1:
        return False
    import torch.distributed as dist

    return bool(_hand_in_hand) or (dist.is_available() and dist.is_initialized())


def meet() -> None:
    """Wait until every process has come here; nothing where there is one."""
    if together():
        meeting().meet()


def told_by_main(tell: Callable[[], Any]) -> Any:
    """What the first process finds, in every process: whatever JSON can hold. The others look now and then."""
    return meeting().told(tell) if together() else tell()


def leading(work: Callable[[], None]) -> None:
    """Do work that the processes share; where it fails, the others are told and end soon."""
    if processes() == 1:
        work()
        return
    _hand_in_hand.append(here := meeting())
    try:
        work()
    except BaseException as error:
        here.leave(failed=(str(error) or type(error).__name__).partition("\n")[0][:200])
        raise
    finally:
        _hand_in_hand.clear()
    here.leave()


def alone() -> None:
    """From here on this process computes by itself, and so do those that it starts."""
    for name in (RANK, COUNT, LOCAL_RANK):
        os.environ.pop(name, None)
