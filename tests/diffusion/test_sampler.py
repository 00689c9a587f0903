"""Samplers against denoisers that are known exactly: a Gaussian, whose flow has a closed form, and a mixture."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, DPMSolverMultistepScheduler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from diti.core.errors import InputError
from diti.diffusion.sampler import SPACINGS, ddim, ddpm, dpm_solver_2m, timesteps
from diti.diffusion.schedule import Schedule

LINEAR = Schedule.linear()
SOLVERS = {"ddim": ddim, "dpm_solver_2m": dpm_solver_2m}
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS.keys())


@dataclass
class Gaussian:
    """Data N(mean, std^2), pixel by pixel. Its noise prediction and its probability flow are known exactly."""

    schedule: Schedule
    mean: Tensor  # (C,H,W)
    std: Tensor  # (C,H,W)
    sampling_steps: int = 0

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        """E[eps | x_t]."""
        self.sampling_steps += 1
        assert t.shape == (len(x),) and t.dtype == torch.int64
        abar = self.schedule.alpha_bar[t].reshape(-1, 1, 1, 1)
        variance = abar * self.std**2 + 1 - abar
        return ((1 - abar).sqrt() / variance * (x - abar.sqrt() * self.mean)).to(x.dtype)

    def flow(self, x: Tensor, source: float, target: float) -> Tensor:
        """Where the probability flow takes x from abar `source` to abar `target`: quantiles stay quantiles."""

        def spread(abar: float) -> Tensor:
            return (abar * self.std**2 + 1 - abar).sqrt()

        centred = x - math.sqrt(source) * self.mean
        return math.sqrt(target) * self.mean + spread(target) / spread(source) * centred

    def images(self, count: int) -> Tensor:
        rng = torch.Generator().manual_seed(11)
        white = torch.randn(count, *self.mean.shape, generator=rng, dtype=torch.float64)
        return self.mean + self.std * white


def gaussian(schedule: Schedule = LINEAR) -> Gaussian:
    """64 pixels whose standard deviations cover what the spectrum of photographs covers."""
    std = torch.logspace(math.log10(0.02), math.log10(3), 64, dtype=torch.float64).reshape(1, 8, 8)
    return Gaussian(schedule, torch.linspace(-0.8, 0.8, 64, dtype=torch.float64).reshape(1, 8, 8), std)


@dataclass
class Mixture:
    """Equal mixture of Gaussians with means (K,C,H,W) and one standard deviation: a nonlinear denoiser."""

    schedule: Schedule
    means: Tensor
    std: float

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        abar = self.schedule.alpha_bar[t].reshape(-1, 1, 1, 1, 1)
        variance = abar * self.std**2 + 1 - abar  # (B,1,1,1,1)
        offset = x[:, None] - abar.sqrt() * self.means  # (B,K,C,H,W)
        share = torch.softmax(-(offset**2 / variance).sum((2, 3, 4)) / 2, dim=1)
        score = (share[:, :, None, None, None] * offset / variance).sum(1)
        return (1 - abar[:, 0]).sqrt() * score


def mse(a: Tensor, b: Tensor) -> float:
    return (a - b).square().mean().item()


def round_trip(
    solver: Callable[..., Tensor], eps_fn: object, x0: Tensor, sampling_steps: int, spacing: str = "mixed"
) -> float:
    """MSE of the image after `sampling_steps` to invert it and as many to generate it again."""
    steps = timesteps(eps_fn.schedule, sampling_steps, spacing)
    x_T = solver(eps_fn, x0, steps[::-1], eps_fn.schedule)
    return mse(solver(eps_fn, x_T, steps, eps_fn.schedule, clamp=False), x0)


# ---- Time-steps -------------------------------------------------------------------------------------------


@given(T=st.integers(1, 400), share=st.floats(0, 1), spacing=st.sampled_from(SPACINGS), cosine=st.booleans())
@settings(max_examples=60, deadline=None)
def test_timesteps_descend_from_the_last_to_the_first(T: int, share: float, spacing: str, cosine: bool) -> None:
    schedule = Schedule.cosine(T) if cosine else Schedule.linear(T)
    sampling_steps = 1 + round(share * (T - 1))
    steps = timesteps(schedule, sampling_steps, spacing)
    assert len(steps) == sampling_steps and steps[0] == T - 1
    assert steps == sorted(set(steps), reverse=True)
    assert sampling_steps == 1 or steps[-1] == 0
    assert all(type(t) is int for t in steps)


def test_spacings_are_even_in_what_they_say() -> None:
    assert timesteps(LINEAR, 4, "uniform") == [999, 666, 333, 0]
    assert timesteps(LINEAR, 1000, "logsnr") == list(range(1000))[::-1]
    log_snr = (LINEAR.alpha_bar / (1 - LINEAR.alpha_bar)).log()
    gaps = log_snr[timesteps(LINEAR, 12, "logsnr")].diff()
    assert gaps.max() / gaps.min() < 1.5  # integers round the low end, where one step is a large gap
    mixed, uniform, noise = (timesteps(LINEAR, 12, s)[6] for s in ("mixed", "uniform", "logsnr"))
    assert noise < mixed < uniform


def test_few_steps_are_spent_on_nearly_pure_noise() -> None:
    """The cosine schedule ends at log-SNR -20: an even cut down to there would waste a third of the calls."""
    schedule = Schedule.cosine(1000)
    half_log_snr = 0.5 * (schedule.alpha_bar / (1 - schedule.alpha_bar)).log()
    assert int((half_log_snr[timesteps(schedule, 25, "logsnr")] < -5.2).sum()) == 1


@pytest.mark.parametrize(
    ("sampling_steps", "spacing", "message"),
    [(0, "uniform", "1 to 1000"), (1001, "uniform", "1 to 1000"), (10, "unifrom", "Did you mean 'uniform'")],
)
def test_impossible_timesteps_are_refused(sampling_steps: int, spacing: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        timesteps(LINEAR, sampling_steps, spacing)


# ---- Order and closed form --------------------------------------------------------------------------------


@pytest.mark.parametrize("inverts", [False, True], ids=["generate", "invert"])
@pytest.mark.parametrize(("solver", "low", "high"), [(ddim, 1.7, 2.3), (dpm_solver_2m, 3.4, 4.8)])
def test_order_of_convergence(solver: Callable[..., Tensor], low: float, high: float, inverts: bool) -> None:
    """Half the step, half the error of DDIM and a quarter of that of 2M, between steps 100 and 900."""
    oracle = gaussian()
    low_end, high_end = (LINEAR.alpha_bar[t].item() for t in (100, 900))
    start, end = (low_end, high_end) if inverts else (high_end, low_end)
    x0 = oracle.images(4)
    x, wanted = oracle.flow(x0, 1, start), oracle.flow(x0, 1, end)
    errors = []
    for gap in (20, 10, 5):
        steps = range(100, 900, gap) if inverts else range(900, 100, -gap)
        found = solver(oracle, x, steps, LINEAR, clamp=False, start=start, end=end)
        errors.append(math.sqrt(mse(found, wanted)))
    for coarse, fine in itertools.pairwise(errors):
        assert low < coarse / fine < high, errors


@every_solver
def test_both_directions_approach_the_closed_form(solver: Callable[..., Tensor]) -> None:
    oracle = gaussian()
    x0 = oracle.images(8)
    x_T = oracle.flow(x0, 1, LINEAR.alpha_bar[-1].item())
    steps = timesteps(LINEAR, 200)
    limit = {ddim: 2e-3, dpm_solver_2m: 1e-4}[solver]
    assert mse(solver(oracle, x_T, steps, LINEAR, clamp=False), x0) < limit
    assert mse(solver(oracle, x0, steps[::-1], LINEAR), x_T) < 10 * limit


@every_solver
def test_one_network_call_per_step(solver: Callable[..., Tensor]) -> None:
    oracle = gaussian()
    x = oracle.images(2)
    for steps in (timesteps(LINEAR, 9), timesteps(LINEAR, 9)[::-1], [500]):
        oracle.sampling_steps = 0
        solver(oracle, x, steps, LINEAR)
        assert oracle.sampling_steps == len(steps)


@every_solver
def test_a_single_step_is_the_denoised_image(solver: Callable[..., Tensor]) -> None:
    oracle = gaussian()
    x = oracle.images(3)
    abar = LINEAR.alpha_bar[500]
    eps = oracle(x, torch.full((3,), 500))
    wanted = (x - (1 - abar).sqrt() * eps) / abar.sqrt()
    torch.testing.assert_close(solver(oracle, x, [500], LINEAR, clamp=False), wanted)
    torch.testing.assert_close(solver(oracle, x, [500], LINEAR), wanted.clamp(-1, 1))


# ---- Round trip -------------------------------------------------------------------------------------------


@every_solver
@pytest.mark.parametrize("spacing", SPACINGS)
def test_round_trip_improves_with_calls(solver: Callable[..., Tensor], spacing: str) -> None:
    oracle = gaussian()
    x0 = oracle.images(8)
    errors = [round_trip(solver, oracle, x0, sampling_steps, spacing) for sampling_steps in (10, 25, 50, 100)]
    assert errors == sorted(errors, reverse=True), errors
    assert errors[-1] < errors[0] / 30


@pytest.mark.parametrize("schedule", [LINEAR, Schedule.cosine(1000)], ids=["linear", "cosine"])
def test_second_order_with_a_quarter_of_the_calls_beats_ddim(schedule: Schedule) -> None:
    oracle = gaussian(schedule)
    x0 = oracle.images(8)
    best_ddim = min(round_trip(ddim, oracle, x0, 100, spacing) for spacing in SPACINGS)
    assert round_trip(dpm_solver_2m, oracle, x0, 25) < best_ddim / 10


def test_extrapolation_is_limited_where_steps_grow_fast() -> None:
    """Even steps of a cosine schedule: with the full extrapolation this error is 8e-3."""
    oracle = gaussian(Schedule.cosine(1000))
    assert round_trip(dpm_solver_2m, oracle, oracle.images(8), 25, "uniform") < 1e-3


@pytest.mark.parametrize("std", [0.1, 0.3])
def test_round_trip_of_a_mixture(std: float) -> None:
    rng = torch.Generator().manual_seed(2)
    means = torch.rand(20, 1, 4, 4, generator=rng, dtype=torch.float64) * 2 - 1
    oracle = Mixture(LINEAR, means, std)
    x0 = means[:8] + std * torch.randn(8, 1, 4, 4, generator=rng, dtype=torch.float64)
    best_ddim = min(round_trip(ddim, oracle, x0, 100, spacing) for spacing in SPACINGS)
    assert round_trip(dpm_solver_2m, oracle, x0, 25) < best_ddim
    assert round_trip(dpm_solver_2m, oracle, x0, 100) < 1e-5


def test_round_trip_in_single_precision() -> None:
    oracle = gaussian()
    x0 = oracle.images(4).float()
    steps = timesteps(LINEAR, 50)
    x_T = dpm_solver_2m(oracle, x0, steps[::-1], LINEAR)
    back = dpm_solver_2m(oracle, x_T, steps, LINEAR, clamp=False)
    assert back.dtype == torch.float32
    assert mse(back, x0) < 1e-4


# ---- Against other code -----------------------------------------------------------------------------------


def slow_authors_loop(oracle: Gaussian, x: float, pixel: int, steps: list[int], last: float) -> float:
    """The authors' loop for one pixel: x counts as being at each step's own abar, x0 clamped, noise redone."""
    mean, std = oracle.mean.flatten()[pixel].item(), oracle.std.flatten()[pixel].item()
    abars = oracle.schedule.alpha_bar.tolist()
    for i, t in enumerate(steps):
        a = abars[t]
        b = abars[steps[i + 1]] if i + 1 < len(steps) else last
        eps = math.sqrt(1 - a) * (x - math.sqrt(a) * mean) / (a * std**2 + 1 - a)
        x0 = min(1.0, max(-1.0, (x - math.sqrt(1 - a) * eps) / math.sqrt(a)))
        eps = (x - math.sqrt(a) * x0) / math.sqrt(1 - a)
        x = math.sqrt(b) * x0 + math.sqrt(1 - b) * eps
    return x


def test_the_authors_loops_are_reproduced() -> None:
    """Steps range(0, 1000, 100), clamped both ways, inversion from step 0's abar to pure noise."""
    oracle = gaussian()
    steps = range(0, 1000, 100)
    x0 = oracle.images(1)
    assert x0.abs().max() > 1  # so that the clamp acts
    x_T = ddim(oracle, x0, steps, LINEAR, clamp=True, start=LINEAR.alpha_bar[0].item(), end=0.0)
    back = ddim(oracle, x_T, steps[::-1], LINEAR, clamp=True)
    assert oracle.sampling_steps == 20
    for pixel in range(64):
        slow_T = slow_authors_loop(oracle, x0.flatten()[pixel].item(), pixel, list(steps), last=0.0)
        slow_0 = slow_authors_loop(oracle, slow_T, pixel, list(steps)[::-1], last=1.0)
        assert x_T.flatten()[pixel].item() == pytest.approx(slow_T, abs=1e-9)
        assert back.flatten()[pixel].item() == pytest.approx(slow_0, abs=1e-9)


@pytest.mark.parametrize("clamp", [False, True])
def test_ddim_agrees_with_diffusers(clamp: bool) -> None:
    scheduler = DDIMScheduler(1000, timestep_spacing="trailing", clip_sample=clamp)
    scheduler.set_timesteps(20)
    schedule = Schedule.from_scheduler(scheduler)
    oracle = gaussian(schedule)
    x_T = oracle.flow(oracle.images(3), 1, schedule.alpha_bar[-1].item())
    x = x_T
    for t in scheduler.timesteps:
        eps = oracle(x, t.repeat(3))
        x = scheduler.step(eps, t, x, use_clipped_model_output=True).prev_sample
    ours = ddim(oracle, x_T, scheduler.timesteps.tolist(), schedule, clamp=clamp)
    torch.testing.assert_close(ours, x, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers with numpy 2
def test_2m_agrees_with_diffusers() -> None:
    scheduler = DPMSolverMultistepScheduler(1000, algorithm_type="dpmsolver++", solver_order=2)
    schedule = Schedule.from_scheduler(scheduler)
    steps = timesteps(schedule, 20)
    scheduler.set_timesteps(timesteps=steps)
    oracle = gaussian(schedule)
    x_T = oracle.flow(oracle.images(3), 1, schedule.alpha_bar[-1].item())
    x = x_T
    for t in scheduler.timesteps:
        x = scheduler.step(oracle(x, t.repeat(3)), t, x).prev_sample
    assert scheduler.timesteps.tolist() == steps
    torch.testing.assert_close(dpm_solver_2m(oracle, x_T, steps, schedule, clamp=False), x, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_2m_with_fresh_noise_agrees_with_diffusers() -> None:
    scheduler = DPMSolverMultistepScheduler(1000, algorithm_type="sde-dpmsolver++", solver_order=2)
    schedule = Schedule.from_scheduler(scheduler)
    steps = timesteps(schedule, 12)
    scheduler.set_timesteps(timesteps=steps)
    oracle, drawn = gaussian(schedule), torch.Generator().manual_seed(3)
    x_T = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    x = x_T
    for t in scheduler.timesteps:
        noise = torch.randn(x.shape, generator=drawn)
        x = scheduler.step(oracle(x, t.repeat(3)), t, x, variance_noise=noise).prev_sample
    found = dpm_solver_2m(oracle, x_T, steps, schedule, clamp=False, fresh=torch.Generator().manual_seed(3))
    torch.testing.assert_close(found, x, rtol=1e-3, atol=1e-3)


# ---- Ancestral sampling -----------------------------------------------------------------------------------


def ancestral_moments(schedule: Schedule, steps: list[int], mean: float, std: float) -> tuple[float, float]:
    """Mean and variance that ancestral sampling reaches from N(0, 1): with a linear denoiser, two recursions."""
    m, v = 0.0, 1.0
    for i, t in enumerate(steps):
        a = schedule.alpha_bar[t].item()
        b = schedule.alpha_bar[steps[i + 1]].item() if i + 1 < len(steps) else 1.0
        # E[x0 | x] = keep * x + rest
        keep = math.sqrt(a) * std**2 / (a * std**2 + 1 - a)
        rest = mean * (1 - a) / (a * std**2 + 1 - a)
        slope = math.sqrt(b) * (1 - a / b) / (1 - a) * keep + math.sqrt(a / b) * (1 - b) / (1 - a)
        m = slope * m + math.sqrt(b) * (1 - a / b) / (1 - a) * rest
        v = slope**2 * v + (1 - b) / (1 - a) * (1 - a / b)
    return m, v


@pytest.mark.parametrize("sampling_steps", [1000, 40])
def test_ddpm_reaches_the_right_distribution(sampling_steps: int) -> None:
    mean, std, count = 0.4, 0.5, 8000
    oracle = Gaussian(LINEAR, torch.full((1, 1, 1), mean).double(), torch.full((1, 1, 1), std).double())
    steps = timesteps(LINEAR, sampling_steps)
    rng = torch.Generator().manual_seed(4)
    x_T = torch.randn(count, 1, 1, 1, generator=rng).double()
    x = ddpm(oracle, x_T, LINEAR, rng, None if sampling_steps == 1000 else steps, clamp=False)
    wanted_mean, wanted_variance = ancestral_moments(LINEAR, steps, mean, std)
    assert x.mean().item() == pytest.approx(wanted_mean, abs=5 * std / math.sqrt(count))
    assert x.var().item() == pytest.approx(wanted_variance, rel=5 * math.sqrt(2 / count))
    if sampling_steps == 1000:
        assert (wanted_mean, wanted_variance) == pytest.approx((mean, std**2), rel=0.02)


def test_2m_with_fresh_noise_reaches_the_right_distribution() -> None:
    mean, std, count = 0.4, 0.5, 8000
    oracle = Gaussian(LINEAR, torch.full((1, 1, 1), mean).double(), torch.full((1, 1, 1), std).double())
    rng = torch.Generator().manual_seed(4)
    x_T = torch.randn(count, 1, 1, 1, generator=rng).double()
    x = dpm_solver_2m(oracle, x_T, timesteps(LINEAR, 100), LINEAR, clamp=False, fresh=rng)
    assert x.mean().item() == pytest.approx(mean, abs=5 * std / math.sqrt(count))
    assert x.var().item() == pytest.approx(std**2, rel=5 * math.sqrt(2 / count))


@dataclass
class Young:
    """Predicts less noise than there is, where much is gone already, as a network does that has hardly learned."""

    oracle: Gaussian
    shortfall: float

    def __call__(self, x: Tensor, t: Tensor) -> Tensor:
        return self.oracle(x, t) * (1 - self.shortfall)


def test_fresh_noise_covers_what_a_young_network_leaves() -> None:
    smooth = Gaussian(LINEAR, torch.zeros(1, 8, 8).double(), torch.full((1, 8, 8), 0.02).double())
    x_T = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(5)).double()
    steps, young = timesteps(LINEAR, 25), Young(smooth, 0.1)
    plain, fresh = (
        dpm_solver_2m(young, x_T, steps, LINEAR, fresh=made) for made in (None, torch.Generator().manual_seed(6))
    )
    left, new = (abs(x.std().item() - 0.02) for x in (plain, fresh))
    assert new < 0.25 * left


@every_solver
def test_deterministic_samplers_reach_the_right_distribution(solver: Callable[..., Tensor]) -> None:
    mean, std, count = 0.4, 0.5, 8000
    oracle = Gaussian(LINEAR, torch.full((1, 1, 1), mean).double(), torch.full((1, 1, 1), std).double())
    x_T = torch.randn(count, 1, 1, 1, generator=torch.Generator().manual_seed(4)).double()
    x = solver(oracle, x_T, timesteps(LINEAR, 250), LINEAR, clamp=False)
    assert x.mean().item() == pytest.approx(mean, abs=5 * std / math.sqrt(count))
    assert x.var().item() == pytest.approx(std**2, rel=5 * math.sqrt(2 / count))


def test_ddpm_is_decided_by_the_generator() -> None:
    oracle = gaussian()
    x_T = torch.zeros(2, 1, 8, 8)
    first, again, other = (
        ddpm(oracle, x_T, LINEAR, torch.Generator().manual_seed(seed), timesteps(LINEAR, 5)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.abs().max() <= 1  # the last step is the clamped x0 prediction


# ---- Manners ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ddpm", "ddim", "dpm_solver_2m", "invert"])
def test_no_trace_is_left(name: str) -> None:
    """Module mode, gradients, input and the global random state stay as they were; progress is reported."""
    network = nn.Conv2d(1, 1, 3, padding=1)
    network.train()
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    before, state = x.clone(), torch.get_rng_state()
    seen: list[tuple[int, int]] = []

    def eps_fn(x: Tensor, t: Tensor) -> Tensor:
        return network(x)

    def on_step(index: int, total: int, x: Tensor) -> None:
        assert x.shape == (2, 1, 8, 8)
        seen.append((index, total))

    steps = timesteps(LINEAR, 4)
    if name == "ddpm":
        y = ddpm(eps_fn, x, LINEAR, torch.Generator().manual_seed(0), steps, on_step=on_step)
    elif name == "invert":
        y = dpm_solver_2m(eps_fn, x, steps[::-1], LINEAR, on_step=on_step)
    else:
        y = SOLVERS[name](eps_fn, x, steps, LINEAR, on_step=on_step)
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert network.training and network.weight.requires_grad and not y.requires_grad
    assert torch.equal(x, before) and torch.equal(torch.get_rng_state(), state)


@every_solver
def test_clamping_is_for_generation_by_default(solver: Callable[..., Tensor]) -> None:
    oracle = gaussian()
    x = 3 * oracle.images(2)
    down, up = timesteps(LINEAR, 6), timesteps(LINEAR, 6)[::-1]
    assert torch.equal(solver(oracle, x, down, LINEAR), solver(oracle, x, down, LINEAR, clamp=True))
    assert torch.equal(solver(oracle, x, up, LINEAR), solver(oracle, x, up, LINEAR, clamp=False))
    assert solver(oracle, x, down, LINEAR).abs().max() <= 1
    assert not torch.equal(solver(oracle, x, up, LINEAR), solver(oracle, x, up, LINEAR, clamp=True))


@every_solver
def test_zero_terminal_snr(solver: Callable[..., Tensor]) -> None:
    """Sampling starts one step lower, inversion may end in pure noise, and asking for more is refused."""
    schedule = Schedule.from_scheduler(DDPMScheduler(1000, rescale_betas_zero_snr=True))
    oracle = gaussian(schedule)
    steps = timesteps(schedule, 50)
    assert steps[0] == 998
    x0 = oracle.images(4)
    x_T = solver(oracle, x0, [*steps[::-1], 999], schedule)
    back = solver(oracle, x_T, steps, schedule, clamp=False)
    assert mse(back, x0) < {ddim: 2e-2, dpm_solver_2m: 1e-4}[solver]
    with pytest.raises(InputError, match="start at step 998"):
        solver(oracle, x_T, [999, 500, 0], schedule)
    sampled = ddpm(oracle, x_T, schedule, torch.Generator().manual_seed(0), clamp=False)
    assert sampled.isfinite().all()


@every_solver
@pytest.mark.parametrize(
    ("steps", "options", "message"),
    [
        ([], {}, "at least one time-step"),
        ([5, 1000], {}, "0..999"),
        ([-1, 5], {}, "0..999"),
        ([1, 5, 3], {}, "all rise"),
        ([5, 5], {}, "all rise"),
        ([900, 500], {"end": 0.0}, "abar must rise"),
        ([500, 900], {"end": 1.0}, "abar must fall"),
        ([500, 900], {"start": 1.5}, "within 0..1"),
        ([500], {"end": LINEAR.alpha_bar[500].item()}, "abar must rise"),
    ],
)
def test_impossible_walks_are_refused(
    solver: Callable[..., Tensor], steps: list[int], options: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        solver(gaussian(), torch.zeros(1, 1, 8, 8), steps, LINEAR, **options)


def test_an_inversion_takes_no_fresh_noise() -> None:
    with pytest.raises(InputError, match="an inversion takes none"):
        dpm_solver_2m(gaussian(), torch.zeros(1, 1, 8, 8), [1, 5], LINEAR, fresh=torch.Generator())


def test_ddpm_cannot_invert() -> None:
    with pytest.raises(InputError, match="cannot invert"):
        ddpm(gaussian(), torch.zeros(1, 1, 8, 8), LINEAR, torch.Generator(), [0, 500])
