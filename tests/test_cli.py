"""The command line as a person meets it."""

import subprocess
import sys

import pytest

import diti as package
from diti.cli import main
from diti.verbs import VERBS


def test_help_lists_every_verb(capsys):
    for words in ([], ["--help"], ["-h"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert all(f"  {verb} " in shown for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    shown = capsys.readouterr().out
    assert not stop.value.code and f"diti {verb}" in shown
    assert VERBS[verb].__doc__.split(",")[0].split(":")[0][:40] in " ".join(shown.split())


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == package.__version__


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["prepar"], "unknown verb 'prepar'; use demo, prepare"),
        (["prepar"], "Did you mean 'prepare'?"),
        (["prepare", "x", "--out", "y", "--sise", "3"], "Did you mean --size?"),
        (["prepare", "x", "--out", "y", "--sise", "3", "--crp", "z"], "Did you mean --crop, --size?"),
        (["prepare", "x", "--out", "y", "--size", "big"], "--size"),
        (["prepare"], "missing: SRC, --out"),
        (["pretrain", "--out", "x"], "--data is missing"),
        (["pretrain", "--data", "d", "--out", "x", "--preset", "celeba3"], "Did you mean 'celeba32'?"),
        (["pretrain", "--data", "d", "--out", "x", "--lr-schedule", "step"], "step"),
    ],
)
def test_complaints_are_one_line_with_exit_code_2(words, complaint, capsys):
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and complaint in shown.err
    assert shown.err.startswith("diti: ") and shown.err.count("\n") == 1


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


def test_a_closed_pipe_is_no_traceback():
    shell = f"{sys.executable} -m diti pretrain --help | head -1"
    result = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in result.stderr and result.stdout.startswith("usage: diti pretrain")


def test_public_names_exist_and_others_are_refused():
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="public names"):
        package.nonsense  # noqa: B018


def test_train_shows_the_settings_of_its_method_and_says_what_needs_no_backbone(capsys):
    assert main(["train", "--method", "simclr", "--data", "toyfaces", "--out", "x"]) == 2
    assert "--backbone is missing, of which --encoder backbone is made" in (told := capsys.readouterr().err)
    assert "or use --encoder residual" in told
    assert (
        main(
            [
                "train",
                "--method",
                "simclr",
                "--encoder",
                "residual",
                "--data",
                "toyfaces",
                "--out",
                "x",
                "--dry-run",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "views:" in shown and "augment: full" in shown
    assert not any(word in shown for word in ("subsets", "vae:", "gan:"))
