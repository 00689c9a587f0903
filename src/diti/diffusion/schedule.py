"""Every closed form of the paper's sections 3.2 and 4.2 and appendix B, one function each.

Time-steps: the paper counts t = 1..T, this code counts t = 0..T-1, so code t = paper t - 1.
Notation: alpha_t = 1 - beta_t and abar_t = alpha_1 * ... * alpha_t, the signal's share of the variance;
abar_prev is abar of the step before, and 1 before the first step (a clean image).

Two kinds of function: a *table* takes a Schedule and returns a (T,) float64 vector, from which `gather` picks
the rows of a batch; a *formula* takes images (B,C,H,W) and gathered coefficients (B,1,1,1). Tables that every
step needs are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from diti.core.device import HOST, constant, on_host
from diti.core.errors import InputError, nearest

PREDICTION_TYPES = ("epsilon", "sample", "v_prediction")
OUTPUTS = (*PREDICTION_TYPES, "flow")  # what a network from elsewhere may give


@dataclass(frozen=True, eq=False)
class Schedule:
    """The variance schedule beta_1..beta_T of eq. 2. Everything is accumulated in float64."""

    betas: Tensor  # (T,) float64, on the CPU

    def __post_init__(self) -> None:
        betas = self.betas
        if betas.ndim != 1 or not len(betas) or betas.dtype != torch.float64 or not on_host(betas):
            raise InputError(
                f"betas have shape {tuple(betas.shape)}, {betas.dtype}, on {betas.device}; a schedule needs "
                "a (T,) float64 vector on the CPU, of at least one time-step"
            )
        # beta = 1 erases the image; only the last step may do that (zero terminal SNR).
        inside = bool(((betas[:-1] > 0) & (betas[:-1] < 1)).all())
        if not inside or not 0 < float(betas[-1]) <= 1:
            raise InputError(
                f"betas range from {float(betas.min()):g} to {float(betas.max()):g}; each must lie in "
                "(0, 1), only the last may be 1: check the scheduler's beta_start and beta_end"
            )

    @classmethod
    def from_betas(cls, betas: Tensor | Sequence[float]) -> Schedule:
        """Schedule of any betas, taken to float64 before anything is accumulated."""
        return cls(torch.as_tensor(betas).detach().to(HOST, torch.float64))

    @classmethod
    def from_alpha_bar(cls, alpha_bar: Tensor) -> Schedule:
        """Schedule of any falling abar_1..abar_T, the last of which may be 0."""
        abar = alpha_bar.detach().to(HOST, torch.float64)
        return cls(1 - abar / torch.cat([abar.new_ones(1), abar[:-1]]))

    @classmethod
    def linear(cls, timesteps: int = 1000, start: float = 1e-4, end: float = 0.02) -> Schedule:
        """Evenly spaced betas; the defaults are the paper's."""
        return cls(torch.linspace(start, end, _positive(timesteps), dtype=torch.float64))

    @classmethod
    def cosine(cls, timesteps: int = 1000) -> Schedule:
        """abar_t follows a squared cosine, each beta at most 0.999 (Nichol & Dhariwal 2021, eq. 17)."""
        t = torch.arange(_positive(timesteps) + 1, dtype=torch.float64) / timesteps
        abar = torch.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2
        return cls((1 - abar[1:] / abar[:-1]).clamp(max=0.999))

    @classmethod
    def from_scheduler(cls, scheduler: Any) -> Schedule:
        """Schedule of a diffusers scheduler: its own betas, which already include rescale_betas_zero_snr."""
        betas = getattr(scheduler, "betas", None)
        if not isinstance(betas, Tensor):
            raise InputError(
                f"{type(scheduler).__name__} has no betas; give the scheduler of a discrete diffusion model, "
                "such as DDPMScheduler or DDIMScheduler"
            )
        return cls.from_betas(betas)

    @property
    def timesteps(self) -> int:
        """T."""
        return len(self.betas)

    @cached_property
    def alphas(self) -> Tensor:
        """(T,) alpha_t = 1 - beta_t. Eq. 2."""
        return 1 - self.betas

    @cached_property
    def alpha_bar(self) -> Tensor:
        """(T,) abar_t, the product of alpha_1..alpha_t. Eq. 2."""
        return self.alphas.cumprod(0)

    @cached_property
    def alpha_bar_prev(self) -> Tensor:
        """(T,) abar_{t-1}, 1 at the first step."""
        return torch.cat([self.alpha_bar.new_ones(1), self.alpha_bar[:-1]])


def require_one_of(name: str, value: Any, allowed: Sequence[str]) -> str:
    """The value; InputError for any other than the allowed ones."""
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; allowed: {', '.join(allowed)}.{nearest(str(value), allowed)}")
    return str(value)


def _positive(timesteps: int) -> int:
    if timesteps < 1:
        raise InputError(f"timesteps is {timesteps}; a schedule needs at least 1 step")
    return timesteps


def gather(table: Tensor, t: Tensor, like: Tensor) -> Tensor:
    """Rows t (B,) of a (T,) table, shaped (B,1,1,1), on the device and in the dtype of `like`.

    Half precisions get float32: abar = 0.9999 would round to 1 there, and 1 - abar to 0.
    """
    if t.ndim != 1 or t.dtype != torch.int64:
        raise InputError(f"t has shape {tuple(t.shape)} and {t.dtype}; give one int64 time-step per image, (B,)")
    # Negative indices would wrap silently. On other devices the check would stall the queue of work.
    if on_host(t) and len(t) and not 0 <= int(t.min()) <= int(t.max()) < len(table):
        raise InputError(f"t ranges from {t.min()} to {t.max()}; code time-steps are 0..{len(table) - 1}")
    dtype = torch.promote_types(like.dtype, torch.float32)
    rows = constant(table, dtype, t.device)[t].to(like.device)
    return rows.reshape(-1, *[1] * (like.ndim - 1))


# ---- Tables: (T,) float64 ---------------------------------------------------------------------------------


def snr(schedule: Schedule) -> Tensor:
    """SNR(t) = abar_t / (1 - abar_t). Eq. A5, and the weight of eq. 3."""
    return schedule.alpha_bar / (1 - schedule.alpha_bar)


@lru_cache(maxsize=16)
def root_snr(schedule: Schedule) -> Tensor:
    """sqrt(SNR(t)): what the error of x0 is multiplied by to be one of eps."""
    return snr(schedule).sqrt()


@lru_cache(maxsize=16)
def lambda_eps(schedule: Schedule, gamma: float = 0.1) -> Tensor:
    """Time-step weight lambda^p_t = SNR^gamma / (1 + SNR) of the epsilon form. Eq. A5.

    Written as the appendix's product of two powers, 1 / (1 + SNR) being 1 - abar_t.
    """
    return (1 - schedule.alpha_bar) ** (1 - gamma) * schedule.alpha_bar**gamma


def lambda_x0(schedule: Schedule, gamma: float = 0.1) -> Tensor:
    """Time-step weight lambda_t = SNR * lambda^p_t of eq. 6, the x0 form. Eq. A6."""
    return snr(schedule) * lambda_eps(schedule, gamma)


def training_weight(schedule: Schedule, by: str, prediction_type: str) -> Tensor:
    """What a network's own squared error is multiplied by in pretraining, 1 on average over the time-steps.

    "none": each time-step counts the same. "min-snr": min(SNR, 5) times the error of x0 (Hang et al. 2023).
    "p2": 1 / (1 + SNR) times the error of eps (Choi et al. 2022, k = gamma = 1).
    """
    if by == "none":
        return torch.ones_like(schedule.alpha_bar)
    of_eps = torch.clamp(5 / snr(schedule), max=1) if by == "min-snr" else 1 - schedule.alpha_bar
    ones = torch.ones_like(of_eps)
    eps_per_own = {"epsilon": ones, "v_prediction": schedule.alpha_bar, "sample": snr(schedule)}[prediction_type]
    weight = of_eps * eps_per_own
    return weight / weight.mean()


@lru_cache(maxsize=16)
def w_eps(schedule: Schedule) -> Tensor:
    """Compensate strength w^p_t = sqrt(alpha_t) (1 - abar_{t-1}) / sqrt(1 - abar_t) of the eps form. Eq. A5.

    0 at the first step, where x_{t-1} is the clean image.
    """
    return schedule.alphas.sqrt() * (1 - schedule.alpha_bar_prev) / (1 - schedule.alpha_bar).sqrt()


def w_x0(schedule: Schedule) -> Tensor:
    """Compensate strength w_t = sqrt(alpha_t / abar_t) (1 - abar_{t-1}) of eq. 6, the x0 form. Eq. A6.

    The paper prints (1 - abar_t) here; substituting its own w^p_t gives (1 - abar_{t-1}).
    Since alpha_t / abar_t = 1 / abar_{t-1} the value is finite even where the terminal SNR is zero.
    """
    return (1 - schedule.alpha_bar_prev) / schedule.alpha_bar_prev.sqrt()


@lru_cache(maxsize=16)
def guidance_authors(schedule: Schedule) -> Tensor:
    """Strength sqrt(1 - abar_t) of g in the authors' sampler, in place of w^p_t: classifier guidance."""
    return (1 - schedule.alpha_bar).sqrt()


# ---- Forward and reverse process --------------------------------------------------------------------------


def q_sample(x0: Tensor, noise: Tensor, abar_t: Tensor) -> Tensor:
    """Noisy image x_t = sqrt(abar_t) x0 + sqrt(1 - abar_t) noise, a draw of q(x_t | x0). Eq. 2."""
    return _mix(abar_t.sqrt(), x0, (1 - abar_t).sqrt(), noise)


def posterior_mean_x0(x0: Tensor, x_t: Tensor, abar_t: Tensor, abar_prev: Tensor) -> Tensor:
    """Mean of q(x_{t-1} | x_t, x0). Eq. A1. `abar_prev` may belong to any earlier step, not only to t - 1."""
    alpha_t = abar_t / abar_prev
    of_x0 = abar_prev.sqrt() * (1 - alpha_t) / (1 - abar_t)
    of_x_t = alpha_t.sqrt() * (1 - abar_prev) / (1 - abar_t)
    return _mix(of_x0, x0, of_x_t, x_t)


def posterior_mean_eps(eps: Tensor, x_t: Tensor, abar_t: Tensor, abar_prev: Tensor) -> Tensor:
    """The same mean from the noise: (x_t - beta_t / sqrt(1 - abar_t) eps) / sqrt(alpha_t). Eq. A1 with A3.

    Needs abar_t > 0: pure noise does not determine x0.
    """
    alpha_t = abar_t / abar_prev
    of_eps = -(1 - alpha_t) / ((1 - abar_t) * alpha_t).sqrt()
    return _mix(alpha_t.rsqrt(), x_t, of_eps, eps)


def posterior_variance(abar_t: Tensor, abar_prev: Tensor) -> Tensor:
    """Variance of q(x_{t-1} | x_t, x0): (1 - abar_{t-1}) / (1 - abar_t) beta_t; 0 at the first. Eq. A1."""
    return (1 - abar_prev) / (1 - abar_t) * (1 - abar_t / abar_prev)


# ---- What a network may predict ---------------------------------------------------------------------------


def eps_from_x0(x0: Tensor, x_t: Tensor, abar_t: Tensor) -> Tensor:
    """eps = (x_t - sqrt(abar_t) x0) / sqrt(1 - abar_t). Eq. A3."""
    of_x0 = -(abar_t / (1 - abar_t)).sqrt()
    return _mix((1 - abar_t).rsqrt(), x_t, of_x0, x0)


def x0_from_eps(eps: Tensor, x_t: Tensor, abar_t: Tensor) -> Tensor:
    """x0 = (x_t - sqrt(1 - abar_t) eps) / sqrt(abar_t), eq. A3 solved for x0. Needs abar_t > 0."""
    of_eps = -((1 - abar_t) / abar_t).sqrt()
    return _mix(abar_t.rsqrt(), x_t, of_eps, eps)


def v_from_eps(eps: Tensor, x0: Tensor, abar_t: Tensor) -> Tensor:
    """v = sqrt(abar_t) eps - sqrt(1 - abar_t) x0 (Salimans & Ho 2022)."""
    return _mix(abar_t.sqrt(), eps, -(1 - abar_t).sqrt(), x0)


def eps_from_v(v: Tensor, x_t: Tensor, abar_t: Tensor) -> Tensor:
    """eps = sqrt(abar_t) v + sqrt(1 - abar_t) x_t."""
    return _mix(abar_t.sqrt(), v, (1 - abar_t).sqrt(), x_t)


def x0_from_v(v: Tensor, x_t: Tensor, abar_t: Tensor) -> Tensor:
    """x0 = sqrt(abar_t) x_t - sqrt(1 - abar_t) v. Defined at zero terminal SNR too."""
    return _mix(abar_t.sqrt(), x_t, -(1 - abar_t).sqrt(), v)


def x0_from_flow(v: Tensor, x_t: Tensor, abar_t: Tensor) -> Tensor:
    """x0 = (x_t - sqrt(1 - abar_t) v) / (sqrt(abar_t) + sqrt(1 - abar_t)), v = eps - x0 being a flow's velocity.

    A rectified flow mixes y = (1 - sigma) x0 + sigma eps (Liu et al. 2023), which is x_t divided by the sum of
    roots, and x0 = y - sigma v. Defined at zero terminal SNR too.
    """
    total = abar_t.sqrt() + (1 - abar_t).sqrt()
    return _mix(1 / total, x_t, -(1 - abar_t).sqrt() / total, v)


def eps_from_flow(v: Tensor, x_t: Tensor, abar_t: Tensor) -> Tensor:
    """eps = (x_t + sqrt(abar_t) v) / (sqrt(abar_t) + sqrt(1 - abar_t)): x0 of the same velocity, plus v."""
    total = abar_t.sqrt() + (1 - abar_t).sqrt()
    return _mix(1 / total, x_t, abar_t.sqrt() / total, v)


def output_target(x0: Tensor, eps: Tensor, abar_t: Tensor, prediction_type: str) -> Tensor:
    """What a network of that prediction type should predict from x_t: ε, x0 ("sample") or v."""
    if prediction_type == "epsilon":
        return eps
    return x0 if prediction_type == "sample" else v_from_eps(eps, x0, abar_t)


def eps_from_output(output: Tensor, x_t: Tensor, abar_t: Tensor, prediction_type: str) -> Tensor:
    """The noise that a network's output implies, by the scheduler's `prediction_type`."""
    if prediction_type == "epsilon":
        return output
    require_one_of("prediction_type", prediction_type, OUTPUTS)
    read = {"sample": eps_from_x0, "v_prediction": eps_from_v, "flow": eps_from_flow}[prediction_type]
    return read(output, x_t, abar_t)


def x0_from_output(output: Tensor, x_t: Tensor, abar_t: Tensor, prediction_type: str) -> Tensor:
    """The clean image that the same output implies; only "epsilon" needs abar_t > 0."""
    if prediction_type == "sample":
        return output
    read = {"v_prediction": x0_from_v, "flow": x0_from_flow}.get(prediction_type, x0_from_eps)
    return read(output, x_t, abar_t)


# ---- Losses, one number per image -------------------------------------------------------------------------


def dm_loss_x0(x0: Tensor, u: Tensor, snr_t: Tensor) -> Tensor:
    """(B,) eq. 3: SNR(t) times the mean of (x0 - u_theta)^2, u the network's reconstruction of x0."""
    return _weighted(snr_t, x0 - u)


def dm_loss_eps(eps: Tensor, eps_theta: Tensor) -> Tensor:
    """(B,) eq. A2, the epsilon form of eq. 3: the mean of (eps - eps_theta)^2."""
    return _per_image_mean_square(eps - eps_theta)


def reconstruction_loss_x0(x0: Tensor, u: Tensor, g: Tensor, w_t: Tensor, lam_t: Tensor) -> Tensor:
    """(B,) eq. 6: lambda_t times the mean of (x0 - (u_theta + w_t g))^2, with `w_x0` and `lambda_x0`."""
    return _weighted(lam_t, x0 - (u + w_t.to(g.dtype) * g))


def reconstruction_loss_eps(eps: Tensor, eps_theta: Tensor, g: Tensor, w_t: Tensor, lam_t: Tensor) -> Tensor:
    """(B,) eq. A4, the epsilon form of eq. 6 and what is trained, with `w_eps` and `lambda_eps`.

    lambda^p_t times the mean of (eps - (eps_theta - w^p_t g))^2.
    """
    return _weighted(lam_t, eps - (eps_theta - w_t.to(g.dtype) * g))


def _mix(a: Tensor, x: Tensor, b: Tensor, y: Tensor) -> Tensor:
    """a x + b y in the dtype of the images, whatever the precision of the coefficients."""
    return a.to(x.dtype) * x + b.to(y.dtype) * y


def _per_image_mean_square(error: Tensor) -> Tensor:
    return error.square().flatten(1).mean(1)


def _weighted(weight: Tensor, error: Tensor) -> Tensor:
    return weight.flatten().to(error.dtype) * _per_image_mean_square(error)
