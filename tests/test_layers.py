"""Who may import whom: core, data, diffusion, representation; then probe, edit, theory; measure; report; verbs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "diti"
BELOW_MODELS = {"core", "config", "data", "diffusion"}
MODELS = BELOW_MODELS | {"representation"}
ALLOWED = {  # part → the parts it may import, itself aside; config sits beside core
    "config": {"core"},
    "core": {"config"},
    "data": {"core", "config", ""},
    "diffusion": {"core", "config", "data"},
    "representation": BELOW_MODELS,
    "interop": MODELS,
    "probe": {"core"},
    "edit": MODELS | {"probe"},
    "theory": MODELS,
    "sweep": MODELS,
    "measure": MODELS | {"probe", "edit", "theory"},
    "report": MODELS | {"probe", "edit", "theory", "measure"},
}
# model.interpolate and model.manipulate are what people look for; they import the algorithms when called.
METHODS_THAT_CALL_UP = {
    "representation/models/decoding.py": {"diti.edit.interpolate", "diti.edit.manipulate", "diti.edit.directions"}
}
# Who starts commands builds them from the records of their options, imported when the commands are planned.
COMMANDS_THAT_ARE_STARTED = {
    "sweep.py": {"diti.verbs.making"},
    "report/evidence.py": {"diti.verbs.measuring"},
}
TOP = {"cli", "verbs", "demo", "__main__", ""}  # may import anything


def part_of(module: str) -> str:
    """diti.core.rng → core; diti → the empty word."""
    return [*module.split("."), ""][1]


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            found.add(node.module or "")
            if node.module == "diti":  # from diti import core
                found |= {f"diti.{a.name}" for a in node.names if (PACKAGE / a.name).exists()}
    return {name for name in found if name.split(".")[0] == "diti"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_layers(path):
    part = part_of(".".join(("diti", *path.relative_to(PACKAGE).with_suffix("").parts))).removesuffix("__init__")
    if part in TOP:
        return
    assert part in ALLOWED, f"{part} is not in the table of layers; add it with what it may import"
    wrong = {name for name in imports(path) if part_of(name) not in ALLOWED[part] | {part}}
    for upward in (METHODS_THAT_CALL_UP, COMMANDS_THAT_ARE_STARTED):
        wrong -= upward.get(str(path.relative_to(PACKAGE)), set())
    assert not wrong, f"{part} may not import {sorted(wrong)}"


@pytest.mark.parametrize("words", [["--help"], ["prepare", "--help"], ["pretrain", "--help"], ["nonsense"]])
def test_help_and_complaints_do_not_import_torch(words):
    code = (
        "import sys\nfrom diti.cli import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'diffusers', 'pyarrow', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_prepare_does_not_import_torch(tmp_path):
    code = (
        "import sys\nfrom diti.cli import main\n"
        f"assert main(['prepare', 'toyfaces:20', '--size', '16', '--out', {str(tmp_path / 'd')!r}]) == 0\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
