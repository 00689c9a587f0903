"""Loading a model reads its networks, by the method that made it and no other."""

import copy
import json
import subprocess
import sys

import pytest
from tiny import without_decoder

from diti.core.errors import InputError
from diti.representation.models.loading import load, load_with_decoder

METHOD_FILES = "{name for name in sys.modules if name.startswith('diti.representation.methods')}"


def method_files_after(code: str) -> set[str]:
    """Which modules of the methods a new interpreter has imported when the code has run."""
    code = f"import sys\n{code}\nprint(*{METHOD_FILES})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_loading_imports_no_other_method(model, tmp_path):
    model.save(tmp_path / "model")
    found = method_files_after(f"import diti\nditi.load({str(tmp_path / 'model')!r})")
    assert {name.rpartition(".")[2] for name in found} == {"methods", "base", "method", "diti"}


def test_a_model_without_decoder_is_refused_where_one_is_needed(model, tmp_path):
    blind = without_decoder(model)
    blind.save(tmp_path / "blind")
    assert load(tmp_path / "blind").method == "simclr" and model.with_decoder() is model
    for refused in (blind.with_decoder, lambda: load_with_decoder(tmp_path / "blind")):
        with pytest.raises(InputError, match="a simclr model has no decoder"):
            refused()


def test_what_only_other_models_have_is_not_there_and_says_why(model):
    blind = without_decoder(model)
    for name in ("decode", "infer_noise", "reconstruct", "edit", "interpolate", "manipulate", "noise_shape"):
        assert hasattr(model, name) and not hasattr(blind, name), name
        assert name in dir(model) and name not in dir(blind)
        with pytest.raises(InputError, match="a simclr model has no decoder"):
            getattr(blind, name)
    assert model.with_backbone() is model and not hasattr(blind, "backbone")
    with pytest.raises(InputError, match="a simclr model has no frozen diffusion model"):
        _ = blind.backbone
    with pytest.raises(AttributeError, match=r"^'Model' object has no attribute 'recontsruct'"):
        _ = blind.recontsruct
    assert copy.deepcopy(blind).method == "simclr"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (99, r"model\.json has format 99, written by a later diti than this one \(.*up to 1\); update diti"),
        ("new", r"model\.json: format is 'new'; it must be a whole number"),
        (0, "format is 0; it must be"),
    ],
)
def test_a_folder_of_a_later_version_is_refused(model, tmp_path, found, words):
    model.save(tmp_path)
    facts = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(facts | {"format": found}))
    with pytest.raises(InputError, match=words):
        load(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps({"method": facts["method"]}))
    assert load(tmp_path).dims == model.dims, "the first models had none"
