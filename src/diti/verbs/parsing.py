"""From the words of a command to the record of its verb; what tyro complains of becomes one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro

from diti.config import DEFAULT_PRESET, SEEDS, PretrainConfig, check_number, load_yaml
from diti.core.errors import InputError, nearest
from diti.presets import preset, train_preset
from diti.verbs import VERBS
from diti.verbs.common import Verb, print_once

AUTO = "auto"  # of presets: chosen by the images
KINDS = {"INT": "a whole number", "FLOAT": "a number"}  # tyro's names for what it wants


def answer(words: list[str]) -> None:
    """Do what the words ask for."""
    if not words or words[0] in ("-h", "--help", "help"):
        _print_verbs()
    elif words[0] == "--version":
        from diti import __version__

        print(__version__)
    else:
        parse(words[0], words[1:]).run()


def parse(verb: str, words: list[str]) -> Verb:
    """The record of a verb's options; tyro's boxed complaint becomes one line."""
    if verb not in VERBS:
        raise InputError(f"unknown verb {verb!r}; use {', '.join(VERBS)}.{nearest(verb, VERBS)}")
    words = list(_checked(verb, words))
    more: dict[str, Any] = {}
    if verb in ("pretrain", "train"):
        settings = _defaults(verb, words)
        more["default"] = VERBS[verb](out=tyro.MISSING, settings=settings)
        words = [
            settings.preset if word == AUTO and before == "--preset" else word
            for before, word in pairwise(["", *words])
        ]
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
        said = _one_line(complaint.getvalue(), words)
        raise InputError(f"{said} (diti {verb} --help lists the options)") from None
    if isinstance(seed := getattr(found, "seed", 0), int):
        check_number("seed", seed, SEEDS)
    return found


def _checked(verb: str, words: list[str]) -> Iterator[str]:
    """The words with ~ as the user's home folder, also in --out=~/x, which shells leave as it is."""
    for before, word in pairwise([verb, *words]):  # an empty path would be the folder one stands in
        if word == "" or re.fullmatch(r"--[\w-]+=", word):
            raise InputError(f"{word.rstrip('=') or before} is followed by an empty word; give a value there")
        try:
            word.encode()
        except UnicodeEncodeError:  # bytes of another encoding, which no file of ours could quote
            raise InputError(f"{word!r} is not UTF-8; rename the file or folder") from None
        name, equals, value = word.partition("=") if re.match(r"--[\w-]+=~", word) else ("", "", word)
        yield f"{name}{equals}{os.path.expanduser(value)}"  # noqa: PTH111 - a word need not be a path


def _own_complaint(stop: BaseException) -> InputError | None:
    """What a record of settings complained of while tyro made it."""
    cause = stop.__context__
    while cause is not None and not isinstance(cause, InputError):
        cause = cause.__context__
    return cause


def _defaults(verb: str, words: list[str]) -> Any:
    """Settings: preset first, then the YAML file; the command line comes over both when tyro parses it.

    The preset is the one typed, else the file's.
    """
    typed, file, data = (_value_of(option, words) for option in ("--preset", "--config", "--data"))

    def start(name: str) -> Any:
        if verb == "train":
            return train_preset(name)
        return _suited(data) if name == AUTO else preset(name, also=[AUTO])

    settings = start(typed or DEFAULT_PRESET)
    if file is not None:
        settings = load_yaml(named := settings, Path(file))
        if typed is None and settings.preset != named.preset:
            data = data or settings.data
            settings = load_yaml(chosen := start(settings.preset), Path(file))
            settings = dataclasses.replace(settings, preset=chosen.preset)
    return settings


def _suited(data: str | None) -> PretrainConfig:
    """What `--preset auto` stands for; it says why."""
    if not data or data.startswith("--"):
        raise InputError(f"--preset {AUTO} looks at the images: name them with --data")
    import torch

    from diti.data.sources import open_data
    from diti.diffusion.suited import suited

    drawn = data.partition(":")[0] == "toyfaces"  # at any size: at that of its preset
    dataset = open_data(data, preset(DEFAULT_PRESET).backbone.size if drawn else None)
    settings, reason = suited(dataset.size, len(dataset.rows("train")), torch.cuda.is_available())
    print_once(reason)
    return settings


def _value_of(option: str, words: list[str]) -> str | None:
    """The value that counts, as for tyro: the last."""
    found = None
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            found = word.partition("=")[2]
        elif word == option and place + 1 < len(words):
            found = words[place + 1]
    return found


# ---- Complaints ---------------------------------------------------------------------------------------------


def _one_line(box: str, words: list[str]) -> str:
    """What tyro complains of, without its frame: the first part, and the options it thinks were meant."""
    lines = [re.sub(r"^[│| ]+|[│| ]+$", "", line) for line in box.splitlines()[1:-1]]
    raw = [part.strip() for part in re.split(r"[─-]{4,}", "\n".join(lines)) if part.strip()]
    said, *more = (" ".join(part.split()) for part in raw)
    if found := re.match(r"Missing value for argument '([^']+)'", said):
        return f"{_typed(found[1], words)[0]} has no value; write one behind it"
    if said.startswith("Missing"):
        names = re.findall(r"^(?:--[\w-]+|[A-Z]{2,})", raw[0], re.MULTILINE)
        unknown = [part.removeprefix("Unrecognized options: ") for part in more if part.startswith("Unrec")]
        return "; ".join([f"missing: {', '.join(names)}", *(f"unknown: {word}" for word in unknown)])
    if found := re.match(r"invalid choice .* for argument '([^']+)'\. Expected one of \((.*?),?\)\.?$", said):
        option, value = _typed(found[1], words)
        allowed = re.findall(r"'([^']*)'", found[2])
        return f"{option} {value!r} is unknown; use {', '.join(allowed)}.{nearest(value, allowed)}"
    if found := re.match(r"Error parsing (-\S+): ", said):
        option, value = _typed(found[1], words)
        return f"{option} {value!r} is not {_wanted(found[1], ' '.join(more))}"
    # One mistake: "Perhaps you meant: --size ..."; several: "Arguments similar to --sise: --size ..." for each.
    meant = [re.search(r"(?:meant|similar to [^:]*): (--[\w.-]+)", part) for part in more]
    hints = sorted(found[1] for found in meant if found)  # tyro lists them in no fixed order
    return said + (f". Did you mean {', '.join(hints)}?" if hints else "")


def _typed(names: str, words: list[str]) -> tuple[str, str]:
    """Of the names of one option, such as -n/--count, the one that was typed last, and its value."""
    known = names.split("/")
    for place, word in reversed(list(enumerate(words))):
        if (name := word.partition("=")[0]) in known:
            values = [word.partition("=")[2]] if "=" in word else words[place + 1 :]
            end = next((i for i, value in enumerate(values) if re.match(r"-{1,2}[a-zA-Z]", value)), len(values))
            return name, " ".join(values[:end])
    return known[-1], ""


def _wanted(names: str, helptext: str) -> str:
    """What an option takes, by what its help says."""
    found = re.search(rf"{re.escape(names.split('/')[-1])} (\[?)(\w+)", helptext)
    kind = KINDS.get(found[2], "understood") if found else "understood"
    return kind.removeprefix("a ") + "s" if found and found[1] and kind != "understood" else kind


def _print_verbs() -> None:
    print("usage: diti VERB [options]      diti VERB --help tells the options of a verb\n")
    for name, verb in VERBS.items():
        print(f"  {name:<13} {verb.__doc__}")
