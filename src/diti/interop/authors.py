"""Files of the authors' code bases, PDAE (ckczzj/PDAE) and DiTi (yue-zhongqi/diti), and what they hold.

A pre-trained DDPM is a config.yml (`denoise_fn_config`) and a checkpoint; `convert` makes a backbone from the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from diti.core.device import HOST
from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone, load_backbone, require_nothing
from diti.diffusion.files import read_pickle
from diti.diffusion.kinds.pipeline import PipelineBackbone
from diti.interop.authors_unet import convert_unet, image_size

NETWORK_CONFIGS = ("config.json", "unet/config.json", "transformer/config.json")  # of diffusers
UNET_KEYS = ("ema_denoise_fn", "denoise_fn")  # the averaged weights first


def convert(src: str | Path, size: int | None = None, **chosen: Any) -> Backbone:
    """A backbone from the authors' files (a folder, its config or its checkpoint) or what load_backbone takes.

    The image side in px is `size`, else what the config says, else the number that ends the folder's name as the
    authors name theirs (celeba64, ffhq128), else 64. chosen: see `load_backbone`.
    """
    path = Path(src)
    if not path.exists() or any((path / name).is_file() for name in NETWORK_CONFIGS):
        backbone = load_backbone(src, HOST, **chosen)
        if size is not None and size != backbone.size and isinstance(backbone, PipelineBackbone):
            return load_backbone(src, HOST, **chosen, size=size)
        if size is not None:
            backbone.require_size(size)
        return backbone
    require_nothing(chosen, str(src))
    if path.is_file() and path.suffix not in (".yml", ".yaml", ".pt"):
        raise InputError(f"{path} is neither a config (.yml) nor a checkpoint (.pt); give its folder")
    folder = path if path.is_dir() else path.parent
    config = read_config(path) if path.suffix in (".yml", ".yaml") else _find_config(folder)
    state = unet_state(read_authors_checkpoint(path), path) if path.suffix == ".pt" else _find_state(folder)
    named = re.search(r"(32|64|128|256|512)$", folder.resolve().name)
    return convert_unet(config, state, size or image_size(config) or (int(named[1]) if named else None))


# ---- Files ------------------------------------------------------------------------------------------------


def read_authors_checkpoint(path: str | Path) -> dict[str, Any]:
    """The dictionary of state dicts in an authors' .pt file, read without running code from the file."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no checkpoint {path}: give the authors' .pt file")
    content = read_pickle(path)
    if not any(isinstance(value, Mapping) for value in content.values()):
        raise InputError(
            f"{path} holds {', '.join(map(str, list(content)[:3]))}; expected state dicts of the authors' code, "
            f"such as {UNET_KEYS[0]}"
        )
    return content


def unet_state(checkpoint: Mapping[str, Any], source: str | Path) -> dict[str, Tensor]:
    """The U-Net's weights of a checkpoint: the running average where there is one."""
    for key in UNET_KEYS:
        if isinstance(checkpoint.get(key), Mapping):
            return dict(checkpoint[key])
    raise InputError(f"{source} holds {', '.join(map(str, checkpoint))}; expected {' or '.join(UNET_KEYS)}")


def read_configs(folder: Path) -> dict[Path, dict[str, Any]]:
    """The settings of all .yml files in a folder."""
    return {path: read_config(path) for path in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")])}


def _find_config(folder: Path) -> dict[str, Any]:
    configs = read_configs(folder)
    found = [path for path, config in configs.items() if "denoise_fn_config" in config]
    return configs[_only(found, folder, "*.yml with denoise_fn_config")]


def _find_state(folder: Path) -> dict[str, Tensor]:
    """The U-Net's weights of the one checkpoint that has them; the folder may hold other .pt files."""
    checkpoints = {path: read_pickle(path) for path in sorted(folder.glob("*.pt"))}
    found = [path for path, content in checkpoints.items() if any(key in content for key in UNET_KEYS)]
    path = _only(found, folder, f"*.pt with {' or '.join(UNET_KEYS)}")
    return unet_state(checkpoints[path], path)


def _only(found: list[Path], folder: Path, what: str) -> Path:
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found)
    given = f"more than one {what}: {names}" if found else f"no {what} and no diffusers network"
    raise InputError(
        f"{folder} holds {given}; give a diffusers folder, or a folder with one config and one checkpoint "
        "of the authors' DDPM"
    )


def read_config(path: Path) -> dict[str, Any]:
    """The settings of an authors' .yml file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"{path} is not a readable YAML file ({reason})") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no settings; expected the authors' config.yml")
    return content
