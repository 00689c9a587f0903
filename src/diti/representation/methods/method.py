"""What a method is: how it builds an objective, and how its models are evaluated, saved and loaded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from diti.config import TrainConfig
from diti.core.card import Findings
from diti.core.settings import Settings as NoSettings
from diti.data.prepared import Dataset
from diti.diffusion.backbone import Backbone
from diti.representation.methods.base import CHECKED_BATCH, EncoderObjective, checked_reports, checked_rows
from diti.representation.models.model import Model, read_common
from diti.representation.networks.encoder import build_encoder
from diti.representation.partition import Partition
from diti.representation.settings import FROM_ELSEWHERE


class Method(ABC):
    """A way to learn z. Everything but `build` has a default, which suits a model that only encodes.

    @diti.register
    class Mine(diti.Method):
        name, title, about = "mine", "Mine", "one line for --help"

        def build(self, config, backbone, dataset):
            return MyObjective(diti.new_encoder(config, backbone, dataset))
    """

    name: ClassVar[str]  # on the command line and in model.json
    title: ClassVar[str]  # in tables, such as DiTi
    about: ClassVar[str]  # one line for --help
    loss: ClassVar[str] = ""  # what its loss is, for the axis of a figure; the same text makes methods comparable
    needs_backbone: ClassVar[bool] = False  # even when its encoder does not
    decodes: ClassVar[bool] = False  # its models have a decoder: interpolate, manipulate, ... work
    solvable: ClassVar[bool] = False  # a training can start from the solution of `diti solve`
    uses: ClassVar[tuple[str, ...]] = FROM_ELSEWHERE  # of the settings that not every method uses
    Settings: ClassVar[type[NoSettings]] = NoSettings  # of its own: options of `diti train`, in config.own

    def wants_backbone(self, config: TrainConfig) -> bool:
        """Whether these settings need a frozen diffusion model."""
        return self.needs_backbone or config.code.encoder == "backbone"

    def validate(self, config: TrainConfig, backbone: Backbone | int) -> None:
        """An early InputError for what cannot be built; backbone: the side of the images, px, if there is none."""
        build_encoder(config.code, backbone, seed=0)

    @abstractmethod
    def build(self, config: TrainConfig, backbone: Backbone | None, dataset: Dataset) -> EncoderObjective:
        """Networks and loss, before the first step."""

    def evaluate(self, objective: Any, dataset: Dataset) -> dict[str, Any]:
        """A line of the log, from time to time: the loss on fixed validation images with fixed random numbers.

        On training images where there are no validation images.
        """
        reports = checked_reports(objective, dataset, checked_rows(dataset), CHECKED_BATCH)
        return {"validation_loss": torch.cat([r.per_image.cpu().double() for r in reports]).mean().item()}

    def model(self, objective: Any, config: TrainConfig, mean: Tensor, std: Tensor) -> Model:
        """What the training leaves, with mean and std (D,) of z: a model that encodes, all dims together."""
        return Model(objective.encoder, Partition.single(1, len(mean)), mean, std, self.name)

    def assess(self, model: Any, dataset: Dataset, folder: Path) -> Findings:
        """What is found out about the model, pictures into the folder: a code that collapsed does not vary."""
        _, std = model.statistics()
        smallest, largest = std.min().item(), std.max().item()
        sentence = f"standard deviation of the dims of z over the training images: {smallest:.2g} to {largest:.2g}"
        return Findings({"smallest_std": smallest, "largest_std": largest}, (sentence,))

    def load(self, folder: Path) -> Model:
        """What the model's `save` wrote."""
        return Model(*read_common(folder))
