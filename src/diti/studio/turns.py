"""Whose request is served next: one at a time, and nobody waits for everything that another has asked for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from weakref import WeakKeyDictionary

from diti.studio.session import Visitor


class Ticket(NamedTuple):
    """A request that waits."""

    arrival: int
    visitor: Visitor


class Turns:
    """Of those who wait, the visitor who was served longest ago comes next."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False
        self._waiting: list[Ticket] = []
        self._served: WeakKeyDictionary[Visitor, int] = WeakKeyDictionary()
        self._clock = itertools.count(1)

    @contextmanager
    def turn(self, visitor: Visitor) -> Iterator[None]:
        """Inside the block nobody else is served."""
        with self._changed:
            ticket = Ticket(next(self._clock), visitor)
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: not self._busy and self._next() is ticket)
            self._waiting.remove(ticket)
            self._busy, self._served[visitor] = True, next(self._clock)
        try:
            yield
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> Ticket:
        return min(self._waiting, key=lambda ticket: (self._served.get(ticket.visitor, 0), ticket.arrival))
