"""The verbs: each is a record of its options with a `run` that calls one function of the package.

Heavy imports happen inside `run`, so that help and errors come at once.
"""

from __future__ import annotations

from typing import Any

from diti.verbs.editing import Interpolate, Manipulate, Mix, Sample, TrainLatent, Vary
from diti.verbs.exploring import Explore, NameAxis, Search
from diti.verbs.making import Convert, Demo, Export, Prepare, Presets, Pretrain, Solve, Train
from diti.verbs.measuring import Analyze, Counterfactuals, Encode, Label, Probe, Report
from diti.verbs.serving import Serve
from diti.verbs.sweeping import Sweep

VERBS: dict[str, Any] = {
    "demo": Demo,
    "prepare": Prepare,
    "pretrain": Pretrain,
    "solve": Solve,
    "train": Train,
    "explore": Explore,
    "name": NameAxis,
    "search": Search,
    "serve": Serve,
    "encode": Encode,
    "probe": Probe,
    "analyze": Analyze,
    "counterfactuals": Counterfactuals,
    "report": Report,
    "sweep": Sweep,
    "interpolate": Interpolate,
    "mix": Mix,
    "manipulate": Manipulate,
    "sample": Sample,
    "vary": Vary,
    "train-latent": TrainLatent,
    "label": Label,
    "convert": Convert,
    "export": Export,
    "presets": Presets,
}
