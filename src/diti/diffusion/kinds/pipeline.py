"""Pipelines of diffusers: a network, an autoencoder or none, a scheduler, and what the network is told besides.

Their files are copied as they are into a model folder, weights once. `backbone.json` holds `Choices`, and
`conditions.safetensors` what the network is told of a prompt, so that no text encoder is needed any more.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import safe_open
from torch import Tensor

from diti.core.device import FULL, PRECISION, has_bf16, on_host
from diti.core.errors import InputError
from diti.core.runs import atomic_path, sha256_file, write_json
from diti.diffusion.backbone import DESCRIPTION
from diti.diffusion.blocks import blocks_named, transformer_blocks, unet_blocks
from diti.diffusion.clock import Clock
from diti.diffusion.files import (
    SCHEDULER_FILE,
    autoencoder_folder,
    complaints_about,
    naming_whole,
    read_network_of,
    read_scheduler,
    read_settings,
    require_finite,
)
from diti.diffusion.kinds.watched import WatchedBackbone
from diti.diffusion.pictures import Pictures, Pixels, read_autoencoder

CONDITIONS, PROMPT = "conditions.safetensors", "prompt"  # and the name of what it tells, in its metadata
LARGE = 500_000_000  # weights from which on a network is bfloat16 on a GPU
_ONE_AT_A_TIME = threading.Lock()
WEIGHTS = ("*.safetensors", "*.bin", "*.safetensors.index.json", "config.json")


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What may be chosen about a pipeline: the content of backbone.json."""

    blocks: tuple[str, ...] = ()  # whose outputs are the features; none: the kind's own
    prompt: str = ""  # that the network is told, where it takes one
    label: int | None = None  # the class, where it takes one; None: no class
    size: int | None = None  # side of the pictures, px, where the network allows several; None: its own

    @classmethod
    def read(cls, path: Path) -> Choices:
        """Of a backbone.json; those of a pipeline that has none."""
        return cls.checked(read_settings(path) if path.is_file() else {}, str(path))

    @classmethod
    def checked(cls, content: Mapping[str, Any], source: str) -> Choices:
        """The choices of that content, whose keys and values must be known."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(content.keys() - known):
            raise InputError(f"{source} has unknown keys {unknown}; known are {sorted(known)}")
        wanted: dict[str, tuple[Any, str]] = {
            "prompt": (str, "a text"),
            "label": (int | None, "the number of a class"),
            "size": (int | None, "a whole number of px"),
            "blocks": (list | tuple, "a list of names of blocks"),
        }
        for name, (kind, words) in wanted.items():
            value = content.get(name, getattr(cls, name))
            if isinstance(value, bool) or not isinstance(value, kind) or (name == "size" and value == 0):
                raise InputError(f"{source}: {name} is {value!r}; give {words}")
        return cls(**{**content, "blocks": tuple(content.get("blocks", ()))})


class PipelineBackbone(WatchedBackbone):
    """A network of diffusers in its pipeline's folder `home`."""

    network_class: ClassVar[str]
    is_told: ClassVar[str] = ""  # of a prompt or a label, where it takes either
    folders: ClassVar[tuple[str, ...]] = ("unet", "vae", "vqvae", "scheduler")

    def __init__(
        self, network: Any, clock: Clock, predicts: str, pictures: Pictures, home: Path, folder: Path,
        choices: Choices, conditions: Mapping[str, Tensor],
    ) -> None:  # fmt: skip
        super().__init__(network, clock, predicts, pictures)
        self.home, self.folder, self.choices = home, folder, choices
        channels, side = self.own_shape(network.config, pictures.side(1), choices.size)
        self._shape = (channels, side, side)
        if channels != pictures.channels:
            raise InputError(
                f"{folder}: the network takes {channels} channels and its pictures have {pictures.channels}: it "
                "is told more than x_t, such as a mask, and cannot be a backbone"
            )
        if choices.size is not None and (choices.size < 1 or choices.size % pictures.side(1)):
            raise InputError(f"size is {choices.size} px; give a multiple of {pictures.side(1)}")
        self.told_always = sorted(conditions)
        for name, tensor in conditions.items():
            self.register_buffer(f"told_{name}", tensor, persistent=False)
        self._full = False  # whether it was made to compute in float32

    @classmethod
    def open(cls, home: Path, folder: Path, **chosen: Any) -> Self:
        """The pipeline whose network is in `folder`, strictly; on the CPU. chosen: over its backbone.json."""
        import diffusers

        with complaints_about(home / DESCRIPTION):
            kept = Choices.read(home / DESCRIPTION)
        choices = Choices.checked({**asdict(kept), **chosen}, "the choice")
        for name in ("prompt", "label"):
            if name != cls.is_told and getattr(choices, name) != getattr(Choices, name):
                raise InputError(f"a {cls.kind} is told no {name}; leave it out")
        network = read_network_of(getattr(diffusers, cls.network_class), folder)
        blocks_named(network, choices.blocks)
        held = autoencoder_folder(home)
        pictures = Pixels(int(network.config["in_channels"])) if held is None else read_autoencoder(held)
        patches = cls.patches(network.config, cls.own_shape(network.config, pictures.side(1), choices.size)[1])
        with complaints_about(home / "scheduler"):
            clock, predicts = Clock.of_scheduler(read_scheduler(home, folder), patches)
        known = kept_conditions(home, choices.prompt) if choices.prompt == kept.prompt else {}
        conditions = cls.conditions(home, network.config, choices, known)
        return cls(network, clock, predicts, pictures, home, folder, choices, conditions)

    # ---- What a kind says ----------------------------------------------------------------------------------

    @classmethod
    def own_shape(cls, config: Mapping[str, Any], factor: int, size: int | None) -> tuple[int, int]:
        """Channels and side of x0. factor: px of a picture per cell. size: chosen side of the pictures, px."""
        channels, side = int(config["in_channels"]), config["sample_size"]
        if size is not None:
            return channels, size // factor
        if side is None:
            raise InputError("the network's sample_size is not said; choose the pictures' size in backbone.json")
        sides = {side} if isinstance(side, int) else {*side}
        if len(sides) != 1:
            raise InputError(f"the network's sample_size is {list(side)}; a backbone needs square pictures")
        return channels, int(sides.pop())

    @classmethod
    def patches(cls, config: Mapping[str, Any], side: int) -> int:
        """Tokens of an image of that side, by which some schedulers choose their shift."""
        return (side // int(config.get("patch_size", 1))) ** 2

    @classmethod
    def conditions(
        cls, home: Path, config: Mapping[str, Any], choices: Choices, kept: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """What the network is told besides x_t and the time, each (1, ...). kept: what is known of it already."""
        return {}

    @abstractmethod
    def ask(self, x: Tensor, time: Tensor) -> Tensor: ...

    def default_blocks(self, whole: bool) -> Sequence[str]:
        """Whose outputs are the features where nothing else is chosen."""
        if hasattr(self.network, "down_blocks"):
            return list(unet_blocks(self.network, whole))
        return transformer_blocks("transformer_blocks", len(self.network.transformer_blocks))

    # ---- What follows --------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._shape

    def blocks(self, whole: bool = False) -> Sequence[str]:
        return self.choices.blocks or self.default_blocks(whole)

    def told(self, name: str, like: Tensor) -> Tensor:
        """What the network is always told under that name, for a batch of x_t."""
        if name not in self.told_always:
            raise InputError(f"{self.home / CONDITIONS} says nothing of {name!r}, which the network is told")
        held: Tensor = getattr(self, f"told_{name}")
        held = held.to(self.network.dtype) if held.is_floating_point() else held
        return held.expand(len(like), *held.shape[1:])

    @property
    def weights(self) -> int:
        """Numbers in the network."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        if on_host(x) and not self._full:  # few CPUs compute in half precision
            with _ONE_AT_A_TIME:  # images are run in several lanes
                self.network.float()
                self._full = True
        return super().forward(x, t)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Wherever it is moved to: a large network is bfloat16 on a GPU that has it."""
        super()._apply(fn, recurse)
        self._full = False
        if not on_host(self.device):
            large = self.weights >= LARGE and os.environ.get(PRECISION) != FULL
            kind = torch.bfloat16 if large and has_bf16(self.device) else torch.float32
            if self.network.dtype != kind:
                self.network.to(kind)
        return self

    def files(self) -> dict[str, Path]:
        """Place in a backbone's folder → file, of all that `save` copies."""
        places = [self.folder, *(self.home / name for name in self.folders if (self.home / name) != self.folder)]
        found: dict[str, Path] = {}
        for folder in places:
            name = self.folder_name if folder == self.folder else folder.name
            patterns = (SCHEDULER_FILE,) if folder.name == "scheduler" else WEIGHTS
            for pattern in patterns:
                found |= {f"{name}/{path.name}": path for path in sorted(folder.glob(pattern))}
        return found

    @property
    def folder_name(self) -> str:
        """Of the network in a backbone's folder."""
        return "unet" if self.network_class.startswith("UNet") else "transformer"

    def digest(self) -> str:
        """Hex digest of all files, and of what was chosen."""
        found = hashlib.sha256(json.dumps(asdict(self.choices), sort_keys=True).encode())
        for name, path in sorted(self.files().items()):
            found.update(f"{name}\0{sha256_file(path)}\n".encode())
        for name in self.told_always:
            found.update(name.encode() + getattr(self, f"told_{name}").cpu().float().numpy().tobytes())
        return found.hexdigest()

    def save(self, folder: str | Path) -> None:
        """Copy the files of the pipeline, write backbone.json and conditions.safetensors, each whole."""
        from safetensors.torch import save_file

        folder = Path(folder)
        for name, source in self.files().items():
            if not source.is_file():
                raise InputError(f"{source} is gone, and a model folder needs a copy of it; put it back")
            if not (folder / name).exists() or not source.samefile(folder / name):
                with atomic_path(folder / name) as temporary:
                    shutil.copyfile(source, temporary)
        if self.told_always:
            told = {name: getattr(self, f"told_{name}").cpu().contiguous() for name in self.told_always}
            with atomic_path(folder / CONDITIONS) as temporary:
                save_file(told, temporary, {PROMPT: self.choices.prompt})
        write_json(folder / DESCRIPTION, asdict(self.choices))


def kept_conditions(home: Path, prompt: str) -> dict[str, Tensor]:
    """What is kept in a folder of what its network is told of a prompt; nothing where that is not there."""
    path = home / CONDITIONS
    if not path.is_file():
        return {}
    with complaints_about(path), naming_whole(path), safe_open(path, framework="pt") as file:
        if (file.metadata() or {}).get(PROMPT, prompt) != prompt:
            return {}  # backbone.json was changed since
        kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        require_finite(kept, str(path))
    return kept
