"""`diti name`: give an axis of z a name that every command and page will use."""

from __future__ import annotations

from diti.core.errors import InputError
from diti.diffusion.files import locate, may_keep
from diti.representation.models.axis_names import with_name, write_names
from diti.representation.models.loading import load


def name_axis(source: str, axis: int, name: str, negative: str = "") -> str:
    """Keep the name in the model folder; returns the feature's name from now on."""
    model, folder = load(source), locate(source)
    names = with_name(model.axis_names, model.dims, axis, name, negative)
    if not may_keep(folder):
        raise InputError(f"{source} cannot be changed: it is read-only or ships with diti; use a copy of it")
    write_names(folder, names)
    model.axis_names = names
    return model.feature_names()[axis]
