"""Images of another size than the model: resized where they are only encoded, refused where they are measured."""

import pytest
from tiny import tiny_model

from diti.cli import main
from diti.diffusion.files import ASSETS

FACE = ASSETS / "toy-a.png"


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """What the words below stand for: a model for 16 px, a dataset folder of 32 px, a picture."""
    folder = tmp_path_factory.mktemp("sizes")
    tiny_model(subsets=2).save(folder / "model")
    assert main(["prepare", "toyfaces:60", "--size", "32", "--out", str(folder / "data")]) == 0
    return {"MODEL": folder / "model", "DATA": folder / "data", "FACE": FACE}


@pytest.mark.parametrize(
    "words",
    ["probe MODEL --data DATA", "counterfactuals MODEL --data DATA", "analyze MODEL --data DATA",
     "train-latent MODEL --data DATA", "explore MODEL --data DATA",
     "manipulate MODEL FACE --attribute smile --data DATA"],
)  # fmt: skip
def test_what_is_measured_or_learned_from_must_have_the_models_size(words, places, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(places.get(word, word)) for word in words.split()]) == 2
    shown = capsys.readouterr().err
    assert "the images are 32 px but the " in shown and "prepare the data with --size 16" in shown
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    ["encode MODEL DATA --out codes.csv", "search MODEL --odd 3 --data DATA --out odd.png",
     "search MODEL FACE --data DATA --out found.png"],
)  # fmt: skip
def test_what_is_only_encoded_is_resized_with_one_line(words, places, caplog, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(places.get(word, word)) for word in words.split()]) == 0
    assert caplog.messages == ["images of 32 px are resized to the model's 16 px"]
