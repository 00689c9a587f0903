"""`diti name`: give an axis or a dim of z a name that every command and page will use."""

from __future__ import annotations

from diti.core.errors import InputError
from diti.diffusion.files import locate, may_keep
from diti.representation.found_axes import axes_of
from diti.representation.models.axes import AXES, write_axes
from diti.representation.models.axis_names import Key, key_label, with_name, write_names
from diti.representation.models.loading import load


def name_axis(source: str, axis: Key, name: str, negative: str = "") -> str:
    """Keep the name in the model folder; returns what the axis, or the feature, is called from now on.

    A named axis must stay what it is: axes that were kept elsewhere move into the folder.
    """
    model, folder = load(source), locate(source)
    count = len(axes_of(model)) if isinstance(axis, str) else 0
    names = with_name(model.axis_names, model.dims, axis, name, negative, count)
    if not may_keep(folder):
        raise InputError(f"{source} cannot be changed: it is read-only or ships with diti; use a copy of it")
    if isinstance(axis, str) and model.axes is not None and not (folder / AXES).is_file():
        write_axes(model.axes, folder / AXES)
    write_names(folder, names)
    model.axis_names = names
    return f"{key_label(axis)}_{name}" if isinstance(axis, str) else model.feature_names()[axis]
