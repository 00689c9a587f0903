"""Not run, but checked by mypy as the script of somebody who installed the package: a type that is lost fails."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from PIL.Image import Image
from torch import Tensor

import diti
from diti import DiTi, DiTiFeatures, EncoderObjective, InputError, LossReport, Partition
from diti.config import TrainConfig


class Mine(EncoderObjective):
    def forward(self, images: Tensor, draws: Any) -> LossReport:
        loss = self.encoder(images).square().mean(1)
        return LossReport(loss.mean(), loss)


@diti.register
class MineMethod(diti.Method):
    name, title, about = "mine", "Mine", "mine"

    @dataclass(frozen=True, kw_only=True)
    class Settings(diti.Settings):
        margin: float = 0.5

    def build(self, config: TrainConfig, backbone: diti.Backbone | None, dataset: diti.Dataset) -> Mine:
        assert isinstance(config.own, self.Settings) and config.own.margin > 0
        return Mine(diti.new_encoder(config, backbone, dataset))


def make() -> None:
    data = diti.open_data(Path("photos"), size=32)
    assert_type(data, diti.Dataset)
    backbone = diti.load_backbone("toyfaces32")
    assert_type(backbone, diti.Backbone)
    solved = diti.solve(data, backbone, code_dim=8)
    assert_type(solved, DiTi)
    trained = diti.train(data, "runs/backbone", method="pdae", images=64, seed=1, out="runs/pdae", code_dim=8)
    assert_type(trained, diti.Model)
    assert_type(MineMethod().build(TrainConfig(), None, data), Mine)


def work(model: diti.Model, data: diti.Dataset, images: np.ndarray) -> None:
    assert_type(diti.prepare("photos", "data/mine", size=64), diti.Dataset)
    assert_type(diti.pretrain(data, out="runs/backbone", preset="auto", minutes=45), diti.Backbone)
    assert_type(diti.encode(model, images), np.ndarray)
    assert_type(diti.encode("runs/model", data, "z.parquet", explained=False), np.ndarray)
    assert_type(diti.probe(model, data, few_shot=[10, 100], against="earlier.json"), dict[str, Any])
    assert_type(diti.counterfactuals("runs/model", data), dict[str, Any])
    assert_type(diti.analyze(model.with_backbone().backbone, data), dict[str, Any])
    assert_type(diti.explore(model, data).page, Path)
    assert_type(diti.search(model, images[0], data=data, count=3).files, tuple[str, ...])
    assert_type(diti.report(["runs/a", Path("runs/b")], data=data).headline, list[str])
    with diti.quiet():
        assert_type(diti.solve(data, model, out=Path("runs/solved"), features=images.reshape(9, -1)), DiTi)
        assert_type(diti.train(data, model.with_backbone().backbone, out="runs/x"), diti.Model)


def use(images: np.ndarray) -> None:
    assert_type(diti.load("toyfaces32-diti"), diti.Model)
    model = diti.load("toyfaces32-diti").with_decoder()
    assert_type(model.encode(images), Tensor)
    assert_type(model.reconstruct(images), Tensor)
    assert_type(model.partition, Partition)
    assert_type(model.feature_names(), list[str])
    assert_type(diti.sample(model, 4), Tensor)
    assert_type(diti.sample("runs/model"), Tensor)
    assert_type(diti.vary(model, images, 4), Tensor)
    assert_type(DiTiFeatures(model).transform(images), np.ndarray)


def edit(model: diti.DecodingModel, images: np.ndarray, data: diti.Dataset) -> None:
    face = model.edit(images, sampling_steps=10)
    assert_type(face, diti.Editor)
    smile = diti.learn_direction(model, data, "Smiling")
    found: list[diti.Axis] = diti.find_axes(model, data)
    assert_type(face.draw({found[0].axis: 1.0, "beard": -2, smile: 0.3}), Tensor)
    assert_type(face.strip(smile, [-1, 0, 1]), Tensor)
    assert_type(diti.grid(face.draw_each([{}, {3: 1.5}])[:, 0], columns=2), Image)


def measure(model: diti.Model, data: diti.Dataset) -> None:
    direction = diti.learn_direction(model, data, "Smiling")
    assert_type(direction.dims, tuple[int, ...])
    assert_type(diti.baselines(32, data, model.dims, seed=0), Iterator[tuple[str, np.ndarray]])
    assert_type(diti.read_labels(data).names, list[str])
    problem: ValueError = InputError("bad input")
    assert_type(diti.__version__, str)
    print(problem)
