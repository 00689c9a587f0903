"""The command line: words → the record of a verb → its run; complaints are one line and exit code 2."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro

from diti.config import DEFAULT_PRESET, load_yaml, preset, train_preset
from diti.core.errors import InputError, nearest
from diti.verbs import VERBS
from diti.verbs.common import Verb


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all went well, 2 and one line for bad input, 130 when stopped by hand."""
    # Must stand in the environment before torch is imported: busy waiting slows a shared machine manyfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if not words or words[0] in ("-h", "--help", "help"):
            _print_verbs()
        elif words[0] == "--version":
            from diti import __version__

            print(__version__)
        else:
            parse(words[0], words[1:]).run()
    except InputError as error:
        print(f"diti: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("diti: stopped; the same command continues where it can", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # full disk, missing permission: the files written so far are whole
        print(
            f"diti: {error.filename or 'a file'}: {error.strerror or error}; free space or choose another place",
            file=sys.stderr,
        )
        return 2
    return 0


def parse(verb: str, words: list[str]) -> Verb:
    """The record of a verb's options; tyro's boxed complaint becomes one line."""
    if verb not in VERBS:
        raise InputError(f"unknown verb {verb!r}; use {', '.join(VERBS)}.{nearest(verb, VERBS)}")
    for before, word in pairwise([verb, *words]):  # an empty path would be the folder one stands in
        if word == "" or re.fullmatch(r"--[\w-]+=", word):
            raise InputError(f"{word.rstrip('=') or before} is followed by an empty word; give a value there")
    more: dict[str, Any] = {"default": _defaults(verb, words)} if verb in ("pretrain", "train") else {}
    if hasattr(VERBS[verb], "description"):
        more["description"] = VERBS[verb].description()
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            found: Verb = tyro.cli(VERBS[verb], args=words, prog=f"diti {verb}", **more)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        if (own := _own_complaint(stop)) is not None:  # tyro would name a section and break the line
            raise own from None
        raise InputError(f"{_one_line(complaint.getvalue())} (diti {verb} --help lists the options)") from None
    return found


def _own_complaint(stop: BaseException) -> InputError | None:
    """What a record of settings complained of while tyro made it."""
    cause = stop.__context__
    while cause is not None and not isinstance(cause, InputError):
        cause = cause.__context__
    return cause


def _defaults(verb: str, words: list[str]) -> Any:
    """Preset first, then the YAML file; the command line comes over both when tyro parses it."""
    settings = (preset if verb == "pretrain" else train_preset)(_value_of("--preset", words) or DEFAULT_PRESET)
    if (config := _value_of("--config", words)) is not None:
        settings = load_yaml(settings, Path(config))
    return VERBS[verb](out=tyro.MISSING, settings=settings)


def _value_of(option: str, words: list[str]) -> str | None:
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and place + 1 < len(words):
            return words[place + 1]
    return None


def _one_line(box: str) -> str:
    """What tyro complains of, without its frame: the first part, and the options it thinks were meant."""
    lines = [re.sub(r"^[│| ]+|[│| ]+$", "", line) for line in box.splitlines()[1:-1]]
    parts = [part.strip() for part in re.split(r"[─-]{4,}", "\n".join(lines)) if part.strip()]
    if parts[0].startswith("Missing"):
        names = re.findall(r"^(?:--[\w-]+|[A-Z]{2,})", parts[0], re.MULTILINE)
        return f"missing: {', '.join(names)}"
    # One mistake: "Perhaps you meant: --size ..."; several: "Arguments similar to --sise: --size ..." for each.
    meant = [re.search(r"^ *(--[\w.-]+)", part, re.MULTILINE) for part in parts[1:]]
    hints = sorted(found[1] for found in meant if found)  # tyro lists them in no fixed order
    return " ".join(parts[0].split()) + (f". Did you mean {', '.join(hints)}?" if hints else "")


def _print_verbs() -> None:
    print("usage: diti VERB [options]      diti VERB --help tells the options of a verb\n")
    for name, verb in VERBS.items():
        print(f"  {name:<13} {verb.__doc__}")
