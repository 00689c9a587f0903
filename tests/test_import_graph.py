"""tools/import_graph.py: right on a small package, and its diagram in CONTRIBUTING.md is that of the source."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = {
    "core/rng.py": "",
    "data/read.py": "from diti.core import rng",
    "edit/push.py": "from diti.representation.model import load",
    "representation/model.py": "from diti.data.read import see\ndef push():\n    from diti.edit.push import go",
    "representation/solve/run.py": "from diti.representation import model\nfrom diti.core import rng",
    "verbs/making.py": "if TYPE_CHECKING:\n    from diti.edit import push\n"
    + "".join(
        f"class {name}:\n    def run(self):\n        from diti.{module} import go\n"
        for name, module in {
            "Train": "representation.solve.run", "Probe": "data.read", "Report": "core.rng", "Demo": "edit.push"
        }.items()
    ),
}  # fmt: skip


def draw(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, REPOSITORY / "tools" / "import_graph.py", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.fixture
def package(tmp_path):
    for name, code in PACKAGE.items():
        path = tmp_path / "diti" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code)
    return tmp_path / "diti"


def test_arrows_that_follow_from_others_are_left_out_and_calls_up_are_dotted(package):
    drawn, _, hops = draw("--package", package).stdout.partition("```\n\n")
    assert [line.strip() for line in drawn.splitlines()[2:]] == [
        "data --> core",
        "edit --> representation",
        "representation --> data",
        "verbs --> edit",
        "representation -. when called .-> edit",
        "subgraph representation",
        "solve --> model",
        "end",
    ]
    assert "diti train: 4 hops, representation.solve.run → representation.model → data.read → core.rng\n" in hops
    assert "diti report: 1 hops, core.rng\n" in hops


def test_the_diagram_for_contributors_is_that_of_the_source(tmp_path):
    copy = tmp_path / "CONTRIBUTING.md"
    shutil.copy(REPOSITORY / copy.name, copy)
    assert draw("--write", copy).returncode == 0
    remedy = "imports between rooms changed; run python tools/import_graph.py --write CONTRIBUTING.md"
    assert copy.read_text() == (REPOSITORY / copy.name).read_text(), remedy


def test_only_what_is_between_the_marks_is_replaced(package, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- import graph: begin -->\nold\n<!-- import graph: end -->\nbelow\n")
    draw("--package", package, "--write", page)
    text = page.read_text()
    assert text.startswith("above\n<!--") and text.endswith("-->\nbelow\n")
    assert "data --> core" in text and "old" not in text
    page.write_text("no marks\n")
    refused = draw("--package", package, "--write", page)
    assert refused.returncode == 2 and "lacks the two lines" in refused.stderr and page.read_text() == "no marks\n"
