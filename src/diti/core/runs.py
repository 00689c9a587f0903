"""Run folders: atomic writes, hashes, versions, and a JSON-lines log that survives a kill."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from diti import __version__
from diti.core.errors import InputError, naming_file
from diti.core.locks import locked
from diti.core.settings import differences, load_yaml, to_yaml

FINISHED = ("config.yaml", "run.json", "model.json", "checks.json", "card.md")  # the card is written last
MADE = ("model.json", "unet")  # either exists as soon as a run has made something
DIVERGED = "diverged.txt"  # why a training was given up
_VERSIONED = ("torch", "diffusers", "accelerate", "numpy", "scikit-learn", "pyarrow")


def as_path(given: object, what: str) -> Path:
    """A path given as text or as a Path; for anything else an InputError that says what is wanted."""
    if not isinstance(given, str | Path):
        raise InputError(f"{what} is {described(given)}; give a path, as text or as a Path")
    return Path(given)


def described(given: object) -> str:
    """What was given instead of the right thing, for a message."""
    return "missing (None)" if given is None else f"of type {type(given).__name__}"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block succeeds and removed when it fails."""
    path = path.absolute()  # pyarrow takes a relative name with a colon for an address
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with naming_file(path):
            yield temporary
            _flush_to_disk(temporary)
            _rename_over(temporary, path)
    finally:
        _remove(temporary)


def _rename_over(temporary: Path, path: Path) -> None:
    """A file replaces a file in one step; a folder has to step aside first."""
    if not path.is_dir():
        temporary.replace(path)
        return
    if not temporary.is_dir():
        raise InputError(f"{path} is a folder; name a file")
    aside = path.with_name(f".{path.name}.{os.getpid()}.old")
    path.rename(aside)
    temporary.rename(path)
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_parts(folder: Path) -> None:
    """Remove what killed processes left of `atomic_path` in a run folder, which nobody else writes to."""
    for path in [*folder.glob(".*"), *(folder / "state").rglob(".*")]:
        if re.fullmatch(r"\..+\.\d+\.(part|old)", path.name):
            _remove(path)


def _flush_to_disk(path: Path) -> None:
    """Contents must be on the disk before the name points to them, or a power cut leaves an empty file."""
    for file in [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or nothing."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, record: Any) -> None:
    """Write a whole JSON file, or nothing."""
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """A JSON file; InputError that names it when it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON ({error})") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """A JSON file of names and values; InputError that names it where it holds something else."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path} holds a {type(found).__name__} where names and values belong; copy it again")
    return found


def sha256_file(path: Path) -> str:
    """Hex digest of a file's contents."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_folder(folder: Path) -> str:
    """Hex digest of the names and contents of all files below a folder."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def sha256_parts(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Hex digest of each of these files and folders that a folder has."""
    found = [folder / name for name in names if (folder / name).exists()]
    return {path.name: sha256_folder(path) if path.is_dir() else sha256_file(path) for path in found}


def versions() -> dict[str, str]:
    """Versions of the packages that the numbers depend on, read without importing them."""
    others = {name: metadata.version(name) for name in _VERSIONED}
    return {"python": platform.python_version(), "diti": __version__, **others}


_asked: ContextVar[str] = ContextVar("asked", default="called from Python")


@contextmanager
def asked_by(command: str) -> Iterator[None]:
    """Record which command asked for the work in the block."""
    token = _asked.set(command)
    try:
        yield
    finally:
        _asked.reset(token)


def command_line() -> str:
    """The command as it was typed, for the card of a run; the words of a user's script are not ours to record."""
    return _asked.get()


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: `config.yaml` (resolved), `run.json` (inputs, versions) and `log.jsonl`."""

    path: Path

    @property
    def log_path(self) -> Path:
        return self.path / "log.jsonl"

    @contextmanager
    def held(self, main: bool = True) -> Iterator[None]:
        """Inside the block no other command writes to this folder. Of several processes the `main` one holds it.

        A folder in which nothing was made, as when the data is too small, is removed again; the log of a training
        that was given up counts as something.
        """
        if not main:
            yield
            return
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"--out {self.path} is a file; name a folder")
        new = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path):  # refused here: the folder belongs to another command
            try:
                yield
            except InputError:
                if new and not (self.path / "state").is_dir() and not (self.path / DIVERGED).is_file():
                    shutil.rmtree(self.path)
                raise

    def begin(
        self,
        config: Any,
        inputs: dict[str, Any],
        free: frozenset[str] = frozenset(),
        images: int | None = None,
        *,
        needs_state: bool = True,
    ) -> None:
        """Write the run's settings and inputs before its first step; continue a run only if it is this one.

        `free` are the settings that a continued run may change. All of `inputs` but the command must be the same.
        images: its length, at least what it has seen. needs_state: a finished model without a state is refused,
        since a new run would not arrive at the same model.
        """
        saved = self.path / "config.yaml"
        if saved.is_file():
            self._require_same(config, inputs, free, needs_state)
            seen = self.images_seen() if (self.path / "state").is_dir() else 0
            if images is not None and seen > images:
                raise InputError(
                    f"{self.path} has seen {seen:,} images and --images is {images:,}; give {seen:,} or more, or "
                    "another --out"
                )
        elif self.path.exists() and any(not p.name.startswith(".") for p in self.path.iterdir()):  # lock, parts
            raise InputError(f"--out {self.path} holds other files; choose a new or empty folder")
        _remove_parts(self.path)
        (self.path / DIVERGED).unlink(missing_ok=True)
        write_text(saved, to_yaml(config))
        write_json(self.path / "run.json", {**inputs, "command": command_line(), "versions": versions()})

    def _require_same(self, config: Any, inputs: dict[str, Any], free: frozenset[str], needs_state: bool) -> None:
        """InputError where the folder holds another run, or one that cannot continue; a bare start is replaced."""
        state, made = (self.path / "state").is_dir(), any((self.path / name).exists() for name in MADE)
        facts = read_mapping(self.path / "run.json") if state or made else {}
        if not facts:
            return
        if (verb := facts.get("verb")) != inputs.get("verb"):
            raise InputError(f"--out {self.path} holds a run of diti {verb}; choose a new or empty folder")
        changed = differences(load_yaml(type(config)(), self.path / "config.yaml"), config, free)
        changed += [name for name in inputs if facts.get(name) != inputs[name]]
        if changed:
            raise InputError(
                f"{self.path} holds a run with other settings ({', '.join(changed)}); "
                "repeat its command to continue it, or choose another --out"
            )
        if needs_state and not state:
            raise InputError(
                f"{self.path} holds a finished model and no state to continue it from; choose another --out"
            )

    def missing(self, images: int = 0) -> list[str]:
        """What the folder lacks of a finished model: files, and images that its training was to see."""
        found = [name for name in FINISHED if not (self.path / name).is_file()]
        unseen = images - self.images_seen()
        return found + ([f"{unseen:,} of its {images:,} images"] if unseen > 0 else [])

    def images_seen(self) -> int:
        """By the lines of the log."""
        return max((_images(line) for line in self.read_log()), default=0)

    def log(self, **record: Any) -> None:
        """Append one line to the log."""
        self.path.mkdir(parents=True, exist_ok=True)
        with naming_file(self.log_path), self.log_path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(record) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        """The records of the log; a line that is cut off by a kill, or is not a record, is left out."""
        if not self.log_path.exists():
            return []
        records = []
        for line in self.log_path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except (json.JSONDecodeError, RecursionError):
                continue
            if isinstance(record, dict):
                records.append(record)
        return records

    def rewind_log(self, images: int, falls: int | None = None) -> None:
        """Remove what was logged after that many images or divergences: it will be logged again."""
        kept = [r for r in self.read_log() if _images(r) <= images]
        if falls is not None:
            late = [id(r) for r in kept if "fall" in r][falls:]
            kept = [r for r in kept if id(r) not in late]
        write_text(self.log_path, "".join(json.dumps(r) + "\n" for r in kept))


def _images(line: dict[str, Any]) -> int:
    """Images seen at a line of the log, 0 where it does not say."""
    images = line.get("images", 0)
    return images if isinstance(images, int) else 0
