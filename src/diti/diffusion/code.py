"""Python code of a user's own, run only where that user names it: file.py:function.

A model folder only says which code made its diffusion model. It is run again where a user of this machine named
the same file with the same content before, or names it in DITI_BACKBONE: a folder from elsewhere runs nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from diti.core.errors import InputError
from diti.core.machine import cache_folder

VARIABLE = "DITI_BACKBONE"

log = logging.getLogger(__name__)


def returned_by(name: str) -> Any:
    """What the function returns that file.py:function names; a line says that it is run."""
    path, function = _parts(name)
    log.warning("running your code: %s() of %s", function, path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None  # it is a Python file
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # for what it imports from beside it
    try:
        # Bytecode kept beside it is told from a changed file by size and second alone, so it is not asked for.
        exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
        if not callable(make := getattr(module, function, None)):
            raise InputError(f"{path} has no function {function!r}")
        return make()
    except InputError as error:
        raise InputError(str(error) if name in str(error) else f"{name}: {error}") from error
    except (Exception, SystemExit) as error:
        place = next((f" in line {f.lineno}" for f in reversed(traceback.extract_tb(error.__traceback__))
                      if Path(f.filename) == path), "")  # fmt: skip
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"{name} failed{place}: {type(error).__name__}: {reason[:300]}") from error
    finally:
        sys.path.remove(str(path.parent))


def allow(name: str) -> str:
    """Remember that a user named this code; its name with the whole path."""
    path, function = _parts(name)
    mark = _mark(path)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(f"{path}\n", encoding="utf-8")
    return f"{path}:{function}"


def require_allowed(code: str | None, folder: Path) -> str:
    """The code of a model folder, if a user named it here; InputError that says how to name it."""
    if named := os.environ.get(VARIABLE):
        try:
            _parts(named)
        except InputError as error:
            raise InputError(f"{VARIABLE}: {error}") from None
        return named
    if code is None:
        raise InputError(
            f"{folder} was made with a diffusion model given in Python: use diti.load(folder, backbone=...), or "
            f"name a file.py:function that makes it in {VARIABLE}"
        )
    try:
        path, _ = _parts(code)
    except InputError as error:
        raise InputError(f"{folder} needs code that is not there ({error}); name it in {VARIABLE}") from None
    if not _mark(path).is_file():
        raise InputError(
            f"{folder} needs {code}, which was changed, or was not named on this machine before: read it, then "
            f"write {VARIABLE}={code} before the command"
        )
    return code


def _parts(name: str) -> tuple[Path, str]:
    file, colon, function = name.rpartition(":")
    path = Path(file).expanduser().resolve()
    if not colon:
        raise InputError(f"{name} names no function; name your code as file.py:function")
    if not path.is_file():
        raise InputError(f"{file} is not a file; name your code as file.py:function")
    if not function.isidentifier():
        raise InputError(f"{name} names no function; name your code as file.py:function")
    return path, function


def _mark(path: Path) -> Path:
    """A file that exists once a user named this very file."""
    facts = f"{path}\0".encode() + path.read_bytes()
    return cache_folder() / "named-code" / hashlib.sha256(facts).hexdigest()[:32]
