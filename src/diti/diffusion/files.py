"""Files of diffusion networks, read strictly: where a backbone is, its JSON, weights and scheduler."""

from __future__ import annotations

import logging
import os
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.utils import logging as diffusers_logging
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from diti.core.device import HOST
from diti.core.errors import InputError, nearest
from diti.core.runs import described, read_json

ASSETS = Path(__file__).resolve().parents[1] / "assets"  # models shipped with the package, a folder each
MODEL = "-diti"  # a shipped model NAME-diti holds the backbone NAME, so that this is stored once
WEIGHTS = "diffusion_pytorch_model"  # the beginning of their files' names
WEIGHT_FILES = ("safetensors", "fp16.safetensors", "bin")  # after "diffusion_pytorch_model."
SCHEDULER_FILE = "scheduler_config.json"
AUTOENCODERS = ("vae", "vqvae")  # folders of a pipeline
MOST_TIMESTEPS = 100_000

log = logging.getLogger(__name__)


class FileError(InputError):
    """One that names its file already."""


@contextmanager
def complaints_about(path: Path) -> Iterator[None]:
    """Errors that the values of a file cause in diffusers or torch become an InputError that names the file.

    Of several, one inside another, the innermost names it.
    """
    try:
        yield
    except FileError:
        raise
    except InputError as error:
        raise FileError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except Exception as error:  # a wrong value can fail anywhere in them, with any kind of error
        reason = (str(error) or type(error).__name__).strip().partition("\n")[0]
        raise FileError(f"{path} holds values that fit no network ({reason[:200]}); copy it again") from error


@contextmanager
def without_remarks(*others: Any) -> Iterator[None]:
    """No remarks of diffusers on settings that it does not know, which files of other versions are full of.

    others: the modules of libraries of the same house that set how much these say.
    """
    houses = (diffusers_logging, *others)
    before = [(house, house.get_verbosity(), house.is_progress_bar_enabled()) for house in houses]
    for house in houses:
        house.set_verbosity_error()
        house.disable_progress_bar()
    try:
        yield
    finally:
        for house, verbosity, shows_bars in before:
            house.set_verbosity(verbosity)
            if shows_bars:
                house.enable_progress_bar()


def load_strictly(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """load_state_dict where a missing, unexpected, misshapen or NaN weight is an InputError that names it."""
    own = module.state_dict()
    faults = {
        "missing": [key for key in own if key not in state],
        "unexpected": [key for key in state if key not in own],
        "misshapen": [key for key in own if key in state and own[key].shape != state[key].shape],
    }
    refuse_keys(faults, source)
    require_finite(state, f"the weights of {source}")
    module.load_state_dict(dict(state), strict=True)


def require_finite(state: Mapping[str, Tensor], what: str) -> None:
    """InputError for NaN and infinite numbers: the network diverged, or the file is damaged."""
    faults = [key for key, tensor in state.items() if not bool(torch.isfinite(tensor).all())]
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise InputError(f"{what} are not finite numbers ({faults[0]}{more}); use an earlier copy, or train again")


def refuse_keys(faults: Mapping[str, Sequence[str]], source: str) -> None:
    """InputError with the first few keys of each non-empty kind of fault."""
    parts = []
    for kind, keys in faults.items():
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            parts.append(f"{kind}: {', '.join(keys[:5])}{more}")
    if parts:
        raise InputError(f"the weights of {source} do not fit the network's config; {'; '.join(parts)}")


def may_keep(folder: Path) -> bool:
    """Whether results about a model may be stored in its folder: it is writable and not the package's own."""
    return os.access(folder, os.W_OK) and ASSETS not in folder.resolve().parents


def locate(source: str | Path) -> Path:
    """The local folder of a backbone: as given, shipped, or downloaded."""
    if not isinstance(source, str | Path):
        raise InputError(
            f"the name of a model or backbone is {described(source)}; give a folder, a hub id (owner/name), or a "
            "shipped name such as faces64"
        )
    for folder in (Path(source), ASSETS / str(source), ASSETS / f"{source}{MODEL}"):
        if folder.is_dir():
            return folder
    parts = str(source).split("/")
    if isinstance(source, str) and len(parts) == 2 and all(parts) and not source.startswith((".", "~")):
        return _download(source)
    models = sorted(path.name for path in ASSETS.glob(f"*{MODEL}"))
    shipped = [name for model in models for name in (model.removesuffix(MODEL), model)]
    raise InputError(
        f"nothing is called {str(source)!r}: give a folder, a hub id (owner/name), or a shipped name "
        f"({', '.join(shipped) or 'none in this installation'}).{nearest(str(source), shipped)}"
    )


def _download(hub_id: str, wanted: Sequence[str] = (), revision: str | None = None) -> Path:
    """Folder of a hub repository's network or model, or more files, from huggingface_hub's cache or from there."""
    from huggingface_hub import model_info, snapshot_download

    try:
        patterns = list(wanted) or needed([file.rfilename for file in model_info(hub_id).siblings or ()])
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns))
    except Exception as error:  # without a connection that of whichever library below made it
        with suppress(Exception):
            return Path(snapshot_download(hub_id, revision=revision, local_files_only=True))  # from the cache
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"{hub_id!r} is not a folder and could not be downloaded ({type(error).__name__}: {reason}); check "
            "the name and the connection, log in (hf auth login) where its page asks for consent, or download it "
            "and give the folder"
        ) from error


def needed(names: Sequence[str]) -> list[str]:
    """Of a repository's files those of a model, or of a network and its autoencoder: each weight in one form."""
    model = ("encoder/", "decoder/", "latent/", "attributes/")
    found = [name for name in names if name.endswith(".json") or name.startswith(model)]
    for place in ("", *(f"{folder}/" for folder in ("unet", "transformer", *AUTOENCODERS))):
        here = [name for name in names if name.rpartition("/")[0] == place.rstrip("/")]
        if not place:
            found += [name for name in here if name.endswith(".safetensors") and not name.startswith(WEIGHTS)]
        for ending in WEIGHT_FILES:
            one = [name for name in here if re.fullmatch(rf"{place}{WEIGHTS}(-\d+-of-\d+)?\.{ending}", name)]
            if one:
                found += one
                break
    return found


def fetch_more(home: Path, patterns: Sequence[str]) -> None:
    """More files of a pipeline that came from the hub; nothing where it did not."""
    repository = next((part for part in home.parts if part.startswith("models--")), None)
    if repository is not None and home.parent.name == "snapshots":
        _download(repository.removeprefix("models--").replace("--", "/"), patterns, revision=home.name)


def read_settings(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}; expected a JSON object")
    return content


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The state dict beside a diffusers config.json, under the names that diffusers uses today."""
    for ending in WEIGHT_FILES:
        path = folder / f"diffusion_pytorch_model.{ending}"
        if path.is_file():
            return _current_names(read_pickle(path) if ending == "bin" else read_safetensors(path))
    raise InputError(
        f"{folder} has no weights; expected diffusion_pytorch_model with one of {', '.join(WEIGHT_FILES)}"
    )


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file; InputError that names it where it is truncated, or of another kind."""
    with naming_whole(path):
        return load_file(path)


def read_pickle(path: Path) -> dict[str, Any]:
    """A foreign torch file, tensors and plain containers only: weights_only never runs code of the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about how the file was made; the error says what matters
            content = torch.load(path, map_location=HOST, weights_only=True)
    except Exception as error:  # a file of another kind can fail anywhere in the unpickler
        raise InputError(f"{path} is not a torch file of plain tensors{_what_else(error)}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}; expected a dictionary of tensors")
    return content


def _what_else(error: Exception) -> str:
    """What torch found in a file instead of tensors; never torch's own message if it explains how to run code."""
    text = str(error).strip()
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in text:
        found = re.search(r"GLOBAL ([\w.]+)", text)
        what = f"contains code or objects ({found[1]})" if found else "is a pickle that may contain code"
        return f": it {what}, and is refused; get the weights alone, as a dictionary of tensors"
    reason = text.partition("\n")[0] or type(error).__name__
    return f" ({reason[:200]}); copy it again"


def _current_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Old names of attention layers, as in most DDPM networks on the hub, changed to those diffusers uses now."""
    renamed = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
    current = {}
    for key, tensor in state.items():
        module, _, leaf = key.rpartition(".")
        parent, _, last = module.rpartition(".")
        current[f"{parent}.{renamed[last]}.{leaf}" if last in renamed else key] = tensor
    return current


def read_network_of(kind: Any, folder: Path) -> Any:
    """A network of a class of diffusers, strictly every weight, in the type of its file; files may be several."""
    files = [path.name for path in folder.glob(f"{WEIGHTS}*") if path.name.endswith((".safetensors", ".bin"))]
    if not files:
        raise FileError(f"{folder} has no weights; expected {WEIGHTS} with one of {', '.join(WEIGHT_FILES)}")
    variant = "fp16" if all(".fp16." in name for name in files) else None
    with complaints_about(folder), without_remarks():
        network, faults = kind.from_pretrained(
            folder, variant=variant, torch_dtype=_type_of(folder, files), output_loading_info=True
        )
    refuse_keys(
        {name: [str(key) for key in faults[f"{name}_keys"]] for name in ("missing", "unexpected", "mismatched")},
        str(folder),
    )
    require_finite(network.state_dict(), f"the weights of {folder}")
    return network.eval().requires_grad_(False)


def _type_of(folder: Path, files: Sequence[str]) -> torch.dtype:
    """Of the weights in these files, as the first safetensors file says it; of others float32."""
    kinds = {"F16": torch.float16, "BF16": torch.bfloat16}
    for name in sorted(files):
        if name.endswith(".safetensors"):
            with naming_whole(folder / name), safe_open(folder / name, framework="pt") as tensors:
                first = next(iter(tensors.keys()), None)
                return kinds.get(tensors.get_slice(first).get_dtype() if first else "", torch.float32)
    return torch.float32


@contextmanager
def naming_whole(path: Path) -> Iterator[None]:
    """A file that is truncated, or of another kind, becomes an InputError that names it."""
    try:
        yield
    except SafetensorError as error:
        raise FileError(f"{path} is not a whole safetensors file ({error}); copy it again") from error


def autoencoder_folder(home: Path) -> Path | None:
    """Where a pipeline has its autoencoder; None where it draws pixels."""
    return next((home / name for name in AUTOENCODERS if (home / name / "config.json").is_file()), None)


def is_flow(home: Path) -> bool:
    """Whether the scheduler of a pipeline follows a rectified flow, and so has no betas."""
    path = home / "scheduler" / SCHEDULER_FILE
    return path.is_file() and str(read_settings(path).get("_class_name", "")).startswith("FlowMatch")


def read_scheduler(home: Path, unet_folder: Path) -> Any:
    """The scheduler of a pipeline (scheduler/), of an old one (beside the weights), else DDPM's defaults."""
    for folder in (home / "scheduler", unet_folder):
        path = folder / SCHEDULER_FILE
        if path.is_file():
            settings = read_settings(path)
            name, steps = settings.get("_class_name", "DDPMScheduler"), settings.get("num_train_timesteps", 1)
            kind = getattr(diffusers, str(name), None)
            if not (isinstance(kind, type) and issubclass(kind, diffusers.SchedulerMixin)):
                raise InputError(f"{folder} names the scheduler {name!r}, which diffusers does not have")
            if not isinstance(steps, int) or not 1 <= steps <= MOST_TIMESTEPS:
                raise InputError(
                    f"{path}: num_train_timesteps is {steps!r}; it must be from 1 to {MOST_TIMESTEPS:,}"
                )
            with complaints_about(path), without_remarks():
                return kind.from_pretrained(folder)
    log.warning("no %s for %s: using DDPM's linear betas and epsilon prediction", SCHEDULER_FILE, unet_folder)
    return diffusers.DDPMScheduler()
