"""The U-Net that `diti pretrain` makes and `diti train` goes on from: a diffusers UNet2DModel over RGB pixels.

`unet/` and `scheduler/` are diffusers' own; `backbone.json` is the `Wrapping`: what diffusers cannot say.
Notation: B images, f pixel-unshuffle factor, T time-steps. Code time-steps are 0..T-1.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.attention_processor import Attention
from diffusers.models.embeddings import TimestepEmbedding, Timesteps
from diffusers.models.unets.unet_2d import UNet2DModel
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from torch import Tensor, nn

from diti.config import BackboneConfig
from diti.core.device import HOST, on_host
from diti.core.errors import InputError
from diti.core.rng import stream_seed
from diti.core.runs import atomic_path, write_json
from diti.diffusion.backbone import Backbone
from diti.diffusion.files import (
    autoencoder_folder,
    complaints_about,
    is_flow,
    load_strictly,
    read_scheduler,
    read_settings,
    read_weights,
    require_finite,
)
from diti.diffusion.schedule import PREDICTION_TYPES, Schedule, require_one_of

IMAGE_CHANNELS = 3
DOWN_BLOCKS = ("DownBlock2D", "AttnDownBlock2D", "ResnetDownsampleBlock2D")
UP_BLOCKS = ("UpBlock2D", "AttnUpBlock2D", "ResnetUpsampleBlock2D")
UNET_SHARES = ("dropout", "norm_eps", "mid_block_scale_factor", "freq_shift")  # numbers that need not be whole
UNET_LARGEST, UNET_LAYERS = 8_192, 64  # limits on the numbers in a config: larger networks have never been trained
BETA_SCHEDULES = ("linear", "scaled_linear", "squaredcos_cap_v2", "laplace", "sigmoid")


@dataclass(frozen=True, kw_only=True)
class Wrapping:
    """What diffusers' config cannot say about a backbone: the content of backbone.json."""

    unshuffle: int = 1  # f: each f×f block of pixels is folded into channels before the U-Net
    heads: int | None = None  # heads of every attention layer, whatever its width; None: as in config.json
    time_width: int | None = None  # width of the sinusoidal time features; None: the first level's width

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            optional = field.default is None and value is None
            if not optional and not (isinstance(value, int) and value >= 1):
                raise InputError(f"{field.name} is {value!r}; give a whole number of 1 or more")


class UNetBackbone(Backbone):
    """u_θ over images (B,3,H,W) in [-1,1], whatever its pixel-unshuffle, learned sigma or prediction type."""

    kind = "U-Net"

    def __init__(self, unet: UNet2DModel, scheduler: Any, wrapping: Wrapping | None = None) -> None:
        super().__init__()
        self.unet = unet
        self.scheduler = scheduler
        self.wrapping = wrapping or Wrapping()
        self.schedule = Schedule.from_scheduler(scheduler)
        kind = scheduler.config.get("prediction_type", "epsilon")
        self.prediction_type = require_one_of("the scheduler's prediction_type", kind, PREDICTION_TYPES)
        self.channels = IMAGE_CHANNELS

    @property
    def unshuffle(self) -> int:
        """f; 1 where the U-Net sees the pixels themselves."""
        return self.wrapping.unshuffle

    @property
    def size(self) -> int:
        """Side of the image, px."""
        side = self.unet.config["sample_size"]
        return (side if isinstance(side, int) else side[0]) * self.unshuffle

    def fold(self, x: Tensor) -> Tensor:
        """(B,3,H,W) image -> (B,3f²,H/f,W/f) grid that the U-Net sees."""
        return F.pixel_unshuffle(x, self.unshuffle) if self.unshuffle > 1 else x

    def unfold(self, out: Tensor) -> Tensor:
        """U-Net output -> (B,3,H,W). Where the network learns sigma, the first half of the channels: the mean."""
        mean = out[:, : self.unet.config["in_channels"]]
        return F.pixel_shuffle(mean, self.unshuffle) if self.unshuffle > 1 else mean

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """(B,3,H,W), (B,) -> (B,3,H,W): what the network predicts, by `prediction_type`."""
        return self.unfold(self.unet(self.fold(x), t, return_dict=False)[0])

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """The U-Net's weights."""
        return iter(sorted(self.unet.state_dict().items()))

    def save(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write unet/, scheduler/ and backbone.json, each whole. float16 halves the file and loads as float32."""
        folder = Path(folder)
        require_finite(self.unet.state_dict(), "the backbone's weights")
        as_is = self.unet.dtype == dtype and on_host(self.device)
        stored = self if as_is else copy.deepcopy(self).to(HOST, dtype)
        with atomic_path(folder / "unet") as temporary:
            stored.unet.save_pretrained(temporary, safe_serialization=True)
        with atomic_path(folder / "scheduler") as temporary:
            self.scheduler.save_pretrained(temporary)
        write_json(folder / "backbone.json", asdict(self.wrapping))

    @staticmethod
    def suits(home: Path, config: Mapping[str, Any]) -> bool:
        """Whether the network of a pipeline is of this kind: over RGB pixels, with betas. Others bring more."""
        unconditional = config.get("_class_name", "UNet2DModel") == "UNet2DModel"
        alone = autoencoder_folder(home) is None and not is_flow(home)
        return unconditional and alone and config.get("in_channels") != 1

    @classmethod
    def open(cls, home: Path, folder: Path) -> UNetBackbone:
        """The network in `folder` of the pipeline `home`, strictly; in float32.

        Where no scheduler is found it gets DDPM's (linear 1e-4 .. 0.02, 1000 steps, epsilon), as a log line says.
        """
        with complaints_about(home / "backbone.json"):
            wrapping = _read_wrapping(home / "backbone.json")
        with complaints_about(folder / "config.json"):
            unet = assemble_unet(read_settings(folder / "config.json"), wrapping)
        load_strictly(unet, read_weights(folder), str(folder))
        with complaints_about(home / "scheduler"):
            return cls(unet, read_scheduler(home, folder), wrapping)


def _read_wrapping(path: Path) -> Wrapping:
    if not path.is_file():
        return Wrapping()
    content = read_settings(path)
    known = [field.name for field in fields(Wrapping)]
    if unknown := sorted(set(content) - set(known)):
        raise InputError(f"{path} has unknown keys {unknown}; known are {known}")
    return Wrapping(**content)


# ---- Build ------------------------------------------------------------------------------------------------


def build_backbone(config: BackboneConfig, seed: int) -> UNetBackbone:
    """A new backbone; its weights depend on (config, seed) only and the global random state is left alone."""
    wrapping = Wrapping(unshuffle=config.unshuffle)
    scheduler = _new_scheduler(config)
    unet = assemble_unet(unet_config(config), wrapping, seed)
    zero_block_ends(unet)
    zero(unet.conv_out)
    return UNetBackbone(unet, scheduler, wrapping)


def unet_config(config: BackboneConfig) -> dict[str, Any]:
    """The UNet2DModel arguments of a BackboneConfig; refuses shapes that do not fit together."""
    _check_shape(config)
    grid = config.size // config.unshuffle
    attends = [(grid >> level) in config.attention for level in range(len(config.channels))]
    groups = _norm_groups(config.channels)
    channels = IMAGE_CHANNELS * config.unshuffle**2
    return {
        "sample_size": grid,
        "in_channels": channels,
        "out_channels": channels,
        "block_out_channels": list(config.channels),
        "layers_per_block": config.layers,
        "down_block_types": ["AttnDownBlock2D" if a else "DownBlock2D" for a in attends],
        "up_block_types": ["AttnUpBlock2D" if a else "UpBlock2D" for a in reversed(attends)],
        "attention_head_dim": config.head_channels,
        "dropout": config.dropout,
        "norm_num_groups": groups,
        # With scale_shift the middle attention would otherwise have no norm at all.
        "attn_norm_num_groups": groups,
        "resnet_time_scale_shift": "scale_shift",
    }


def _check_shape(config: BackboneConfig) -> None:
    levels = len(config.channels)
    if levels < 1:
        raise InputError("--channels is empty; give the width of at least one level, such as 64 128")
    step = config.unshuffle << (levels - 1)
    if config.size % step:
        raise InputError(
            f"--size is {config.size} px; {levels} levels and --unshuffle {config.unshuffle} need a multiple of "
            f"{step}: change --size, --unshuffle or the number of --channels"
        )
    sides = [config.size // config.unshuffle >> level for level in range(levels)]
    if unknown := sorted(set(config.attention) - set(sides)):
        raise InputError(f"--attention is at sides {unknown}, but the U-Net's grids have sides {sides}")
    widths = {w for w, side in zip(config.channels, sides, strict=True) if side in config.attention}
    widths.add(config.channels[-1])  # the middle block always attends
    if bad := sorted(w for w in widths if w % config.head_channels):
        raise InputError(
            f"--head-channels is {config.head_channels}, which does not divide the attended widths {bad}"
        )


def _norm_groups(channels: Sequence[int]) -> int:
    """Up to 32 groups that fit every level, 4 channels or more in each: a single one would lose its mean."""
    common = math.gcd(*channels)
    most = max(1, min(32, min(channels) // 4))
    return max(groups for groups in range(1, most + 1) if common % groups == 0)


def _new_scheduler(config: BackboneConfig) -> DDPMScheduler:
    return DDPMScheduler(
        num_train_timesteps=config.timesteps,
        beta_schedule=require_one_of("--beta-schedule", config.beta_schedule, BETA_SCHEDULES),
        prediction_type=require_one_of("--prediction", config.prediction, PREDICTION_TYPES),
    )


def zero_block_ends(module: nn.Module) -> None:
    """The last layer of each residual block, modulated or not, and each attention: they start as the identity."""
    for child in module.modules():
        if isinstance(child, Attention):
            zero(child.to_out[0])
        elif hasattr(child, "conv2"):
            zero(child.get_submodule("conv2"))


def zero(layer: nn.Module) -> None:
    """All its weights."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)


def assemble_unet(config: Mapping[str, Any], wrapping: Wrapping, seed: int = 0) -> UNet2DModel:
    """A UNet2DModel with the wrapping's heads and time width, its random weights drawn from `seed` alone."""
    check_unet_config(config, wrapping)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed the other devices, and those are not forked.
        torch.default_generator.manual_seed(stream_seed(seed, "backbone-weights"))
        unet = UNet2DModel.from_config(dict(config))
        if wrapping.time_width is not None:
            _set_time_width(unet, wrapping.time_width)
    if wrapping.heads is not None:
        _set_heads(unet, wrapping.heads)
    return unet


def _set_time_width(unet: UNet2DModel, width: int) -> None:
    """diffusers ties the sinusoid's width to the first level's; ADM networks tie it to their base width."""
    config = unet.config
    hidden = config["time_embedding_dim"] or 4 * config["block_out_channels"][0]
    unet.register_module("time_proj", Timesteps(width, config["flip_sin_to_cos"], config["freq_shift"]))
    unet.register_module("time_embedding", TimestepEmbedding(width, hidden))


def _set_heads(unet: UNet2DModel, heads: int) -> None:
    """Split every attention layer into the same number of heads; diffusers supports only one head width."""
    for module in unet.modules():
        if not isinstance(module, Attention):
            continue
        if module.inner_dim % heads:
            raise InputError(f"heads is {heads}, which does not divide an attention width {module.inner_dim}")
        module.heads = module.sliceable_head_dim = heads
        module.scale = (module.inner_dim // heads) ** -0.5


# ---- What is refused --------------------------------------------------------------------------------------


def check_unet_config(config: Mapping[str, Any], wrapping: Wrapping) -> None:
    """Refuse a network that cannot serve as u_θ, in one line that says why."""
    if (kind := config.get("_class_name", "UNet2DModel")) != "UNet2DModel":
        raise InputError(f"the network is a {kind}; a backbone is an unconditional diffusers UNet2DModel")
    check_unet_values(config)
    config = {**_unet_defaults(), **config}
    if config["num_class_embeds"] is not None or config["class_embed_type"] is not None:
        raise InputError("the network is class-conditional; a backbone must not need labels")
    if (time := config["time_embedding_type"]) not in ("positional", "learned"):
        raise InputError(f"the network's time embedding is {time!r}; a backbone takes discrete t: 'positional'")
    if wrapping.time_width is not None and time != "positional":
        raise InputError(f"backbone.json has a time_width, but the network's time embedding is {time!r}")
    if config["center_input_sample"]:
        raise InputError("the network has center_input_sample; a backbone takes images in [-1, 1] unchanged")
    if (mid := config["mid_block_type"]) != "UNetMidBlock2D":
        raise InputError(f"the network's middle block is {mid}; a backbone needs UNetMidBlock2D")
    for blocks, known in (("down_block_types", DOWN_BLOCKS), ("up_block_types", UP_BLOCKS)):
        for block in config[blocks]:
            if block.removeprefix("UNetRes") not in known:
                raise InputError(f"the network has a {block}; a backbone is made of {', '.join(known)}")
    _check_sides(config)
    _check_channels(config, wrapping)


def check_unet_values(config: Mapping[str, Any]) -> None:
    """Refuse values of another type than diffusers' own, or absurdly large ones, which would only fail later."""
    for key, usual in _unet_defaults().items():
        value = config.get(key, usual)
        most = UNET_LAYERS if key == "layers_per_block" else UNET_LARGEST
        if value is not None and usual is not None and not _is_like(value, usual, most, key not in UNET_SHARES):
            raise InputError(f"{key} is {value!r}, which is not a value like {usual!r}")
    widths, layers = config.get("block_out_channels") or (), config.get("layers_per_block") or 1
    least = 4 * 36 * layers * sum(width**2 for width in widths)  # bytes of the 3×3 convolutions, down and up
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if least > memory:
        raise InputError(
            f"a network of widths {list(widths)} needs {least / 2**30:,.0f} GiB, more than the "
            f"{memory / 2**30:,.0f} GiB of this machine; use narrower channels, or fewer layers"
        )


def _is_like(value: Any, usual: Any, most: int, whole: bool) -> bool:
    """Whether a value could replace another of its kind: numbers up to `most`, and `whole` ones."""
    if isinstance(usual, bool | str):
        return isinstance(value, type(usual))
    if isinstance(usual, tuple | list):
        return (
            isinstance(value, tuple | list)
            and len(value) > 0
            and all(_is_like(v, usual[0], most, whole) for v in value)
        )
    kinds = int if whole else int | float
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value <= most


@cache
def _unet_defaults() -> dict[str, Any]:
    """What diffusers assumes for a key that a config.json omits."""
    parameters = inspect.signature(UNet2DModel.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _check_sides(config: Mapping[str, Any]) -> None:
    side = config["sample_size"]
    if side is None:
        raise InputError("the network does not say its image size: write sample_size into its config.json")
    if not isinstance(side, int) and len(set(side)) != 1:
        raise InputError(f"the network is for images of {list(side)} px; a backbone needs square images")
    height = side if isinstance(side, int) else side[0]
    step = 1 << (len(config["block_out_channels"]) - 1)
    if height < 1 or height % step:
        raise InputError(f"the network's sample_size is {height}; its levels need a multiple of {step}")


def _check_channels(config: Mapping[str, Any], wrapping: Wrapping) -> None:
    expected = IMAGE_CHANNELS * wrapping.unshuffle**2
    given, out = config["in_channels"], config["out_channels"]
    if given != expected:
        raise InputError(
            f"the network takes {given} channels; an RGB image with unshuffle {wrapping.unshuffle} has {expected}"
        )
    if out not in (given, 2 * given):
        raise InputError(
            f"the network gives {out} channels; a backbone gives {given}, or {2 * given} if it learns sigma"
        )


def require_unet(backbone: Backbone) -> UNetBackbone:
    """The same backbone where networks can be made of its parts, which training needs; InputError for others."""
    if isinstance(backbone, UNetBackbone):
        return backbone
    raise InputError(
        f"the backbone is a {backbone.kind}, of whose parts no network can be trained: diti train takes a "
        "UNet2DModel of RGB pixels, such as diti pretrain makes; diti solve takes every kind"
    )
