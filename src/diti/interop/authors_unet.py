"""The U-Net of the authors' code bases, PDAE (ckczzj/PDAE) and DiTi (yue-zhongqi/diti), as a diffusers backbone.

Their U-Net is of the ADM family: residual blocks that also do the up- and downsampling, time as scale and shift,
attention with q, k and v in one convolution. A config.yml (`denoise_fn_config`) gives the shape, a checkpoint the
weights. Notation: C channels, H heads, D channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone
from diti.diffusion.files import load_strictly, refuse_keys
from diti.diffusion.unet import UNetBackbone, Wrapping, assemble_unet

DEFAULT_SIZE = 64  # px; the authors' CelebA. Their U-Net's own settings do not say the image size
RESNET = {  # layers of a residual block: theirs -> diffusers'
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
    "emb_z_layers.1": "z_proj",  # in the decoder g only
}
ATTENTION = {"norm": "group_norm", "proj_out": "to_out.0"}  # and qkv, which diffusers keeps as three
QKV = ("to_q", "to_k", "to_v")


@dataclass(frozen=True, kw_only=True)
class UNetShape:
    """`denoise_fn_config`, under the authors' names. Keys that their U-Net ignores are also ignored here."""

    input_channel: int
    base_channel: int
    channel_multiplier: tuple[float, ...]
    num_residual_blocks_of_a_block: int
    attention_resolutions: tuple[int, ...]  # downsampling factors (1, 2, 4, ...) at which attention acts
    num_heads: int
    head_channel: int  # width of a head; -1: num_heads heads at every width
    use_new_attention_order: bool  # rows of qkv: False H×(q,k,v)×D, True (q,k,v)×H×D
    dropout: float = 0.0
    learn_sigma: bool = False

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level, finest first."""
        return tuple(int(multiplier * self.base_channel) for multiplier in self.channel_multiplier)

    @property
    def attends(self) -> tuple[bool, ...]:
        """Whether each level has attention, finest first."""
        return tuple(2**level in self.attention_resolutions for level in range(len(self.widths)))

    @property
    def fixed_heads(self) -> int | None:
        """Number of heads at every width, or None where the width of a head is fixed instead."""
        return self.num_heads if self.head_channel == -1 else None

    def heads(self, width: int) -> int:
        """H of an attention layer of `width` channels."""
        return self.fixed_heads or width // self.head_channel

    def split_qkv(self, tensor: Tensor) -> tuple[Tensor, ...]:
        """q, k, v rows of a joint layer of this U-Net."""
        return split_qkv(tensor, self.heads(len(tensor) // 3), self.use_new_attention_order)


@dataclass(frozen=True)
class Layer:
    """One layer under both names. `part` says which third of a joint qkv layer it is, if it is one."""

    theirs: str
    ours: str
    part: int | None = None  # 0 q, 1 k, 2 v


# ---- Conversion -------------------------------------------------------------------------------------------


def convert_unet(config: Mapping[str, Any], state_dict: Mapping[str, Tensor], size: int | None = None) -> Backbone:
    """The authors' U-Net as a diffusers backbone: every weight is used, every diffusers weight is filled.

    `config` is their whole config.yml: `denoise_fn_config`, and `diffusion_config` where it has one.
    """
    shape = unet_shape(config)
    size = size or image_size(config) or DEFAULT_SIZE
    wrapping = Wrapping(
        heads=shape.fixed_heads if _needs_fixed_heads(shape) else None,
        time_width=shape.base_channel if shape.base_channel != shape.widths[0] else None,
    )
    unet = assemble_unet(diffusers_config(shape, size), wrapping)
    layers = [*STEM, *down_layers(shape), *up_layers(shape)]
    source = "the authors' U-Net"
    load_strictly(unet, translate(unet, layers, state_dict, shape.split_qkv, source), source)
    return UNetBackbone(unet, _scheduler(config, shape.learn_sigma), wrapping).eval()


def diffusers_config(shape: UNetShape, size: int) -> dict[str, Any]:
    """UNet2DModel arguments that compute what the authors' U-Net computes."""
    down = ["AttnDownBlock2D" if attends else "ResnetDownsampleBlock2D" for attends in shape.attends]
    up = ["AttnUpBlock2D" if attends else "ResnetUpsampleBlock2D" for attends in reversed(shape.attends)]
    head_width = shape.widths[-1] // shape.heads(shape.widths[-1])
    return {
        "sample_size": size,
        "in_channels": shape.input_channel,
        "out_channels": shape.input_channel * (2 if shape.learn_sigma else 1),
        "block_out_channels": list(shape.widths),
        "layers_per_block": shape.num_residual_blocks_of_a_block,
        "down_block_types": down,
        "up_block_types": up,
        "downsample_type": "resnet",
        "upsample_type": "resnet",
        # None makes one head of each width, which the wrapping then splits.
        "attention_head_dim": None if _needs_fixed_heads(shape) else head_width,
        "dropout": shape.dropout,
        "norm_num_groups": 32,
        "attn_norm_num_groups": 32,
        "norm_eps": 1e-5,
        "resnet_time_scale_shift": "scale_shift",
        "time_embedding_dim": 4 * shape.base_channel,
        "flip_sin_to_cos": True,
        "freq_shift": 0,
    }


def _needs_fixed_heads(shape: UNetShape) -> bool:
    """Whether heads have different widths at different levels, which a diffusers config cannot say."""
    attended = {width for width, attends in zip(shape.widths, shape.attends, strict=True) if attends}
    return shape.fixed_heads is not None and len(attended | {shape.widths[-1]}) > 1


def translate(
    module: nn.Module,
    layers: Iterable[Layer],
    state: Mapping[str, Tensor],
    split: Callable[[Tensor], Sequence[Tensor]],
    source: str,
) -> dict[str, Tensor]:
    """`state` under the names of `module`. InputError for one of their weights that is missing or unknown.

    `split` splits a joint qkv weight or bias.
    """
    own = module.state_dict()
    present = [
        (f"{layer.theirs}.{leaf}", f"{layer.ours}.{leaf}", layer.part)
        for layer in layers
        for leaf in ("weight", "bias")
        if f"{layer.ours}.{leaf}" in own
    ]
    # Numbers that each of their tensors must hold.
    wanted = {theirs: own[ours].numel() * (1 if part is None else 3) for theirs, ours, part in present}
    faults = {
        "missing": [key for key in wanted if key not in state],
        "unexpected": [key for key in state if key not in wanted],
        "misshapen": [key for key in wanted if key in state and state[key].numel() != wanted[key]],
    }
    refuse_keys(faults, source)
    translated = {}
    for theirs, ours, part in present:
        tensor = state[theirs]
        if tensor.ndim == 3:  # their 1×1 convolutions over a sequence are linear layers in diffusers
            tensor = tensor.squeeze(-1)
        translated[ours] = tensor if part is None else split(tensor)[part]
    return translated


def split_qkv(tensor: Tensor, heads: int, new_order: bool = False) -> tuple[Tensor, ...]:
    """q, k, v rows of a joint (3C,...) weight or bias, in either order of the authors' attention."""
    width = len(tensor) // 3
    if new_order:
        return tensor.chunk(3)
    split = tensor.reshape(heads, 3, width // heads, *tensor.shape[1:])  # (H,3,D,...)
    return tuple(split[:, part].reshape(width, *tensor.shape[1:]) for part in range(3))


# ---- Names ------------------------------------------------------------------------------------------------


STEM = (  # time embedding and first convolution
    Layer("time_embed.0", "time_embedding.linear_1"),
    Layer("time_embed.2", "time_embedding.linear_2"),
    Layer("input_blocks.0.0", "conv_in"),
)


def down_layers(shape: UNetShape) -> Iterator[Layer]:
    """The down path: their flat list of blocks, diffusers' levels."""
    block = 1
    for level, attends in enumerate(shape.attends):
        ours = f"down_blocks.{level}"
        for index in range(shape.num_residual_blocks_of_a_block):
            yield from _resnet_layers(f"input_blocks.{block}.0", f"{ours}.resnets.{index}")
            if attends:
                yield from attention_layers(f"input_blocks.{block}.1", f"{ours}.attentions.{index}")
            block += 1
        if level < len(shape.widths) - 1:
            yield from _resnet_layers(f"input_blocks.{block}.0", f"{ours}.downsamplers.0")
            block += 1


def up_layers(shape: UNetShape, prefix: str = "") -> Iterator[Layer]:
    """Middle, up path and output. The shift decoder has a second set of these with the prefix `shift_`."""
    yield from _resnet_layers(f"{prefix}middle_block.0", "mid_block.resnets.0")
    yield from attention_layers(f"{prefix}middle_block.1", "mid_block.attentions.0")
    yield from _resnet_layers(f"{prefix}middle_block.2", "mid_block.resnets.1")
    block = 0
    for level, attends in enumerate(reversed(shape.attends)):
        ours = f"up_blocks.{level}"
        for index in range(shape.num_residual_blocks_of_a_block + 1):
            theirs = f"{prefix}output_blocks.{block}"
            yield from _resnet_layers(f"{theirs}.0", f"{ours}.resnets.{index}")
            if attends:
                yield from attention_layers(f"{theirs}.1", f"{ours}.attentions.{index}")
            block += 1
        if level < len(shape.widths) - 1:  # upsampling is the last step of the level's last block
            yield from _resnet_layers(f"{theirs}.{2 if attends else 1}", f"{ours}.upsamplers.0")
    yield Layer(f"{prefix}out.0", "conv_norm_out")
    yield Layer(f"{prefix}out.2", "conv_out")


def _resnet_layers(theirs: str, ours: str) -> Iterator[Layer]:
    return (Layer(f"{theirs}.{a}", f"{ours}.{b}") for a, b in RESNET.items())


def attention_layers(theirs: str, ours: str) -> Iterator[Layer]:
    """Norm, q, k, v and output of one attention layer."""
    yield from (Layer(f"{theirs}.{a}", f"{ours}.{b}") for a, b in ATTENTION.items())
    yield from (Layer(f"{theirs}.qkv", f"{ours}.{name}", part) for part, name in enumerate(QKV))


# ---- Settings ---------------------------------------------------------------------------------------------


def unet_shape(config: Mapping[str, Any]) -> UNetShape:
    """The U-Net's settings of a config.yml, checked."""
    given = config.get("denoise_fn_config")
    if not isinstance(given, Mapping):
        raise InputError("the config has no denoise_fn_config: give the config.yml of the authors' DDPM")
    if given.get("num_class") is not None:
        raise InputError(f"the authors' U-Net has num_class {given['num_class']}; a backbone takes no labels")
    if given.get("dims", 2) != 2:
        raise InputError(f"the authors' U-Net has dims {given['dims']}; a backbone is for images, dims 2")
    known = {field.name: given[field.name] for field in fields(UNetShape) if field.name in given}
    required = [field.name for field in fields(UNetShape) if field.default is MISSING]
    if missing := [name for name in required if name not in known]:
        raise InputError(f"denoise_fn_config lacks {', '.join(missing)}")
    for name in ("channel_multiplier", "attention_resolutions"):
        if not isinstance(known[name], list | tuple):
            raise InputError(f"denoise_fn_config has {name} {known[name]!r}; expected a list of numbers")
        known[name] = tuple(known[name])
    shape = UNetShape(**known)
    _check_widths(shape)
    return shape


def _check_widths(shape: UNetShape) -> None:
    if bad := [width for width in shape.widths if width < 1 or width % 32]:
        raise InputError(
            f"base_channel {shape.base_channel} and channel_multiplier {list(shape.channel_multiplier)} give "
            f"widths {bad}; the authors' group norms need multiples of 32"
        )
    attended = [width for width, attends in zip(shape.widths, shape.attends, strict=True) if attends]
    divisor = shape.num_heads if shape.fixed_heads else shape.head_channel
    if bad := [width for width in (*attended, shape.widths[-1]) if divisor < 1 or width % divisor]:
        raise InputError(
            f"num_heads {shape.num_heads} and head_channel {shape.head_channel} do not divide widths {bad}"
        )


def _scheduler(config: Mapping[str, Any], learn_sigma: bool) -> DDPMScheduler:
    """Their `diffusion_config`, by default the paper's: 1000 steps, linear betas 1e-4 .. 0.02."""
    given = config.get("diffusion_config", {})
    if (kind := given.get("betas_type", "linear")) != "linear":
        raise InputError(f"diffusion_config has betas_type {kind!r}; the authors' code has 'linear' only")
    return DDPMScheduler(
        num_train_timesteps=int(given.get("timesteps", 1000)),
        beta_start=float(given.get("linear_beta_start", 1e-4)),
        beta_end=float(given.get("linear_beta_end", 0.02)),
        beta_schedule="linear",
        prediction_type="epsilon",
        variance_type="learned_range" if learn_sigma else "fixed_small",
    )


def image_size(config: Mapping[str, Any]) -> int | None:
    """Side in px that a config.yml names, if it does."""
    for section in ("dataset_config", "train_dataset_config", "denoise_fn_config"):
        if "image_size" in (config.get(section) or {}):
            return int(config[section]["image_size"])
    return None
