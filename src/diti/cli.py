"""The command line as a process.

Nothing but the standard library is imported before `main` runs, so that Ctrl-C is handled from the start.
"""

from __future__ import annotations

import os
import signal
import sys

from diti.core.ending import STOPPED, ended


def main(argv: list[str] | None = None) -> int:
    """Do what the words ask for; the exit code says how it ended."""
    # Must stand in the environment before torch is imported: busy waiting slows a shared machine manyfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if argv is None else argv)
    code = ended(lambda: _answer(words), words)
    if argv is None and code == STOPPED:  # the end of the process: an impatient Ctrl-C would print a traceback
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _answer(words: list[str]) -> None:
    import shlex

    from diti.core.runs import asked_by
    from diti.verbs.parsing import answer

    with asked_by(shlex.join(["diti", *words])):
        answer(words)
