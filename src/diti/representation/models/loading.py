"""From a folder to the model in it: `model.json` names the method, whose entry in the registry reads the rest."""

from __future__ import annotations

from pathlib import Path

from diti.core.errors import InputError
from diti.diffusion.files import locate, read_settings
from diti.representation.methods.registry import find_method
from diti.representation.models.axis_names import read_names
from diti.representation.models.decoding import DecodingModel
from diti.representation.models.model import Model, require_parts


def load(source: str | Path) -> Model:
    """A model from a folder, the name of a shipped one, or a hub id; strictly all of it.

    z = diti.load("toyfaces32-diti").encode(images)
    """
    folder = locate(source)
    require_parts(folder, ("model.json",))
    name = str(read_settings(folder / "model.json").get("method"))
    try:
        method = find_method(name)
    except InputError as error:
        raise InputError(f"{folder / 'model.json'}: {error}") from None
    model = method.load(folder)
    model.axis_names = read_names(folder, model.dims)
    return model


def load_with_decoder(source: str | Path) -> DecodingModel:
    """`load` for what needs a decoder; InputError at once for a model without."""
    return load(source).with_decoder()
