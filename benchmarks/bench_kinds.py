"""What `diti solve` costs over well-known diffusion models: computed from their shapes, without their weights.

`python -m benchmarks.bench_kinds`: FLOPs of one call and weights of each network, laid out without memory; the
minutes follow from a rate that is assumed, not measured. Nothing is downloaded, and nothing here says how good a
code is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import torch
from rich.console import Console
from rich.table import Table

from diti.config import SolveConfig
from diti.diffusion.backbone import KINDS, forward_flops, located
from diti.diffusion.clock import Clock
from diti.diffusion.kinds.pipeline import Choices, PipelineBackbone
from diti.diffusion.pictures import Latents
from diti.representation.solve.collect import GROWTH, PER_REGRESSOR

RATE = 100e12  # FLOP/s in bfloat16, a third of what an A100's data sheet says
BYTES = 2  # of a weight in bfloat16
EDIT_STEPS = 50  # network calls to invert an image, and as many to draw it again


class Known(NamedTuple):
    """A model people have: class and config of its network, and of its autoencoder."""

    name: str
    network: str
    config: dict[str, Any]
    latents: int  # channels
    levels: int  # of the autoencoder, each half the grid of the one before
    told: dict[str, tuple[int, ...]]  # what it is told besides the time, by shape


_XL = {
    "block_out_channels": (320, 640, 1280), "attention_head_dim": (5, 10, 20), "cross_attention_dim": 2048,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10), "use_linear_projection": True, "sample_size": 128,
    "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}  # fmt: skip
_LDM = {
    "sample_size": 64, "in_channels": 3, "out_channels": 3, "block_out_channels": (224, 448, 672, 896),
    "attention_head_dim": 32, "down_block_types": ("DownBlock2D", *("AttnDownBlock2D",) * 3),
    "up_block_types": (*("AttnUpBlock2D",) * 3, "UpBlock2D"),
}  # fmt: skip
_SD35 = {
    "num_layers": 24, "num_attention_heads": 24, "caption_projection_dim": 1536, "pos_embed_max_size": 384,
    "dual_attention_layers": tuple(range(13)), "qk_norm": "rms_norm",
}  # fmt: skip
MODELS = (
    Known("LDM, CelebA-HQ", "UNet2DModel", _LDM, 3, 3, {}),
    Known("Stable Diffusion 1.5", "UNet2DConditionModel", {"cross_attention_dim": 768, "sample_size": 64}, 4, 4,
          {"text": (1, 77, 768)}),
    Known("Stable Diffusion XL", "UNet2DConditionModel", _XL, 4, 4, {"text": (1, 77, 2048), "pooled": (1, 1280)}),
    Known("DiT-XL/2, 256 px", "DiTTransformer2DModel", {"out_channels": 8}, 4, 4, {"label": (1,)}),
    Known("PixArt-XL/2, 512 px", "PixArtTransformer2DModel", {"sample_size": 64, "caption_channels": 4096}, 4, 4,
          {"text": (1, 120, 4096), "mask": (1, 120)}),
    Known("Stable Diffusion 3.5 medium", "SD3Transformer2DModel", _SD35, 16, 4,
          {"text": (1, 333, 4096), "pooled": (1, 2048)}),
    Known("Flux.1 dev", "FluxTransformer2DModel", {"guidance_embeds": True}, 16, 4,
          {"text": (1, 512, 4096), "pooled": (1, 768)}),
)  # fmt: skip


def laid_out(model: Known) -> PipelineBackbone:
    """The backbone of that shape, without memory for its numbers."""
    kind = located(KINDS[model.network])
    widths = (128, 256, 512, 512)[: model.levels]
    with torch.device("meta"):
        network = getattr(diffusers, model.network)(**model.config)
        autoencoder = diffusers.AutoencoderKL(
            latent_channels=model.latents, block_out_channels=widths,
            down_block_types=("DownEncoderBlock2D",) * model.levels,
            up_block_types=("UpDecoderBlock2D",) * model.levels,
        )  # fmt: skip
        told = {name: torch.zeros(shape, dtype=_kind_of(name)) for name, shape in model.told.items()}
    pictures, place = Latents(autoencoder), Path("nowhere")
    return kind(network, Clock.of("linear"), "epsilon", pictures, place, place, Choices(), told)


def _kind_of(name: str) -> torch.dtype:
    return torch.int64 if name in ("label", "mask") else torch.float32


def images_of_pass(config: SolveConfig) -> int:
    """Images at the second look, the earliest at which the pass can end."""
    return round(GROWTH * PER_REGRESSOR * (1 + config.solution.pixel_axes + config.code_dim))


def main() -> None:
    """Print the table."""
    config = SolveConfig()
    images, stretches = images_of_pass(config), config.solution.stretches
    table = Table(title=f"computed for {images:,} images × {stretches} stretches at {RATE / 1e12:.0f} TFLOP/s")
    for column in ("model", "px", "weights", "TFLOP a call", "bf16 weights, GB", "solve, min", "an edit, s"):
        table.add_column(column)
    for model in MODELS:
        backbone = laid_out(model)
        flops, weights = forward_flops(backbone), backbone.weights
        minutes = images * (stretches + 1) * flops / RATE / 60  # and once more for the features
        table.add_row(
            model.name, str(backbone.size), f"{weights / 1e6:,.0f} M", f"{flops / 1e12:.2f}",
            f"{BYTES * weights / 1e9:.1f}", f"{minutes:.0f}", f"{2 * EDIT_STEPS * flops / RATE:.1f}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
