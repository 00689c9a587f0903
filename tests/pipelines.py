"""A tiny pipeline of each kind that diffusers has, with random weights, as its own save_pretrained writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch

LATENT = 4  # channels
SIZE = 16  # px of the pictures; autoencoders halve it


def randomise(module: torch.nn.Module, std: float = 0.05) -> torch.nn.Module:
    """Every weight moved a little: a layer that starts at zero must not hide a mistake."""
    rng = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=std)
    return module.eval()


def made(kind: type, **config: Any) -> Any:
    torch.manual_seed(0)
    return randomise(kind(**config))


def unet(channels: int = 3, side: int = SIZE, **config: Any) -> Any:
    return made(
        diffusers.UNet2DModel, sample_size=side, in_channels=channels, out_channels=channels,
        block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, attention_head_dim=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        **config,
    )  # fmt: skip


def autoencoder(channels: int = LATENT, **config: Any) -> Any:
    return made(
        diffusers.AutoencoderKL, latent_channels=channels, block_out_channels=(8, 16), layers_per_block=1,
        norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=SIZE, **config,
    )  # fmt: skip


def ddim(**config: Any) -> Any:
    return diffusers.DDIMScheduler(num_train_timesteps=1000, clip_sample=False, **config)


def write(folder: Path, pipeline: str, **parts: Any) -> Path:
    """The folder of a pipeline from its parts, as save_pretrained writes each."""
    index: dict[str, Any] = {"_class_name": pipeline, "_diffusers_version": diffusers.__version__}
    for name, part in parts.items():
        part.save_pretrained(folder / name)
        index[name] = ["diffusers", type(part).__name__]
    (folder / "model_index.json").write_text(json.dumps(index))
    return folder


def latent(folder: Path) -> Path:
    return write(
        folder, "LDMPipeline", vae=autoencoder(), unet=unet(LATENT, SIZE // 2),
        scheduler=ddim(beta_schedule="scaled_linear", beta_start=0.0015, beta_end=0.0195),
    )  # fmt: skip


def quantised(folder: Path) -> Path:
    vqvae = made(
        diffusers.VQModel, latent_channels=3, num_vq_embeddings=32, block_out_channels=(8, 16), layers_per_block=1,
        norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=SIZE,
    )  # fmt: skip
    scheduler = ddim(prediction_type="v_prediction", rescale_betas_zero_snr=True)
    return write(folder, "LDMPipeline", vqvae=vqvae, unet=unet(3, SIZE // 2), scheduler=scheduler)


def grey(folder: Path) -> Path:
    return write(folder, "DDIMPipeline", unet=unet(1, SIZE), scheduler=ddim(prediction_type="sample"))


def flow(folder: Path) -> Path:
    return write(
        folder,
        "DiffusionPipeline",
        unet=unet(3, SIZE),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    )


PIPELINES: dict[str, Callable[[Path], Path]] = {
    "latent": latent, "quantised": quantised, "grey": grey, "flow": flow,
}  # fmt: skip
