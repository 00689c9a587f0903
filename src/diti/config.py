"""Frozen, typed, closed settings: unknown keys are errors with a hint."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from diti.core.errors import InputError, nearest

DEFAULT_PRESET = "toyfaces32"
Start = Literal["auto", "solved", "copy", "random"]
# Settings of a training that change what is told, or how memory is used, and nothing of the result.
WITHOUT_EFFECT = frozenset({"log_images", "validate_images", "checkpoint_images", "gradient_accumulation_steps"})
RENAMED = {"decoder_start": "start"}  # settings of earlier versions, whose run folders are still read
_ENDLESS = 10**15  # a count that nobody will wait for
SAMPLING_STEPS = 25  # network calls each way; see the round trip in docs/notebook.md


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may be: from `least` to `most`, an end only where it is not `open`."""

    least: float
    most: float = math.inf
    open: tuple[float, ...] = ()
    hint: str = ""

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most and number not in self.open

    def __str__(self) -> str:
        lowest = f"above {self.least:,}" if self.least in self.open else f"{self.least:,} or more"
        highest = f"below {self.most:,}" if self.most in self.open else f"at most {self.most:,}"
        words = f"{lowest} and {highest}" if self.open else f"from {self.least:,} to {self.most:,}"
        return (lowest if self.most >= _ENDLESS else words) + (f" ({self.hint})" if self.hint else "")


COUNT, NUMBER = Range(1, _ENDLESS), Range(0, _ENDLESS, hint="0 = none")
_ANY, _POSITIVE = Range(0), Range(0, open=(0,))
_INSIDE, _OFF = Range(0, 1, open=(0, 1)), Range(0, hint="0 = off")
SEEDS = Range(0, 2**32 - 1)  # what NumPy and scikit-learn take
_WIDTH, _DIMS = Range(1, 8_192), Range(1, 65_536)  # wider networks have never been trained; memory would not do
RANGES: dict[str, Range] = {
    "size": Range(1, 4_096), "unshuffle": Range(1, 64), "channels": _WIDTH, "layers": Range(1, 64),
    "head_channels": _WIDTH, "dropout": Range(0, 1, open=(1,)),
    "timesteps": Range(1, 100_000),
    "code_dim": _DIMS, "encoder_channels": _WIDTH, "encoder_time": _ANY, "subsets": _DIMS,
    "encoder_rate": Range(0, 1, hint="0 keeps the encoder"),
    "images": COUNT, "minutes": _POSITIVE, "train_batch_size": Range(1, 1_000_000),
    "gradient_accumulation_steps": Range(1, 1_000_000),
    "adam_beta2": Range(0, 1, open=(1,)),
    "learning_rate": _POSITIVE, "lr_warmup_images": _OFF, "max_grad_norm": _OFF,
    "ema_decay": Range(0, 1, open=(1,)), "log_images": COUNT, "validate_images": COUNT,
    "checkpoint_images": COUNT, "seed": SEEDS,
    "jitter_strength": Range(0, 1, hint="0 = none"), "temperature": _POSITIVE, "projection_dim": _DIMS,
    "mi_weight": _ANY, "tc_weight": _ANY, "dim_kl_weight": _ANY, "pixel_std": _POSITIVE,
    "info_weight": _ANY, "bottleneck_weight": _ANY, "bottleneck_dim": _DIMS, "generator_channels": _WIDTH,
    "discriminator_width": _WIDTH,
    "tau": _INSIDE, "features_weight": Range(0, hint="0 = eq. 6 alone"), "tolerance": _INSIDE,
    "stretches": Range(1, 1_000), "pixel_axes": COUNT, "whitened": COUNT,
}  # fmt: skip


def check_number(name: str, number: float, allowed: Range | None = None) -> None:
    """InputError that names the option, for a number that is none or is out of its range."""
    if isinstance(number, float) and not math.isfinite(number):
        raise InputError(f"{option(name)} is {number}; give a finite number" + (f", {allowed}" if allowed else ""))
    if allowed is not None and number not in allowed:
        raise InputError(f"{option(name)} is {number}; it must be {allowed}")


def option(name: str) -> str:
    """As a setting is typed: train_batch_size → --train-batch-size."""
    return f"--{name.replace('_', '-')}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one kind: no number in them is out of its range or not finite."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, int | float) and not isinstance(number, bool):
                    check_number(item.name, number, RANGES.get(item.name))


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(Settings):
    """Shape of the diffusion U-Net u_θ (a diffusers UNet2DModel) and its noise schedule."""

    size: int = 32  # side of the image, px
    unshuffle: int = 1  # fold each f×f block of pixels into channels before the U-Net; 1 = off
    channels: tuple[int, ...] = (64, 128)  # width of each level, finest first
    layers: int = 2  # residual blocks per level
    attention: tuple[int, ...] = ()  # grid sides (px, as the U-Net sees them) at which attention acts
    head_channels: int = 32  # width of an attention head
    dropout: float = 0.0
    timesteps: int = 1000  # T
    beta_schedule: str = "linear"  # linear (1e-4 .. 0.02), squaredcos_cap_v2 (cosine), or any of diffusers'
    prediction: str = "epsilon"  # what the network outputs: epsilon, sample (x0) or v_prediction


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Settings):
    """Shape of the encoder f: image → z."""

    encoder: Literal["backbone", "residual", "authors"] = "backbone"  # authors: their 64 px and 128 px networks
    code_dim: int = 128  # D, length of z
    encoder_channels: tuple[int, ...] = (32, 64, 128, 128)  # residual: width of each level, finest first
    encoder_time: tuple[int, ...] = (50,)  # backbone: time-steps at which the clean image enters the down path
    encoder_path: Literal["down", "whole"] = "down"  # backbone: features of its down path, or of the whole U-Net
    encoder_pixels: bool = False  # backbone: also take the pixels, averaged to 16×16, as features
    encoder_mirror: bool = False  # backbone: average over image and mirror image; z then knows no left and right
    trunk: Literal["frozen", "fine-tuned"] = "frozen"  # backbone: whether the copied down path is trained too
    encoder_rate: float = 0.1  # backbone: the encoder's share of the learning rate; less for a large solved head


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Settings):
    """How long and how to train; the same for every method. Lengths are counted in images seen."""

    images: int = 1_000_000  # length of the run, images seen
    minutes: float | None = None  # length of the run by the clock, instead of --images
    train_batch_size: int = 64  # images per optimiser step, over all processes
    gradient_accumulation_steps: int = 1  # split the batch in this many parts when memory is short
    learning_rate: float = 1e-4  # used as written, never rescaled
    lr_warmup_images: int = 0  # the rate rises from 0 over this many images
    lr_schedule: Literal["constant", "cosine", "hold"] = (
        "constant"  # cosine: falls to 0; hold: in the last quarter
    )
    max_grad_norm: float = 1.0  # gradient clipping; 0 = off
    ema_decay: float = 0.9999  # per step; rises to this from 0.1 in the first steps
    mixed_precision: Literal["no", "bf16", "fp16"] = "no"  # bf16 and fp16 on GPUs
    flip: bool = True  # mirror half of the images
    seed: int = 0
    log_images: int = 6_400  # a line in the log every so many images
    validate_images: int = 100_000  # validation loss and a picture every so many images
    checkpoint_images: int = 50_000  # a state to continue from every so many images

    @property
    def sure_images(self) -> int:
        """Images that a finished run has seen at least; none are sure of one that goes by the clock."""
        return self.images if self.minutes is None else 0


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Settings):
    """Everything that decides what `diti pretrain` computes."""

    preset: str = DEFAULT_PRESET  # auto: by size and number of the images, and the machine
    data: str = ""
    init: str | None = None  # fine-tune this backbone instead of starting from random weights
    optimizer: Literal["adam", "muon"] = "adam"  # muon: for the matrices inside the network; fewer images do
    adam_beta2: float = 0.99  # share of its mean square that Adam keeps per step; .999 can fall at high rates
    loss_weight: Literal["none", "min-snr", "p2"] = "none"  # which time-steps count more: early ones less in both
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        # The sheet of samples at the end is drawn in so many: shorter schedules would be trained for nothing.
        check_number("timesteps", self.backbone.timesteps, Range(SAMPLING_STEPS, 100_000))


@dataclass(frozen=True, kw_only=True)
class ViewsConfig(Settings):
    """simclr: what two views of one image may differ in, and how they are compared."""

    augment: Literal["full", "no-colour", "none"] = "full"  # no-colour: mirror, blur; none: both are the image
    crop_resize: bool = False  # views also show another part of the image, at another size; not with none
    jitter_strength: float = 0.5  # of the colour jitter: 0 = none, 1 = SimCLR's for photographs
    temperature: float = 0.1  # of the comparison: lower looks harder at the nearest images
    projection_dim: int = 64  # width of what is compared, made from z by two layers that are dropped later

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.crop_resize and self.augment == "none":
            raise InputError("--crop-resize makes views and --augment none wants none; use one of the two")


@dataclass(frozen=True, kw_only=True)
class VAEConfig(Settings):
    """tcvae: weights of the three parts of the KL divergence, and of the reconstruction."""

    mi_weight: float = 1.0  # α, of the mutual information of image and code
    tc_weight: float = 6.0  # β, of the total correlation: how much the dims say about each other
    dim_kl_weight: float = 1.0  # γ, of each dim's own distance to the standard normal
    pixel_std: float = 0.1  # σ of a pixel in [-1, 1] around its reconstruction: smaller weighs pixels more


@dataclass(frozen=True, kw_only=True)
class GANConfig(Settings):
    """ibgan: how much z must be readable in the image, and how little may pass between them."""

    info_weight: float = 1.0  # λ, of the lower bound: z is told from the image
    bottleneck_weight: float = 0.1  # β, of the upper bound on what r tells about z
    bottleneck_dim: int = 128  # R, length of r, which lies between z and the image
    generator_channels: tuple[int, ...] = (128, 64, 32, 32)  # width of each level, coarsest first
    discriminator_width: int = 64  # channels of its convolutions

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.generator_channels:
            raise InputError("--generator-channels is empty; give at least one width, such as 64")


@dataclass(frozen=True, kw_only=True)
class SolutionConfig(Settings):
    """How DiTi and PDAE are solved in closed form; docs/closed-form.md explains the letters."""

    tau: float = 0.02  # τ: a subset may be seen from where this share of it is lost; smaller keeps more detail
    features_weight: float = 0.5  # α, of what is lost in the backbone's features, beside pixels; 0 = eq. 6 alone
    lost_in: Literal["pixels", "features"] = "pixels"  # when is a dim lost: to a linear map of û, or in z of û
    axes: Literal["independent", "ordered"] = "independent"  # dims inside a subset: turned by ICA, or as they come
    stretches: int = 16  # S, stretches of time-steps, finer where the model loses most
    pixel_axes: int = 512  # P, principal axes of the pixels, at most; fewer for few images
    whitened: int = 768  # principal components of the features that are looked at, at most; fewer for few images
    tolerance: float = 0.05  # images are added until more would remove less than this share of the loss


@dataclass(frozen=True, kw_only=True)
class SolveConfig(Settings):
    """Everything that decides what `diti solve` computes."""

    method: Literal["diti", "pdae"] = "diti"  # pdae: the code as a whole, never masked
    data: str = ""
    backbone: str = ""  # frozen diffusion model: a folder, a shipped name or a hub id
    code_dim: int = 128  # D, length of z
    subsets: int = 16  # K, parts of z, each visible from a measured time-step on
    partition: Literal["matched", "staged-even", "staged", "balanced"] = "matched"  # diti: or a cut made by hand
    images: int | None = None  # images of the pass; by default as many as needed, see tolerance
    encoder_time: tuple[int, ...] = (50,)  # time-steps at which the clean image enters the backbone's down path
    encoder_path: Literal["down", "whole"] = "down"  # features of the backbone's down path, or of the whole U-Net
    encoder_pixels: bool = False  # also take the pixels, averaged to 16×16, as features
    encoder_mirror: bool = False  # average the features of image and mirror image; z then knows no left and right
    flip: bool = True  # mirror half of the images
    seed: int = 0
    solution: SolutionConfig = field(default_factory=SolutionConfig)

    @property
    def code(self) -> EncoderConfig:
        """The encoder: the frozen backbone's features and one linear layer."""
        return EncoderConfig(
            code_dim=self.code_dim,
            encoder_time=self.encoder_time,
            encoder_path=self.encoder_path,
            encoder_pixels=self.encoder_pixels,
            encoder_mirror=self.encoder_mirror,
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """Everything that decides what `diti train` computes."""

    method: str = "diti"  # how z is learned; the methods are listed above
    preset: str = DEFAULT_PRESET
    data: str = ""
    backbone: str = ""  # frozen diffusion model: a folder, a shipped name or a hub id
    subsets: int = 16  # K, parts of z, each for a stretch of time-steps
    partition: Literal["auto", "matched", "staged-even", "staged", "balanced", "adaptive"] = "auto"
    """Dims and times of each part; matched: measured, as diti solve does. auto: matched from the solution, else
    staged-even."""
    detach: bool = False  # DiTi-Detach: earlier parts enter without gradient; for generation
    start: Annotated[Start, tyro.conf.arg(aliases=["--start-from"])] = "auto"
    """The decoder starts from the closed-form solution, from the backbone, or at random. auto: solved for diti and
    pdae with the backbone's features, else copy. Under torchrun write --start-from: it takes --start itself."""
    time_sampling: Literal["uniform", "loss"] = "uniform"  # loss: more often where more is lost, reweighted
    code: EncoderConfig = field(default_factory=EncoderConfig)
    solution: SolutionConfig = field(default_factory=SolutionConfig)
    views: ViewsConfig = field(default_factory=ViewsConfig)
    vae: VAEConfig = field(default_factory=VAEConfig)
    gan: GANConfig = field(default_factory=GANConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


T = TypeVar("T")


def resolve(config: TrainConfig) -> TrainConfig:
    """The settings with every `auto` decided."""
    solvable = config.method in ("diti", "pdae") and config.code.encoder == "backbone"
    start = config.start if config.start != "auto" else "solved" if solvable else "copy"
    cut = config.partition if config.partition != "auto" else "matched" if start == "solved" else "staged-even"
    if not solvable and (start == "solved" or cut == "matched"):
        raise InputError(
            f"start {start!r} and partition {cut!r} need what is measured on the backbone's features: "
            "use --method diti or pdae with --encoder backbone, or another --start and --partition"
        )
    return dataclasses.replace(config, start=start, partition=cut)


def from_mapping(base: T, values: Any, where: str, whole: str = "") -> T:
    """`base` with the values of a mapping; unknown keys and wrong types raise with the nearest valid name.

    whole: where it all comes from, of the mapping of a section.
    """
    if not isinstance(values, dict):
        raise InputError(f"{where} must be a mapping of settings, got {type(values).__name__}")
    hints = typing.get_type_hints(type(base))
    changes = {}
    for given, value in values.items():
        key = RENAMED.get(given, given)
        if key not in hints:
            hint = nearest(str(key), hints)
            raise InputError(f"{where}: unknown setting {key!r}; valid: {', '.join(hints)}.{hint}")
        current = getattr(base, key)
        if dataclasses.is_dataclass(current):
            changes[key] = from_mapping(current, value, f"{where}: {key}", whole or where)
        else:
            changes[key] = _checked(value, hints[key], f"{where}: {key}")
    try:
        return dataclasses.replace(base, **changes)  # type: ignore[type-var]
    except InputError as error:
        raise InputError(f"{whole or where}: {error}") from None


def from_options(base: T, options: Mapping[str, Any], where: str) -> T:
    """`base` with options by their plain names, as on the command line: each finds its section by itself."""
    places: dict[str, str | None] = {}  # option → its section, None at the top
    for item in dataclasses.fields(base):  # type: ignore[arg-type]
        section = getattr(base, item.name)
        if dataclasses.is_dataclass(section):
            places |= {option.name: item.name for option in dataclasses.fields(section)}
        else:
            places[item.name] = None
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in places:
            raise InputError(
                f"{where}: unknown setting {name!r}; valid: {', '.join(places)}.{nearest(name, places)}"
            )
        place = places[name]
        (values if place is None else values.setdefault(place, {}))[name] = value
    return from_mapping(base, values, where)


def _checked(value: Any, wanted: Any, where: str) -> Any:
    """The value in the wanted type; whole numbers pass as floats, lists as tuples, nothing else is bent."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        return value if value is None else _checked(value, arguments[0], where)
    if origin is tuple and isinstance(value, int):  # one number where a list may stand
        value = (value,)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_checked(item, arguments[0], where) for item in value)
    if origin is Literal and value in arguments:
        return value
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(wanted, type) and isinstance(value, wanted) and not (wanted is int and isinstance(value, bool)):
        return value
    allowed = " or ".join(map(repr, arguments)) if origin is Literal else getattr(wanted, "__name__", wanted)
    raise InputError(f"{where} must be {allowed}, got {value!r}")


def load_yaml(base: T, path: Path) -> T:
    """`base` with the settings of a YAML file."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads 1e-3 as a number, as YAML 1.2 and people do; PyYAML wants 1.0e-3."""

    exponent = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; name a YAML file of settings") from None
    except (yaml.YAMLError, ValueError, OSError) as error:  # ValueError: other bytes than text, 2024-13-45
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    return from_mapping(base, values or {}, str(path))


def to_yaml(config: Any, leave_out: Collection[str] = ()) -> str:
    """The resolved settings as text that `load_yaml` reads back, without the settings or sections to leave out."""
    import yaml

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return list(value) if isinstance(value, tuple) else value

    kept = {key: value for key, value in dataclasses.asdict(config).items() if key not in leave_out}
    return yaml.safe_dump(plain(kept), sort_keys=False, allow_unicode=True)


def differences(before: Any, now: Any, skip: frozenset[str] = frozenset()) -> list[str]:
    """Names of the settings in which two configs differ, nested ones as outer.inner."""
    found = []
    for item in dataclasses.fields(before):
        old, new = getattr(before, item.name), getattr(now, item.name)
        if item.name in skip or old == new:
            continue
        if dataclasses.is_dataclass(old):
            found += [f"{item.name}.{inner}" for inner in differences(old, new, skip)]
        else:
            found.append(item.name)
    return found
