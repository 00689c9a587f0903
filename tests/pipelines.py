"""A tiny pipeline of each kind that diffusers has, with random weights, as its own save_pretrained writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
from safetensors.torch import save_file

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


# ---- That are told more than time ---------------------------------------------------------------------------


def told(folder: Path, **conditions: torch.Tensor) -> Path:
    """What a pipeline's text encoders would say, kept as diti keeps it: they need not be there."""
    save_file(conditions, folder / "conditions.safetensors")
    return folder


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(11))


def text_unet(**config: Any) -> Any:
    return made(
        diffusers.UNet2DConditionModel, sample_size=SIZE // 2, out_channels=LATENT, block_out_channels=(8, 16),
        layers_per_block=1, norm_num_groups=4, attention_head_dim=8, cross_attention_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), **config,
    )  # fmt: skip


def stable_diffusion(folder: Path) -> Path:
    write(
        folder, "StableDiffusionPipeline", vae=autoencoder(), unet=text_unet(),
        scheduler=ddim(beta_schedule="scaled_linear", prediction_type="v_prediction", steps_offset=1),
    )  # fmt: skip
    return told(folder, text=drawn(1, 5, 8))


def stable_diffusion_xl(folder: Path) -> Path:
    unet = text_unet(
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        projection_class_embeddings_input_dim=6 * 4 + 10,
    )
    write(
        folder, "StableDiffusionXLPipeline", vae=autoencoder(), unet=unet,
        scheduler=diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear"),
    )  # fmt: skip
    return told(folder, text=drawn(1, 5, 8), pooled=drawn(1, 10))


def dit(folder: Path) -> Path:
    transformer = made(
        diffusers.DiTTransformer2DModel, num_attention_heads=2, attention_head_dim=8, in_channels=LATENT,
        out_channels=2 * LATENT, num_layers=4, sample_size=SIZE // 2, patch_size=2, num_embeds_ada_norm=10,
    )  # fmt: skip
    return write(folder, "DiTPipeline", vae=autoencoder(), transformer=transformer, scheduler=ddim())


def pixart(folder: Path, **config: Any) -> Path:
    transformer = made(
        diffusers.PixArtTransformer2DModel, num_attention_heads=3, attention_head_dim=8, in_channels=LATENT,
        out_channels=2 * LATENT, num_layers=4, cross_attention_dim=24, patch_size=2, caption_channels=12,
        interpolation_scale=1, **{"sample_size": SIZE // 2, "use_additional_conditions": False, **config},
    )  # fmt: skip
    write(folder, "PixArtAlphaPipeline", vae=autoencoder(), transformer=transformer, scheduler=ddim())
    return told(folder, text=drawn(1, 5, 12), mask=torch.tensor([[1, 1, 1, 0, 0]]))


def sd3(folder: Path) -> Path:
    transformer = made(
        diffusers.SD3Transformer2DModel, sample_size=SIZE // 2, patch_size=2, in_channels=LATENT,
        out_channels=LATENT, num_layers=4, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=12,
        caption_projection_dim=16, pooled_projection_dim=10, pos_embed_max_size=8,
    )  # fmt: skip
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
    vae = autoencoder(shift_factor=0.06, scaling_factor=1.5)
    write(folder, "StableDiffusion3Pipeline", vae=vae, transformer=transformer, scheduler=scheduler)
    return told(folder, text=drawn(1, 5, 12), pooled=drawn(1, 10))


def flux(folder: Path, guided: bool = True) -> Path:
    transformer = made(
        diffusers.FluxTransformer2DModel, in_channels=4 * LATENT, num_layers=2, num_single_layers=2,
        attention_head_dim=8, num_attention_heads=2, joint_attention_dim=12, pooled_projection_dim=10,
        guidance_embeds=guided, axes_dims_rope=(2, 2, 4),
    )  # fmt: skip
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    vae = autoencoder(shift_factor=0.1, scaling_factor=0.4)
    write(folder, "FluxPipeline", vae=vae, transformer=transformer, scheduler=scheduler)
    (folder / "backbone.json").write_text(json.dumps({"size": SIZE}))  # its config does not say
    return told(folder, text=drawn(1, 5, 12), pooled=drawn(1, 10))


PIPELINES: dict[str, Callable[..., Path]] = {
    "latent": latent, "quantised": quantised, "grey": grey, "flow": flow, "stable diffusion": stable_diffusion,
    "stable diffusion XL": stable_diffusion_xl, "DiT": dit, "PixArt": pixart, "stable diffusion 3": sd3,
    "Flux": flux,
}  # fmt: skip
