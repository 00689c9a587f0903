"""The model of photographs in the box, and the pictures that the demo opens with."""

import re

import numpy as np
import pytest

import diti
from diti.data.prepared import Dataset
from diti.diffusion.files import ASSETS
from diti.photographs import EDITS, MODEL
from diti.studio.world import open_world

FOLDER = ASSETS / MODEL


@pytest.fixture(scope="module")
def faces() -> Dataset:
    return diti.open_data("faces")


def test_the_cards_tell_data_generator_and_terms():
    card, backbone = ((FOLDER / name).read_text() for name in ("card.md", "backbone.md"))
    assert all(words in card for words in ("random-face", "FFHQ", "commercial", "Not for", "loss"))
    assert "diti pretrain" in backbone and "validation loss" in backbone
    texts = [path for path in FOLDER.rglob("*") if path.suffix in (".md", ".json", ".yaml", ".jsonl")]
    of_one_machine = re.compile(r"(?<![\w.:/])/\w+/")
    assert not [path.name for path in texts if of_one_machine.search(path.read_text())]


def test_the_model_reads_new_faces_and_tells_left_from_right(faces):
    """A ridge regression from z on 240 faces reads 60 others; a mirrored face looks the other way."""
    from sklearn.linear_model import RidgeCV

    model = diti.load(MODEL)
    assert model.size == faces.size and model.encoder.tells_sides and model.axes is not None
    assert open_world(MODEL, None).dataset.hash == faces.hash, "the studio opens with the faces in the box"
    names = ["yaw", *EDITS]
    z, labels = diti.encode(model, faces), faces.labels(names)
    train = faces.rows("train")
    held = np.setdiff1d(np.arange(len(faces)), train)
    read = RidgeCV(np.logspace(0, 4, 9)).fit(z[train], labels[train]).predict
    r = [np.corrcoef(a, b)[0, 1] for a, b in zip(read(z[held]).T, labels[held].T, strict=True)]
    assert min(r) > 0.4 and np.mean(r) > 0.65, dict(zip(names, r, strict=True))
    mirrored = read(model.encode(faces.images[held[:20], :, ::-1]).numpy())[:, 0]
    assert np.corrcoef(mirrored, labels[held[:20], 0])[0, 1] < -0.5, "yaw"
