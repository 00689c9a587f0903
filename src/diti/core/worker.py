"""`python -m diti.core.worker`: make the call that `core/jobs.py` hands over, and end as a command does."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading


def work() -> None:
    """Read a call from standard input and make it, on behalf of the command that was typed."""
    from diti.core.runs import asked_by

    command, call = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with asked_by(command):
        call()


def _end_with_parent() -> None:
    """Standard input ends when the parent does, however that ends; then this process ends at once."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    from diti.core.ending import ended

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
    sys.exit(ended(work, sys.argv[1:]))
