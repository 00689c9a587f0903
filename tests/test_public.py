"""What `import diti` promises: a list of names, with types and words, that costs nothing until it is used."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import diti

SOURCE = Path(diti.__file__)
WANTED = {
    "load", "load_backbone", "open_data", "train", "solve", "Model", "Dataset", "Partition", "learn_direction",
    "sample", "vary", "find_axes", "grid", "Editor", "Method", "register", "DiTi", "DiTiFeatures", "InputError",
    "Backbone",
}  # fmt: skip


def static_names() -> dict[str, str]:
    """Name → module of what type checkers see."""
    checked = next(node for node in ast.parse(SOURCE.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(checked.body)
    assert all(alias.asname == alias.name for node in imports for alias in node.names), "`as` makes a name public"
    return {alias.name: node.module for node in imports for alias in node.names}


def test_type_checkers_and_people_see_the_same_names():
    assert static_names() == diti._PUBLIC and set(diti.__all__) == {*diti._PUBLIC, "__version__"} == set(dir(diti))
    assert set(diti._PUBLIC) >= WANTED


@pytest.mark.parametrize("name", sorted(diti._PUBLIC))
def test_each_name_is_there_and_says_what_it_is(name):
    found = getattr(diti, name)
    assert found.__module__ == diti._PUBLIC[name], "it stands where it is defined"
    assert inspect.getdoc(found) and not (inspect.getdoc(found) or "").startswith(f"{name}("), "words of its own"


def test_a_name_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(AttributeError, match=r"no attribute 'loed'; public names: .*load"):
        _ = diti.loed


def test_importing_costs_nothing_and_types_are_shipped():
    code = (
        "import sys, diti\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'sklearn', 'diffusers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (SOURCE.parent / "py.typed").is_file(), "without it type checkers look at nothing"
