"""The demo over a tiny backbone: killed in the middle, continued, and its page opened in a browser."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from browser import launch, open_page
from tiny import tiny_backbone

from diti.cli import main
from diti.core.errors import InputError
from diti.demo import FEWEST_FACES, LENGTHS, choose_length, plan_training, settings, training_adds
from diti.representation.solve.start import solve_settings

# What the demo does, with other networks: those in the box take minutes of what every run and stage checks.
SMALL = """
import sys
from dataclasses import replace
from pathlib import Path
from diti import demo, photographs
from diti.reporting.stages import Effort
out, backbone = map(Path, sys.argv[1:])
usual = demo.settings

def settings(*given):
    found = usual(*given)
    small = replace(found.solution, pixel_axes=24, stretches=4)
    return replace(found, backbone=str(backbone), subsets=4, code_dim=12, solution=small)

demo.SIZE, demo.settings = 16, settings
photographs.STEPS, photographs.AXES, photographs.PAIRS = 2, 1, 1
effort = Effort(faces=2, pairs=2, changes=1, classifier_images=256, reconstructed=2, disentanglement=False)
demo.run_demo(out, demo.Length(faces=400, images=128, effort=effort, remark="Smaller than quick."))
"""
PAGE = "report/index.html"


def start(folder: Path, log: Path) -> subprocess.Popen:
    with log.open("w") as handle:
        return subprocess.Popen(
            [sys.executable, "-c", SMALL, *(str(folder / name) for name in ("out", "backbone"))],
            stdout=handle,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_for(what, process: subprocess.Popen, log: Path, seconds: float = 900) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            pytest.fail(f"the demo ended, or hangs: {log.read_text()[-2000:]}")
        time.sleep(0.1)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The folder of a demo that was killed while it measured, and of the command that continued it."""
    folder = tmp_path_factory.mktemp("demo")
    os.environ["DITI_CACHE"] = str(folder / "cache")
    out = folder / "out"
    tiny_backbone().save(folder / "backbone")
    killed = start(folder, folder / "killed.txt")
    wait_for(lambda: any(out.glob("runs/pdae-solved-s0/measured/*/probe.json")), killed, folder / "killed.txt")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors") if "runs" in path.parts}
    again = start(folder, folder / "again.txt")
    assert again.wait() == 0, (folder / "again.txt").read_text()[-2000:]
    del os.environ["DITI_CACHE"]
    return out, before, (folder / "again.txt").read_text()


def test_the_continued_demo_makes_nothing_twice(demo):
    out, before, _ = demo
    networks = [path for path in before if path.parent.name in ("encoder", "decoder", "unet")]
    assert len(networks) == 6, "two models of three networks"
    assert all(path.stat().st_mtime_ns == before[path] for path in networks)
    assert not list(out.glob("runs/*/state")), "the pass is not kept"


def test_the_terminal_ends_with_the_table_and_the_path_of_the_page(demo):
    out, _, printed = demo
    assert all(words in printed for words in ("DiTi, k = 4, solved", "PDAE, solved", "PCA of", "% AP"))
    assert printed.rstrip().endswith(str(out / PAGE))
    assert "Smaller than quick." in printed


def test_the_report_has_its_twins(demo):
    out, _, _ = demo
    record = json.loads((out / "report" / "report.json").read_text())
    keys = {"summary", "table1", "counterfactuals", "attributes", "cost", "provenance"}
    assert keys <= set(record["tables"])
    for key in record["tables"]:
        assert (out / "report" / f"{key}.csv").read_text().count("\n") > 1
    labels = [run["group"] for run in record["runs"]]
    assert [label.split(",")[0] for label in labels] == ["DiTi", "PDAE"]
    assert all(run["probe"] and run["counterfactuals"] for run in record["runs"])
    assert [bool(run["explored"]) for run in record["runs"]] == [True, False]


def test_the_page_opens_with_pictures_and_folds_the_rest(demo):
    out, _, _ = demo
    with launch() as browser, open_page(browser, (out / PAGE).as_uri(), width=360) as visit:
        visit.assert_quiet()
        shown = visit.page.evaluate("[...document.images].filter(i => i.checkVisibility()).map(i => i.alt)")
        assert [words.split()[0] for words in shown] == ["A", "A", "Faces", "One", "Early,", "The"], shown
        assert visit.page.locator("table").locator("visible=true").count() == 1
        above = visit.page.evaluate("document.querySelector('img').getBoundingClientRect().top < innerHeight")
        assert above, "a picture is seen before anything is scrolled"
        images = visit.page.evaluate("[...document.images].map(i => [i.alt, i.complete && i.naturalWidth > 0])")
        assert len(images) >= 15 and all(loaded for _, loaded in images), images
        text = visit.page.evaluate("document.body.textContent")
    for words in ("Figure 5", "Figure 2a", "Figure 7", "Figure 1b", "Figure 4"):
        assert words in text, words


def test_lengths_are_chosen_by_their_options():
    assert choose_length(False, False, None, 0) == ("demo", LENGTHS["normal"])
    name, length = choose_length(True, False, 2_700, 64)
    assert name == "demo-quick-train" and (length.faces, length.trained) == (2_700, 64)
    assert len(choose_length(False, True, None, 0)[1].seeds) == 3
    with pytest.raises(InputError, match="choose one"):
        choose_length(True, True, None, 0)
    with pytest.raises(InputError, match=str(FEWEST_FACES)):
        choose_length(True, False, 10, 0)


@pytest.mark.parametrize("quick", [False, True])
def test_trainings_start_from_the_solutions_beside_them(quick, tmp_path):
    length = choose_length(quick, False, None, 64)[1]
    for name, config in plan_training(tmp_path, length).runs.items():
        method, seed = name.split("-s")
        assert solve_settings(config) == settings(method, int(seed), tmp_path, length)


def test_what_training_adds_is_told(tmp_path):
    data = tmp_path / "data"
    plan = plan_training(data, replace(LENGTHS["quick"], trained=64))
    assert list(plan.runs) == ["diti-s0", "pdae-s0"] and plan_training(data, LENGTHS["quick"]) is None
    config = plan.runs["diti-s0"]
    assert config.start == "solved" and config.training.images == 64
    shares = {"diti-solved-s0": 0.501, "pdae-solved-s0": 0.6, "diti-s0": 0.523}
    runs = [SimpleNamespace(path=Path(name), checks={"loss_removed": x}, images=64) for name, x in shares.items()]
    told = "removes 52.3 % of the frozen model's loss instead of 50.1 %"
    assert training_adds(runs) == [f"diti-s0: training for 64 more images {told}."]
    assert training_adds(runs[:2]) == []


def test_a_length_of_training_needs_a_training(capsys):
    assert main(["demo", "--images", "64"]) == 2
    assert "give --train too" in capsys.readouterr().err
    assert main(["demo", "--train", "--images", "0"]) == 2
    assert "--images is 0; it must be 1 or more" in capsys.readouterr().err
