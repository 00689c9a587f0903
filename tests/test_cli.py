"""The command line as a person meets it."""

import dataclasses
import errno
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError

import diti as package
from diti.cli import main
from diti.core.errors import InputError, as_one_line
from diti.presets import PRESETS
from diti.verbs import VERBS
from diti.verbs.making import Presets
from diti.verbs.parsing import parse


def test_help_lists_every_verb(capsys):
    for words in ([], ["--help"], ["-h"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert all(f"  {verb} " in shown for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_on_a_terminal_that_knows_only_ascii(verb, monkeypatch):
    """Help has boxes and Greek letters."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    sys.stdout.flush()
    shown = sys.stdout.buffer.getvalue().decode("ascii")
    assert not stop.value.code and f"diti {verb}" in shown
    about = VERBS[verb].__doc__.split(",")[0].split(":")[0][:40].encode("ascii", "replace").decode()
    assert about in " ".join(shown.split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_explained(verb, capsys, monkeypatch):
    """A comment that the formatter moves into brackets is lost to --help."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        parse(verb, ["--help"])
    lines = [line.strip("│ ╭╰╮╯─") for line in capsys.readouterr().out.splitlines()]
    options = [pair for pair in pairwise([*lines, ""]) if pair[0].startswith("-")]
    words = [
        re.split(r"\s{2,}", line, maxsplit=1)[1] if re.search(r"\s{2,}", line) else below
        for line, below in options
    ]
    assert options and not [option for option, said in zip(options, words, strict=True) if said.startswith("(")]


def test_help_shows_no_default_that_is_none(capsys):
    with pytest.raises(SystemExit):
        parse("prepare", ["--help"])
    shown = capsys.readouterr().out
    assert "None" not in shown and "(default: 0)" in shown


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == package.__version__


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["prepar"], "unknown verb 'prepar'; use demo, prepare"),
        (["prepar"], "Did you mean 'prepare'?"),
        (["prepare", "x", "--out", "y", "--sise", "3"], "options: --sise, 3; Perhaps you meant: --size INT ("),
        (["prepare", "x", "--out", "y", "--sise", "3", "--crp", "z"], "similar to --crp: --crop NAME"),
        (["prepare", "x", "--out", "y", "--size", "nan"], "--size cannot be 'nan'; use --size INT side of"),
        (["prepare", "x", "--out", "y", "--size=big"], "--size cannot be 'big'; use --size INT side of"),
        (
            ["pretrain", "--out", "x", "--channels", "8", "x", "--seed", "1"],
            "--channels cannot be '8', 'x'; use --channels [INT [INT ...]]",
        ),
        (
            ["pretrain", "--out", "x", "--learning-rate", "fast"],
            "--learning-rate cannot be 'fast'; use --learning-rate FLOAT",
        ),
        (["sample", "x", "-n", "1.5"], "-n/--count cannot be '1.5'; use -n INT"),
        (["sample", "x", "--count"], "Missing value for argument '-n/--count'"),
        (["train", "--outt", "x"], "Missing from diti train: --out PATH; Unrecognized options: --outt x ("),
        (["train", "--out", "x", "--log-images", "0"], "diti: --log-images is 0; it must be"),
        (["prepare", "x", "--out", ""], "diti: --out is followed by an empty word"),
        (["prepare", "x", "--out="], "diti: --out is followed by an empty word"),
        (["prepare", "", "--out", "x"], "diti: prepare is followed by an empty word"),
        (["prepare", "caf\udce9", "--out", "x"], "is not UTF-8; rename the file or folder"),
        (["prepare", "a\nb\x1b[2J", "--out", "x"], r"diti: a b\x1b[2J does not exist"),
        (["prepare"], "Missing from diti prepare: SRC --out PATH ("),
        (["pretrain", "--out", "x"], "--data is missing"),
        (["pretrain", "--data", "d", "--out", "x", "--preset", "celeba3"], "Did you mean 'celeba32'?"),
        (
            ["pretrain", "--data", "d", "--out", "x", "--lr-schedule", "step"],
            "'step' for argument '--lr-schedule'. Expected one of ('constant', 'cosine', 'hold'). (",
        ),
        (["pretrain", "--data", "d", "--out", "x", "--lr-schedule", "hol"], "Did you mean 'hold'?"),
        (
            ["pretrain", "--data", "d", "--out", "x", "--minutes", "it's"],
            """--minutes cannot be "it's"; use --min""",
        ),
        (["sample", "x", "--seed", "-1"], "diti: --seed is -1; it must be from 0 to 4,294,967,295"),
        (["explore", "x", "--data", "d", "--axes", "0"], "diti: --axes is 0; it must be from 1 to 1,000"),
        (["serve", "--port", "70000"], "diti: --port is 70000; it must be from 1 to 65,535"),
        (["convert", "x", "--out", "y", "--size", "0"], "diti: --size is 0; it must be from 1 to 4,096"),
        (["analyze", "x", "--data", "d", "--tau", "0.5"], "diti: --tau is 0.5; it must be above 0 and below 0.5"),
        (
            ["label", "d", "--model", "m", "--names", "n", "--threshold", "nan"],
            "--threshold is nan; give a finite",
        ),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_complaints_are_one_line_with_exit_code_2(words, complaint, encoding, capsys, monkeypatch):
    """Whether or not the terminal has the boxes in which the parser complains."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out := io.BytesIO(), encoding=encoding))
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert out.getvalue() == b"" and complaint in shown
    assert shown.startswith("diti: ") and shown.count("\n") == 1


def test_a_place_that_cannot_be_written_is_one_line(capsys):
    """/proc takes no new folders, whoever asks."""
    assert main(["sample", "toyfaces32", "-n", "1", "--sampling-steps", "1", "--out", "/proc/none/x.png"]) == 2
    complaint = capsys.readouterr().err.strip().splitlines()[-1]
    assert complaint.startswith("diti: /proc/none") and "choose another place" in complaint
    words = ["pretrain", "--data", "toyfaces:40", "--images", "32", "--out", "/proc/none/run"]
    assert main(words) == 2 and "/proc/none" in capsys.readouterr().err.strip().splitlines()[-1]


def test_presets_are_listed(capsys):
    assert main(["presets"]) == 0
    assert "toyfaces32" in capsys.readouterr().out


BUFFERED = os.environ | {"PYTHONUNBUFFERED": ""}  # as people have it: what is printed waits to be written


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("presets", ">&-", 0),
        ("--help", ">&-", 0),
        ("sample --help", ">&-", 0),
        ("presets", "<&- >&- 2>&-", 0),
        ("presetz", ">&- 2>&-", 2),
        ("presetz", "2>&1 | true", 2),
        ("--help", "| true", 1),
        ("sample --help", "| true", 1),
    ],
)
def test_where_nobody_reads_it_ends_quietly(words, streams, code):
    """A closed stream swallows all; a pipe that was left ends the command, as Python's own do."""
    shell = f"{{ sleep 0.5; exec {sys.executable} -m diti {words}; }} {streams}; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=600, env=BUFFERED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


def test_what_was_printed_before_a_fault_does_not_change_how_it_ends():
    """Text that waits for a reader who has left was tried again at exit: code 120."""
    imports = "from diti.core.ending import ended\nfrom diti.core.errors import InputError"
    code = f"{imports}\ndef work(): print(1); raise InputError('wrong')\nexit(ended(work, []))"
    for streams in ("2>&1 | true", "2>/dev/null | true"):
        shell = f'{{ sleep 0.5; exec {sys.executable} -c "$CODE"; }} {streams}; exit ${{PIPESTATUS[0]}}'
        ended = subprocess.run(["bash", "-c", shell], env=BUFFERED | {"CODE": code}, timeout=600)
        assert ended.returncode == 2, streams


def test_a_closed_pipe_is_no_traceback():
    shell = f"{sys.executable} -m diti pretrain --help | head -1"
    result = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=600)
    assert "Traceback" not in result.stderr and result.stdout.startswith("usage: diti pretrain")


def test_public_names_exist_and_others_are_refused():
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="public names"):
        package.nonsense  # noqa: B018


def test_train_shows_the_settings_of_its_method_and_says_what_needs_no_backbone(capsys):
    assert main(["train", "--method", "simclr", "--data", "toyfaces", "--out", "x"]) == 2
    assert "--backbone is missing, and --encoder backbone is made from it" in (told := capsys.readouterr().err)
    assert "or use --encoder residual" in told
    words = "train --method simclr --encoder residual --data toyfaces --out x --dry-run"
    assert main(words.split()) == 0
    shown = capsys.readouterr().out
    assert "views:" in shown and "augment: full" in shown
    assert not any(word in shown for word in ("subsets", "vae:", "gan:"))


@pytest.mark.parametrize("verb", ["pretrain", "train"])
def test_the_preset_of_a_file_counts_below_the_command_line(verb, tmp_path):
    file = tmp_path / "settings.yaml"
    file.write_text("preset: celeba64\ntraining: {learning_rate: 1e-3, images: 640}\n")

    def settings(*words):
        return parse(verb, ["--out", "x", "--config", str(file), *words]).settings

    named = settings()
    batch = PRESETS["celeba64"].config.training.train_batch_size
    assert named.preset == "celeba64" and named.training.train_batch_size == batch != 32
    assert named.training.learning_rate == 0.001 and named.training.images == 640
    typed = settings("--preset", "celeba32", "--images", "9")
    assert typed.preset == "celeba32" and typed.training.train_batch_size == 32 and typed.training.images == 9
    assert settings("--preset", "celeba32", "--preset=celeba64") == named, "the last one counts"


@pytest.mark.parametrize("words", [["--out", "~/x"], ["--out=~/x"]])
def test_a_tilde_is_the_home_folder(words, monkeypatch):
    monkeypatch.setenv("HOME", "/somebody")
    assert parse("sample", ["~", *words]).out == Path("/somebody/x")
    assert parse("sample", ["~", *words]).model == "/somebody" and parse("sample", ["a~", *words]).model == "a~"


# How a command ends


def out_of_memory():
    torch.empty(2**62, dtype=torch.uint8)


FULL = f"a file: {os.strerror(errno.ENOSPC)}; free space or choose another place"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), FULL),
        (SafetensorError('IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })'), FULL),
        (OSError("4096 requested and 0 written"), FULL),
        (OSError(errno.EROFS, "Read-only file system", "x"), "x: Read-only file system; change its permissions"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x"), "x: File name too long; use a shorter name"),
        (MemoryError(), "not enough memory; ask for less at once"),
        (MemoryError("Unable to allocate 3.00 TiB"), "not enough memory (Unable to allocate 3.00 TiB); ask for"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried\nto"),
            "not enough memory (CUDA out of memory. Tried);",
        ),
        (out_of_memory, "not enough memory ("),
        (RecursionError("maximum recursion depth exceeded"), "the input is nested too deeply to be read"),
        (InputError("two\nlines\x07"), r"two lines\x07"),
    ],
)
def test_what_a_person_can_do_something_about_is_one_line(error, line, capsys, monkeypatch):
    def run(self):
        if callable(error):
            error()
        raise error

    monkeypatch.setattr(Presets, "run", run)
    assert main(["presets"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"diti: {line}") and shown.count("\n") == 1


@pytest.fixture
def fault(monkeypatch):
    def run(self):
        raise TypeError("this is not\ngood")

    monkeypatch.setattr(Presets, "run", run)


def test_a_fault_of_ours_is_one_line_with_a_report(fault, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DITI_CACHE", str(tmp_path / "cache"))
    assert main(["presets"]) == 70
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and shown.startswith(
        "diti: sorry, this is a bug in diti (TypeError: this is not"
    )
    report = Path(re.search(r"the report (\S+) says where", shown)[1])
    assert report.parent == tmp_path / "cache" / "crashes"
    text = report.read_text()
    assert "command: diti presets\n" in text and f"diti {package.__version__}" in text and " cores" in text
    assert "Traceback (most recent call last)" in text and "raise TypeError" in text and "folder: " in text


def test_a_report_falls_back_to_the_temporary_folder_and_may_fail(fault, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DITI_CACHE", "/proc/none")  # takes no new folders, whoever asks
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["presets"]) == 70
    assert f"the report {tmp_path}{os.sep}diti-crash-" in capsys.readouterr().err and any(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    assert main(["presets"]) == 70
    assert "no report could be written; DITI_DEBUG=1 shows where" in capsys.readouterr().err


def test_a_report_is_written_whatever_cannot_be_found_out(tmp_path, monkeypatch):
    def broken():
        raise ValueError("who knows")

    monkeypatch.setattr("diti.core.runs.versions", broken)
    monkeypatch.setenv("DITI_CACHE", str(tmp_path))
    _, code = as_one_line(KeyError("x"), ["presets"])
    assert code == 70 and "versions: unknown (ValueError: who knows)" in next(tmp_path.rglob("*.txt")).read_text()


def test_debug_shows_the_traceback(fault, capsys, monkeypatch):
    monkeypatch.setenv("DITI_DEBUG", "1")
    assert main(["presets"]) == 70
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback") and lines[-1].startswith("diti: sorry")


def test_ctrl_c_that_a_library_turns_into_its_own_error_is_still_ctrl_c(capsys, monkeypatch):
    def run(self):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as stop:
            raise ImportError("numpy failed to import") from stop

    monkeypatch.setattr(Presets, "run", run)
    assert main(["presets"]) == 130 and capsys.readouterr().err.startswith("diti: stopped")


def pressed_at(module, more=""):
    """`python -m diti --help` whose user presses Ctrl-C when that module is about to be imported."""
    code = f"""
import atexit, os, runpy, signal, sys
class Press:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Press())
sys.argv = ["diti", "--help"]
{more}
runpy.run_module("diti", run_name="__main__")
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("module", ["diti.cli", "tyro"])
def test_ctrl_c_while_it_starts_is_one_line(module):
    ended = pressed_at(module)
    assert ended.returncode == 130, ended.stderr
    assert ended.stderr.startswith("diti: stopped") and ended.stderr.count("\n") == 1


def test_ctrl_c_once_more_while_it_ends_is_not_heard():
    ended = pressed_at("tyro", "atexit.register(os.kill, os.getpid(), signal.SIGINT)")
    assert ended.returncode == 130 and ended.stderr.count("\n") == 1, ended.stderr


# What to type next


PROBED = {
    "model": "m", "method": "diti", "data": {"name": "d"}, "notes": [],
    "probe": {"mean_ap": None, "mean_r": None, "mean_mse": None, "rows": [], "left_out": [], "protocol": "p"},
}  # fmt: skip
FOLDER = 'it\'s my "faces" $HOME/a b'
NEXT = {  # verb: its words, the work that is not done here, and what that returns
    "demo": (["--out", FOLDER], "diti.demo.run_demo", None),
    "prepare": (["toyfaces:4", "--size", "16", "--out", FOLDER], None, None),
    "pretrain": (["--data", FOLDER, "--out", FOLDER], "diti.diffusion.pretrain.pretrain_backbone", None),
    "solve": (["--data", FOLDER, "--backbone", "b", "--out", FOLDER],
              "diti.representation.solve.run.solve_model", None),
    "train": (["--data", FOLDER, "--backbone", "b", "--out", FOLDER], "diti.representation.train.train_model",
              SimpleNamespace(facts={}, pictures={}, sentences=())),
    "convert": (["b", "--out", FOLDER], "diti.interop.convert.convert", ["done"]),
    "probe": ([FOLDER, "--data", FOLDER], "diti.measure.probing.probe", PROBED),
    "interpolate": ([FOLDER, f"{FOLDER}/a.png", "b.png"], "diti.edit.interpolate.interpolate_files", ["done"]),
    "manipulate": ([FOLDER, "a.png", "--attribute", "smile", "--data", FOLDER],
                   "diti.edit.manipulate_files.manipulate_files", ["done"]),
    "train-latent": ([FOLDER, "--data", FOLDER], "diti.representation.train_latent.fit_latent", {}),
    "sweep": (["x.yaml", "--out", FOLDER], "diti.sweep.plans.run_sweep", []),
}  # fmt: skip


@pytest.mark.parametrize("verb", NEXT)
def test_the_next_command_can_be_typed_as_it_stands(verb, tmp_path, monkeypatch, capsys):
    """Quoted for the shell, an existing verb with all it needs, and nothing to fill in."""
    words, work, result = NEXT[verb]
    monkeypatch.chdir(tmp_path)
    if work is not None:
        monkeypatch.setattr(work, lambda *given, **named: result)
    plan, model = SimpleNamespace(data=FOLDER), SimpleNamespace(has_noise=True)
    monkeypatch.setattr("diti.sweep.plans.read_plan", lambda path: plan)
    monkeypatch.setattr("diti.representation.models.loading.load_with_decoder", lambda name: model)
    assert main([verb, *words]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("next: ")
    program, *typed = shlex.split(line.removeprefix("next: "))
    typed = typed[2:] if program == "python" else typed
    assert dataclasses.is_dataclass(parse(typed[0], typed[1:]))
    assert any(FOLDER in word for word in typed) and not {"NAME", "DATA", "MODEL"} & set(typed)
