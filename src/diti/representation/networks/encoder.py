"""The encoder f: image -> z, as a trunk that makes features and one linear layer (sections 4.1, 4.2).

z = head((features - mean) / std). Mean and std are 0 and 1 until `fit_head` measures them on training images.
Notation: B images, F features, D length of z.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from diti.config import EncoderConfig
from diti.core.device import fitted, frozen
from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone
from diti.diffusion.files import MOST_TIMESTEPS, complaints_about, load_strictly, read_weights
from diti.diffusion.kinds.watched import WatchedBackbone
from diti.diffusion.unet import UNetBackbone, require_unet
from diti.representation.networks.network_files import drawn_from, read_network, write_network
from diti.representation.networks.principal import principal_components
from diti.representation.networks.trunks import (
    AuthorsTrunk,
    BackboneTrunk,
    BlocksTrunk,
    GivenFeatures,
    ResidualTrunk,
)

Trunk: TypeAlias = AuthorsTrunk | ResidualTrunk | BackboneTrunk | BlocksTrunk | GivenFeatures
Order = Literal["descending", "ascending"] | Sequence[int]
Scale = Literal["whitened", "even"]
COMMON = ("kind", "size", "dims", "frozen")
TRUNK = "trunk."  # before the names of its weights
THOUSAND = 1000  # time-steps in which the config counts
SETTINGS: dict[str, tuple[str, ...]] = {  # kind -> the arguments of its trunk besides the size
    "authors": (),
    "residual": ("channels",),
    "backbone": ("unet", "wrapping", "time"),
    "blocks": ("blocks", "time", "features", "backbone"),
    "given": ("features",),
}
OVER_BACKBONE = ("backbone", "blocks")  # kinds that see through a diffusion model
OPTIONAL = {"pixels", "whole", "mirrored"}  # what a description may leave out


class Encoder(nn.Module):
    """f: (B,3,H,W) in [-1,1] -> z (B,D). A frozen trunk gets no gradient and stays in inference mode.

    An encoder of kind "given" starts from features (B,F) that another network found.
    """

    feature_mean: Tensor
    feature_std: Tensor

    def __init__(self, description: Mapping[str, Any], backbone: Backbone | None = None) -> None:
        super().__init__()
        self.description = json.loads(json.dumps(description))  # as the file will hold it
        self.size, self.dims = int(description["size"]), int(description["dims"])
        self.frozen = bool(description["frozen"])
        self.trunk = _trunk(self.description, backbone)
        features = self.trunk.features
        if not 1 <= self.dims <= features:
            remedy = {
                "residual": "widen --encoder-channels",
                "backbone": "use --encoder residual",
                "blocks": "name more blocks in backbone.json",
                "given": "give more features",
            }
            raise InputError(
                f"--code-dim is {self.dims}, but this encoder has {features} features: use 1 to {features}, "
                f"or {remedy.get(description['kind'], 'another --encoder')}"
            )
        self.register_buffer("feature_mean", torch.zeros(features))
        self.register_buffer("feature_std", torch.ones(features))
        self.head = nn.Linear(features, self.dims)
        if description["kind"] in OVER_BACKBONE:  # features of unit variance then give dims of about unit variance
            nn.init.orthogonal_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        self.trunk.requires_grad_(not self.frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> Encoder:
        """A frozen trunk stays in inference mode whoever calls this."""
        super().train(mode)
        if self.frozen:
            self.trunk.eval()
        return self

    @property
    def taken(self) -> tuple[int, ...]:
        """Shape of what is encoded: one image, or the given features of one."""
        given = self.description["kind"] == "given"
        return (self.trunk.features,) if given else (3, self.size, self.size)

    @property
    def tells_sides(self) -> bool:
        """Whether an image and its mirror image may get different codes."""
        return not self.description.get("mirrored", False)

    def features(self, x: Tensor) -> Tensor:
        """(B,3,H,W) -> (B,F), what the trunk sees in the image."""
        if tuple(x.shape[1:]) != self.taken:
            self.require_images(f"got shape {tuple(x.shape)}")
            taken = ", ".join(map(str, self.taken))
            raise InputError(f"images have shape {tuple(x.shape)}; this encoder takes (B, {taken})")
        if isinstance(self.trunk, BlocksTrunk):
            with torch.no_grad():
                x = self.trunk.encode(x)
        return self.features_of(x)

    def features_of(self, x0: Tensor) -> Tensor:
        """The same of images as the frozen model has them: (B,C,h,h) -> (B,F)."""
        learns = torch.is_grad_enabled() and not self.frozen
        with torch.set_grad_enabled(learns), nullcontext() if learns else frozen(x0.device):
            return self.trunk(x0).float()

    def require_images(self, but: str = "images were given") -> None:
        """InputError for an encoder of features, which knows no image; it says what the model can do."""
        if len(self.taken) == 1:
            raise InputError(
                f"this model encodes features of another network, numbers (N, {self.taken[0]}), and {but}; use "
                "z = model.encode(features), then model.reconstruct(images, z=z), infer_noise and decode"
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B,3,H,W) -> z (B,D)."""
        return self.code(self.features(x))

    def code(self, features: Tensor) -> Tensor:
        """What the trunk saw (B,F) -> z (B,D)."""
        return self.head((features - self.feature_mean) / self.feature_std)

    @torch.no_grad()
    def fit_head(self, images: Iterable[Tensor], order: Order = "descending", scale: Scale = "whitened") -> Tensor:
        """`fit_head_to` the features of image batches (B,3,H,W) in [-1,1]."""
        training = self.training
        self.eval()
        seen = [fitted(self.features, batch.to(self.head.weight)).cpu() for batch in images]
        self.train(training)
        return self.fit_head_to(torch.cat(seen) if seen else torch.empty(0, self.trunk.features), order, scale)

    @torch.no_grad()
    def fit_head_to(self, features: Tensor, order: Order = "descending", scale: Scale = "whitened") -> Tensor:
        """Set the head to the first D principal components of features (N,F).

        order: the component of each dim of z, 0 being that of the largest variance. The first dims belong to the
        earliest time-steps (fine attributes), the last to the latest (coarse ones).
        scale: "whitened" gives each dim unit variance; "even" divides all by one number, for a mean variance of 1.
        Returns (D,) each dim's share of the features' variance.
        """
        chosen = component_order(order, self.dims)
        if scale not in ("whitened", "even"):
            raise InputError(f"scale is {scale!r}; allowed: whitened, even")
        found = principal_components(features, self.dims, self.dims)
        variance = found.variance if scale == "whitened" else found.variance.mean()
        self.set_head(found.mean, found.std, (found.axes / variance.sqrt())[:, chosen])
        return found.variance[chosen] / found.total

    @torch.no_grad()
    def set_head(self, mean: Tensor, std: Tensor, axes: Tensor) -> None:
        """z = axesᵀ (features - mean) / std, for mean and std (F,) and axes (F,D)."""
        self.feature_mean.copy_(mean)
        self.feature_std.copy_(std)
        self.head.weight.copy_(axes.T)
        nn.init.zeros_(self.head.bias)

    def save(self, folder: str | Path) -> None:
        """Write config.json and weights."""
        write_network(folder, self.description, self.state_dict())


def build_encoder(config: EncoderConfig, backbone: Backbone | int, seed: int) -> Encoder:
    """A new encoder; its weights depend on (config, backbone, seed) only.

    backbone: whose images are encoded, or the side of the images, px, where there is none.
    """
    kind, size = config.encoder, backbone if isinstance(backbone, int) else backbone.size
    description: dict[str, Any] = {"kind": kind, "size": size, "dims": config.code_dim, "frozen": False}
    if kind == "residual":
        description["channels"] = list(config.encoder_channels)
    if kind != "backbone":
        return encoder_from_description(description, seed)
    if isinstance(backbone, int):
        raise InputError("--encoder backbone copies a backbone, and none is given; use --encoder residual")
    if isinstance(backbone, WatchedBackbone):
        return encoder_from_description(description | _blocks_settings(config, backbone), seed, backbone)
    backbone = require_unet(backbone)
    encoder = encoder_from_description(description | _backbone_settings(config, backbone), seed)
    load_strictly(encoder.trunk, taken_by(encoder, backbone.unet.state_dict()), "the backbone")
    return encoder


def _backbone_settings(config: EncoderConfig, backbone: UNetBackbone) -> dict[str, Any]:
    times = _times(config, backbone)
    more = {
        "pixels": config.encoder_pixels,
        "whole": config.encoder_path == "whole",
        "mirrored": config.encoder_mirror,
    }
    return {
        "frozen": config.trunk == "frozen",
        "unet": {key: value for key, value in backbone.unet.config.items() if not key.startswith("_")},
        "wrapping": asdict(backbone.wrapping),
        "time": times if len(times) > 1 else times[0],
        **{name: True for name, asked in more.items() if asked},
    }


def _blocks_settings(config: EncoderConfig, backbone: WatchedBackbone) -> dict[str, Any]:
    if config.trunk != "frozen":
        raise InputError(f"--trunk is {config.trunk}; what a {backbone.kind} sees stays frozen")
    times, blocks = _times(config, backbone), list(backbone.blocks(config.encoder_path == "whole"))
    more = {"pixels": config.encoder_pixels, "mirrored": config.encoder_mirror}
    return {
        "kind": "blocks",
        "frozen": True,
        "blocks": blocks,
        "time": times,
        "features": BlocksTrunk(backbone, blocks, times, pixels=config.encoder_pixels).features,
        "backbone": backbone.digest(),  # of the weights that its codes depend on
        **{name: True for name, asked in more.items() if asked},
    }


def _times(config: EncoderConfig, backbone: Backbone) -> list[int]:
    """Time-steps of this backbone: those of the config are as of one with THOUSAND, whatever its own T is."""
    for time in config.encoder_time:
        if not 0 <= time < THOUSAND:
            raise InputError(f"--encoder-time is {time}; give 0 to {THOUSAND - 1}, in thousandths of T")
    times = [time * backbone.timesteps // THOUSAND for time in config.encoder_time]
    if not times or len(set(times)) < len(times):
        asked, steps = list(config.encoder_time), backbone.timesteps
        raise InputError(f"--encoder-time is {asked}; give one or more time-steps, each once (T = {steps:,})")
    return times


def encoder_from_description(
    description: Mapping[str, Any], seed: int = 0, backbone: Backbone | None = None
) -> Encoder:
    """A new encoder of that shape. Unknown and missing keys are errors. backbone: whose blocks it looks at."""
    kind = description.get("kind")
    if kind not in SETTINGS:
        raise InputError(f"the encoder's kind is {kind!r}; use {', '.join(SETTINGS)}")
    wanted = {*COMMON, *SETTINGS[kind]}
    allowed = wanted | OPTIONAL if kind in OVER_BACKBONE else wanted
    if not wanted <= description.keys() <= allowed:
        faults = {"missing": wanted - description.keys(), "unknown": description.keys() - allowed}
        found = "; ".join(f"{name}: {', '.join(sorted(keys))}" for name, keys in faults.items() if keys)
        raise InputError(f"the description of a {kind} encoder does not fit; {found}")
    with drawn_from(seed, "encoder-weights"):
        return Encoder(description, backbone)


def load_encoder(folder: str | Path, backbone: Backbone | None = None) -> Encoder:
    """The encoder that `Encoder.save` wrote, strictly every weight. backbone: whose blocks it may look at.

    A model in the box stores a trunk that is its own backbone once, in the folder of that.
    """
    description, state = read_network(folder)
    with complaints_about(Path(folder) / "config.json"):
        encoder = encoder_from_description(description, backbone=backbone)
    if description["kind"] == "backbone" and not any(key.startswith(TRUNK) for key in state):
        unet = read_weights(Path(folder).parent / "unet")
        state |= {TRUNK + name: tensor for name, tensor in taken_by(encoder, unet).items()}
    load_strictly(encoder, state, str(folder))
    return encoder.eval()


def taken_by(encoder: Encoder, unet: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a U-Net that the encoder's trunk has, too."""
    own = encoder.trunk.state_dict()
    return {name: tensor for name, tensor in unet.items() if name in own}


def component_order(order: str | Sequence[int], dims: int) -> list[int]:
    """(D,) the principal component that becomes each dim of z."""
    named = {"descending": list(range(dims)), "ascending": list(range(dims))[::-1]}
    chosen = named.get(order, []) if isinstance(order, str) else [int(component) for component in order]
    if sorted(chosen) != list(range(dims)):
        raise InputError(f"order is {order!r}; give descending, ascending, or each of 0..{dims - 1} once")
    return chosen


def given_encoder(size: int, dims: int, features: int) -> Encoder:
    """An encoder of features (B,F) that another network found in images of that size, px."""
    return encoder_from_description(
        {"kind": "given", "size": size, "dims": dims, "frozen": True, "features": features}
    )


def _trunk(description: Mapping[str, Any], backbone: Backbone | None) -> Trunk:
    kind, size = description["kind"], description["size"]
    if kind == "given":
        return GivenFeatures(description["features"])
    if kind == "authors":
        return AuthorsTrunk(size)
    if kind == "residual":
        return ResidualTrunk(size, description["channels"])
    time = description["time"]
    times = time if isinstance(time, list) else [time]
    if not times or not all(isinstance(t, int) and 0 <= t < MOST_TIMESTEPS for t in times):
        raise InputError(f"the encoder's time is {time!r}; give one time-step of 0 or more, or a list of them")
    more = {name: bool(description.get(name, False)) for name in OPTIONAL}
    if kind == "blocks":
        if not isinstance(backbone, WatchedBackbone):
            raise InputError("the encoder looks at blocks of a diffusion model, and that is not there")
        del more["whole"]
        return BlocksTrunk(backbone, description["blocks"], times, description["features"], **more)
    return BackboneTrunk(description["unet"], description["wrapping"], times, **more)
