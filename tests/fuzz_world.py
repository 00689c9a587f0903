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
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from accelerate.state import AcceleratorState
from pictures import picture
from tiny import tiny_backbone

from diti.cli import main
from diti.core import jobs, progress
from diti.studio import server
from diti.verbs import VERBS

HANG_SECONDS = 30.0
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
    "explore": "run --data data --axes 1 --faces 1 --sampling-steps 1 --out out",
    "name": "run 1 hat --negative bare",
    "search": "run photos/0.png --data data -n 2 --out out.png",
    "serve": "run --data data --port 47861",
    "encode": "run data --out out.parquet",
    "probe": "run --data data --out out.json --no-baselines --no-subsets",
    "analyze": "backbone --data toyfaces:48 --count 1 --out out",
    "counterfactuals": "run --data data --out out --images 1 --pairs 1 --classifier-images 32",
    "report": "run --data data --out out --faces 1 --pairs 1 --changes 1 --classifier-images 32",
    "sweep": "sweep.yaml --out out --dry-run",
    "interpolate": "run photos/0.png photos/1.png --sampling-steps 1 --out out.png",
    "mix": "run photos/0.png photos/1.png --sampling-steps 1 --out out.png",
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
    traceback: str = ""  # what it raised, or the crash report

    @property
    def place(self) -> str:
        """The last line of our code in the traceback, and the error."""
        lines = self.traceback.strip().splitlines()
        ours = [line.strip() for line in lines if "/diti/" in line and "site-packages" not in line]
        return " ".join([*ours[-1:], *lines[-1:]])

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
        if self.code == 2 and (left := [name for name in self.changed if not name.startswith(CACHES)]):
            found.append(f"refused, and changed {', '.join(left[:3])}")
        elif touched := [name for name in self.changed if not may_change(name, name in self.new, case)]:
            found.append(f"changed {', '.join(touched[:3])}")
        return found


CACHES = ("cache", ".cache")  # ours, and those of libraries in the home folder
CONTINUED = ("prepare", "train", "pretrain", "solve", "sweep", "report")  # verbs that go on in their folder
OWNED = {  # verb → what it keeps inside its first argument
    "manipulate": "attributes",
    "counterfactuals": "attributes",
    "train-latent": "latent",
    "name": "names.json",
    "label": "",
    "report": "",
}


def may_change(name: str, new: bool, case: Case) -> bool:
    """Whether a command that worked may have made or changed this file or folder."""
    verb, *words = case.words
    if name.startswith(CACHES) or (verb in OWNED and name.startswith(f"{words[0]}/{OWNED[verb]}")):
        return True
    for out in outputs_of(verb, words):
        inside = out == "." or name == out or name.startswith(f"{out}/") or out.startswith(f"{name}/")
        beside = name.startswith(out.rpartition(".")[0] or out)  # figures beside a table
        if (new and (inside or beside)) or (inside and verb in CONTINUED):
            return True
    return False


def outputs_of(verb: str, words: Sequence[str]) -> Iterator[str]:
    """What the command was asked to write, or writes when not asked."""
    given = False
    for place, word in enumerate(words):
        for option in ("--out", "--frames", "--animate"):
            if word.startswith(f"{option}="):
                yield _plain(word.partition("=")[2])
            elif word == option and place + 1 < len(words):
                yield _plain(words[place + 1])
            else:
                continue
            given = given or option == "--out"
    if not given and (default := getattr(VERBS[verb], "out", None)) is not None:
        yield str(default)
    if verb == "demo" and not given:
        yield "runs"


def _plain(path: str) -> str:
    """As the listing of the trial's folder names it, which is the home folder too."""
    return os.path.normpath(f".{path[1:]}" if path.split("/")[0] == "~" else path)


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
        world.scratch.mkdir()
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
            _run(
                words_of("prepare photos --size 16 --out half --workers 1"), seconds=0
            )  # is stopped in the middle
            if not Path("half/plan.json").is_file():
                raise RuntimeError("nothing is half prepared")
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
        """Run the command in a copy of the world, which is as before again when the next one is tried."""
        self._restore()
        if case.file:
            target = self.scratch / case.file
            target.write_bytes(DAMAGES[case.damage](target.read_bytes()))
        before = _contents(self.scratch)
        with _inside(self.scratch):
            code, out, error, interrupted, told = _run(case.words, seconds)
        after = _contents(self.scratch)
        changed = sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
        for report in self.scratch.glob("cache/crashes/*"):
            told = report.read_text(encoding="utf-8")
        return Outcome(code, out, error, interrupted, changed, [n for n in changed if n not in before], told)

    def _restore(self) -> None:
        """Make the copy equal to the world by what differs: a whole copy takes longer than most commands."""
        wanted, found = _contents(self.folder), _contents(self.scratch)
        different = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
        for name in sorted(different, reverse=True):  # what is in a folder before the folder
            path = self.scratch / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for name in sorted(name for name in different if name in wanted):
            if wanted[name] == "folder":
                (self.scratch / name).mkdir(parents=True, exist_ok=True)
            else:
                shutil.copy2(self.folder / name, self.scratch / name)


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


def _contents(folder: Path) -> dict[str, str]:
    """Digest of every file, and the folders."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in (folder.rglob("*") if folder.is_dir() else ())
    }


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """At home there, with a cache of its own, without the net, and with a bound on memory."""
    before = {name: os.environ.get(name) for name in ("DITI_CACHE", "DITI_DEBUG", "HF_HUB_OFFLINE", "HOME")}
    here, limits = Path.cwd(), resource.getrlimit(resource.RLIMIT_AS)
    import huggingface_hub.constants as hub

    os.environ |= {"DITI_CACHE": "cache", "HF_HUB_OFFLINE": "1", "HOME": str(folder)}
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
        hub.HF_HUB_OFFLINE = online
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def _run(words: Sequence[str], seconds: float) -> tuple[int | None, str, str, bool, str]:
    """Exit code, output, errors, whether it was stopped after so many seconds of work, and what it raised."""
    out, error, told = io.StringIO(), io.StringIO(), ""
    code: int | None = None
    with _stopping(seconds) as stopped, contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        typed, sys.argv = sys.argv, ["diti", *words]
        try:
            code = main(list(words))
        except SystemExit as stop:  # --help
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        except BaseException:
            told = traceback.format_exc()
        finally:
            sys.argv = typed
    return code, out.getvalue(), error.getvalue(), bool(stopped), told


@contextlib.contextmanager
def _stopping(seconds: float) -> Iterator[list[str]]:
    """Press Ctrl-C where progress is told, after so many seconds of work, and instead of a process or a server.

    Not by a signal, which may come where Python cannot raise. What never tells of progress is stopped by one all
    the same, much later, and then raises what no command catches.
    """
    stopped: list[str] = []
    limit = time.process_time() + seconds
    advance, start, level = progress._Lines.advance, jobs._start, logging.root.manager.disable
    launched = server.launched

    def stop(job: object, *more: object) -> None:
        stopped.append("it worked")
        raise KeyboardInterrupt

    def move(lines: progress._Lines, count: int = 1, **shown: object) -> None:
        if time.process_time() > limit:
            stop(None)

    def hang(number: int, frame: object) -> None:
        raise Hang(f"no sign of life for {HANG_SECONDS:.0f} seconds of work")

    handler = signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, max(seconds, HANG_SECONDS))
    progress._Lines.advance, jobs._start = move, stop  # type: ignore[method-assign, assignment]
    server.launched = stop  # type: ignore[assignment]
    logging.disable(logging.CRITICAL)
    try:
        yield stopped
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        progress._Lines.advance, jobs._start = advance, start  # type: ignore[method-assign]
        server.launched = launched
        logging.disable(level)
        AcceleratorState._reset_state()  # a process has one, and refuses another --mixed-precision


class Hang(BaseException):
    """A command does not end and tells nothing."""
