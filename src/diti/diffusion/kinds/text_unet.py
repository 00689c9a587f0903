"""Stable Diffusion 1, 2 and XL: a UNet2DConditionModel, always told the same prompt, by default none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diti.core.device import HOST
from diti.core.errors import InputError
from diti.diffusion.kinds.pipeline import Choices, PipelineBackbone
from diti.diffusion.kinds.prompts import prompt_conditions

ABSENT: tuple[str, ...] = ("unet", "vae", "scheduler")  # not needed to encode a prompt
UNKNOWN = ("class_embed_type", "num_class_embeds", "encoder_hid_dim_type")  # in a config: more that it is told


class TextUNetBackbone(PipelineBackbone):
    """A UNet2DConditionModel, such as that of a StableDiffusionPipeline."""

    kind = "UNet2DConditionModel pipeline"
    network_class = "UNet2DConditionModel"
    is_told = "prompt"

    @classmethod
    def conditions(
        cls, home: Path, config: Mapping[str, Any], choices: Choices, kept: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        added = config.get("addition_embed_type")
        if added not in (None, "text_time") or any(config.get(name) is not None for name in UNKNOWN):
            raise InputError("the network is told more than a prompt; a backbone is Stable Diffusion 1, 2 or XL")
        if added == "text_time":
            return kept or prompt_conditions(
                home, "StableDiffusionXLPipeline", choices.prompt, _with_pooled, ABSENT
            )
        without = (*ABSENT, "safety_checker", "feature_extractor")
        return kept or prompt_conditions(home, "StableDiffusionPipeline", choices.prompt, _plain, without)

    def caution(self) -> str:
        distilled = self.network.config.get("time_cond_proj_dim") is not None
        return DISTILLED.format(self.folder) if distilled else ""

    def ask(self, x: Tensor, time: Tensor) -> Tensor:
        more = {}
        if self.network.config.get("addition_embed_type") == "text_time":
            side = self.size  # of the original, cropped at 0, 0, to the same
            ids = torch.tensor([[side, side, 0, 0, side, side]], dtype=self.network.dtype, device=x.device)
            more = {"text_embeds": self.told("pooled", x), "time_ids": ids.expand(len(x), -1)}
        own = x.to(self.network.dtype)
        output = self.network(own, time, self.told("text", x), added_cond_kwargs=more, return_dict=False)[0]
        return output[:, : self.shape[0]]


DISTILLED = (
    "{}: this model is distilled to few steps: its reconstructions are sharper than a diffusion model's, and its "
    "inversion is rough; prefer the model that it was distilled from"
)


def _plain(pipeline: Any, prompt: str) -> dict[str, Tensor]:
    """Stable Diffusion 1 and 2."""
    return {"text": pipeline.encode_prompt(prompt, HOST, 1, False)[0]}


def _with_pooled(pipeline: Any, prompt: str) -> dict[str, Tensor]:
    """XL, for whose empty prompt a pipeline may take zeros."""
    told, nothing, pooled, pooled_nothing = pipeline.encode_prompt(prompt, device=HOST)
    return {"text": told, "pooled": pooled} if prompt else {"text": nothing, "pooled": pooled_nothing}
