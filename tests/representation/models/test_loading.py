"""Loading a model reads its networks and nothing of how it was trained."""

import subprocess
import sys

import pytest

from diti.core.errors import InputError
from diti.representation.methods.registry import METHODS
from diti.representation.models.loading import load, load_with_decoder
from diti.representation.models.model import EncodeOnly

LIGHT = {"diti.representation.methods", "diti.representation.methods.registry"}
METHOD_FILES = "{name for name in sys.modules if name.startswith('diti.representation.methods')}"


def method_files_after(code: str) -> set[str]:
    """Which modules of the methods a new interpreter has imported when the code has run."""
    code = f"import sys\n{code}\nprint(*{METHOD_FILES})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_loading_imports_no_method(model, tmp_path):
    model.save(tmp_path / "model")
    assert method_files_after(f"import diti\nditi.load({str(tmp_path / 'model')!r})") == LIGHT


def test_nor_do_the_loaders_of_the_other_methods(tmp_path):
    code = (
        "from diti.core.errors import InputError\nfrom diti.representation.methods.registry import METHODS\n"
        f"from pathlib import Path\nfolder = Path({str(tmp_path)!r})\n"
        "for method in METHODS.values():\n"
        "    try: method.load(folder)\n"
        "    except InputError: pass\n"
    )
    assert len(METHODS) >= 6 and method_files_after(code) == LIGHT


def test_a_model_without_decoder_is_refused_where_one_is_needed(model, tmp_path):
    blind = EncodeOnly(model.encoder, model.partition, model.mean, model.std, "simclr")
    blind.save(tmp_path / "blind")
    assert load(tmp_path / "blind").method == "simclr" and model.with_decoder() is model
    for refused in (blind.with_decoder, lambda: load_with_decoder(tmp_path / "blind")):
        with pytest.raises(InputError, match="a simclr model has no decoder"):
            refused()
