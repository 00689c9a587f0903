"""From a folder to the model in it: `model.json` names the method, which reads the rest."""

from __future__ import annotations

from pathlib import Path

from diti.core.errors import InputError
from diti.diffusion.backbone import Backbone, load_backbone
from diti.diffusion.files import locate, read_settings
from diti.representation.models.axes import AXES, read_axes
from diti.representation.models.axis_names import read_names
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.model import Model, read_metric, require_known_format, require_parts
from diti.representation.registry import find_method


def load(source: str | Path) -> Model:
    """A model from a folder, the name of a shipped one, or a hub id; strictly all of it.

    z = diti.load("toyfaces32-diti").encode(images)
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
    model = method.load(folder)
    model.axis_names = read_names(folder, model.dims)
    model.metric = read_metric(folder)
    model.axes = read_axes(folder / AXES, model.partition)
    return model


def as_model(given: Model | str | Path) -> Model:
    """A model as it is, or the one that a name stands for."""
    return given if isinstance(given, Model) else load(given)


def as_backbone(given: Backbone | Model | str | Path) -> Backbone:
    """The backbone that somebody gives: itself, by its name, or with a model."""
    if isinstance(given, Backbone):
        return given
    return given.backbone if isinstance(given, Model) else load_backbone(given)


def backbone_name(given: Backbone | Model | str | Path) -> str:
    """For the settings of a run."""
    if isinstance(given, Backbone | Model):
        return "given in Python"
    if not isinstance(given, str | Path):
        locate(given)  # which says what may be given
    return str(given)


def load_with_decoder(source: str | Path) -> DecodingModel:
    """`load` for what needs a decoder; InputError at once for a model without one."""
    return load(source).with_decoder()
