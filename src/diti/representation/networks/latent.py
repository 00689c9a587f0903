"""A small diffusion model over codes, so that new z can be drawn: Diff-AE's and PDAE's latent DPM.

It lies in the sub-folder `latent/` of a model folder. Letters: N codes, D length of z, W width of the network.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path

import torch
from diffusers.models.embeddings import get_timestep_embedding
from torch import Tensor, nn

from diti.config import from_mapping
from diti.core.errors import InputError
from diti.core.rng import torch_generator
from diti.core.runs import sha256_file
from diti.data.sources import data_of_run
from diti.diffusion.files import MOST_TIMESTEPS, load_strictly, may_keep, named
from diti.diffusion.sampler import dpm_solver_2m, timesteps
from diti.diffusion.schedule import Schedule, eps_from_v, gather
from diti.representation.networks.weights import WEIGHTS, drawn_from, read_network, write_network

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
        return (z - self.mean) / self.std

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


def encoder_file_hash(model_folder: Path) -> str:
    """Tells whether a latent was made for the codes of this model's encoder."""
    return sha256_file(model_folder / "encoder" / WEIGHTS)


def how_to_make(folder: Path) -> str:
    """The command that makes the latent of a model folder, or in words what is needed for it."""
    if not may_keep(folder):
        return (
            f"diti train-latent on a copy of {folder}, which is read-only or ships with diti, with --data and the "
            "images it was made from"
        )
    if (data := data_of_run(folder)) is None:
        return f"diti train-latent {folder} --data, naming there the images it was made from"
    return shlex.join(["diti", "train-latent", str(folder), "--data", data])


def load_latent(model_folder: str | Path) -> Latent:
    """The latent in a model folder, strictly every setting and weight, and only if it is for this encoder."""
    model_folder = Path(model_folder)
    folder = model_folder / FOLDER
    remedy = f"make one with {how_to_make(model_folder)}"
    if not (folder / "config.json").is_file():
        raise InputError(f"{model_folder} has no finished {FOLDER}/, from which new codes are drawn; {remedy}")
    settings, state = read_network(folder)
    source = str(folder / "config.json")
    names = {field.name for field in fields(LatentShape)}
    if wrong := sorted(names ^ settings.keys()):
        raise InputError(f"{source} must hold {', '.join(sorted(names))} and no more; check {', '.join(wrong)}")
    shape = from_mapping(LatentShape(), settings, source)
    if shape.encoder != encoder_file_hash(model_folder):
        raise InputError(f"{folder} was made for another encoder than this model's; remove it and {remedy}")
    with named(folder / "config.json"):
        latent = new_latent(shape, torch.zeros(shape.dims), torch.ones(shape.dims), seed=0)
        Schedule.linear(shape.timesteps, shape.beta_start, shape.beta_end)
    load_strictly(latent, state, str(folder))
    return latent.eval()
