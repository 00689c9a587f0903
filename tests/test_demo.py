"""The demo over a tiny backbone and model: killed in the middle, continued, and its page opened in a browser."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser import launch, open_page
from tiny import tiny_backbone

from diti.cli import main
from diti.core.errors import InputError
from diti.demo import FEWEST_FACES, LENGTHS, SHIPPED, choose_length, copy_shipped

# What the demo does, with other networks: those in the box take minutes of what every run and stage checks.
SMALL = """
import sys
from dataclasses import replace
from pathlib import Path
from diti import demo
from diti.diffusion import files
from diti.report.evidence import Effort
out, backbone, shipped = map(Path, sys.argv[1:])
usual, locate = demo.settings, files.locate

def settings(*given):
    found = usual(*given)
    return replace(found, backbone=str(backbone), subsets=4, code=replace(found.code, code_dim=12))

demo.SIZE, demo.settings = 16, settings
files.locate = lambda source: shipped if source == demo.SHIPPED else locate(source)
effort = Effort(faces=2, pairs=2, changes=1, classifier_images=256, reconstructed=2)
demo.run_demo(out, demo.Length(faces=400, images=64, effort=effort, remark="Smaller than quick."))
"""
PAGE = "report/index.html"


def start(folder: Path, log: Path) -> subprocess.Popen:
    with log.open("w") as handle:
        return subprocess.Popen(
            [sys.executable, "-c", SMALL, *(str(folder / name) for name in ("out", "backbone", "shipped"))],
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
    words = ["--data", "toyfaces:64", "--backbone", folder / "backbone", "--code-dim", "12", "--subsets", "4"]
    words += ["--images", "64", "--start", "copy", "--out", folder / "shipped"]
    assert main(["train", *map(str, words)]) == 0
    killed = start(folder, folder / "killed.txt")
    records = out / "runs" / "pdae-s0" / "measured"
    wait_for(lambda: any(records.glob("*/probe.json")), killed, folder / "killed.txt")
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.safetensors") if "runs" in path.parts}
    again = start(folder, folder / "again.txt")
    assert again.wait() == 0, (folder / "again.txt").read_text()[-2000:]
    del os.environ["DITI_CACHE"]
    return out, before, (folder / "again.txt").read_text()


def test_the_continued_demo_trains_nothing_twice(demo):
    _, before, _ = demo
    networks = [path for path in before if path.parent.name in ("encoder", "decoder", "unet")]
    assert len(networks) == 9, "three models of three networks"
    assert all(path.stat().st_mtime_ns == before[path] for path in networks)


def test_the_terminal_ends_with_the_table_and_the_path_of_the_page(demo):
    out, _, printed = demo
    assert "DiTi" in printed and "PDAE" in printed and "PCA of pixels" in printed
    assert printed.rstrip().endswith(str(out / PAGE))
    assert "Smaller than quick." in printed


def test_the_report_has_its_twins(demo):
    out, _, _ = demo
    record = json.loads((out / "report" / "report.json").read_text())
    assert {"table1", "counterfactuals", "disentanglement", "cost", "provenance"} <= set(record["tables"])
    for key in record["tables"]:
        assert (out / "report" / f"{key}.csv").read_text().count("\n") > 1
    labels = [run["group"] for run in record["runs"]]
    assert labels[1].startswith("PDAE") and all(label.startswith("DiTi") for label in (labels[0], labels[2]))
    assert all(run["probe"] and run["counterfactuals"] for run in record["runs"])


def test_the_page_is_whole_in_a_browser(demo):
    out, _, _ = demo
    with launch() as browser, open_page(browser, (out / PAGE).as_uri(), width=360) as visit:
        visit.assert_quiet()
        images = visit.page.evaluate("[...document.images].map(i => [i.alt, i.complete && i.naturalWidth > 0])")
        assert len(images) >= 15 and all(loaded for _, loaded in images), images
        text = visit.page.inner_text("body")
    for words in ("Figure 5", "Figure 2a", "Figure 7", "Figure 1b", "Figure 4", "A10", "diti probe"):
        assert words in text, words


def test_the_model_in_the_box_is_copied_once(tmp_path):
    copied = copy_shipped(tmp_path)
    assert copied.name == SHIPPED and (copied / "encoder" / "model.safetensors").is_file()
    (copied / "measured.txt").write_text("kept")
    assert copy_shipped(tmp_path) == copied and (copied / "measured.txt").is_file()


def test_lengths_are_chosen_by_their_options():
    assert choose_length(False, False, None, None) == ("demo", LENGTHS["normal"])
    name, length = choose_length(True, False, 700, 64)
    assert name == "demo-quick" and (length.faces, length.images) == (700, 64)
    assert len(choose_length(False, True, None, None)[1].seeds) == 3
    with pytest.raises(InputError, match="choose one"):
        choose_length(True, True, None, None)
    with pytest.raises(InputError, match=str(FEWEST_FACES)):
        choose_length(True, False, 10, None)
    with pytest.raises(InputError, match="--images is 0; it must be 1 or more"):
        choose_length(True, False, None, 0)
