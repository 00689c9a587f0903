"""The command line as a process: what a command ends with, however it ends.

Nothing but the standard library is imported before `main` runs, so that Ctrl-C is met from the first moment on.
"""

from __future__ import annotations

import os
import sys


def main(argv: list[str] | None = None) -> int:
    """0 when all went well, 2 and one line for bad input, 130 when stopped by hand, 70 for a fault of our own."""
    # Must stand in the environment before torch is imported: busy waiting slows a shared machine manyfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        _print_what_can_be_printed()
        from diti.verbs.parsing import answer

        answer(words)
        sys.stdout.flush()  # a full disk or a closed pipe is told here, not by the interpreter when it ends
    except KeyboardInterrupt as stop:
        return _stopped(stop)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if _was_interrupted(error):
            return _stopped(error)
        from diti.core.errors import told

        line, code = told(error, words)
        _show_traceback(error)
        print(f"diti: {line}", file=sys.stderr)
        return code
    return 0


def _print_what_can_be_printed() -> None:
    """Show ? for what the terminal's encoding lacks, such as Greek letters and boxes, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", "") == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _stopped(stop: BaseException) -> int:
    _show_traceback(stop)
    print("diti: stopped; the same command continues where it can", file=sys.stderr)
    return 130


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind it: a library that is being imported may turn it into an error of its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _show_traceback(error: BaseException) -> None:
    if os.environ.get("DITI_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
