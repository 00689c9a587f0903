"""From the words of a command to the record of its verb; what tyro complains of becomes one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro

from diti.config import DEFAULT_PRESET, PretrainConfig
from diti.core.device import AUTO as AUTO_DEVICE
from diti.core.device import preferred
from diti.core.errors import InputError, nearest
from diti.core.launch import join_launcher, processes
from diti.core.ranges import check_numbers
from diti.core.settings import load_yaml
from diti.presets import AUTO, preset, train_preset
from diti.representation.registry import fitted
from diti.verbs import VERBS
from diti.verbs.common import Verb, print_once

HAND_IN_HAND = ("pretrain", "train", "solve")
HELP = 8 * " "  # before the lines in which tyro explains an option that it names


def answer(words: list[str]) -> None:
    """Do what the words ask for."""
    if not words or words[0] in ("-h", "--help", "help"):
        _print_verbs()
    elif words[0] == "--version":
        from diti import __version__

        print(__version__)
    else:
        join_launcher()
        verb = parse(words[0], words[1:])
        with preferred(getattr(verb, "device", AUTO_DEVICE)):
            run_together(words[0], verb.run)


def run_together(name: str, run: Callable[[], None]) -> None:
    """Run a verb: in all processes where their work goes hand in hand, else in the first, helped by others."""
    if processes() == 1:
        run()
        return
    from diti.core.crew import with_crew
    from diti.core.meeting import leading

    if name in HAND_IN_HAND:
        leading(run)
    else:
        with_crew(run)


def parse(verb: str, words: list[str]) -> Verb:
    """The record of a verb's options; tyro's boxed complaint becomes one line."""
    if verb not in VERBS:
        raise InputError(f"unknown verb {verb!r}; use {', '.join(VERBS)}.{nearest(verb, VERBS)}")
    words = list(_checked(verb, words))
    more: dict[str, Any] = {}
    if verb in ("pretrain", "train"):
        settings = _defaults(verb, words)
        more["default"] = VERBS[verb](out=tyro.MISSING, settings=settings)
        words = _with_preset(words, settings.preset)
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
        said = _one_line(complaint.getvalue())
        raise InputError(f"{said} (diti {verb} --help lists the options)") from None
    check_numbers(found)
    return found


def _checked(verb: str, words: list[str]) -> Iterator[str]:
    """The words with ~ as the user's home folder, also in --out=~/x, which shells leave as it is."""
    for before, word in pairwise([verb, *words]):  # an empty path would be the current folder
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
    options = ("--preset", "--config", "--data", "--method", "--device")
    typed, file, data, method, device = (_value_of(option, words) for option in options)

    def start(name: str) -> Any:
        if verb == "train":
            usual = train_preset(name)
            return fitted(usual, method or usual.method)
        return _suited(data, device or AUTO_DEVICE) if name == AUTO else preset(name, also=[AUTO])

    settings = start(typed or DEFAULT_PRESET)
    if file is not None:
        settings = load_yaml(named := settings, Path(file))
        if typed is None and settings.preset != named.preset:
            data = data or settings.data
            settings = load_yaml(chosen := start(settings.preset), Path(file))
            settings = dataclasses.replace(settings, preset=chosen.preset)
        elif typed == AUTO:  # of the two names, the one whose settings these are
            settings = dataclasses.replace(settings, preset=named.preset)
    return fitted(settings, method) if verb == "train" and method else settings


def _suited(data: str | None, device: str) -> PretrainConfig:
    """What `--preset auto` stands for; it says why."""
    if not data or data.startswith("--"):
        raise InputError(f"--preset {AUTO} looks at the images: name them with --data")
    from diti.diffusion.suited import suited_to

    settings, reason = suited_to(data, device)
    print_once(reason)
    return settings


def _with_preset(words: list[str], chosen: str) -> list[str]:
    """The words with the preset that was chosen where they leave it open, in either spelling."""
    known = {f"--preset={AUTO}": f"--preset={chosen}"}
    return [
        chosen if (before, word) == ("--preset", AUTO) else known.get(word, word)
        for before, word in pairwise(["", *words])
    ]


def _value_of(option: str, words: list[str]) -> str | None:
    """The value that counts, as for tyro: the last."""
    found = None
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            found = word.partition("=")[2]
        elif word == option and place + 1 < len(words):
            found = words[place + 1]
    return found


def _one_line(box: str) -> str:
    """Tyro's complaint without its frame, what it explains at length and its advice at the end.

    Tyro also has complaints as objects, but only in a private module that any release may change.
    """
    lines = [line[2:].rstrip("│╯ ") for line in box.splitlines()[1:]]  # of spaces where the terminal has no boxes
    parts = re.split(r"^[─-]{4,}$", "\n".join(line for line in lines if not line.startswith(HELP)), flags=re.M)
    texts = [" ".join(part.split()) for part in parts]
    said, *more = (text for text in texts if text and not text.startswith("For full helptext"))
    if found := re.match(r"Error parsing (\S+): [^'\"]*(['\"].*?)\]?(\. Got errors:.*)?$", said):  # Python's words
        return "; use ".join([f"{found[1]} cannot be {found[2]}", *more]).replace("Argument helptext: ", "")
    if said.startswith("invalid choice"):
        value, _, *choices = re.findall(r"'([^']*)'", said)
        return said + nearest(value, choices)
    return "; ".join([said, *more])


def _print_verbs() -> None:
    print("usage: diti VERB [options]      diti VERB --help lists the options of a verb\n")
    for name, verb in VERBS.items():
        print(f"  {name:<13} {verb.__doc__}")
