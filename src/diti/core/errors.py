"""The one exception for bad input, and the one line that any fault becomes on the command line."""

from __future__ import annotations

import datetime
import difflib
import errno
import os
import platform
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from diti.core.launch import processes

BAD_INPUT, OUR_FAULT = 2, 70  # exit codes; 70 is EX_SOFTWARE of sysexits.h
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_MEMORY = re.compile(
    r"(can't allocate memory|not enough memory|out of memory|ALLOC_FAILED|bad_alloc|"
    r"Storage size calculation overflowed|numel: integer multiplication overflow)"
)

_LEFT_ALONE = re.compile(r"gloo|nccl|Connection (closed|reset) by peer|Broken pipe|store", re.IGNORECASE)


class InputError(ValueError):
    """Something the user gave is wrong. The message says what was given, what is allowed, what to do.

    It is always one line, whatever names and error texts it quotes.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


def nearest(word: str, allowed: Iterable[str]) -> str:
    """A hint such as ` Did you mean 'size'?`, or an empty string when nothing is close."""
    close = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Write errors in the block name this file: a full disk names none, and a temporary name would not help."""
    try:
        yield
    except Exception as error:
        if _is_safetensors(error) or (isinstance(error, OSError) and _is_of(error.filename, path)):
            error.add_note(str(path))
        raise


def _is_of(name: object, path: Path) -> bool:
    """Whether an error that names this, or nothing, is about the file or its temporary copy."""
    return name is None or Path(str(name)) == path or f".{path.name}." in str(name)


def as_one_line(error: Exception, words: Sequence[str]) -> tuple[str, int]:
    """One line about what ended a command, and its exit code; a fault of our own is written to a report."""
    if (line := _for_the_user(error)) is not None:
        return _printable(line), BAD_INPUT
    report = write_crash_report(error, words)
    where = f"the report {report} says where" if report else "no report could be written; DITI_DEBUG=1 shows where"
    said = f"{type(error).__name__}: {str(error)[:120]}".rstrip(": ")
    return _printable(f"sorry, this is a bug in diti ({said}); {where}, please send it to us"), OUR_FAULT


def short_of_memory(error: Exception) -> bool:
    """Whether this is what Python or torch says where memory is too small; only CUDA has an error of its own."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))
    )


def _for_the_user(error: Exception) -> str | None:
    """What the user can do about it; None where there is nothing to do."""
    text = str(error)
    if isinstance(error, InputError):
        return text
    if short_of_memory(error):
        reason = f" ({text.splitlines()[0][:120]})" if text else ""
        return f"not enough memory{reason}; ask for less at once: fewer or smaller images, batches or networks"
    if processes() > 1 and isinstance(error, RuntimeError) and _LEFT_ALONE.search(text):
        return "another process of this job has ended, and says why; this one ends too: the same command continues"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply to be read; DITI_DEBUG=1 shows where"
    if isinstance(error, OSError):
        return _about_file(error)
    # safetensors has no error of its own for a disk that is full, and its versions word it differently:
    # IoError(Os { code: 28, kind: StorageFull ...; I/O error: No space left on device (os error 28)
    if _is_safetensors(error) and (found := re.search(r"(?:Os \{ code:|\(os error) (\d+)", text)):
        return _about_file(OSError(int(found[1]), os.strerror(int(found[1])), _noted_file(error)))
    return None


def _is_safetensors(error: Exception) -> bool:
    return type(error).__name__ == "SafetensorError"


def _about_file(error: OSError) -> str:
    """Full disk, missing permission and the like: the files written so far are whole."""
    wrote_less = re.search(r"\d+ requested and \d+ written", str(error))  # how numpy reports a full disk
    number = errno.ENOSPC if wrote_less else error.errno
    reason = os.strerror(errno.ENOSPC) if wrote_less else error.strerror or str(error) or type(error).__name__
    advice = "check the path, or choose another place"
    if number in _FULL:
        advice = "free space or choose another place"
    elif number in _FORBIDDEN:
        advice = "change its permissions or choose another place"
    elif number == errno.ENAMETOOLONG:
        advice = "use a shorter name"
    return f"{_noted_file(error) or error.filename or 'a file'}: {reason}; {advice}"


def _noted_file(error: Exception) -> str | None:
    """The file that `naming_file` noted."""
    return next(iter(getattr(error, "__notes__", ())), None)


def _printable(text: str) -> str:
    """On one line: characters that move the cursor or end the line are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.strip())


# ---- The crash report ---------------------------------------------------------------------------------------


def write_crash_report(error: BaseException, words: Sequence[str]) -> Path | None:
    """Write what is needed to fix a fault to the cache, or the temporary folder; None where neither works."""
    now = datetime.datetime.now(datetime.UTC)
    text = "\n".join(_report(error, words, now))
    cache = os.environ.get("DITI_CACHE") or "~/.cache/diti"  # not a temporary one, which ends with the process
    for find in (lambda: Path(cache).expanduser() / "crashes", lambda: Path(tempfile.gettempdir())):
        try:
            folder = find()
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"diti-crash-{now:%Y%m%d-%H%M%S}-{os.getpid()}.txt"
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return path.absolute()
        except (OSError, RuntimeError):  # read-only, full, or no home at all
            continue
    return None


def _report(error: BaseException, words: Sequence[str], now: datetime.datetime) -> Iterator[str]:
    """Command, versions, machine and traceback. Nothing of the data: no values of variables, no images."""
    yield f"command: {shlex.join(['diti', *words])}"
    yield f"time: {now:%Y-%m-%d %H:%M:%S} UTC"
    for name, fact in {"folder": Path.cwd, "versions": _versions, "machine": _machine}.items():
        try:
            yield f"{name}: {fact()}"
        except Exception as unknown:  # one missing fact must not break the report
            yield f"{name}: unknown ({type(unknown).__name__}: {unknown})"
    yield ""
    yield "".join(traceback.format_exception(error))


def _versions() -> str:
    from diti.core.runs import versions

    return ", ".join(f"{name} {version}" for name, version in versions().items())


def _machine() -> str:
    """System, cores and memory, and the GPU where torch is loaded already."""
    from diti.core.device import gpu_name
    from diti.core.machine import available_cores

    facts = [platform.platform(), f"{available_cores()} cores"]
    if hasattr(os, "sysconf"):
        facts.append(f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB of memory")
    if (torch := sys.modules.get("torch")) is not None:
        facts.append(f"{gpu_name()}, {torch.get_num_threads()} threads")
    return ", ".join(facts)
