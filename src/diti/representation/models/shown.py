"""A model as a notebook shows it: what it is, how its code is cut, and the axes that have names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from diti.core.errors import InputError
from diti.core.html import card, coloured_strip, folded, shortened
from diti.representation.methods.registry import title_of
from diti.representation.models.axis_names import AxisName
from diti.representation.partition import Partition

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
    subsets = (_strip(cut), folded("subsets", cut.describe().splitlines()[1:])) if cut.subsets > 1 else ()
    return card(f"{title_of(model.method)} model", facts, *subsets)


def _decoding(model: Model) -> str:
    """Whether a code can be drawn, and from what else."""
    try:
        able = model.with_decoder()
    except InputError:
        return "no: it encodes only"
    return "yes, from a code and noise" if able.has_noise else "yes, from a code alone"


def _names(names: Mapping[int, AxisName]) -> list[str]:
    return [
        f"{axis} {given.name}{f' ↔ {given.negative}' if given.negative else ''}"
        for axis, given in sorted(names.items())
    ]


def _strip(cut: Partition) -> str:
    """The subsets from fine to coarse: as wide as their dims, each with the time-step from which it is visible."""
    subsets = range(cut.subsets)
    owned, starts = [cut.dims_of(k) for k in subsets], [cut.time_range(k)[0] for k in subsets]
    notes = [f"subset {k} ({cut.third(k)}): {len(owned[k])} dims, seen from t {starts[k]} on" for k in subsets]
    labels = [f"t {start}" for start in starts]
    return coloured_strip([len(dims) for dims in owned], labels, notes, ("fine", "coarse"))
