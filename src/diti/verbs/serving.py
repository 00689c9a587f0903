"""The verb that opens a page to play with a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from diti.core.ranges import Range
from diti.verbs.common import ComputeOn, Name


@dataclass(frozen=True, kw_only=True)
class Serve:
    """Open the studio: a page on this machine to see and edit what a model found."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")] = "faces64-diti"
    """Model folder, shipped name or hub id; without one, photographs of people who do not exist."""
    data: Name = None  # images to choose from, best with labels; by default those the model was made from
    port: Annotated[int, *Range(1, 65_535)] = 7860  # of the address to open in the browser
    host: str = "127.0.0.1"  # address to listen on; any that others can reach needs --auth
    auth: Annotated[str | None, tyro.conf.arg(metavar="USER:PASSWORD")] = None  # ask visitors for it
    open: bool = False  # show the page in the browser at once
    device: ComputeOn = "auto"

    def run(self) -> None:
        from diti.studio.server import serve

        serve(self.model, self.data, self.host, self.port, self.auth, self.open)
