"""Sampling and inversion as free functions of a denoiser `eps_fn(x, t)`, so a closed-form one can test them.

Time-steps are code time-steps, 0..T-1. Descending steps generate (noise to image), ascending steps invert
(image to noise); both spend exactly one network call per step unless `start` or `end` say otherwise.
Coefficients are computed in float64, images keep their own dtype.

The loops are plain code: diffusers' samplers give the same images, but its inverse schedulers evaluate the
network at the step where a move ends, which the image has not reached, and cannot walk an arbitrary list of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from diti.core.device import on_host, sent
from diti.core.errors import InputError
from diti.diffusion.schedule import (
    Schedule,
    eps_from_x0,
    posterior_mean_x0,
    posterior_variance,
    q_sample,
    require_one_of,
    x0_from_eps,
)

EpsFn = Callable[[Tensor, Tensor], Tensor]  # (x (B,C,H,W), t (B,) int64) -> noise (B,C,H,W)
OnStep = Callable[[int, int, Tensor], None]  # (index of the finished call 0.., number of calls, x)

SPACINGS = ("mixed", "uniform", "logsnr")
LOWEST_LOG_SNR = -5.1  # half log-SNR of nearly pure noise: many steps below it gain nothing


class Move(NamedTuple):
    """One network call: evaluate at step t, then take x from abar `source` to abar `target`."""

    t: int
    source: Tensor  # 0-d float64, like the next
    target: Tensor


def timesteps(schedule: Schedule, sampling_steps: int, spacing: str = "mixed") -> list[int]:
    """`sampling_steps` descending time-steps from the last one, T - 1, to 0; reverse the list to invert.

    uniform: even in t.  logsnr: even in log(abar / (1 - abar)).  mixed: even in the mean of the two, each scaled
    to 0..1. For round trips with the second-order solver, logsnr is best on a Gaussian, mixed on most mixtures.
    Where the terminal SNR is zero the list starts one step lower: pure noise holds no trace of x0.
    """
    scale = time_scale(schedule, spacing)
    last = len(scale) - 1
    if not 1 <= sampling_steps <= last + 1:
        raise InputError(f"--sampling-steps is {sampling_steps}; the schedule allows 1 to {last + 1}")
    even = np.linspace(1, 0, sampling_steps)[::-1]
    order = np.arange(sampling_steps)
    rounded = np.interp(even, scale, np.arange(last + 1)).round().astype(int)
    # Where the scale is finer than the integers, shift steps so that each is used once.
    distinct = order + np.maximum.accumulate(rounded - order)
    ascending = np.minimum(distinct, last - order[::-1])
    return [int(t) for t in ascending[::-1]]


def _usable(schedule: Schedule) -> int:
    """Number of steps from which x0 can be recovered: all T, or T - 1 where the terminal SNR is zero."""
    return int((schedule.alpha_bar > 0).sum())


def time_scale(schedule: Schedule, spacing: str = "mixed") -> np.ndarray:
    """Position of each usable time-step on the axis that is divided evenly, rising from 0 to 1."""
    last = _usable(schedule) - 1
    require_one_of("spacing", spacing, SPACINGS)
    if last == 0:
        return np.zeros(1)
    time = np.linspace(0, 1, last + 1)
    abar = schedule.alpha_bar[: last + 1].numpy()
    noise = -np.maximum(0.5 * np.log(abar / (1 - abar)), LOWEST_LOG_SNR)
    noise = (noise - noise[0]) / (noise[-1] - noise[0])
    return {"uniform": time, "logsnr": noise, "mixed": (time + noise) / 2}[spacing]


@torch.no_grad()
def ddpm(
    eps_fn: EpsFn,
    x: Tensor,
    schedule: Schedule,
    generator: torch.Generator,
    steps: Sequence[int] | None = None,
    *,
    clamp: bool = True,
    on_step: OnStep | None = None,
) -> Tensor:
    """Ancestral sampling with the posterior q(x_{t-1} | x_t, x0) of eq. A1, over all steps or the given ones.

    Noise is drawn from the CPU generator and moved, so that every device sees the same numbers.
    """
    _require_cpu(generator)
    moves = _moves(schedule, range(_usable(schedule))[::-1] if steps is None else steps)
    if not _generates(moves):
        raise InputError("ddpm got ascending steps but cannot invert; use ddim or dpm_solver_2m for that")
    for i, (t, source, target) in enumerate(moves):
        x0, _ = _predict(eps_fn, x, t, source, clamp)
        x = posterior_mean_x0(x0, x, source, target)
        noise = sent(torch.randn(x.shape, generator=generator), x.device).to(x.dtype)
        x = x + posterior_variance(source, target).sqrt().to(x.dtype) * noise  # variance 0 at the last move
        _report(on_step, i, moves, x)
    return x


@torch.no_grad()
def ddim(
    eps_fn: EpsFn,
    x: Tensor,
    steps: Sequence[int],
    schedule: Schedule,
    *,
    clamp: bool | None = None,
    start: float | None = None,
    end: float | None = None,
    on_step: OnStep | None = None,
) -> Tensor:
    """Walk x along `steps`; descending steps generate, ascending steps invert (DDIM eq. 12). Order 1.

    clamp: keep each x0 prediction in [-1, 1]; by default when generating, not when inverting.
    start, end: abar that x is taken to have, and that the walk ends at. When generating they default to that
    of the first step and to 1, a clean image; when inverting to 1 and to that of the last step.
    The authors' n-step loops use `range(0, T, T // n)` and clamp; inverting, they start at the abar of step 0
    and end at 0.
    """
    moves = _moves(schedule, steps, start, end)
    clamp = _generates(moves) if clamp is None else clamp
    for i, (t, source, target) in enumerate(moves):
        x0, eps = _predict(eps_fn, x, t, source, clamp)
        x = q_sample(x0, eps, target)
        _report(on_step, i, moves, x)
    return x


@torch.no_grad()
def dpm_solver_2m(
    eps_fn: EpsFn,
    x: Tensor,
    steps: Sequence[int],
    schedule: Schedule,
    *,
    clamp: bool | None = None,
    start: float | None = None,
    end: float | None = None,
    fresh: torch.Generator | None = None,
    on_step: OnStep | None = None,
) -> Tensor:
    """DPM-Solver++(2M), Lu et al. 2022, algorithm 2: arguments as `ddim`, order 2 at the same number of calls.

    Inversion is the same formula walked backwards: its errors and the sampler's have opposite signs and mostly
    cancel in a round trip.
    fresh: draws new noise in every move, for generation (SDE-DPM-Solver++(2M) of the same paper). What a
    young network leaves of the old noise is then covered by new noise instead of staying until the end.
    """
    moves = _moves(schedule, steps, start, end)
    if fresh is not None:
        _require_cpu(fresh)
        if not _generates(moves):
            raise InputError("dpm_solver_2m got ascending steps and fresh noise; an inversion takes none")
    clamp = _generates(moves) if clamp is None else clamp
    previous: tuple[Tensor, Tensor] | None = None  # x0 prediction and log-SNR step of the last move
    for i, (t, source, target) in enumerate(moves):
        x0, eps = _predict(eps_fn, x, t, source, clamp)
        h = _half_log_snr(target) - _half_log_snr(source)
        if torch.isinf(h):  # to or from a clean image, or to pure noise: only the first-order move exists
            x = q_sample(x0, eps, target)
        else:
            x = _second_order(x, _ahead(x0, h, previous), h, source, target, fresh)
            previous = (x0, h)
        _report(on_step, i, moves, x)
    return x


def _ahead(x0: Tensor, h: Tensor, previous: tuple[Tensor, Tensor] | None) -> Tensor:
    """x0 extrapolated half a log-SNR step h ahead, from this call and the previous one."""
    if previous is None:
        return x0
    x0_before, h_before = previous
    # Even grids in t end in log-SNR steps many times the one before, over which x0 is not a straight line:
    # unlimited, the round trip on a cosine schedule is 30 times worse. Smooth grids stay below the limit.
    ratio = (h / h_before).clamp(max=2.0)
    return x0 + (ratio / 2).to(x0.dtype) * (x0 - x0_before)


def _second_order(
    x: Tensor, x0: Tensor, h: Tensor, source: Tensor, target: Tensor, fresh: torch.Generator | None
) -> Tensor:
    """x_target = (sigma_target / sigma_source) x - alpha_target (e^-h - 1) x0. DPM-Solver++ eq. 9.

    With fresh noise only e^-h of the old one is kept, h counts twice, and what is missing to sigma_target is new.
    """
    times = 1 if fresh is None else 2
    of_x = ((1 - target) / (1 - source)).sqrt() * torch.exp((1 - times) * h)
    of_x0 = -target.sqrt() * torch.expm1(-times * h)
    x = of_x.to(x.dtype) * x + of_x0.to(x.dtype) * x0
    if fresh is None:
        return x
    noise = sent(torch.randn(x.shape, generator=fresh), x.device).to(x.dtype)
    return x + (-(1 - target) * torch.expm1(-2 * h)).sqrt().to(x.dtype) * noise


def _half_log_snr(abar: Tensor) -> Tensor:
    """lambda = log(alpha / sigma), infinite for a clean image and for pure noise."""
    return 0.5 * (abar.log() - torch.log1p(-abar))


def _predict(eps_fn: EpsFn, x: Tensor, t: int, abar: Tensor, clamp: bool) -> tuple[Tensor, Tensor]:
    """One network call: the x0 it implies, and the noise; clamping x0 changes the noise to match x."""
    eps = eps_fn(x, torch.full((len(x),), t, dtype=torch.int64, device=x.device))
    x0 = x0_from_eps(eps, x, abar)
    if clamp:
        x0 = x0.clamp(-1, 1)
        eps = eps_from_x0(x0, x, abar) if abar < 1 else eps
    return x0, eps


def _require_cpu(generator: torch.Generator) -> None:
    if not on_host(generator):
        raise InputError(
            f"the generator is on {generator.device}; noise is drawn on the CPU: give a CPU generator"
        )


def _report(on_step: OnStep | None, index: int, moves: list[Move], x: Tensor) -> None:
    if on_step is not None:
        on_step(index, len(moves), x)


def _generates(moves: list[Move]) -> bool:
    return bool(moves[0].source < moves[0].target)


def _moves(
    schedule: Schedule, steps: Sequence[int], start: float | None = None, end: float | None = None
) -> list[Move]:
    """The network calls of a walk: from `start` over each step's abar to `end`.

    Each move evaluates the network at the step it leaves from; a clean image, which has no step of its own, is
    evaluated at the first step. A single step generates.
    """
    steps = _checked_steps(schedule, steps)
    inverts = len(steps) > 1 and steps[0] < steps[1]
    stops = [float(schedule.alpha_bar[t]) for t in steps]
    start = (1.0 if inverts else stops[0]) if start is None else start
    end = (stops[-1] if inverts else 1.0) if end is None else end
    nodes = list(zip(steps, stops, strict=True))  # (step the network is evaluated at, abar)
    if start != stops[0]:
        nodes.insert(0, (steps[0], start))
    if end != stops[-1]:
        nodes.append((steps[-1], end))
    abar = torch.tensor([a for _, a in nodes], dtype=torch.float64)
    if abar[0] == 0:
        raise InputError(
            f"the walk starts at step {steps[0]}, whose abar is 0: pure noise does not determine x0; "
            f"start at step {_usable(schedule) - 1} or below"
        )
    one_way = abar.diff() < 0 if inverts else abar.diff() > 0
    if len(nodes) < 2 or not bool(one_way.all()) or abar.min() < 0 or abar.max() > 1:
        raise InputError(
            f"steps {steps[0]}..{steps[-1]} with start abar {start:g} and end abar {end:g}: abar must "
            f"{'fall' if inverts else 'rise'} all the way, within 0..1; change start, end or steps"
        )
    return [Move(t, abar[i], abar[i + 1]) for i, (t, _) in enumerate(nodes[:-1])]


def _checked_steps(schedule: Schedule, steps: Sequence[int]) -> list[int]:
    """Steps as a list, in range and strictly ascending or strictly descending."""
    steps = [int(t) for t in steps]
    if not steps or min(steps) < 0 or max(steps) >= schedule.timesteps:
        raise InputError(f"steps are {steps[:4]}...; give at least one time-step in 0..{schedule.timesteps - 1}")
    change = np.diff(steps)
    if not ((change > 0).all() or (change < 0).all()):
        raise InputError(f"steps are {steps[:4]}...; they must all rise (to invert) or all fall (to generate)")
    return steps
