"""A model as a notebook shows it: what it is, how its code is cut, and the axes that have names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from diti.core.errors import InputError
from diti.pages.notebook import card, shortened
from diti.representation.models.axis_names import AxisName, Key, in_order, key_label
from diti.representation.partition import Partition
from diti.representation.registry import title_of

if TYPE_CHECKING:
    from diti.representation.models.model import Model

MOST_NAMES = 24  # more are counted, not listed


def model_html(model: Model) -> str:
    """One small box; nothing is computed for it."""
    cut = model.partition
    facts = {
        "images": f"{model.size} px" if len(model.encoder.taken) == 3 else "given as features of another network",
        "code": f"{model.dims} dims" + (f" in {cut.subsets} subsets ({cut.kind})" if cut.subsets > 1 else ""),
        "decodes": _decoding(model),
        "mean and std": "not known" if model.mean is None else "",
        "named axes": ", ".join(shortened(_names(model.axis_names), MOST_NAMES)),
    }
    title = f"{title_of(model.method)} model"
    if cut.subsets == 1:
        return card(title, facts)
    return card(title, facts, strip=_strip(cut), folded="subsets", lines=cut.describe().splitlines()[1:])


def _decoding(model: Model) -> str:
    """Whether a code can be drawn, and from what else."""
    try:
        able = model.with_decoder()
    except InputError:
        return "no: it encodes only"
    return "yes, from a code and noise" if able.has_noise else "yes, from a code alone"


def _names(names: Mapping[Key, AxisName]) -> list[str]:
    listed = ((key if isinstance(key, int) else key_label(key), names[key]) for key in in_order(names))
    return [f"{key} {given.name}{f' ↔ {given.negative}' if given.negative else ''}" for key, given in listed]


def _strip(cut: Partition) -> list[tuple[int, str, str]]:
    """The subsets from fine to coarse: as wide as their dims, each with the time-step from which it is visible."""
    parts = []
    for subset in range(cut.subsets):
        dims, start = len(cut.dims_of(subset)), cut.time_range(subset)[0]
        note = f"subset {subset} ({cut.third(subset)}): {dims} dims, seen from t {start} on"
        parts.append((dims, f"t {start}", note))
    return parts
