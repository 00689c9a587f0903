"""The methods that `diti train` knows: they differ in what stands here, and share everything else.

A method is one file, as beside this one, and one line in METHODS. One from elsewhere is registered, or installed
with an entry point of the group `diti.methods`; docs/adding-a-method.md shows both. Nothing heavy is imported
before a method is used, so that help and complaints come at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diti.config import WITHOUT_EFFECT, TrainConfig
from diti.core.errors import InputError, nearest

if TYPE_CHECKING:
    from torch import Tensor

    from diti.data.prepared import Dataset
    from diti.diffusion.backbone import Backbone
    from diti.representation.methods.base import EncoderObjective
    from diti.representation.models.model import Model

GROUP = "diti.methods"  # of entry points: name = "package.module:METHOD"
ROOM = "diti.representation.methods"
MODELS = "diti.representation.models"


@dataclass(frozen=True)
class Findings:
    """What is known about a model after its training."""

    facts: dict[str, Any] = field(default_factory=dict)  # for checks.json
    sentences: tuple[str, ...] = ()  # the same for people
    pictures: dict[str, str] = field(default_factory=dict)  # file in the model folder → what it shows


def later(module: str, name: str) -> Callable[..., Any]:
    """A function from a file that is imported when it is called."""
    return lambda *given: getattr(import_module(module), name)(*given)


def in_file(module: str, *names: str) -> dict[str, Any]:
    """Functions of these names from such a file."""
    return {name: later(module, name) for name in names}


_USUAL = in_file(f"{ROOM}.base", "evaluate", "model", "assess", "validate")
_LOAD_USUAL = later(f"{MODELS}.model", "load_encode_only")


@dataclass(frozen=True, kw_only=True)
class Method:
    """What differs between methods. All but `build` have a default, which fits a model that only encodes.

    diti.register(diti.Method(name="mine", title="Mine", about="one line for --help", build=build))
    """

    name: str  # on the command line and in model.json
    title: str  # in tables, such as DiTi
    about: str  # one line for --help
    loss: str = ""  # what its training loss is, for the axis of a figure; methods with equal words are comparable
    build: Callable[[TrainConfig, Backbone | None, Dataset], EncoderObjective]  # before the first step
    evaluate: Callable[[Any, Dataset], dict[str, Any]] = _USUAL["evaluate"]  # a line of the log, from time to time
    model: Callable[[Any, TrainConfig, Tensor, Tensor], Model] = _USUAL["model"]  # with mean and std (D,) of z
    assess: Callable[[Any, Dataset, Path], Findings] = _USUAL["assess"]  # of the model, pictures into the folder
    load: Callable[[Path], Model] = _LOAD_USUAL  # what the model's `save` wrote
    validate: Callable[[TrainConfig, Backbone | int], None] = _USUAL["validate"]  # what cannot be built, early
    needs_backbone: bool = False  # even when its encoder does not
    decodes: bool = False  # its models have a decoder: interpolate, manipulate, ... work

    def wants_backbone(self, config: TrainConfig) -> bool:
        """Whether these settings need a frozen diffusion model."""
        return self.needs_backbone or config.code.encoder == "backbone"


def _all_in(name: str) -> dict[str, Any]:
    return in_file(f"{ROOM}.{name}", "build", "evaluate", "model", "assess", "validate")


# Loaders stand beside the models: reading one imports no file of a method.
_LOAD_DITI = later(f"{MODELS}.diffusion", "load_diti")
_LOAD_DIFFAE = later(f"{MODELS}.diffae", "load_diffae")
_LOAD_TCVAE = later(f"{MODELS}.direct", "load_tcvae")
_LOAD_IBGAN = later(f"{MODELS}.direct", "load_ibgan")
_DITI = _all_in("diti") | {
    "load": _LOAD_DITI, "needs_backbone": True, "decodes": True, "loss": "λ-weighted loss of eq. 6"
}  # fmt: skip
_BUILT_IN = (
    Method(name="diti", title="DiTi", about="the code in parts, each for a stretch of time-steps", **_DITI),
    Method(name="pdae", title="PDAE", about="the code as a whole: diti with one part", **_DITI),
    Method(name="diffae", title="Diff-AE", about="code and diffusion model learned together", decodes=True,
           loss="squared error of what the U-Net predicts", load=_LOAD_DIFFAE, **_all_in("diffae")),
    Method(name="simclr", title="SimCLR", about="two views of an image are told from other images; no decoder",
           loss="cross-entropy of finding the other view",
           **in_file(f"{ROOM}.simclr", "build", "evaluate", "validate")),
    Method(name="tcvae", title="β-TCVAE", about="a VAE whose dims say little about each other", decodes=True,
           loss="pixel error and weighted KL, nats per pixel value", load=_LOAD_TCVAE,
           **in_file(f"{ROOM}.tcvae", "build", "model", "assess", "validate")),
    Method(name="ibgan", title="IB-GAN", about="a GAN whose code is told from the image, through a bottleneck",
           loss="sum of generator, discriminator and information", decodes=True, load=_LOAD_IBGAN,
           **_all_in("ibgan")),
)  # fmt: skip
METHODS: dict[str, Method] = {method.name: method for method in _BUILT_IN}
_CUTS = ("subsets", "partition", "detach")  # settings of DiTi, without effect on the other methods
_SECTIONS = {"views": "simclr", "vae": "tcvae", "gan": "ibgan"}  # sections of settings of one method


def register(method: Method) -> Method:
    """Make a method known under its name, which must be new."""
    if method.name in METHODS:
        raise InputError(f"a method {method.name!r} is registered already; choose another name")
    METHODS[method.name] = method
    return method


def known_methods() -> dict[str, str]:
    """Name → what it is, of all methods that can be named: registered here or installed."""
    installed = {point.name: f"from {point.value}" for point in entry_points(group=GROUP)}
    return installed | {name: method.about for name, method in METHODS.items()}


def find_method(name: str) -> Method:
    """The method of that name."""
    for point in entry_points(group=GROUP, name=name) if name not in METHODS else ():
        found = point.load()
        if not isinstance(found, Method) or found.name != name:
            raise InputError(f"the entry point {name} = {point.value} must name a Method called {name!r}")
        METHODS.setdefault(name, found)  # its file may have registered it on import
    if name not in METHODS:
        known = known_methods()
        raise InputError(
            f"method {name!r} is unknown; use {', '.join(known)}, or import the file that registers yours first "
            f"(docs/adding-a-method.md).{nearest(name, known)}"
        )
    return METHODS[name]


def idle_settings(method: str) -> list[str]:
    """Settings and sections of settings that change nothing of what a method computes."""
    cuts = [] if method == "diti" else list(_CUTS)
    if method not in {built_in.name for built_in in _BUILT_IN}:
        return cuts  # one from elsewhere may use what it likes of the rest
    cuts += [] if method in ("diti", "pdae") else ["solution"]
    return cuts + [section for section, owner in _SECTIONS.items() if owner != method]


def effective(config: TrainConfig) -> TrainConfig:
    """The settings with all that change nothing of the result at their defaults: equal ones compute the same."""
    plain = TrainConfig()
    told: dict[str, Any] = {name: getattr(plain.training, name) for name in WITHOUT_EFFECT}
    idle: dict[str, Any] = {name: getattr(plain, name) for name in idle_settings(config.method)}
    return dataclasses.replace(config, training=dataclasses.replace(config.training, **told), **idle)


def title_of(name: str) -> str:
    """A method's name in tables; one that is not known here keeps its own."""
    return find_method(name).title if name in known_methods() else name


def loss_of(name: str) -> str:
    """What a method's training loss is; of one that does not say, that it is its own."""
    known = find_method(name).loss if name in known_methods() else ""
    return known or f"training loss of {title_of(name)}"


def decoding_methods() -> list[str]:
    """Names of the methods whose models have a decoder."""
    return [name for name, method in METHODS.items() if method.decodes]
