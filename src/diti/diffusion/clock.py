"""How a network from elsewhere counts its time and scales x_t, mapped to one table of variance-preserving steps.

Whatever mix a x0 + s noise a network was trained on, divided by sqrt(a² + s²) it is variance-preserving with
abar = a² / (a² + s²). So a table of T steps, each with the factor that undoes the division and the time that the
network is told, lets it take part everywhere. Notation: T steps, sigma = s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.diffusion.schedule import OUTPUTS, Schedule, require_one_of

FLOW, EDM = "flow", "edm"
STEPS = 1000  # of the table of a model whose time is continuous
TOLD = 1000.0  # what diffusers' flow models are told at pure noise
SIGMAS = (0.002, 80.0)  # least and most noise of EDM (Karras et al. 2022)
RHO = 7.0  # of EDM's even spacing in sigma^(1/rho)

Scheduled: TypeAlias = "Clock | str | Tensor | Sequence[float] | Any"


@dataclass(frozen=True, eq=False)
class Clock:
    """A schedule, and what the network takes in place of (x_t, t): (scale_t x_t, time_t)."""

    schedule: Schedule
    time: Tensor  # (T,) what the network is told: int64, or float32
    scale: Tensor  # (T,) float64

    @classmethod
    def of_betas(cls, schedule: Schedule) -> Clock:
        """A discrete model, which is told t itself."""
        return cls(schedule, torch.arange(schedule.timesteps), torch.ones(schedule.timesteps, dtype=torch.float64))

    @classmethod
    def of_mix(cls, a: Tensor, s: Tensor, time: Tensor) -> Clock:
        """A model of a x0 + s noise, (T,) each, s / a rising."""
        if not (a.ndim == 1 and len(a) and a.shape == s.shape == time.shape):
            shapes = ", ".join(str(tuple(one.shape)) for one in (a, s, time))
            raise InputError(f"a, s and time have the shapes {shapes}; give (T,) each, of at least one step")
        share = s.double() / a.double()
        if not bool((share.diff(prepend=share.new_zeros(1)) > 0).all()):
            raise InputError(
                f"s / a goes from {share[0]:g} to {share[-1]:g}: it must rise at every step, from above 0"
            )
        square = a.double().square() + s.double().square()
        schedule = Schedule.from_alpha_bar(a.double().square() / square)
        return cls(schedule, time, square.sqrt())

    @classmethod
    def flow(cls, steps: int = STEPS, shift: float = 1.0, told: float = TOLD) -> Clock:
        """A rectified flow (1 - sigma) x0 + sigma noise, told sigma times `told`.

        shift: more steps at high noise, sigma = shift s / (1 + (shift - 1) s) of even s (Esser et al. 2024).
        """
        even = torch.arange(1, steps + 1, dtype=torch.float64) / steps
        sigma = shift * even / (1 + (shift - 1) * even)
        return cls.of_mix(1 - sigma, sigma, (told * sigma).float())

    @classmethod
    def edm(cls, steps: int = STEPS, sigmas: tuple[float, float] = SIGMAS) -> Clock:
        """Variance-exploding x0 + sigma noise, told sigma: EDM's steps, even in sigma^(1/7)."""
        low, high = (sigma ** (1 / RHO) for sigma in sigmas)
        sigma = torch.linspace(low, high, steps, dtype=torch.float64) ** RHO
        return cls.of_mix(torch.ones_like(sigma), sigma, sigma.float())

    @classmethod
    def of(cls, given: Scheduled) -> Clock:
        """Of whatever says a schedule: a name, betas (T,), a diffusers scheduler, or a clock itself."""
        if isinstance(given, Clock):
            return given
        if isinstance(given, Schedule):
            return cls.of_betas(given)
        if isinstance(given, str):
            named = {
                "linear": lambda: cls.of_betas(Schedule.linear()),
                "cosine": lambda: cls.of_betas(Schedule.cosine()),
                FLOW: cls.flow,
                EDM: cls.edm,
            }
            return named[require_one_of("schedule", given, tuple(named))]()
        if hasattr(given, "config"):
            return cls.of_scheduler(given)[0]
        try:
            return cls.of_betas(Schedule.from_betas(given))
        except InputError:
            raise  # it says what is wrong with the betas
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"the schedule is {type(given).__name__}; give linear, cosine, flow, edm, betas (T,), a scheduler "
                "of diffusers, or a diti.Clock"
            ) from error

    @classmethod
    def of_scheduler(cls, scheduler: Any, patches: int = 0) -> tuple[Clock, str]:
        """Of a diffusers scheduler, and what its network predicts.

        patches: tokens of an image, by which a scheduler with dynamic shifting chooses its shift.
        """
        config: Mapping[str, Any] = scheduler.config
        if type(scheduler).__name__.startswith("FlowMatch"):
            return cls.flow(int(config["num_train_timesteps"]), flow_shift(config, patches)), FLOW
        kind = config.get("prediction_type", "epsilon")
        require_one_of("the scheduler's prediction_type", kind, OUTPUTS)
        return cls.of_betas(Schedule.from_scheduler(scheduler)), kind

    @property
    def timesteps(self) -> int:
        """T."""
        return self.schedule.timesteps

    def told(self, t: Tensor) -> Tensor:
        """(B,) what the network is told at rows t (B,)."""
        return self.time.to(t.device)[t]

    def state(self) -> dict[str, Tensor]:
        """Everything that decides, by name."""
        return {"betas": self.schedule.betas, "time": self.time, "scale": self.scale}


def flow_shift(config: Mapping[str, Any], patches: int) -> float:
    """The shift of a flow scheduler: its own, or e^mu with mu linear in the number of patches (Flux)."""
    if not config.get("use_dynamic_shifting"):
        return float(config.get("shift", 1.0))
    few, many = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", 1.15)
    return math.exp(low + (high - low) * (patches - few) / (many - few))
