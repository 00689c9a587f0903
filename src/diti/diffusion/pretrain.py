"""`diti pretrain`: train the backbone u_θ on images, without labels. Eq. 3 of the paper in its ε form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diti.config import DEFAULT_PRESET, PretrainConfig
from diti.core.device import AUTO as AUTO_DEVICE
from diti.core.device import HOST, Device, fitted, sent
from diti.core.images import grid, save_picture, to_uint8
from diti.core.loop import TIME_BINS, check_batch, loss_by_time, make_accelerator, train
from diti.core.meeting import meet
from diti.core.objective import LossReport, Objective
from diti.core.outputs import require_writable
from diti.core.processes import require_alone
from diti.core.rng import Draws
from diti.core.runs import RunFolder, as_path, read_json, write_text
from diti.core.settings import from_options
from diti.data.prepared import Dataset, training_batches
from diti.data.sources import place_of
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.generate import samples
from diti.diffusion.memorised import save_nearest, warning
from diti.diffusion.schedule import dm_loss_eps, gather, output_target, q_sample, training_weight
from diti.diffusion.start_run import open_together, settled, start_run
from diti.diffusion.suited import suited_to
from diti.diffusion.unet import build_backbone, require_unet
from diti.diffusion.validation import fixed_batches
from diti.presets import AUTO
from diti.presets import preset as named_preset

SAMPLES, NEAREST, SAMPLE_SEED = 32, 16, 0  # drawn; shown with their nearest training image


class Denoising(Objective):
    """E ||target - network(x_t, t)||² over images, uniform time-steps and noise; target: what it predicts.

    Time-steps are spread evenly over each batch, which lowers the noise of its gradient.
    """

    must_gain = 0.5

    def __init__(
        self, backbone: Backbone, optimizer: str = "adam", beta2: float = 0.99, loss_weight: str = "none"
    ) -> None:
        super().__init__()
        self.backbone, self.with_muon = backbone, optimizer == "muon"
        self.betas = (0.9, beta2)
        self.weight = training_weight(backbone.schedule, loss_weight, backbone.prediction_type)

    def is_inner(self, name: str, parameter: nn.Parameter) -> bool:
        """Muon is for what lies between the first and last layer; the time embedding is better left to Adam."""
        by_adam = any(part in name for part in ("conv_in.", "conv_out.", "time_emb"))
        return self.with_muon and parameter.ndim >= 2 and not by_adam

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        steps = self.backbone.timesteps
        t = sent(draws.spread("time-step", steps), images.device)
        noise = draws.normal("noise", tuple(images.shape[1:]), images.device)
        target, output = target_and_output(self.backbone, images, t, noise)
        loss, nothing = dm_loss_eps(target, output), dm_loss_eps(target, best_constant(target))
        total = (gather(self.weight, t, loss) * loss).mean()
        return LossReport(total, loss, time_share=t / steps, nothing=nothing)


def target_and_output(backbone: Backbone, images: Tensor, t: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """What the network should predict itself, ε (then their distance is eq. 3), x0 or v, and what it predicts.

    In its ε form the loss of a network that predicts v would vanish with ᾱ_t, and large t would not be learned.
    """
    abar_t = gather(backbone.schedule.alpha_bar, t, images)
    x_t = q_sample(images, noise, abar_t)
    return output_target(images, noise, abar_t, backbone.prediction_type), backbone(x_t, t)


def best_constant(target: Tensor) -> Tensor:
    """(1,C,1,1) what a network that ignores its input would predict for all of (B,C,H,W): a colour."""
    return target.mean((0, 2, 3), keepdim=True)


def denoising_loss(backbone: Backbone, images: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """(B,) eq. 3 in its ε form at given time-steps and noise."""
    x_t = q_sample(images, noise, gather(backbone.schedule.alpha_bar, t, images))
    return dm_loss_eps(noise, backbone.eps(x_t, t))


def pretrain(
    data: str | Path | Dataset,
    *,
    out: str | Path,
    preset: str = DEFAULT_PRESET,
    images: int | None = None,
    seed: int = 0,
    device: Device = AUTO_DEVICE,
    **settings: Any,
) -> Backbone:
    """Train a backbone in the folder `out`, or continue to: what `diti pretrain` does, from Python.

    preset: its name, or "auto" for the one that suits the images and this machine. images: length of the training,
    images seen; by default the preset's. device: where to compute, such as "cuda:1".
    settings: any other option of `diti pretrain` by name, such as minutes, learning_rate, channels.

        backbone = diti.pretrain("data/mine", preset="auto", minutes=45, out="runs/backbone")
    """
    require_alone("diti.pretrain", "pretrain")
    folder = as_path(out, "out")
    options = {"data": place_of(data), "seed": seed, **({} if images is None else {"images": images}), **settings}
    usual = suited_to(data, device)[0] if preset == AUTO else named_preset(preset, also=[AUTO])
    config = from_options(usual, options, "diti.pretrain")
    pretrain_backbone(config, folder, data=data if isinstance(data, Dataset) else None, device=device)
    return load_backbone(folder, device)


def pretrain_backbone(
    config: PretrainConfig,
    out: Path,
    begun: Callable[[], None] = lambda: None,
    data: Dataset | None = None,
    device: Device = AUTO_DEVICE,
) -> Path:
    """Train, or continue to train, the backbone of `config` in the run folder `out`.

    `begun` is called once everything is checked. data: instead of those that the settings name.
    """
    # What the folder already holds is checked later; this is about its place, and about the inputs.
    require_writable({"--out": [out / "config.yaml"]}, [config.data, config.init], overwrite=True)
    config = replace(config, training=settled(config, out, device))
    accelerator, run = make_accelerator(config.training, device), RunFolder(out)
    backbone = (
        require_unet(load_backbone(config.init, HOST))
        if config.init
        else build_backbone(config.backbone, config.training.seed)
    )
    backbone.train()
    check_batch(config.training, accelerator.num_processes)
    with run.held(accelerator.is_main_process):
        dataset = open_together(config.data if data is None else data, backbone.size)
        backbone.require_size(dataset.size)
        start_run(config, run, dataset, accelerator, {"verb": "pretrain"})
        begun()
        if accelerator.is_main_process and (few := warning(len(dataset.rows("train")))):
            print(few)
        weights = train(
            Denoising(backbone, config.optimizer, config.adam_beta2, config.loss_weight),
            training_batches(dataset, config.training.seed, flip=config.training.flip),
            config.training,
            run,
            label="pretraining",
            evaluate=lambda images: evaluate(backbone, dataset, out, images, config.training.flip),
            accelerator=accelerator,
            usual_rate=named_preset(config.preset).training.learning_rate,
        )
        if accelerator.is_main_process:
            with weights.averaged():
                backbone.save(out)
                write_text(out / "card.md", card(run, config))
    meet()  # the first one writes
    accelerator.end_training()
    return out


def evaluate(backbone: Backbone, dataset: Dataset, out: Path, images: int, flip: bool) -> dict[str, Any]:
    """Validation loss by time-step on fixed noise, and sheets of samples from fixed noise. flip: as trained."""
    was_training = backbone.training
    backbone.eval()
    losses, share = validation_losses(backbone, dataset)
    drawn = samples(backbone, SAMPLES, seed=SAMPLE_SEED).clamp(-1, 1)
    backbone.train(was_training)
    save_picture(grid(to_uint8(drawn), 8, title=f"samples after {images:,} images"), out / "samples.png")
    save_nearest(dataset, drawn[:NEAREST], flip, out / "nearest.png")
    return {
        "validation_loss": losses.mean().item(),
        "validation_loss_by_time": loss_by_time(losses, share),
    }


@torch.no_grad()
def validation_losses(backbone: Backbone, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """(N,) losses and (N,) t / T on the fixed validation batches."""
    losses, share = [], []
    for pixels, t, noise in fixed_batches(dataset, backbone.timesteps, backbone.device):
        losses.append(fitted(partial(denoising_loss, backbone), pixels, t, noise).cpu())
        share.append(t.cpu() / backbone.timesteps)
    return torch.cat(losses).double(), torch.cat(share)


def card(run: RunFolder, config: PretrainConfig) -> str:
    """What the backbone is, how it was made, how good it is."""
    log = run.read_log()
    facts = read_json(run.path / "run.json")
    steps = [r for r in log if "images_per_s" in r]
    last = [r for r in log if "validation_loss" in r][-1]
    stretches = pairwise([0, *(r["images"] for r in steps)])
    seconds = sum((now - before) / r["images_per_s"] for (before, now), r in zip(stretches, steps, strict=True))
    by_time = "\n".join(
        f"| {i / TIME_BINS:.1f} – {(i + 1) / TIME_BINS:.1f} | {loss:.4f} |"
        for i, loss in enumerate(last["validation_loss_by_time"])
    )
    return f"""# Diffusion backbone `{config.preset}`

- command: `{facts["command"]}`
- data: {facts["data_name"]}, sha256 {facts["data_hash"][:16]}, {config.backbone.size} px
- images seen: {last["images"]:,} in {seconds / 60:.0f} minutes of training
- validation loss (mean squared ε error, averaged weights): {last["validation_loss"]:.4f}
- versions: {", ".join(f"{name} {version}" for name, version in facts["versions"].items())}

| t / T | validation loss |
| --- | --- |
{by_time}

![samples](samples.png)
![samples and their nearest training images](nearest.png)
"""
