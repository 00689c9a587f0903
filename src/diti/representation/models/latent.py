"""The latent of a model folder: read strictly, only if it was made for this encoder; and how to get one."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

import torch

from diti.core.errors import InputError
from diti.core.runs import sha256_file
from diti.core.settings import from_mapping
from diti.data.sources import data_of_run
from diti.diffusion.files import complaints_about, load_strictly, may_keep
from diti.diffusion.schedule import Schedule
from diti.representation.networks.latent import FOLDER, Latent, LatentShape, new_latent
from diti.representation.networks.network_files import WEIGHTS, read_network


def encoder_file_hash(model_folder: Path) -> str:
    """Tells whether a latent was made for the codes of this model's encoder."""
    return sha256_file(model_folder / "encoder" / WEIGHTS)


def how_to_make(folder: Path) -> str:
    """The command that makes the latent of a model folder, or in words what is needed for it."""
    if not may_keep(folder):
        return (
            f"diti train-latent on a copy of {folder}, which is read-only or ships with diti, with --data "
            "naming the images it was made from"
        )
    if (data := data_of_run(folder)) is None:
        return f"diti train-latent {folder} --data DATA, DATA being the images it was made from"
    return shlex.join(["diti", "train-latent", str(folder), "--data", data])


def load_latent(model_folder: str | Path) -> Latent:
    """The latent in a model folder, strictly every setting and weight, and only if it is for this encoder."""
    model_folder = Path(model_folder)
    folder = model_folder / FOLDER
    remedy = f"make one with {how_to_make(model_folder)}"
    if not (folder / "config.json").is_file():
        raise InputError(f"{model_folder} has no finished {FOLDER}/, from which new codes are drawn; {remedy}")
    settings, state = read_network(folder)
    source = str(folder / "config.json")
    names = {field.name for field in fields(LatentShape)}
    if wrong := sorted(names ^ settings.keys()):
        raise InputError(f"{source} must hold {', '.join(sorted(names))} and no others; check {', '.join(wrong)}")
    shape = from_mapping(LatentShape(), settings, source)
    if shape.encoder != encoder_file_hash(model_folder):
        raise InputError(f"{folder} was made for an encoder other than this model's; remove it and {remedy}")
    with complaints_about(folder / "config.json"):
        latent = new_latent(shape, torch.zeros(shape.dims), torch.ones(shape.dims), seed=0)
        Schedule.linear(shape.timesteps, shape.beta_start, shape.beta_end)
    load_strictly(latent, state, str(folder))
    return latent.eval()
