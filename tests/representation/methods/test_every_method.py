"""All methods behind one command: each learns more of toy faces than chance, and leaves one kind of folder."""

import json

import pytest
import torch
from tiny import tiny_backbone

import diti
from diti.config import EncoderConfig, TrainConfig, TrainingConfig
from diti.core.card import pictures_of
from diti.measure.probing import read_labels
from diti.representation.features import encode_dataset
from diti.representation.models.decoding import DecodingModel
from diti.representation.registry import METHODS, find_method
from diti.representation.settings import idle_settings
from diti.representation.train import train_model

SIZE = 16
CODE = EncoderConfig(encoder="residual", code_dim=32, encoder_channels=(8, 16, 32))
LENGTH = TrainingConfig(images=1280, train_batch_size=32, learning_rate=2e-3, ema_decay=0.9)
ONE_STEP = ("tcvae", "ibgan")  # decoders of z alone, without an x_T
BUILT_IN = ("diti", "pdae", "diffae", "simclr", "tcvae", "ibgan")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return diti.prepare("toyfaces:1500", tmp_path_factory.mktemp("faces"), SIZE)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_method_beats_chance_and_leaves_the_one_kind_of_folder(name, data, tmp_path):
    tiny_backbone().save(tmp_path / "backbone")
    config = TrainConfig(
        method=name,
        data=str(data.path),
        backbone=str(tmp_path / "backbone"),
        subsets=8,
        code=CODE,
        training=LENGTH,
    )
    folder = tmp_path / "run"
    train_model(config, folder)
    for part in ("config.yaml", "run.json", "log.jsonl", "model.json", "checks.json", "card.md", "encoder"):
        assert (folder / part).exists(), part
    assert json.loads((folder / "model.json").read_text())["method"] == name
    told = pictures_of(folder)
    assert set(told) == {path.name for path in folder.glob("*.png")}, "the card tells what each picture shows"
    if "reconstructions.png" in told:
        assert ("noise" in told["reconstructions.png"]) == (name not in ONE_STEP)
    model = diti.load(folder)
    result = read_labels(data).probe(encode_dataset(model, data), seed=0)
    chance = sum(row.chance for row in result.rows if row.chance) / sum(
        row.chance is not None for row in result.rows
    )
    assert result.mean_ap > chance + 0.1 and result.mean_r > 0.2, (result.mean_ap, chance, result.mean_r)
    if isinstance(model, DecodingModel):
        assert find_method(name).decodes
        images = torch.from_numpy(data.images[:2].copy()).permute(0, 3, 1, 2) / 127.5 - 1
        assert model.reconstruct(images, sampling_steps=2).shape == images.shape


def test_the_six_are_there_and_each_ignores_the_settings_of_the_others():
    assert tuple(METHODS)[:6] == BUILT_IN
    assert [find_method(name).name for name in BUILT_IN] == list(BUILT_IN)
    assert idle_settings("simclr") == ["subsets", "partition", "detach", "solution", "vae", "gan"]
    assert idle_settings("diti") == ["views", "vae", "gan"]
    assert idle_settings("one-from-elsewhere") == ["subsets", "partition", "detach"]
