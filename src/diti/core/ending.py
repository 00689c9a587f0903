"""How a process of ours ends, whatever ends it.

It imports only the standard library, so that Ctrl-C is handled from the first moment on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TextIO

STOPPED = 130  # by the user


def ended(work: Callable[[], None], words: Sequence[str]) -> int:
    """0 when all went well, 2 and one line for bad input, 130 when stopped by the user, 70 for a fault of our own.

    words: what was asked for, for the report of such a fault.
    """
    _open_closed_streams()
    try:
        _print_what_can_be_printed()
        try:
            work()
        except SystemExit:  # --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # a full disk or a closed pipe is reported here, not by the interpreter at exit
    except KeyboardInterrupt as stop:
        return _stopped(stop)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        _discard(sys.stdout)
        return 1
    except Exception as error:
        if _was_interrupted(error):
            return _stopped(error)
        from diti.core.errors import as_one_line

        line, code = as_one_line(error, words)
        _show_traceback(error)
        _complain(line)
        return code
    return 0


def _open_closed_streams() -> None:
    """Discard what goes to a closed stream, as by >&-, so that it never lands in a file opened later."""
    for number, (name, mode) in enumerate([("stdin", "r"), ("stdout", "w"), ("stderr", "w")]):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            stream = os.fdopen(number, mode, encoding="utf-8", errors="replace", closefd=False)
            setattr(sys, name, stream)


def _print_what_can_be_printed() -> None:
    """Show ? for what the terminal's encoding lacks, such as Greek letters and boxes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", "") == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _stopped(stop: BaseException) -> int:
    _show_traceback(stop)
    _complain("stopped; the same command continues where it can")
    return STOPPED


def _complain(line: str) -> None:
    try:
        sys.stdout.flush()
    except OSError:  # there may be no reader
        _discard(sys.stdout)
    try:
        print(f"diti: {line}", file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """What could not be written is tried again at exit, and would then decide the exit code."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind it: a library that is being imported may turn it into an error of its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _show_traceback(error: BaseException) -> None:
    if os.environ.get("DITI_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
