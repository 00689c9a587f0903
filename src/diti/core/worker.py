"""`python -m diti.core.worker`: make the call that `core/jobs.py` hands over, and end as a command does."""

from __future__ import annotations

import pickle
import sys


def work() -> None:
    """Read a call from standard input and make it, on behalf of the command that was typed."""
    from diti.core.runs import asked_by

    command, call = pickle.load(sys.stdin.buffer)
    with asked_by(command):
        call()


if __name__ == "__main__":
    from diti.core.ending import ended

    sys.exit(ended(work, sys.argv[1:]))
