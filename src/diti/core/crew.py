"""Several processes, one of which does all the work of a command and gives the large parts of it to the others.

The first process, the leader, runs the command as if it were alone. Where it has to go over many images, it offers
pieces of that; the others take them one by one and send back arrays. None waits for another: who is faster takes
more of them. The networks are sent, so that the others need no model folder; the data must be readable by all.
"""

from __future__ import annotations

import io
import json
import pkgutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diti.core.launch import processes
from diti.core.meeting import LAST_LOOK, Meeting, alone, leading, meeting

Work = Callable[[slice], np.ndarray]  # some rows → what is found in them, a row each
OURS = "diti."  # only functions of this package are called by name
END = "end"

_led: list[Meeting] = []  # that of the leader, while it leads


def with_crew(command: Callable[[], None]) -> None:
    """Run the command in the first process; the others help it until it ends."""
    if processes() == 1:
        command()
        return
    here = meeting()

    def lead() -> None:
        _led.append(here)
        alone()
        try:
            command()
        finally:
            _led.clear()
            here.store.set(f"job/{_number(here, 1)}", END)

    leading(lead if here.rank == 0 else lambda: _help(here))


def has_crew() -> bool:
    """Whether there are others to help."""
    return bool(_led)


def shared(
    maker: str, facts: dict[str, Any], save: Callable[[Path], object], rows: Sequence[slice], own: Work
) -> Iterator[np.ndarray]:
    """What `own` finds in each of these rows, in their order; the others do a part of it.

    maker: name of the function of this package that makes the same work elsewhere, from the facts and the folder
    that `save` writes.
    """
    (here,) = _led
    key = f"job/{_number(here, 1)}"
    here.send(f"{key}/folder", packed(save))
    here.store.set(key, json.dumps({"maker": maker, "facts": facts, "rows": [[r.start, r.stop] for r in rows]}))
    found: dict[int, np.ndarray] = {}
    given = 0
    while given < len(rows):
        if (item := here.store.add(f"{key}/next", 1) - 1) < len(rows):
            found[item] = own(rows[item])
        elif given not in found and not here.store.check([f"{key}/{given}"]):
            time.sleep(LAST_LOOK / 10)
        while given < len(rows) and (given in found or here.store.check([f"{key}/{given}"])):
            yield found.pop(given) if given in found else _array(here.take(f"{key}/{given}", last=True))
            given += 1


def _number(here: Meeting, more: int) -> int:
    """Of the newest job."""
    return here.store.add("jobs", more)


def _help(here: Meeting) -> None:
    """Take pieces of one job after the other."""
    number = 0
    while True:
        number += 1
        here.wait_for(f"job/{number}")
        if (told := here.store.get(f"job/{number}").decode()) == END:
            return
        job = json.loads(told)
        work = None
        while (item := here.store.add(f"job/{number}/next", 1) - 1) < len(job["rows"]):
            work = work or _made(here, number, job)
            here.send(f"job/{number}/{item}", _bytes(work(slice(*job["rows"][item]))))


def _made(here: Meeting, number: int, job: dict[str, Any]) -> Work:
    """The work of a job; its folder is read while it is made."""
    maker = job["maker"]
    assert maker.startswith(OURS), maker
    with tempfile.TemporaryDirectory() as place:
        folder = unpacked(here.take(f"job/{number}/folder"), Path(place))
        work: Work = pkgutil.resolve_name(maker)(job["facts"], folder)
    return work


def packed(save: Callable[[Path], object]) -> bytes:
    """The folder that a function writes, as bytes."""
    data = io.BytesIO()
    with tempfile.TemporaryDirectory() as place, tarfile.open(fileobj=data, mode="w") as tar:
        save(Path(place, "folder"))
        tar.add(Path(place, "folder"), "folder")
    return data.getvalue()


def unpacked(data: bytes, place: Path) -> Path:
    """That folder again, below a place."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        tar.extractall(place, filter="data")
    return place / "folder"


def _bytes(array: np.ndarray) -> bytes:
    np.save(data := io.BytesIO(), array, allow_pickle=False)
    return data.getvalue()


def _array(data: bytes) -> np.ndarray:
    found: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    return found
