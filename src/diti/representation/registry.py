"""Which methods `diti train` knows. None is imported before it is used, so that help and errors come at once.

A method is a class in a file of `methods`, and a line in METHODS. One from elsewhere is registered, or installed
with an entry point of the group `diti.methods`; docs/adding-a-method.md shows both.
"""

from __future__ import annotations

import dataclasses
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from diti import config
from diti.config import TrainConfig
from diti.core.errors import InputError, nearest
from diti.core.settings import Settings, sections

if TYPE_CHECKING:
    from diti.representation.methods.method import Method

GROUP = "diti.methods"  # of entry points: name = "package.module:Class"
ROOM = "diti.representation.methods"
AnyMethod = TypeVar("AnyMethod", bound="type[Method]")


class Listed(NamedTuple):
    """What is known about a method without importing it."""

    name: str  # on the command line and in model.json
    title: str  # in tables, such as DiTi
    about: str  # one line for --help
    where: type[Method] | str  # its class, or module:Class


_BUILT_IN = (
    Listed("diti", "DiTi", "the code in parts, each for a stretch of time-steps", f"{ROOM}.diti:DiTiMethod"),
    Listed("pdae", "PDAE", "the code as a whole: diti with one part", f"{ROOM}.diti:PDAEMethod"),
    Listed("diffae", "Diff-AE", "code and diffusion model learned together", f"{ROOM}.diffae:DiffAEMethod"),
    Listed("simclr", "SimCLR", "two views of an image are told apart from other images; no decoder",
           f"{ROOM}.simclr:SimCLRMethod"),
    Listed("tcvae", "β-TCVAE", "a VAE whose dims say little about each other", f"{ROOM}.tcvae:TCVAEMethod"),
    Listed("ibgan", "IB-GAN", "a GAN whose code can be read from the image, through a bottleneck",
           f"{ROOM}.ibgan:IBGANMethod"),
)  # fmt: skip
METHODS: dict[str, Listed] = {method.name: method for method in _BUILT_IN}


def listed(name: str) -> tuple[str, str, str]:
    """Name, title and about of a method of the package, for its class."""
    return METHODS[name][:3]


def register(method: AnyMethod) -> AnyMethod:
    """Make a subclass of `Method` known under its name, which must be new; also as a decorator of the class."""
    if not _is_method(method):
        raise InputError(f"register takes a subclass of diti.Method and got {method!r}")
    if missing := [word for word in ("name", "title", "about", "build") if _lacks(method, word)]:
        raise InputError(f"the method {method.__name__} has no {missing[0]}; give its class one")
    if method.name in METHODS:
        raise InputError(f"a method {method.name!r} is already registered; choose another name")
    _check_settings(method)
    METHODS[method.name] = Listed(method.name, method.title, method.about, method)
    return method


def _is_method(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, _located(f"{ROOM}.method:Method"))


def _lacks(method: type[Method], word: str) -> bool:
    return not hasattr(method, word) or word in method.__abstractmethods__


def _located(where: str) -> Any:
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


def _check_settings(method: type[Method]) -> None:
    """InputError for settings of its own that could not be told from others, or could not be left out."""
    kind = method.Settings
    if not (isinstance(kind, type) and issubclass(kind, Settings) and "__dataclass_fields__" in vars(kind)):
        raise InputError(f"Settings of {method.name} must be a frozen dataclass made from diti.Settings")
    names = {item.name: item for item in dataclasses.fields(kind)}
    nothing = dataclasses.MISSING
    if bare := [name for name, item in names.items() if item.default is item.default_factory is nothing]:
        raise InputError(f"the setting {bare[0]!r} of {method.name} has no default; give it one")
    if taken := sorted({"own", *sections(TrainConfig())} & names.keys()):
        raise InputError(f"the setting {taken[0]!r} of {method.name} is also one of diti train; rename it")


def known_methods() -> dict[str, str]:
    """Name → what it is, of all methods that can be named: registered here or installed."""
    installed = {point.name: f"from {point.value}" for point in entry_points(group=GROUP)}
    return installed | {name: method.about for name, method in METHODS.items()}


def find_method(name: str) -> Method:
    """The method of that name."""
    if (found := look_up(name)) is None:
        known = known_methods()
        raise InputError(
            f"method {name!r} is unknown; use {', '.join(known)}, or import the file that registers yours first "
            f"(docs/adding-a-method.md).{nearest(name, known)}"
        )
    return found


def look_up(name: str) -> Method | None:
    """The method of that name, which may have been installed; None where it is unknown."""
    for point in entry_points(group=GROUP, name=name) if name not in METHODS else ():
        found = point.load()
        if not _is_method(found) or found.name != name:
            raise InputError(f"the entry point {name} = {point.value} must name a Method called {name!r}")
        if name not in METHODS:  # its file may have registered it on import
            register(found)
    if name not in METHODS:
        return None
    where = METHODS[name].where
    kind: type[Method] = _located(where) if isinstance(where, str) else where
    return kind()


def title_of(name: str) -> str:
    """A method's name in tables; one that is not known here keeps its own."""
    if name in METHODS:
        return METHODS[name].title
    return found.title if (found := look_up(name)) else name


def loss_of(name: str) -> str:
    """What a method's training loss is; a method that does not say has a loss of its own."""
    found = look_up(name)
    return (found and found.loss) or f"training loss of {title_of(name)}"


def decoding_methods() -> list[str]:
    """Names of the methods whose models have a decoder."""
    return [name for name in METHODS if find_method(name).decodes]


def fitted(settings: TrainConfig, method: str) -> TrainConfig:
    """The settings for that method, with its own ones at their defaults unless they are already there."""
    kind = Settings  # those of the package's methods stand in TrainConfig, so that help can tell them
    if (method not in METHODS or not isinstance(METHODS[method].where, str)) and (found := look_up(method)):
        kind = found.Settings
    own = settings.own if type(settings.own) is kind else kind()
    return dataclasses.replace(settings, method=method, own=own)


config.FITTED_BY.append(fitted)
