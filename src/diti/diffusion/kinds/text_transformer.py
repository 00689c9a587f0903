"""PixArt, Stable Diffusion 3 and Flux: transformers over latents, always told the same prompt, by default none."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from diti.core.device import HOST
from diti.diffusion.kinds.pipeline import Choices, PipelineBackbone
from diti.diffusion.kinds.prompts import prompt_conditions

ABSENT = ("transformer", "vae", "scheduler")  # not needed to encode a prompt
PACK = 2  # side of the cells of latents that Flux takes as one token
FLUX_PX = 1024  # side of the pictures that Flux was made for; its config does not say


class _TextTransformer(PipelineBackbone):
    """What the three have in common: a prompt, and patches of a size."""

    is_told = "prompt"
    pipeline: ClassVar[str]  # of diffusers, which encodes the prompt

    @classmethod
    def conditions(
        cls, home: Path, config: Mapping[str, Any], choices: Choices, kept: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        return kept or prompt_conditions(home, cls.pipeline, choices.prompt, cls.encoded, ABSENT)

    @staticmethod
    @abstractmethod
    def encoded(pipeline: Any, prompt: str) -> dict[str, Tensor]:
        """What the pipeline's text encoders say of the prompt."""

    @property
    def patch(self) -> int:
        """Side of a token, in latents."""
        return int(self.network.config["patch_size"])

    def tokens(self) -> tuple[int, int]:
        side = self.shape[1] // self.patch
        return side, side


class PixArtBackbone(_TextTransformer):
    """A PixArtTransformer2DModel: alpha or sigma."""

    kind = "PixArtTransformer2DModel pipeline"
    network_class = "PixArtTransformer2DModel"
    pipeline = "PixArtAlphaPipeline"

    @staticmethod
    def encoded(pipeline: Any, prompt: str) -> dict[str, Tensor]:
        told, mask, nothing, mask_nothing = pipeline.encode_prompt(prompt, device=HOST)
        return {"text": told, "mask": mask} if prompt else {"text": nothing, "mask": mask_nothing}

    def ask(self, x: Tensor, time: Tensor) -> Tensor:
        more: dict[str, Tensor | None] = {"resolution": None, "aspect_ratio": None}
        if self.network.config.get("use_additional_conditions") or self.network.config["sample_size"] == 128:
            sides = torch.full((len(x), 2), self.size, dtype=self.network.dtype, device=x.device)
            more = {"resolution": sides, "aspect_ratio": torch.ones_like(sides[:, :1])}
        output = self.network(
            x.to(self.network.dtype), encoder_hidden_states=self.told("text", x),
            encoder_attention_mask=self.told("mask", x), timestep=time, added_cond_kwargs=more, return_dict=False,
        )[0]  # fmt: skip
        return output[:, : self.shape[0]]  # the mean: sigma is learned too


class SD3Backbone(_TextTransformer):
    """An SD3Transformer2DModel: Stable Diffusion 3 and 3.5."""

    kind = "SD3Transformer2DModel pipeline"
    network_class = "SD3Transformer2DModel"
    pipeline = "StableDiffusion3Pipeline"

    @staticmethod
    def encoded(pipeline: Any, prompt: str) -> dict[str, Tensor]:
        told, _, pooled, _ = pipeline.encode_prompt(
            prompt, prompt, prompt, device=HOST, do_classifier_free_guidance=False
        )
        return {"text": told, "pooled": pooled}

    def ask(self, x: Tensor, time: Tensor) -> Tensor:
        output: Tensor = self.network(
            x.to(self.network.dtype), encoder_hidden_states=self.told("text", x),
            pooled_projections=self.told("pooled", x), timestep=time, return_dict=False,
        )[0]  # fmt: skip
        return output


class FluxBackbone(_TextTransformer):
    """A FluxTransformer2DModel, which takes 2×2 latents as one token; told guidance 1 where it is told one."""

    kind = "FluxTransformer2DModel pipeline"
    network_class = "FluxTransformer2DModel"
    pipeline = "FluxPipeline"

    @staticmethod
    def encoded(pipeline: Any, prompt: str) -> dict[str, Tensor]:
        told, pooled, _ = pipeline.encode_prompt(prompt, prompt, device=HOST)
        return {"text": told, "pooled": pooled}

    @classmethod
    def own_shape(cls, config: Mapping[str, Any], factor: int, size: int | None) -> tuple[int, int]:
        return int(config["in_channels"]) // PACK**2, (size or FLUX_PX) // factor

    @classmethod
    def patches(cls, config: Mapping[str, Any], side: int) -> int:
        return (side // PACK) ** 2

    @property
    def patch(self) -> int:
        return PACK

    def caution(self) -> str:
        told = self.network.config.get("guidance_embeds")
        how = "guidance, and is asked for guidance 1" if told else "a few steps"
        return (
            f"{self.folder}: this Flux is distilled to {how}: its inversion is rougher than that of other models; "
            "look at the round trip that solve measures before you trust edits"
        )

    def default_blocks(self, whole: bool) -> Sequence[str]:
        joint, single = len(self.network.transformer_blocks), len(self.network.single_transformer_blocks)
        names = [f"transformer_blocks.{joint // 2}", f"transformer_blocks.{joint - 1}"]
        return list(dict.fromkeys([*names, f"single_transformer_blocks.{single // 2}"]))

    def ask(self, x: Tensor, time: Tensor) -> Tensor:
        own, text = x.to(self.network.dtype), self.told("text", x)
        side = x.shape[-1] // PACK
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        places = torch.stack([torch.zeros_like(rows), rows, columns], -1).flatten(0, 1).to(own)
        guided = self.network.config.get("guidance_embeds")
        output = self.network(
            packed(own), encoder_hidden_states=text, pooled_projections=self.told("pooled", x),
            timestep=time.to(own.dtype) / 1000, img_ids=places, txt_ids=places.new_zeros(text.shape[1], 3),
            guidance=own.new_ones(len(x)) if guided else None, return_dict=False,
        )[0]  # fmt: skip
        return unpacked(output, side)


def packed(x: Tensor) -> Tensor:
    """(B,C,h,w) -> tokens (B,hw/4,4C), a cell of 2×2 each, its channels outermost."""
    return torch.nn.functional.pixel_unshuffle(x, PACK).flatten(2).transpose(1, 2)


def unpacked(tokens: Tensor, side: int) -> Tensor:
    """The inverse, for a square of tokens."""
    return torch.nn.functional.pixel_shuffle(tokens.transpose(1, 2).unflatten(2, (side, side)), PACK)
