"""A small diffusion model over codes, so that new z can be drawn: Diff-AE's and PDAE's latent DPM.

It lies in the sub-folder `latent/` of a model folder. Notation: N codes, D length of z, W width of the network.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from diffusers.models.embeddings import get_timestep_embedding
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.core.rng import torch_generator
from diti.diffusion.files import MOST_TIMESTEPS
from diti.diffusion.sampler import dpm_solver_2m, timesteps
from diti.diffusion.schedule import Schedule, eps_from_v, gather
from diti.representation.networks.network_files import drawn_from, write_network

FOLDER = "latent"  # below the model folder
SAMPLING_STEPS = 50  # network calls per code; each is about a thousand times cheaper than one for an image
TIME_FEATURES = 64  # sines and cosines of t


@dataclass(frozen=True, kw_only=True)
class LatentShape:
    """Size of the network, its noise schedule, and the encoder whose codes it knows: all of config.json."""

    dims: int = 128  # D
    width: int = 512  # W
    layers: int = 4  # 6 take half as long again and were hardly better
    timesteps: int = 1000  # T
    beta_start: float = 1e-4  # betas rise evenly; Diff-AE's constant 0.008 drew worse codes here
    beta_end: float = 0.02
    encoder: str = ""  # sha256 of the encoder's weights

    def __post_init__(self) -> None:
        for name in ("dims", "width", "layers", "timesteps"):
            if not 1 <= getattr(self, name) <= MOST_TIMESTEPS:
                raise InputError(
                    f"the latent's {name} is {getattr(self, name)}; it must be from 1 to {MOST_TIMESTEPS:,}"
                )


def default_shape(dims: int, encoder: str = "") -> LatentShape:
    """A network that grows with D: four times as wide, up to 1024."""
    return LatentShape(dims=dims, width=min(4 * dims, 1024), encoder=encoder)


class Layer(nn.Module):
    """Linear map of the hidden state and of the noisy code itself, layer norm, scale and shift by time, SiLU."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(before, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulate = nn.Linear(width, 2 * width)

    def forward(self, h: Tensor, time: Tensor) -> Tensor:
        scale, shift = self.modulate(time).chunk(2, dim=1)  # (N, W) each
        return nn.functional.silu(self.norm(self.linear(h)) * (1 + scale) + shift)


class Latent(nn.Module):
    """The noise in a noisy standardised code, by a skip-connected MLP; and new codes from that."""

    mean: Tensor
    std: Tensor

    def __init__(self, shape: LatentShape, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        if mean.shape != (shape.dims,) or std.shape != (shape.dims,):
            raise InputError(f"mean and std of z have {len(mean)} and {len(std)} dims, the latent {shape.dims}")
        self.shape, width = shape, shape.width
        self.register_buffer("mean", mean.clone())  # (D,) of z over the training set
        self.register_buffer("std", std.clone())
        self.time = nn.Sequential(nn.Linear(TIME_FEATURES, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        before = [shape.dims] + [width + shape.dims] * (shape.layers - 1)
        self.layers = nn.ModuleList(Layer(count, width) for count in before)
        self.last = nn.Linear(width + shape.dims, shape.dims)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    @property
    def dims(self) -> int:
        return self.shape.dims

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule.linear(self.shape.timesteps, self.shape.beta_start, self.shape.beta_end)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """ε (N, D) in the noisy standardised codes x (N, D) at time-steps t (N,).

        The MLP's output is read as v, so that a new network, whose output is 0, answers √(1 - ᾱ_t) x: exact for
        standard normal codes. What it learns is how the codes differ from that. Read as ε, small errors at large
        t grow to codes far outside the data.
        """
        time = self.time(get_timestep_embedding(t, TIME_FEATURES))  # (N, W)
        h = self.layers[0](x, time)
        for layer in self.layers[1:]:
            h = layer(torch.cat([h, x], 1), time)
        return eps_from_v(self.last(torch.cat([h, x], 1)), x, gather(self.schedule.alpha_bar, t, x))

    def standardise(self, z: Tensor) -> Tensor:
        """(N, D) codes in units of their std around their mean, which is what the network sees."""
        return (z - self.mean.to(z)) / self.std.to(z)

    @torch.no_grad()
    def sample(self, count: int, seed: int, sampling_steps: int = SAMPLING_STEPS) -> Tensor:
        """(count, D) new codes in z's own scale, on the CPU; the same for the same seed."""
        if count < 1:
            raise InputError(f"count is {count}; draw 1 code or more")
        noise = torch.randn((count, self.dims), generator=torch_generator(seed, "latent"))
        steps = timesteps(self.schedule, sampling_steps)
        x = dpm_solver_2m(self, noise.to(self.mean.device), steps, self.schedule, clamp=False)
        return (self.mean + self.std * x).cpu()

    def save(self, model_folder: Path) -> None:
        """Write config.json and weights into `latent/` of the model folder."""
        write_network(model_folder / FOLDER, asdict(self.shape), self.state_dict())


def new_latent(shape: LatentShape, mean: Tensor, std: Tensor, seed: int) -> Latent:
    """An untrained latent; its weights depend on (shape, seed) only."""
    with drawn_from(seed, "latent-weights"):
        return Latent(shape, mean, std)
