"""Every setting of the verbs that make something, with the numbers it allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

import tyro

from diti.core.errors import InputError
from diti.core.ranges import (
    ANY,
    BELOW_ONE,
    COUNT,
    INSIDE,
    POSITIVE,
    SIDES,
    Count,
    Range,
    Seed,
    check_number,
    unless_none,
)  # fmt: skip
from diti.core.settings import Settings
from diti.core.training import TrainingConfig as TrainingConfig

DEFAULT_PRESET = "toyfaces32"
Start = Literal["auto", "solved", "copy", "random"]
# Settings of a run that change what is reported, or how memory is used, but not the result.
WITHOUT_EFFECT = frozenset(
    {"log_images", "validate_images", "checkpoint_images", "gradient_accumulation_steps", "compile"}
)
SAMPLING_STEPS = 25  # network calls each way; see the round trip in docs/notebook.md
TIMESTEPS = Range(1, 100_000)
WIDTH, DIMS = Range(1, 8_192), Range(1, 65_536)  # wider networks have never been trained; memory would run out
Width = Annotated[int, *WIDTH]
Widths = Annotated[tuple[int, ...], *WIDTH]
Dims = Annotated[int, *DIMS]
Depth = Annotated[int, *Range(1, 64)]
Weight = Annotated[float, *ANY]
Positive = Annotated[float, *POSITIVE]
Inside = Annotated[float, *INSIDE]
_DATA = "images: a dataset folder, a folder of images, faces or toyfaces[:N]"
_BACKBONE = "frozen diffusion model: a folder, a hub id, a shipped name, or for solve your file.py:function"
Data = Annotated[str, tyro.conf.arg(help=_DATA, help_behavior_hint=unless_none)]
BackboneName = Annotated[str, tyro.conf.arg(help=_BACKBONE, help_behavior_hint=unless_none)]


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(Settings):
    """Shape of the diffusion U-Net u_θ (a diffusers UNet2DModel) and its noise schedule."""

    size: Annotated[int, *SIDES] = 32  # side of the image, px
    unshuffle: Depth = 1  # fold each f×f block of pixels into channels before the U-Net; 1 = off
    channels: Widths = (64, 128)  # width of each level, finest first
    layers: Depth = 2  # residual blocks per level
    attention: tuple[int, ...] = ()  # grid sides (px, as the U-Net sees them) at which attention acts
    head_channels: Width = 32  # width of an attention head
    dropout: Annotated[float, *BELOW_ONE] = 0.0  # share of the activations dropped in residual blocks
    timesteps: Annotated[int, *TIMESTEPS] = 1000  # T
    beta_schedule: str = "linear"  # linear (1e-4 .. 0.02), squaredcos_cap_v2 (cosine), or any of diffusers'
    prediction: str = "epsilon"  # what the network outputs: epsilon, sample (x0) or v_prediction


@dataclass(frozen=True, kw_only=True)
class FeaturesConfig(Settings):
    """The code z and what it is made from, where that is features of the frozen backbone."""

    code_dim: Dims = 128  # D, length of z
    encoder_time: Annotated[tuple[int, ...], *ANY] = (50,)
    """Backbone: time-steps, in thousandths of its T, at which the clean image enters the down path."""
    encoder_path: Literal["down", "whole"] = "down"  # backbone: features of its down path, or of the whole U-Net
    encoder_pixels: bool = False  # backbone: also take the pixels, averaged to 16×16, as features
    encoder_mirror: bool = False  # backbone: average over image and mirror image; z then ignores left and right

    def features(self) -> dict[str, Any]:
        """These settings alone, from a record that has more."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(FeaturesConfig)}


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(FeaturesConfig):
    """Shape of the encoder f: image → z."""

    encoder: Literal["backbone", "residual", "authors"] = "backbone"  # authors: their 64 px and 128 px networks
    encoder_channels: Widths = (32, 64, 128, 128)  # residual: width of each level, finest first
    trunk: Literal["frozen", "fine-tuned"] = "frozen"  # backbone: whether the copied down path is trained too
    encoder_rate: Annotated[float, *Range(0, 1, hint="0 keeps the encoder")] = 0.1
    """Backbone: the encoder's share of the learning rate; less for a large solved head."""


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(Settings):
    """Everything that decides what `diti pretrain` computes."""

    preset: str = DEFAULT_PRESET  # auto: by size and number of the images, and the machine
    data: Data = ""
    init: str | None = None  # fine-tune this backbone instead of starting from random weights
    optimizer: Literal["adam", "muon"] = "adam"  # muon: for the matrices inside the network; needs fewer images
    adam_beta2: Annotated[float, *BELOW_ONE] = 0.99
    """Share of its mean square that Adam keeps per step; .999 can diverge at high rates."""
    loss_weight: Literal["none", "min-snr", "p2"] = "none"  # which time-steps count more: both favour late ones
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        # The sheet of samples at the end needs this many: shorter schedules would be trained for nothing.
        check_number("timesteps", self.backbone.timesteps, dataclasses.replace(TIMESTEPS, least=SAMPLING_STEPS))


@dataclass(frozen=True, kw_only=True)
class ViewsConfig(Settings):
    """simclr: what two views of one image may differ in, and how they are compared."""

    augment: Literal["full", "no-colour", "none"] = "full"  # no-colour: mirror, blur; none: both are the image
    crop_resize: bool = False  # views also show other parts of the image, at other sizes; not with --augment none
    jitter_strength: Annotated[float, *Range(0, 1, hint="0 = none")] = 0.5
    """Of the colour jitter: 0 = none, 1 = SimCLR's for photographs."""
    temperature: Positive = 0.1  # of the comparison: lower puts more weight on the nearest images
    projection_dim: Dims = 64  # width of what is compared, made from z by two layers that are dropped later

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.crop_resize and self.augment == "none":
            raise InputError("--crop-resize changes the views, which --augment none forbids; use one of the two")


@dataclass(frozen=True, kw_only=True)
class VAEConfig(Settings):
    """tcvae: weights of the three parts of the KL divergence, and of the reconstruction."""

    mi_weight: Weight = 1.0  # α, of the mutual information of image and code
    tc_weight: Weight = 6.0  # β, of the total correlation: how much the dims say about each other
    dim_kl_weight: Weight = 1.0  # γ, of each dim's own distance to the standard normal
    pixel_std: Positive = 0.1  # σ of a pixel in [-1, 1] around its reconstruction: smaller weighs pixels more


@dataclass(frozen=True, kw_only=True)
class GANConfig(Settings):
    """ibgan: how much z must be readable in the image, and how little may pass between them."""

    info_weight: Weight = 1.0  # λ, of the lower bound: z can be read from the image
    bottleneck_weight: Weight = 0.1  # β, of the upper bound on what r says about z
    bottleneck_dim: Dims = 128  # R, length of r, which lies between z and the image
    generator_channels: Widths = (128, 64, 32, 32)  # width of each level, coarsest first
    discriminator_width: Width = 64  # channels of its convolutions

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.generator_channels:
            raise InputError("--generator-channels is empty; give at least one width, such as 64")


@dataclass(frozen=True, kw_only=True)
class SolutionConfig(Settings):
    """How DiTi and PDAE are solved in closed form; docs/closed-form.md explains the symbols."""

    tau: Inside = 0.02  # τ: a subset is visible from where this share of it is lost; smaller keeps more detail
    features_weight: Annotated[float, *Range(0, hint="0 = eq. 6 alone")] = 0.5
    """α, weight of what is lost in the backbone's features, besides pixels; 0 = eq. 6 alone."""
    lost_in: Literal["pixels", "features"] = "pixels"  # how a dim is lost: to a linear map of û, or in z of û
    axes: Literal["independent", "ordered"] = "independent"  # dims inside a subset: by ICA, or as they come
    stretches: Annotated[int, *Range(1, 1_000)] = 16  # S, stretches of time, finer where the model loses most
    pixel_axes: Count = 512  # P, principal axes of the pixels, at most; fewer for few images
    whitened: Count = 768  # principal components of the features used, at most; at least one per dim of z
    tolerance: Inside = 0.05  # images are added until more would remove less than this share of the loss


def enough_looked_at(solution: SolutionConfig, dims: int) -> SolutionConfig:
    """The settings with the components used for z of that many dims, so that records say what was done."""
    return solution if solution.whitened >= dims else dataclasses.replace(solution, whitened=dims)


@dataclass(frozen=True, kw_only=True)
class SolveConfig(FeaturesConfig):
    """Everything that decides what `diti solve` computes."""

    method: Literal["diti", "pdae"] = "diti"  # pdae: the code as a whole, never masked
    data: Data = ""
    backbone: BackboneName = ""
    subsets: Dims = 16  # K, parts of z, each visible from a measured time-step on
    partition: Literal["matched", "staged-even", "staged", "balanced"] = "matched"
    """diti: dims and times of each part; matched: equal dims and measured times; the others are fixed."""
    images: Annotated[int | None, *COUNT] = None  # length of the pass; by default what --tolerance asks for
    flip: bool = True  # mirror half of the images
    seed: Seed = 0
    compile: bool = False  # torch.compile the frozen model: minutes at the start, for long passes on a GPU
    solution: SolutionConfig = field(default_factory=SolutionConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "solution", enough_looked_at(self.solution, self.code_dim))

    @property
    def code(self) -> EncoderConfig:
        """The encoder: the frozen backbone's features and one linear layer."""
        return EncoderConfig(**self.features())


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """Everything that decides what `diti train` computes."""

    method: str = "diti"  # how z is learned; the methods are listed above
    preset: str = DEFAULT_PRESET  # where the settings start from; diti presets lists them
    data: Data = ""
    backbone: BackboneName = ""
    subsets: Dims = 16  # K, parts of z, each for a stretch of time-steps
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
    own: Settings = field(default_factory=Settings)  # of a method from elsewhere: its `Settings`
    training: TrainingConfig = field(default_factory=TrainingConfig)

    def fitted_to(self, values: Mapping[str, Any]) -> Self:
        """With the own settings of the method that the values name."""
        fitted: Any = self
        for fit in FITTED_BY:
            fitted = fit(fitted, str(values.get("method", self.method)))
        return fitted


# Set by the registry of methods, a layer above: the source of a method's own settings.
FITTED_BY: list[Callable[[TrainConfig, str], TrainConfig]] = []
