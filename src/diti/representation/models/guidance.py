"""How z guides the steps of a decoder: what every model is asked, and what only some can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from diti.core.errors import InputError, nearest

Weight = Literal["trained", "authors"]  # w_t of g: as in training, or the authors' sampler's √(1 - ᾱ_t)


@dataclass(frozen=True, kw_only=True)
class Guidance:
    """Of a decoder that takes many steps. One without masks, without w_t or without ε_θ has no use for these."""

    masked: bool = True  # z is masked by the subset of the current t, as in training
    weight: Weight = "trained"
    stop_below: int = 0  # ε_θ alone, without z, at t below it

    def __post_init__(self) -> None:
        allowed = get_args(Weight)
        if self.weight not in allowed:
            hint = nearest(str(self.weight), allowed)
            raise InputError(f"guidance is {self.weight!r}; allowed: {', '.join(allowed)}.{hint}")
        if self.stop_below < 0:
            raise InputError(f"stop_below is {self.stop_below}; give a time-step, 0 or more")

    def check_without_frozen_model(self, method: str) -> None:
        """InputError for what only a decoder over a frozen diffusion model can do, where the method has none."""
        if self.stop_below > 0:
            raise InputError(
                f"stop_below is {self.stop_below}: below that t a frozen model predicts without z, and a {method} "
                "model has none; use 0, or a diti or pdae model"
            )
        if self.weight != "trained":
            raise InputError(
                f"guidance is {self.weight!r}: it weighs what z adds to a frozen model, and a {method} model has "
                "none; use 'trained', or a diti or pdae model"
            )


AS_TRAINED = Guidance()
