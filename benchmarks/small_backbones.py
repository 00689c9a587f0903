"""Small backbones of other kinds, trained on toy faces: to be solved beside the pixel U-Net.

`python -m benchmarks.small_backbones KIND OUT [--seed S] [--images N]` trains one and writes a folder of diffusers
that `--backbone OUT` opens, with a sheet of samples (and, of an autoencoder, of pictures before and after it):
latent64, a UNet2DModel in the latents of a small AutoencoderKL; flow32, a flow-matching UNet2DModel; dit32, a
DiTTransformer2DModel without classes. An autoencoder that OUT holds already is kept. The noise is mixed by
diffusers' own schedulers, so that the samples, which diti draws, also show that it reads them rightly.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diti.core.images import grid, save_picture, to_float, to_uint8
from diti.core.muon import MuonAdam
from diti.core.progress import progress_bar
from diti.core.rng import Draws, torch_generator
from diti.data.prepared import Dataset, training_batches
from diti.data.sources import open_data
from diti.diffusion.backbone import load_backbone
from diti.diffusion.generate import samples
from diti.diffusion.pictures import read_autoencoder
from diti.diffusion.unet import zero, zero_block_ends

DATA, BATCH, RATE, WARM_UP = "toyfaces:12000", 32, 4e-3, 6_400
BY_ADAM = ("conv_in.", "conv_out.", "emb", "proj_out")  # first and last layers and the time: not for Muon
KL = 3e-7  # weight of the autoencoder's divergence from a unit Gaussian
AUTOENCODER = 37_500  # images it sees, before those that the network sees
LATENTS_AT_ONCE = 250

Batches = Callable[[int, int], Tensor]
Loss = Callable[[Tensor, Draws], Tensor]


def fit(network: nn.Module, loss: Loss, batches: Batches, images: int, seed: int, label: str) -> None:
    """Muon and Adam over so many images, the rate falling to zero in a straight line."""
    named = list(network.named_parameters())
    inner = [p for name, p in named if p.ndim >= 2 and not any(part in name for part in BY_ADAM)]
    others = [p for name, p in named if p.ndim < 2 or any(part in name for part in BY_ADAM)]
    groups: list[dict[str, Any]] = [{"params": inner, "orthogonal": True}, {"params": others}]
    optimizer, began, recent = MuonAdam(groups, lr=RATE, betas=(0.9, 0.99)), time.perf_counter(), float("nan")
    network.train()
    with progress_bar(label, images, unit="images") as advance:
        for start in range(0, images, BATCH):
            for group in optimizer.param_groups:
                group["lr"] = RATE * min(1, (start + BATCH) / WARM_UP) * (1 - start / images)
            value = loss(batches(start, BATCH), Draws(seed, start, BATCH))
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            recent = value.item() if start == 0 else 0.99 * recent + 0.01 * value.item()
            if start // BATCH % 200 == 0:
                print(f"{label} {start:,} loss {recent:.4f} after {time.perf_counter() - began:.0f} s", flush=True)
            advance(BATCH)
    network.eval()
    print(f"{label}: {images:,} images, loss {recent:.4f}, {time.perf_counter() - began:.0f} s", flush=True)


# ---- What is learned ---------------------------------------------------------------------------------------


def denoising(ask: Callable[[Tensor, Tensor], Tensor], scheduler: Any) -> Loss:
    """MSE of the noise, or of a flow's velocity (noise - x0), at times spread evenly over the batch."""
    flow = hasattr(scheduler, "scale_noise")

    def loss(x0: Tensor, draws: Draws) -> Tensor:
        rows = draws.spread("time-step", scheduler.config["num_train_timesteps"])
        noise = draws.normal("noise", tuple(x0.shape[1:]))
        if flow:
            times = scheduler.timesteps[rows]
            return F.mse_loss(ask(scheduler.scale_noise(x0, times, noise), times), noise - x0)
        return F.mse_loss(ask(scheduler.add_noise(x0, noise, rows), rows), noise)

    return loss


def autoencoding(autoencoder: Any) -> Loss:
    """MSE of the pixels, and a little of the posterior's divergence from a unit Gaussian."""

    def loss(pixels: Tensor, draws: Draws) -> Tensor:
        posterior = autoencoder.encode(pixels).latent_dist
        noise = draws.normal("latent", tuple(posterior.mean.shape[1:]))
        drawn = autoencoder.decode(posterior.mean + posterior.std * noise).sample
        return F.mse_loss(drawn, pixels) + KL * posterior.kl().mean()

    return loss


# ---- The three ---------------------------------------------------------------------------------------------


def latent64(out: Path, dataset: Dataset, images: int, seed: int) -> None:
    """16×16×4 latents of 64 px."""
    latents = latent_space(out / "vae", dataset, seed)
    scheduler = diffusers.DDIMScheduler(
        beta_schedule="scaled_linear", beta_start=0.0015, beta_end=0.0195, clip_sample=False
    )
    network = unet(seed, side=16, channels=4, widths=(32, 32, 64))
    latents /= latents.std()
    walk = torch_generator(seed, "latents")

    def batches(start: int, count: int) -> Tensor:
        return latents[torch.randint(len(latents), (count,), generator=walk)]

    fit(network, denoising(asked(network), scheduler), batches, images, seed, "latent64")
    write(out, "unet", network, scheduler)


def latent_space(folder: Path, dataset: Dataset, seed: int) -> Tensor:
    """(N,C,h,h) latents of all training images; the autoencoder of the folder is learned first if need be."""
    if folder.is_dir():
        autoencoder = diffusers.AutoencoderKL.from_pretrained(folder).eval()
        return encoded(autoencoder, dataset)
    autoencoder = made(
        diffusers.AutoencoderKL, seed, latent_channels=4, block_out_channels=(8, 16, 32), layers_per_block=1,
        norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 3, up_block_types=("UpDecoderBlock2D",) * 3,
        sample_size=64, mid_block_add_attention=False,
    )  # fmt: skip
    batches = training_batches(dataset, seed, flip=False)
    fit(autoencoder, autoencoding(autoencoder), batches, AUTOENCODER, seed, "autoencoder")
    latents = encoded(autoencoder, dataset)
    autoencoder.register_to_config(scaling_factor=1 / latents.std().item())
    autoencoder.save_pretrained(folder)
    return latents


def flow32(out: Path, dataset: Dataset, images: int, seed: int) -> None:
    """A rectified flow in the pixels themselves."""
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    network = unet(seed, side=32, channels=3, widths=(16, 32, 64))
    batches = training_batches(dataset, seed, flip=False)
    fit(network, denoising(asked(network), scheduler), batches, images, seed, "flow32")
    write(out, "unet", network, scheduler)


def dit32(out: Path, dataset: Dataset, images: int, seed: int) -> None:
    """64 tokens of 4 px, always told that there is no class."""
    network = made(
        diffusers.DiTTransformer2DModel, seed, num_attention_heads=4, attention_head_dim=32, num_layers=6,
        in_channels=3, sample_size=32, patch_size=4, num_embeds_ada_norm=1,
    )  # fmt: skip
    scheduler = diffusers.DDIMScheduler(clip_sample=False)

    def ask(x: Tensor, t: Tensor) -> Tensor:
        return network(x, timestep=t, class_labels=torch.ones_like(t), return_dict=False)[0]

    fit(network, denoising(ask, scheduler), training_batches(dataset, seed, flip=False), images, seed, "dit32")
    write(out, "transformer", network, scheduler)


def unet(seed: int, side: int, channels: int, widths: tuple[int, ...]) -> Any:
    """As `diti pretrain` makes one, attending at 8 px."""
    attends = [side >> level == 8 for level in range(len(widths))]
    network = made(
        diffusers.UNet2DModel, seed, sample_size=side, in_channels=channels, out_channels=channels,
        block_out_channels=widths, layers_per_block=1, norm_num_groups=4, attn_norm_num_groups=4,
        attention_head_dim=16, resnet_time_scale_shift="scale_shift",
        down_block_types=["AttnDownBlock2D" if a else "DownBlock2D" for a in attends],
        up_block_types=["AttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attends)],
    )  # fmt: skip
    zero_block_ends(network)
    zero(network.conv_out)
    return network


def asked(network: Any) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, t: network(x, t, return_dict=False)[0]


def made(kind: type, seed: int, **config: Any) -> Any:
    """A new network, whose weights depend on the seed only."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind(**config)


@torch.no_grad()
def encoded(autoencoder: Any, dataset: Dataset) -> Tensor:
    """(N,C,h,h) the most likely latents of all training images."""
    rows = torch.from_numpy(dataset.rows("train")).split(LATENTS_AT_ONCE)
    return torch.cat([autoencoder.encode(to_float(dataset.pixels(r.numpy()))).latent_dist.mode() for r in rows])


def write(out: Path, folder: str, network: Any, scheduler: Any) -> None:
    network.save_pretrained(out / folder)
    scheduler.save_pretrained(out / "scheduler")


# ---- What to look at ---------------------------------------------------------------------------------------


@torch.no_grad()
def show(out: Path, dataset: Dataset, seed: int) -> None:
    """Samples, drawn by diti; of an autoencoder, validation images before and after it."""
    backbone = load_backbone(out)
    print(backbone)
    drawn = backbone.decode(samples(backbone, 32, seed)).clamp(-1, 1)
    save_picture(grid(to_uint8(drawn), 8), out / "samples.png")
    if not (out / "vae").is_dir():
        return
    autoencoder = read_autoencoder(out / "vae")
    pixels = to_float(dataset.pixels(dataset.rows("valid")[:16]))
    after = autoencoder.decode(autoencoder.encode(pixels))
    save_picture(grid(to_uint8(torch.cat([pixels, after.clamp(-1, 1)])), 16), out / "autoencoder.png")
    print(f"autoencoder: MSE {F.mse_loss(after, pixels).item():.2e} of 16 validation images")


KINDS = {"latent64": (latent64, 64, 60_000), "flow32": (flow32, 32, 60_000), "dit32": (dit32, 32, 60_000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, help="seen in training; by default what the results were made with")
    given = parser.parse_args()
    train, size, images = KINDS[given.kind]
    dataset = open_data(DATA, size)
    train(given.out, dataset, given.images or images, given.seed)
    show(given.out, dataset, given.seed)


if __name__ == "__main__":
    main()
