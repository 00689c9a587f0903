"""DiT (Peebles & Xie 2023): a transformer over latents or pixels that is told a class, by default "no class"."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.diffusion.kinds.pipeline import Choices, PipelineBackbone


class ClassTransformerBackbone(PipelineBackbone):
    """A DiTTransformer2DModel."""

    kind = "DiTTransformer2DModel pipeline"
    network_class = "DiTTransformer2DModel"
    is_told = "label"

    @classmethod
    def conditions(
        cls, home: Path, config: Mapping[str, Any], choices: Choices, kept: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        classes = int(config["num_embeds_ada_norm"])
        label = classes if choices.label is None else choices.label  # behind the classes comes "none of them"
        if not 0 <= label <= classes:
            raise InputError(f"label is {label}; the network knows the classes 0 to {classes - 1}")
        return {"label": torch.tensor([label])}

    def tokens(self) -> tuple[int, int]:
        side = self.shape[1] // int(self.network.config["patch_size"])
        return side, side

    def ask(self, x: Tensor, time: Tensor) -> Tensor:
        own = x.to(self.network.dtype)
        output = self.network(own, timestep=time, class_labels=self.told("label", x), return_dict=False)[0]
        return output[:, : self.shape[0]]  # the mean: sigma is learned too
