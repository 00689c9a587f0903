"""The frozen diffusion model u_θ, whatever its kind: what everything else asks of one.

From pixels to x0 and back, a reconstruction û(x_t, t), features of a clean x0, and a schedule on one axis of SNR.
x_t is variance-preserving here, x_t = sqrt(abar_t) x0 + sqrt(1 - abar_t) noise, and t = 0..T-1 are the rows of a
table, whatever the network itself counts in (`clock.py`). A kind is a class in a file, and a line in KINDS.
Notation: B images, C channels of x0, h its side; H side of the pictures, px.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from diti.core.device import AUTO, Device, decide
from diti.core.errors import InputError
from diti.diffusion.files import complaints_about, locate, read_settings
from diti.diffusion.schedule import Schedule, eps_from_output, gather, x0_from_output

KINDS = {  # class of the network in its config.json → module:class that makes a backbone of it
    "UNet2DModel": "diti.diffusion.kinds.unconditional:UnconditionalBackbone",
    "UNet2DConditionModel": "diti.diffusion.kinds.text_unet:TextUNetBackbone",
    "DiTTransformer2DModel": "diti.diffusion.kinds.class_transformer:ClassTransformerBackbone",
    "PixArtTransformer2DModel": "diti.diffusion.kinds.text_transformer:PixArtBackbone",
    "SD3Transformer2DModel": "diti.diffusion.kinds.text_transformer:SD3Backbone",
    "FluxTransformer2DModel": "diti.diffusion.kinds.text_transformer:FluxBackbone",
}
OWN = "diti.diffusion.unet:UNetBackbone"  # a UNet2DModel of RGB pixels with betas: what `diti pretrain` makes
BY_CODE = "diti.diffusion.kinds.own:OwnBackbone"
DESCRIPTION = "backbone.json"  # what a backbone's folder says besides diffusers' own files
NETWORKS = ("unet", "transformer", "")  # folders of a pipeline in which its network may be


class Backbone(nn.Module, ABC):
    """A frozen diffusion model of pictures (B,3,H,H) in [-1,1], in the space of its own x0 (B,C,h,h)."""

    kind: str  # in a few words, for people
    schedule: Schedule
    prediction_type: str  # what `forward` gives: one of `schedule.OUTPUTS`
    bounded: bool = True  # whether x0 stays in [-1, 1], as pixels do

    def __repr__(self) -> str:
        weights = sum(parameter.numel() for parameter in self.parameters())
        space = "" if self.shape == (3, self.size, self.size) else f", x0 of {'×'.join(map(str, self.shape))}"
        return (
            f"<Backbone: {self.kind}, images of {self.size} px{space}, T = {self.timesteps}, "
            f"predicts {self.prediction_type}, {weights:,} weights>"
        )

    # ---- What a kind says ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def size(self) -> int:
        """H, side of the pictures, px."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C,h,h) of one x0."""
        return (3, self.size, self.size)

    @abstractmethod
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """x_t (B,C,h,h), t (B,) -> (B,C,h,h): what the network predicts, by `prediction_type`."""

    def encode(self, pixels: Tensor) -> Tensor:
        """Pictures (B,3,H,H) in [-1,1] -> x0 (B,C,h,h)."""
        return pixels

    def decode(self, x0: Tensor) -> Tensor:
        """x0 (B,C,h,h) -> pictures (B,3,H,H)."""
        return x0

    def blocks(self, whole: bool = False) -> Sequence[str]:
        """Names of the blocks whose outputs are the features; `whole`: also of those after the middle."""
        raise InputError(f"{self.kind} has no named blocks; its features come from its own down path")

    def caution(self) -> str:
        """What a user should know before the work starts; empty where there is nothing."""
        return ""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write everything that `load_backbone` needs, each file whole."""

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Everything that decides what it computes, by name."""
        return iter(sorted(self.state_dict().items()))

    # ---- What follows --------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.parameters()).device

    @property
    def timesteps(self) -> int:
        """T."""
        return self.schedule.timesteps

    def eps(self, x: Tensor, t: Tensor) -> Tensor:
        """(B,C,h,h) the noise that the network sees in x_t."""
        return self.read(self(x, t), x, t)[0]

    def x0(self, x: Tensor, t: Tensor) -> Tensor:
        """(B,C,h,h) u_θ of the paper: the clean x0 that the network sees in x_t."""
        return self.read(self(x, t), x, t)[1]

    def read(self, output: Tensor, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The noise and the clean x0 that an output of the network means."""
        abar_t, kind = gather(self.schedule.alpha_bar, t, x), self.prediction_type
        return eps_from_output(output, x, abar_t, kind), x0_from_output(output, x, abar_t, kind)

    def within(self, x0: Tensor) -> Tensor:
        """x0 kept in [-1, 1] where it can be nowhere else."""
        return x0.clamp(-1, 1) if self.bounded else x0

    def digest(self) -> str:
        """Hex digest of every weight: shows whether two backbones are the same, wherever they are."""
        found = hashlib.sha256()
        for name, tensor in self.state():
            found.update(name.encode() + as_bytes(tensor))
        return found.hexdigest()

    def require_size(self, size: int) -> None:
        """Refuse images of a different size than the network was trained for."""
        if size != self.size:
            raise InputError(
                f"the images are {size} px but the backbone is for {self.size} px: "
                f"prepare the data with --size {self.size}, or use another backbone"
            )


def as_bytes(tensor: Tensor) -> bytes:
    """The content of a tensor wherever it is; of bfloat16, which numpy has not, the bytes."""
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.uint8) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()


# ---- Load -------------------------------------------------------------------------------------------------


def load_backbone(source: str | Path, device: Device = AUTO, **chosen: Any) -> Backbone:
    """A backbone from a folder, the name of a shipped one, or a hub id; every weight must fit.

    device: where it is put, such as "cuda:1"; by default a GPU where torch finds one.

    A folder is one that `Backbone.save` wrote, a diffusers pipeline, or a bare network of one. `file.py:function`
    is Python code of your own: see `diti.backbone`. chosen: of a pipeline, instead of what its backbone.json says:
    prompt or label, what it is always told; size of its pictures, px, where it allows several; blocks, by name,
    whose outputs are the features.
    """
    if is_code(source):
        require_nothing(chosen, str(source))
        return located(BY_CODE).from_code(str(source)).eval().to(decide(device))
    if str(source).endswith(".py") and Path(source).is_file():
        raise InputError(f"{source} is Python code; name its function that makes the model, too: {source}:make")
    folder = locate(source)
    for name in NETWORKS:
        if (folder / name / "config.json").is_file():
            home = folder.parent if not name and folder.name in NETWORKS else folder
            return open_network(home, folder / name, chosen).eval().to(decide(device))
    if is_of_code(folder):
        settings = read_settings(folder / DESCRIPTION)
        return located(BY_CODE).reopened(folder, settings).eval().to(decide(device))
    raise InputError(
        f"{folder} holds no diffusers network: expected unet/config.json, transformer/config.json, or config.json "
        "with diffusion_pytorch_model.safetensors beside it"
    )


def require_nothing(chosen: Mapping[str, Any], source: str) -> None:
    """InputError for choices where there is nothing to choose."""
    if chosen:
        raise InputError(f"{', '.join(chosen)} can be chosen of a pipeline of diffusers, and {source} is none")


def open_network(home: Path, folder: Path, chosen: Mapping[str, Any]) -> Backbone:
    """The backbone over the network in `folder`, by the class that its config names; on the CPU."""
    config = read_settings(folder / "config.json")
    name = str(config.get("_class_name", "UNet2DModel"))
    if name == "Transformer2DModel":  # how older pipelines write the first two transformers
        name = {"ada_norm_zero": "DiTTransformer2DModel", "ada_norm_single": "PixArtTransformer2DModel"}.get(
            config.get("norm_type", ""), name
        )
    if name not in KINDS:
        raise InputError(f"the network is a {name}; a backbone is one of {', '.join(KINDS)}: {folder}")
    with complaints_about(folder / "config.json"):
        own = located(OWN)
        if own.suits(home, config):
            require_nothing(chosen, str(home))
            return own.open(home, folder)
        return located(KINDS[name]).open(home, folder, **chosen)


def is_code(source: object) -> bool:
    """Whether that is the name of a function in a Python file, such as mine.py:make."""
    return isinstance(source, str) and ".py:" in source


def is_of_code(folder: Path) -> bool:
    """Whether a folder says which code makes its backbone, instead of holding that."""
    return (folder / DESCRIPTION).is_file() and "code" in read_settings(folder / DESCRIPTION)


def holds_backbone(folder: Path) -> bool:
    """Whether a folder has a backbone, with or without a model over it."""
    return any((folder / name).is_dir() for name in NETWORKS[:-1]) or is_of_code(folder)


def located(where: str) -> Any:
    """The class of a kind, imported when it is asked for."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


# ---- Cost -------------------------------------------------------------------------------------------------


def forward_flops(backbone: Backbone) -> int:
    """FLOPs of one image's forward pass; a multiply-add counts as 2. Exact for convolutions and products."""
    training = backbone.training
    weight = next(backbone.parameters())
    x = weight.new_zeros(1, *backbone.shape)
    t = torch.zeros(1, dtype=torch.int64, device=weight.device)
    counter = FlopCounterMode(display=False)
    # torch has no FLOP formula for the CPU's fused attention; the plain one is counted as products.
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        backbone.eval()(x, t)
    backbone.train(training)
    return int(counter.get_total_flops())


def training_flops(backbone: Backbone) -> int:
    """FLOPs of one image's training step: forward, and twice that for the backward pass."""
    return 3 * forward_flops(backbone)
