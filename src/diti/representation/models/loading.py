"""From a folder to the model in it: `model.json` names the method, which reads the rest."""

from __future__ import annotations

from pathlib import Path

import torch

from diti.core.device import AUTO, Device, decide
from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.files import locate, read_settings
from diti.representation.models.axes import AXES, read_axes
from diti.representation.models.axis_names import read_names
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.diffusion import load_diti
from diti.representation.models.model import Model, read_metric, require_known_format, require_parts
from diti.representation.registry import find_method


def load(source: str | Path, device: Device = AUTO, *, backbone: Backbone | None = None) -> Model:
    """A model from a folder, the name of a shipped one, or a hub id; strictly all of it.

    device: where it is put, and where it gives its tensors, such as "cuda:1"; by default a GPU where torch finds
    one, or what DITI_DEVICE names. backbone: what the model was solved with, where that was made in Python.

    z = diti.load("faces64-diti").encode(images)
    model = diti.load("faces64-diti").with_decoder()  # a `DecodingModel`, for type checkers too
    """
    folder = locate(source)
    require_parts(folder, ("model.json",))
    facts = read_settings(folder / "model.json")
    require_known_format(folder / "model.json", facts)
    name = str(facts.get("method"))
    try:
        method = find_method(name)
    except InputError as error:
        raise InputError(f"{folder / 'model.json'}: {error}") from None
    if backbone is not None and not method.needs_backbone:
        raise InputError(f"{folder} holds a {name} model, which has no frozen diffusion model; leave backbone out")
    model = method.load(folder) if backbone is None else load_diti(folder, backbone)
    model.axis_names = read_names(folder, model.dims)
    model.metric = read_metric(folder)
    model.axes = read_axes(folder / AXES, model.partition)
    return model.to(device)


def device_of(given: object, device: Device = AUTO) -> torch.device:
    """Where to compute with what the caller gives: where that is, unless another device is asked for."""
    return given.device if isinstance(given, Model | Backbone) and str(device) == AUTO else decide(device)


def as_model(given: Model | str | Path, device: Device = AUTO) -> Model:
    """A given model, which stays where it is unless another device is asked for, or the model of that name."""
    return given.to(device_of(given, device)) if isinstance(given, Model) else load(given, device)


def as_backbone(given: Backbone | Model | str | Path, device: Device = AUTO) -> Backbone:
    """The backbone that the caller gives, likewise: itself, by its name, or with a model."""
    if isinstance(given, Model):
        return as_model(given, device).with_backbone().backbone
    return given.to(device_of(given, device)) if isinstance(given, Backbone) else load_backbone(given, device)


def backbone_name(given: Backbone | Model | str | Path) -> str:
    """For the settings of a run."""
    if isinstance(given, Backbone | Model):
        return "given in Python"
    if not isinstance(given, str | Path):
        locate(given)  # which says what may be given
    return str(given)


def load_with_decoder(source: str | Path, device: Device = AUTO) -> DecodingModel:
    """`load` for what needs a decoder; InputError at once for a model without one."""
    return load(source, device).with_decoder()
