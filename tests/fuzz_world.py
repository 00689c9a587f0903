"""A small world of every kind of file that diti reads, commands tried in copies of it, and what must not happen.

A command may end well (exit code 0) or refuse (2 and one line `diti: ...`). It may not do anything else: no
traceback, no other exit code, no change to a file that it does not own, and nothing left behind by a refusal.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from conftest import picture
from tiny import tiny_backbone

from diti.cli import main
from diti.core import jobs, progress

MEMORY = 3 * 2**30  # bytes that a command may take beyond what is loaded: a drawn number must not fill the machine
TRAINED = "--data data --backbone backbone --code-dim 12 --subsets 4 --start copy --train-batch-size 32"
RUN = f"{TRAINED} --out run --images 64 --checkpoint-images 32"

# Quick commands that end well; what is drawn replaces or joins their options.
COMMANDS = {
    "demo": "--quick --faces 500 --images 32 --out out",
    "prepare": "photos --size 16 --out out --workers 1",
    "pretrain": "--data data --out out --size 16 --unshuffle 2 --channels 8 16 --attention 4 --head-channels 8 "
    "--images 32 --layers 1",
    "solve": "--data data --backbone backbone --out out --images 32 --code-dim 4 --subsets 2 --stretches 3",
    "train": f"{TRAINED} --out out --images 32",
    "encode": "run data --out out.parquet",
    "probe": "run --data data --out out.json --no-baselines --no-subsets",
    "analyze": "backbone --data toyfaces:48 --count 1 --out out",
    "counterfactuals": "run --data data --out out --images 1 --pairs 1 --classifier-images 32",
    "report": "run --data data --out out --faces 1 --pairs 1 --changes 1 --classifier-images 32",
    "sweep": "sweep.yaml --out out --dry-run",
    "interpolate": "run photos/0.png photos/1.png --sampling-steps 1 --out out.png",
    "manipulate": "run photos/0.png --attribute smile --data data --dims 4 --sampling-steps 1 --out out.png",
    "sample": "backbone -n 1 --sampling-steps 1 --out out.png",
    "vary": "run photos/0.png -n 1 --sampling-steps 1 --out out.png",
    "train-latent": "run --data data --codes 256",
    "label": "data --model label.onnx --names names.txt",
    "convert": "backbone --out out",
    "export": "run --out out.onnx",
    "presets": "",
}

# What reads the files of a folder or a file of the world, the quickest first.
READERS = {
    "data": ("encode", "probe", "prepare toyfaces:48 --size 16 --out data", "train"),
    "half": ("prepare photos --size 16 --out half", "encode run half"),
    "photos": ("encode run photos", "vary", "prepare"),
    "backbone": ("sample", "train", "convert"),
    "run": (
        "encode", "vary", "manipulate", "sample run -n 1 --sampling-steps 1", "interpolate", f"train {RUN}",
        f"train {RUN} --images 96", "sweep sweep.yaml --out . --dry-run", "probe",
        "train-latent run --data data --codes 512", "report",
    ),
    "cache": ("encode run data", "encode run photos"),
    "sweep.yaml": ("sweep",),
    "settings.yaml": (f"train {TRAINED} --out out --images 32 --config settings.yaml --dry-run",),
    "names.txt": ("label",),
    "label.onnx": ("label",),
    "pairs.csv": ("analyze backbone --data data --pairs pairs.csv --count 1 --out out",),
    "probe.json": ("probe run --data data --out out.json --no-baselines --no-subsets --against probe.json",),
}  # fmt: skip


def words_of(command: str) -> tuple[str, ...]:
    """The words of a command; a verb alone stands for its quick command."""
    return tuple(f"{command} {COMMANDS[command]}".split() if command in COMMANDS else command.split())


class _Payload:
    """A pickle that leaves a trace where it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("a-pickle-was-run",)


DAMAGES = {
    "cut": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "list": lambda content: b"[]",
    "null": lambda content: b"null",
    "object": lambda content: b'{"images": "many", "size": -1, "a": {}}',
    "noise": lambda content: random.Random(len(content)).randbytes(max(64, len(content))),
    "pickle": lambda content: pickle.dumps(_Payload()),
}


@dataclass(frozen=True)
class Case:
    """A command, and the file that is damaged before."""

    words: tuple[str, ...]
    file: str = ""
    damage: str = ""

    def __str__(self) -> str:
        return json.dumps([self.words, self.file, self.damage], ensure_ascii=True)

    @staticmethod
    def parse(text: str) -> Case:
        words, file, damage = json.loads(text)
        return Case(tuple(words), file, damage)


@dataclass(frozen=True)
class Outcome:
    """What a command did."""

    code: int | None  # None: it raised
    out: str
    error: str
    interrupted: bool  # it worked longer than it was given
    changed: list[str]  # files and folders that are new, gone or different
    new: list[str]  # those of them that were not there before
    traceback: str = ""

    def faults(self, case: Case) -> list[str]:
        """What must not happen, and did."""
        found = []
        if self.code is None:
            return [f"raised {self.traceback.strip().splitlines()[-1]}"]
        if self.code not in ((0, 2, 130) if self.interrupted else (0, 2)):
            found.append(f"exit code {self.code}")
        if "Traceback (most" in self.out + self.error:
            found.append("a traceback")
        if self.code == 2 and not (self.error.startswith("diti: ") and self.error.count("\n") == 1):
            found.append("not one line")
        if self.code == 2 and self.error.rstrip().endswith(("None", ": ''", ":")):
            found.append("a line that says nothing")
        if self.code == 2 and (left := [name for name in self.changed if not name.startswith("cache")]):
            found.append(f"refused, and changed {', '.join(left[:3])}")
        elif touched := [name for name in self.changed if not may_change(name, name in self.new, case)]:
            found.append(f"changed {', '.join(touched[:3])}")
        return found


def may_change(name: str, new: bool, case: Case) -> bool:
    """Whether a command that worked may have made or changed this file or folder."""
    verb, words = case.words[0] if case.words else "", case.words
    owned = {"manipulate": "attributes", "counterfactuals": "attributes", "train-latent": "latent"}
    if name.startswith("cache") or (verb in owned and f"/{owned[verb]}" in name):
        return True
    if verb in ("train", "sweep", "report") and name.split("/")[0] in ("run", "plan", "logs"):
        return True  # it continues the run, or keeps beside it what was measured
    if (verb == "prepare" and name.split("/")[0] == "half") or (verb == "label" and name.split("/")[0] == "data"):
        return True
    return new and bool(words)


@dataclass
class World:
    """The folder that every trial gets a copy of."""

    folder: Path
    scratch: Path
    files: dict[str, list[str]] = field(default_factory=dict)  # entry of READERS → the files that can be damaged

    @staticmethod
    def build(folder: Path) -> World:
        """Make every kind of folder once, by the commands that make them."""
        world = World(folder / "world", folder / "trial")
        world.folder.mkdir()
        with _inside(world.folder):
            tiny_backbone().save("backbone")
            for index in range(3):
                Path("photos").mkdir(exist_ok=True)
                picture(index, 16, 16).save(f"photos/{index}.png")
            Path("photos/attributes.csv").write_text("file,smile,hat\n0.png,1,0\n1.png,0,1\n2.png,1,1\n")
            Path("names.txt").write_text("red\ngreen\nblue\n")
            Path("pairs.csv").write_text("attribute,first,second\nsmile,photos/0.png,photos/1.png\n")
            Path("settings.yaml").write_text("subsets: 3\ntraining:\n  learning_rate: 0.002\n")
            _write_sweep(Path("sweep.yaml"))
            _write_onnx(Path("label.onnx"))
            for words in (
                "prepare toyfaces:48 --size 16 --out data",
                f"train {RUN}",
                "train-latent run --data data --codes 256",
                "manipulate",
                "probe run --data data --out probe.json --no-baselines --no-subsets",
                "encode run photos",
            ):
                outcome = _run(words_of(words), seconds=300)
                if outcome[0] != 0:
                    raise RuntimeError(f"{words}: {outcome}")
            for left in ("out.png", "features.parquet", "probe-attributes.png", "probe-weights.png"):
                Path(left).unlink(missing_ok=True)
            shutil.rmtree("run/tensorboard", ignore_errors=True)
            shutil.rmtree("run/latent/tensorboard", ignore_errors=True)
            _prepare_half()
        for entry in READERS:
            found = (
                [world.folder / entry] if (world.folder / entry).is_file() else (world.folder / entry).rglob("*")
            )
            names = [str(path.relative_to(world.folder)) for path in found if path.is_file()]
            world.files[entry] = sorted(
                n for n in names if not n.startswith("run/") or not n.endswith((".png", ".md"))
            )
        return world

    def cases(self) -> Iterator[Case]:
        """Every file damaged in every way, for every command that reads it."""
        for entry, files in self.files.items():
            for file in files:
                for damage in DAMAGES:
                    for command in READERS[entry]:
                        yield Case(words_of(command), file, damage)

    def try_out(self, case: Case, seconds: float) -> Outcome:
        """Run the command in a fresh copy, which is left there for a look."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.copytree(self.folder, self.scratch)
        if case.file:
            target = self.scratch / case.file
            target.write_bytes(DAMAGES[case.damage](target.read_bytes()))
        before = _contents(self.scratch)
        with _inside(self.scratch):
            code, out, error, interrupted, told = _run(case.words, seconds)
        after = _contents(self.scratch)
        changed = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
        return Outcome(code, out, error, interrupted, changed, [n for n in changed if n not in before], told)


def _write_sweep(path: Path) -> None:
    settings = {"images": 64, "train_batch_size": 32, "code_dim": 12, "subsets": 4, "start": "copy"}
    settings["checkpoint_images"] = 32
    path.write_text(
        yaml.safe_dump({"data": "data", "backbone": "backbone", "settings": settings, "runs": {"run": {}}})
    )


def _write_onnx(path: Path) -> None:
    """A classifier whose three scores are the means of red, green and blue."""
    try:
        import onnx
    except ImportError:  # an extra: then `label` refuses, which is worth a try too
        path.write_bytes(b"")
        return
    make = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("ReduceMean", ["x"], ["scores"], axes=(2, 3), keepdims=0)
    taken = make("x", onnx.TensorProto.FLOAT, ("N", 3, 16, 16))
    graph = onnx.helper.make_graph([node], "means", [taken], [make("scores", onnx.TensorProto.FLOAT, None)])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), path)


def _prepare_half() -> None:
    """A dataset folder as a kill in the middle of `diti prepare photos` leaves it."""
    from diti.data import prepare
    from diti.data.source import ReadOptions
    from diti.data.sources import find_source

    source, out = find_source("photos", ReadOptions(size=16)), Path("half")
    out.mkdir()
    plan = prepare._plan(source, 16, source.crop)
    prepare._allocate(out, plan)
    prepare._Task(source, out, plan).decode([0])


def _contents(folder: Path) -> dict[str, str]:
    """Digest of every file, and the folders."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
    }


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """With its own cache and temporary files, without the net, and with a bound on memory."""
    before = {name: os.environ.get(name) for name in ("DITI_CACHE", "DITI_DEBUG", "HF_HUB_OFFLINE", "TMPDIR")}
    here, limits, temporary = Path.cwd(), resource.getrlimit(resource.RLIMIT_AS), tempfile.tempdir
    import huggingface_hub.constants as hub

    os.environ |= {"DITI_CACHE": "cache", "HF_HUB_OFFLINE": "1"}
    os.environ.pop("DITI_DEBUG", None)
    online, hub.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE, True
    os.chdir(folder)
    loaded = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (loaded + MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        os.chdir(here)
        hub.HF_HUB_OFFLINE, tempfile.tempdir = online, temporary
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _run(words: Sequence[str], seconds: float) -> tuple[int | None, str, str, bool, str]:
    """Exit code, output, errors, whether Ctrl-C was pressed after so many seconds, and what it raised."""
    out, error = io.StringIO(), io.StringIO()
    pressed: list[bool] = []

    def press(number: int, frame: object) -> None:
        pressed.append(True)
        raise KeyboardInterrupt

    told_every, progress.LINE_SECONDS = progress.LINE_SECONDS, math.inf  # by the clock: another line every time
    handler, typed, told = signal.signal(signal.SIGALRM, press), sys.argv, ""
    start, jobs._start = jobs._start, lambda job: press(0, None)  # a process of its own is minutes of work
    code: int | None = None
    levels = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        sys.argv = ["diti", *words]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            signal.setitimer(signal.ITIMER_REAL, seconds, 10)
            code = main(list(words))
    except SystemExit as stop:  # --help
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:
        told = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        sys.argv, jobs._start, progress.LINE_SECONDS = typed, start, told_every
        logging.disable(levels)
    return code, out.getvalue(), error.getvalue(), bool(pressed), told
