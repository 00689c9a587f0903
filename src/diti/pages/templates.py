"""Templates are kept beside the code that fills them. Values are escaped; a missing value is an error."""

from __future__ import annotations

import base64
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment, Template


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # late: most commands show no HTML

    return Environment(
        loader=PackageLoader("diti", ""), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip


def template(name: str) -> Template:
    """By its path in the package, such as pages/page.html.jinja."""
    return _environment().get_template(name)


def macros(name: str, **functions: Any) -> Any:
    """The macros of a template, to be called from Python; functions: what they may call in turn."""
    return _environment().get_template(name, globals=functions).module


def data_url(content: bytes, kind: str = "image/png") -> str:
    """A file as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
