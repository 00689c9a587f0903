"""Who may import whom: core, pages, data, diffusion, representation; probes, edit, theory; measure; reporting."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "diti"
BELOW_MODELS = {"core", "config", "presets", "pages", "data", "diffusion"}
MODELS = BELOW_MODELS | {"representation"}
ALLOWED = {  # part → the parts it may import, itself aside; config sits above core; "": the version
    "config": {"core"},
    "presets": {"core", "config"},
    "core": {""},
    "pages": {"core"},
    "data": {"core", "config", "pages", ""},
    "diffusion": {"core", "config", "presets", "data"},
    "representation": BELOW_MODELS,
    "interop": MODELS | {""},
    "probes": {"core"},
    "edit": MODELS | {"probes"},
    "theory": MODELS,
    "sweep": MODELS,
    "measure": MODELS | {"probes", "edit", "theory"},
    "reporting": MODELS | {"probes", "edit", "theory", "measure", "exploring"},
    "exploring": MODELS | {"probes", "edit"},
    "studio": MODELS | {"probes", "edit", "exploring"},
    "photographs": MODELS | {"edit"},
}
# Rooms and files of representation, in a line: each may import those before it.
ROOMS = (
    "registry", "settings", "partition_widths", "partition_checks", "partition", "networks", "models", "kept",
    "features", "table", "found_axes", "finish", "checks", "solve", "methods", "train", "train_latent",
)  # fmt: skip
# model.edit, interpolate and manipulate are what people look for; they import the algorithms when called.
METHODS_THAT_CALL_UP = {
    "representation/models/decoding.py": {
        "diti.edit.compose",
        "diti.edit.interpolate",
        "diti.edit.manipulate",
        "diti.edit.directions",
        "diti.edit.editor",
    },
}
TOP = {"cli", "verbs", "demo", "__main__", ""}  # may import anything


def part_of(module: str) -> str:
    """diti.core.rng → core; diti → the empty word."""
    return [*module.split("."), ""][1]


def imports(path: Path, for_types: bool = True) -> set[str]:
    """The modules of diti that a file imports; for_types: also those that only type checkers see."""
    nodes, found = [ast.parse(path.read_text(encoding="utf-8"))], set()
    for node in nodes:
        if for_types or not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            nodes.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            module = node.module or ""
            names = {f"{module}.{alias.name}" for alias in node.names}
            found |= {name if is_module(name) else module for name in names}  # from diti import core
    return {name for name in found if name.split(".")[0] == "diti"}


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


DISTRIBUTIONS = {  # whose name is not the module's
    "PIL": "pillow",
    "faiss": "faiss-cpu",
    "huggingface_hub": "huggingface-hub",
    "pillow_heif": "pillow-heif",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def test_what_is_imported_is_declared():
    """Outside of the extra for developers: users do not install that one."""
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(need for name in extras if name != "dev" for need in extras[name])]
    declared = {re.split(r"[<>=\[]", need)[0] for need in wanted}
    imported = {
        name.split(".")[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
    } - {"diti", *sys.stdlib_module_names}
    names = {DISTRIBUTIONS.get(name, name) for name in imported}
    assert names <= declared, "imported but not declared in pyproject.toml"
    used_by_others = {"tensorboard", "onnxscript", "ipykernel", "ipywidgets", "transformers"}
    assert declared - names <= used_by_others, "declared for code that is not there"


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_layers(path):
    part = part_of(".".join(("diti", *path.relative_to(PACKAGE).with_suffix("").parts))).removesuffix("__init__")
    if part in TOP:
        return
    assert part in ALLOWED, f"{part} is not in the table of layers; add it with what it may import"
    wrong = {name for name in imports(path) if part_of(name) not in ALLOWED[part] | {part}}
    wrong -= METHODS_THAT_CALL_UP.get(str(path.relative_to(PACKAGE)), set())
    assert not wrong, f"{part} may not import {sorted(wrong)}"


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "representation").rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_rooms_of_the_representation_are_kept_apart(path):
    room = path.relative_to(PACKAGE / "representation").parts[0].removesuffix(".py")
    if room == "__init__":
        return
    assert room in ROOMS, f"{room} is not in the line of rooms; add it behind those that it imports"
    names = {name for name in imports(path, for_types=False) if part_of(name) == "representation"}
    allowed = tuple(f"diti.representation.{name}." for name in ROOMS[: ROOMS.index(room) + 1])
    wrong = {name for name in names if not f"{name}.".startswith(allowed)}
    assert not wrong, f"representation/{room} may not import {sorted(wrong)}"


def test_imports_are_seen_however_they_are_written(tmp_path):
    (tmp_path / "file.py").write_text(
        "import numpy, diti.core.rng\nfrom diti import InputError, config\n"
        "from diti.representation import models\n"
        "def later():\n    from diti.representation.models.model import Model\n"
    )
    assert imports(tmp_path / "file.py") == {
        "diti.core.rng", "diti", "diti.config", "diti.representation.models", "diti.representation.models.model",
    }  # fmt: skip
    (tmp_path / "typed.py").write_text("import diti.core\nif TYPE_CHECKING:\n    import diti.config\n")
    assert imports(tmp_path / "typed.py") == {"diti.config", "diti.core"}
    assert imports(tmp_path / "typed.py", for_types=False) == {"diti.core"}


@pytest.mark.parametrize("words", [["--help"], ["prepare", "--help"], ["pretrain", "--help"], ["nonsense"]])
def test_help_and_complaints_do_not_import_torch(words):
    code = (
        "import sys\nfrom diti.cli import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'diffusers', 'pyarrow', 'matplotlib', 'sklearn', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr


def test_prepare_does_not_import_torch(tmp_path):
    code = (
        "import sys\nfrom diti.cli import main\n"
        f"assert main(['prepare', 'toyfaces:20', '--size', '16', '--out', {str(tmp_path / 'd')!r}]) == 0\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
