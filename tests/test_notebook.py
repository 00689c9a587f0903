"""examples/tour.ipynb: clean as it is kept, and run from the first cell to the last, in small."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shown_html import Shown

PATH = Path(__file__).resolve().parents[1] / "examples" / "tour.ipynb"
SMALL = {"FACES": "60", "STEPS": "2"}
MOVE_A_SLIDER = """
before = edited.widget.result.tobytes()  # a fault inside of it would be shown there and not raised
edited.widget.children[-2].value = 3.0
assert edited.widget.result.tobytes() != before
"""
EXECUTE = """
import sys
import nbclient, nbformat
path, inside = sys.argv[1:]
notebook = nbformat.read(path, as_version=4)
resources = {"metadata": {"path": inside}}
nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()
nbformat.write(notebook, path)
"""
WITHOUT_WIDGETS = "import sys; sys.modules['ipywidgets'] = None  # as if it were not installed\n"


def cells(kind: str) -> list[str]:
    return [
        "".join(cell["source"])
        for cell in json.loads(PATH.read_text("utf-8"))["cells"]
        if cell["cell_type"] == kind
    ]


def test_it_is_kept_clean():
    text = PATH.read_text(encoding="utf-8")
    notebook = json.loads(text)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3" and notebook["nbformat"] == 4
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code), "clear all outputs"
    assert all(cell["metadata"] == {} for cell in notebook["cells"]) and len(text) < 30_000
    assert not re.search(r"(?<![\w.])/(home|root|Users|work|tmp)/|[A-Z]:\\\\", text), "a path of one machine"


def test_it_is_short_and_for_strangers():
    code = cells("code")
    assert len(code) <= 14 and max(len(cell.splitlines()) for cell in code) <= 20
    assert not re.search(r"\bditi\.\w+\.\w+ import|from diti|\._\w", "\n".join(code)), "public names are enough"
    linked = [link for cell in cells("markdown") for link in re.findall(r"\]\(([^)#]+)", cell)]
    assert linked and all((PATH.parent / link).is_file() for link in linked)


def in_small(notebook) -> None:
    """Smaller numbers in the first cell."""
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    for name, value in SMALL.items():
        first.source, found = re.subn(rf"^{name} = \d+", f"{name} = {value}", first.source, flags=re.MULTILINE)
        assert found == 1, f"{name} is set in the first cell"


def executed(notebook, folder: Path, inside: Path):
    """With its outputs; in a process of its own, so that what other tests left behind cannot hold it up."""
    import nbformat

    nbformat.write(notebook, folder / "tour.ipynb")
    ended = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(folder / "tour.ipynb"), str(inside)], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return nbformat.read(folder / "tour.ipynb", as_version=4)


def test_it_runs_and_draws(tmp_path, tmp_path_factory, monkeypatch):
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    notebook = nbformat.read(PATH, as_version=4)
    in_small(notebook)
    sliders = next(cell for cell in notebook.cells if "FloatSlider" in cell.source)
    for more in (MOVE_A_SLIDER, WITHOUT_WIDGETS + sliders.source):
        notebook.cells.append(nbformat.v4.new_code_cell(more))
    notebook = executed(notebook, tmp_path_factory.mktemp("kept"), tmp_path)
    sliders = next(cell for cell in notebook.cells if "FloatSlider" in cell.source)
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output.output_type == "stream" and output.name == "stderr"]
    data = [output.get("data", {}) for output in shown]
    assert sum("image/png" in kinds for kinds in data) == 6
    boxes = [Shown(kinds["text/html"]).text for kinds in data if kinds.get("text/html", "").startswith("<div")]
    assert "DiTi model" in boxes[0] and "60 of 64 px" in boxes[1]
    assert [kind for kind in sliders.outputs[-1].data if "widget-view" in kind], "sliders where they can be had"
    assert "no sliders" in notebook.cells[-1].outputs[0].text
    assert not list(tmp_path.glob("*.*")), "it writes nothing"
