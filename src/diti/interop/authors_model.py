"""Trained models of the authors' code bases, PDAE and DiTi: encoder, decoder g and the frozen U-Net inside it.

A run of theirs is a config.yml (`encoder_config`, `decoder_config`, in DiTi `ssl_config` with the partition) and
checkpoints/latest.pt. The shape of the U-Net is in the config.yml of the DDPM that the run started from.
Notation: D length of z, T time-steps, K subsets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone
from diti.diffusion.files import load_strictly, read_pickle
from diti.interop.authors import read_authors_checkpoint, read_config, read_configs
from diti.interop.authors_unet import (
    Layer,
    attention_layers,
    convert_unet,
    split_qkv,
    translate,
    unet_shape,
    up_layers,
)
from diti.representation.networks.encoder import Encoder, encoder_from_description
from diti.representation.networks.shift import ShiftDecoder
from diti.representation.networks.trunks import AUTHORS_WIDTHS
from diti.representation.partition import STAGE_DIMS, STAGE_ENDS, Partition
from diti.representation.partition_widths import segment_bounds, segments_per_stage

PREFIXES = re.compile(r"^((_orig_mod|module)\.)+")  # left in the names by torch.compile and by parallel training
OWN = ("label_emb.", "shift_")  # the weights of g; all others in their decoder are the frozen U-Net's
ENCODER_HEADS = 4


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a checkpoint and its config say besides the weights."""

    step: int | None  # optimiser steps
    averaged: bool  # whether the running averages were taken
    partition: Partition | None  # None where no config of the run was found
    detach: bool  # trained as DiTi-Detach
    unused: tuple[str, ...]  # entries of the checkpoint that were not imported


def convert_model(src: str | Path) -> tuple[Backbone, Encoder, ShiftDecoder, ModelFacts]:
    """A trained model of the authors, from its run folder or its checkpoint: unused weights are reported."""
    path = Path(src)
    checkpoint_path = path if path.is_file() else _find_checkpoint(path)
    run, config = _find_configs(checkpoint_path.parent)
    checkpoint = read_authors_checkpoint(checkpoint_path)
    averaged = bool(checkpoint.get("ema_encoder")) and bool(checkpoint.get("ema_decoder"))
    names = ("ema_encoder", "ema_decoder") if averaged else ("encoder", "decoder")
    states = [_state(checkpoint, name, checkpoint_path) for name in names]
    encoder = convert_encoder(states[0])
    decoder = convert_decoder(config, states[1], encoder.size)
    if decoder.dims != encoder.dims:
        raise InputError(
            f"{checkpoint_path}: the encoder gives {encoder.dims} dims, the decoder takes {decoder.dims}"
        )
    facts = ModelFacts(
        step=checkpoint.get("step"),
        averaged=averaged,
        partition=None if run is None else authors_partition(run, decoder.backbone.timesteps, encoder.dims),
        detach=((run or {}).get("ssl_config") or {}).get("pdae_mode") == "stop_grad",
        unused=tuple(key for key, value in checkpoint.items() if key not in (*names, "step") and value),
    )
    return decoder.backbone, encoder, decoder, facts


def _state(checkpoint: Mapping[str, Any], name: str, source: Path) -> dict[str, Tensor]:
    if not isinstance(checkpoint.get(name), Mapping) or not checkpoint[name]:
        raise InputError(
            f"{source} holds {', '.join(map(str, checkpoint))}; a trained model has ema_encoder and ema_decoder, "
            "or encoder and decoder"
        )
    return {PREFIXES.sub("", key): tensor for key, tensor in checkpoint[name].items()}


# ---- Networks ---------------------------------------------------------------------------------------------


def convert_encoder(state: Mapping[str, Tensor]) -> Encoder:
    """Their 64 px or 128 px encoder, told apart by its weights."""
    for size in AUTHORS_WIDTHS:
        layers = list(encoder_layers(size))
        head = state.get(f"{layers[-1].theirs}.weight")
        if head is not None and head.ndim == 2:
            break
    else:
        raise InputError(
            f"the encoder has weights {', '.join(list(state)[:3])}...; known are the authors' convolutional "
            f"encoders for {' and '.join(map(str, AUTHORS_WIDTHS))} px"
        )
    encoder = encoder_from_description({"kind": "authors", "size": size, "dims": len(head), "frozen": False})
    source = "the authors' encoder"
    translated = translate(encoder, layers, state, partial(split_qkv, heads=ENCODER_HEADS), source)
    # Their features go into the last layer as they are: the buffers stay at mean 0 and std 1.
    load_strictly(encoder, {**dict(encoder.named_buffers()), **translated}, source)
    return encoder.eval()


def encoder_layers(size: int) -> Iterator[Layer]:
    """Their encoder is one sequence: convolution, attention at 16 px, norm, SiLU, ...; flattening, linear."""
    place, side = 0, size
    for level in range(len(AUTHORS_WIDTHS[size])):
        side //= 2
        yield Layer(f"encoder.{place}", f"trunk.convs.{level}")
        if side == 16:
            place += 1
            yield from attention_layers(f"encoder.{place}", "trunk.attention")
        yield Layer(f"encoder.{place + 1}", f"trunk.norms.{level}")
        place += 3
    yield Layer(f"encoder.{place + 1}", "head")


def convert_decoder(config: Mapping[str, Any], state: Mapping[str, Tensor], size: int) -> ShiftDecoder:
    """Their decoder: the frozen U-Net, whose shape is `denoise_fn_config`, and g."""
    own = {key: tensor for key, tensor in state.items() if key.startswith(OWN)}
    backbone = convert_unet(config, {key: tensor for key, tensor in state.items() if key not in own}, size)
    if "label_emb.weight" not in own:
        raise InputError("the decoder has no label_emb.weight; expected the decoder of a trained PDAE or DiTi")
    decoder = ShiftDecoder(backbone, own["label_emb.weight"].shape[1])
    shape = unet_shape(config)
    layers = [Layer("label_emb", "embed_z"), *up_layers(shape, "shift_")]
    source = "the authors' decoder"
    decoder.load_decoder_state(translate(decoder.own, layers, own, shape.split_qkv, source), source)
    return decoder.eval()


# ---- Settings ---------------------------------------------------------------------------------------------


def authors_partition(run: Mapping[str, Any], timesteps: int, dims: int) -> Partition:
    """The partition of a run's config.yml: none in PDAE, balanced or staged in DiTi, to the dim."""
    ssl = run.get("ssl_config") or {}
    subsets = int(ssl.get("k", 1))
    if subsets == 1 or ssl.get("no_pdae"):
        return Partition.single(timesteps, dims)
    if "k_per_stage" in ssl:
        raise InputError("ssl_config has k_per_stage: subsets of unequal time segments are not supported")
    if "dims_per_stage" not in ssl:
        return Partition.balanced(timesteps, subsets, dims)
    stages, widths = _numbers(ssl, "stages"), _numbers(ssl, "dims_per_stage")
    if (timesteps, dims, stages, widths) == (STAGE_ENDS[-1], sum(STAGE_DIMS), STAGE_ENDS, STAGE_DIMS):
        return Partition.staged(timesteps, subsets, dims)
    counts = segments_per_stage(segment_bounds(timesteps, subsets)[:-1], stages)
    ends: list[int] = []
    for stage, count in enumerate(counts):  # equal whole widths in a stage, the rest to its last segment
        before = sum(widths[:stage])
        ends += [before + widths[stage] // count * (i + 1) for i in range(count - 1)]
        ends += [before + widths[stage]] * (count > 0)
    return Partition.custom(timesteps, subsets, dims, ends=ends)


def _numbers(ssl: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A list such as 50,100,300,500,1000, which their code keeps as a string."""
    given = ssl.get(name)
    try:
        return tuple(int(part) for part in (given.split(",") if isinstance(given, str) else given or ()))
    except (TypeError, ValueError):
        raise InputError(f"ssl_config has {name} {given!r}; expected whole numbers with commas") from None


# ---- Files ------------------------------------------------------------------------------------------------


def _find_checkpoint(folder: Path) -> Path:
    if not folder.is_dir():
        raise InputError(f"no model {folder}: give the run folder or the .pt file of a trained PDAE or DiTi")
    latest = folder / "checkpoints" / "latest.pt"
    if latest.is_file():
        return latest
    found = sorted([*folder.glob("*.pt"), *(folder / "checkpoints").glob("*.pt")])
    if len(found) > 1:
        found = [path for path in found if _is_model(path)]
    if len(found) != 1:
        names = f"more than one trained model: {', '.join(p.name for p in found)}" if found else "no trained model"
        raise InputError(f"{folder} holds {names}; give the .pt file itself")
    return found[0]


def holds_model(path: Path) -> bool:
    """Whether a .pt file, or some .pt file of a folder, is a trained model rather than a bare DDPM."""
    if path.is_file():
        return path.suffix == ".pt" and _is_model(path)
    return any(_is_model(file) for file in [*path.glob("*.pt"), *path.glob("checkpoints/*.pt")])


def _is_model(path: Path) -> bool:
    content = read_pickle(path)
    return any({f"{kind}encoder", f"{kind}decoder"} <= content.keys() for kind in ("ema_", ""))


def _find_configs(folder: Path) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The run's own config, if there is one, and all settings together, with the shape of the U-Net."""
    home = folder.parent if folder.name == "checkpoints" else folder
    configs = read_configs(home).values()
    runs = [config for config in configs if "encoder_config" in config]
    shapes = [config for config in configs if "denoise_fn_config" in config]
    if len(runs) > 1 or len(shapes) > 1:
        raise InputError(f"{home} holds several configs of one kind; keep one of the run and one of its DDPM")
    run = runs[0] if runs else None
    shape = shapes[0] if shapes else read_config(_ddpm_config(home, run or {}))
    return run, {**shape, **(run or {})}


def _ddpm_config(home: Path, run: Mapping[str, Any]) -> Path:
    """Where a run's config says its DDPM's config.yml is: a path from some folder above the run."""
    named = run.get("trained_ddpm_config")
    if named:
        inner = Path(*[part for part in Path(str(named)).parts if part not in (".", "..")])
        for folder in (home, *home.resolve().parents):
            if (folder / inner).is_file():
                return folder / inner
    wanted = f"{named}, which is not found from there" if named else "no file"
    raise InputError(
        f"{home} has no .yml with denoise_fn_config, the shape of the U-Net, and its config names {wanted}: "
        "copy the DDPM's config.yml beside the run's, under another name"
    )
