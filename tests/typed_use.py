"""Not run, but checked by mypy as the script of somebody who installed the package: a type that is lost fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from PIL.Image import Image
from torch import Tensor

import diti
from diti import DiTi, DiTiFeatures, EncoderObjective, InputError, LossReport, Partition


class Mine(EncoderObjective):
    def forward(self, images: Tensor, draws: Any) -> LossReport:
        loss = self.encoder(images).square().mean(1)
        return LossReport(loss.mean(), loss)


def make() -> None:
    data = diti.open_data(Path("photos"), size=32)
    assert_type(data, diti.Dataset)
    backbone = diti.load_backbone("toyfaces32")
    assert_type(backbone, diti.Backbone)
    solved = diti.solve(data, backbone, code_dim=8)
    assert_type(solved, DiTi)
    trained = diti.train(data, "runs/backbone", method="pdae", images=64, seed=1, out="runs/pdae", code_dim=8)
    assert_type(trained, diti.Model)
    method = diti.Method(
        name="mine", title="Mine", about="mine", build=lambda config, b, d: Mine(diti.new_encoder(config, b, d))
    )
    assert_type(diti.register(method), diti.Method)


def use(images: np.ndarray) -> None:
    model: diti.Model = diti.load("toyfaces32-diti")
    assert_type(diti.load("toyfaces32-diti"), diti.Model)
    assert_type(model.encode(images), Tensor)
    assert_type(model.reconstruct(images), Tensor)
    assert_type(model.partition, Partition)
    assert_type(model.feature_names(), list[str])
    assert_type(diti.sample(model, 4), Tensor)
    assert_type(diti.sample("runs/model"), Tensor)
    assert_type(diti.vary(model, images, 4), Tensor)
    assert_type(DiTiFeatures(model).transform(images), np.ndarray)


def edit(model: diti.Model, images: np.ndarray, data: diti.Dataset) -> None:
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
    assert_type(diti.encode_dataset(model, data), np.ndarray)
    assert_type(diti.baselines(32, data, model.dims, seed=0), Iterator[tuple[str, np.ndarray]])
    assert_type(diti.read_labels(data).names, list[str])
    problem: ValueError = InputError("bad input")
    assert_type(diti.__version__, str)
    print(problem)
