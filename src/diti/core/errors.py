"""The one exception for bad input: the command line turns it into one line and exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave is wrong. The message says what was given, what is allowed, what to do.

    It is one line, whatever names and reasons of others it quotes.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A hint such as ` Did you mean 'size'?`, or an empty string when nothing is close."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
