"""Closed forms against Bayes' rule, against each other, against diffusers and against the authors' numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, FlowMatchEulerDiscreteScheduler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diti.core.errors import InputError
from diti.diffusion import schedule as sc
from diti.diffusion.schedule import Schedule, gather

SCHEDULES = {
    "linear-1000": Schedule.linear(),
    "linear-50": Schedule.linear(50, 2e-3, 0.4),
    "linear-1": Schedule.linear(1),
    "cosine-1000": Schedule.cosine(1000),
    "cosine-20": Schedule.cosine(20),
    "scaled-linear-1000": Schedule.from_scheduler(DDPMScheduler(1000, beta_schedule="scaled_linear")),
    "sigmoid-200": Schedule.from_scheduler(DDPMScheduler(200, beta_schedule="sigmoid")),
    "trained-betas": Schedule.from_betas([0.1, 0.05, 0.3, 0.2]),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())


def zero_terminal_snr(prediction_type: str = "v_prediction") -> DDPMScheduler:
    return DDPMScheduler(100, rescale_betas_zero_snr=True, prediction_type=prediction_type)


def normals(count: int, *shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    rng = torch.Generator().manual_seed(3)
    return [torch.randn(shape, generator=rng, dtype=dtype) for _ in range(count)]


def spread_steps(schedule: Schedule, count: int = 7) -> Tensor:
    return torch.linspace(0, schedule.timesteps - 1, count).long()


# ---- The schedule itself ----------------------------------------------------------------------------------


@every_schedule
def test_alpha_bar_is_the_running_product(schedule: Schedule) -> None:
    product, products = 1.0, []
    for beta in schedule.betas.tolist():
        products.append(product)
        product *= 1 - beta
    assert schedule.alpha_bar_prev.tolist() == pytest.approx(products, rel=1e-12)
    assert schedule.alpha_bar[-1].item() == pytest.approx(product, rel=1e-12)
    assert schedule.alpha_bar.dtype == torch.float64


def test_cosine_follows_the_squared_cosine_until_the_cap() -> None:
    def f(u: float) -> float:
        return math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2

    schedule = Schedule.cosine(1000)
    for t in (0, 100, 500, 990):
        assert schedule.alpha_bar[t].item() == pytest.approx(f((t + 1) / 1000) / f(0), rel=1e-9)
    assert schedule.betas.max().item() == 0.999


@pytest.mark.parametrize(
    ("ours", "name"), [(Schedule.linear(), "linear"), (Schedule.cosine(1000), "squaredcos_cap_v2")]
)
def test_same_tables_as_diffusers(ours: Schedule, name: str) -> None:
    theirs = DDPMScheduler(1000, beta_schedule=name)
    torch.testing.assert_close(ours.betas.float(), theirs.betas, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(ours.alpha_bar.float(), theirs.alphas_cumprod, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cls", [DDPMScheduler, DDIMScheduler])
@pytest.mark.parametrize("beta_schedule", ["linear", "scaled_linear", "squaredcos_cap_v2"])
def test_from_scheduler_takes_its_betas(cls: type, beta_schedule: str) -> None:
    scheduler = cls(77, beta_schedule=beta_schedule)
    schedule = Schedule.from_scheduler(scheduler)
    assert schedule.timesteps == 77
    torch.testing.assert_close(schedule.alpha_bar.float(), scheduler.alphas_cumprod, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "betas", [[], [0.0, 0.1], [0.1, 1.0, 0.1], [0.1, 1.5], [0.1, float("nan")], [[0.1, 0.2]], [-0.1]]
)
def test_impossible_betas_are_refused(betas: list[float]) -> None:
    with pytest.raises(InputError, match="betas"):
        Schedule.from_betas(betas)


def test_wrong_objects_are_refused() -> None:
    with pytest.raises(InputError, match="at least one time-step"):
        Schedule(torch.tensor([0.1, 0.2]))  # float32
    with pytest.raises(InputError, match="FlowMatchEulerDiscreteScheduler has no betas"):
        Schedule.from_scheduler(FlowMatchEulerDiscreteScheduler())
    with pytest.raises(InputError, match="at least 1 step"):
        Schedule.linear(0)


def test_gather_shapes_and_types() -> None:
    schedule = Schedule.linear()
    t = torch.tensor([0, 999, 500])
    images = torch.zeros(3, 3, 8, 8)
    rows = gather(schedule.alpha_bar, t, images)
    assert rows.shape == (3, 1, 1, 1) and rows.dtype == torch.float32
    assert rows.flatten().tolist() == schedule.alpha_bar[t].float().tolist()
    assert gather(schedule.alpha_bar, t, images.double()).dtype == torch.float64
    half = gather(schedule.alpha_bar, t, images.half())
    assert half.dtype == torch.float32 and half.flatten()[0] < 1  # in float16 the first abar is exactly 1
    assert gather(schedule.alpha_bar, t, torch.zeros(3, 5)).shape == (3, 1)


@pytest.mark.parametrize("t", [[-1], [1000], [[0]], [0.5]])
def test_gather_refuses_bad_steps(t: list[int]) -> None:
    with pytest.raises(InputError, match="t "):
        gather(Schedule.linear().alpha_bar, torch.tensor(t), torch.zeros(1, 3, 4, 4))


def test_half_precision_images_stay_finite_and_half() -> None:
    schedule = Schedule.linear()
    x0, noise = normals(2, 1, 3, 4, 4, dtype=torch.float16)
    abar = gather(schedule.alpha_bar, torch.tensor([0]), x0)
    x_t = sc.q_sample(x0, noise, abar)
    assert x_t.dtype == torch.float16
    assert sc.eps_from_x0(x0, x_t, abar).isfinite().all()


# ---- Forward and reverse process --------------------------------------------------------------------------


def product_of_gaussians(m1: Tensor, v1: float, m2: Tensor, v2: float) -> tuple[Tensor, float]:
    """Mean and variance of the normalised product of two Gaussian densities."""
    variance = 1 / (1 / v1 + 1 / v2)
    return variance * (m1 / v1 + m2 / v2), variance


@every_schedule
def test_posterior_follows_from_bayes_rule(schedule: Schedule) -> None:
    """q(x_{t-1} | x_t, x0) is q(x_t | x_{t-1}) as a density of x_{t-1}, times q(x_{t-1} | x0)."""
    x0, x_t = normals(2, 1, 2, 3, 3)
    for t in spread_steps(schedule)[1:].tolist():
        if t == 0:
            continue  # a schedule of one step has no step before it
        alpha, beta = 1 - schedule.betas[t].item(), schedule.betas[t].item()
        prev = math.prod(1 - b for b in schedule.betas[:t].tolist())
        mean, variance = product_of_gaussians(x_t / math.sqrt(alpha), beta / alpha, math.sqrt(prev) * x0, 1 - prev)
        abar_t, abar_prev = schedule.alpha_bar[t], schedule.alpha_bar_prev[t]
        torch.testing.assert_close(sc.posterior_mean_x0(x0, x_t, abar_t, abar_prev), mean, rtol=1e-9, atol=1e-9)
        assert sc.posterior_variance(abar_t, abar_prev).item() == pytest.approx(variance, rel=1e-9)


def test_posterior_across_several_steps_follows_from_bayes_rule() -> None:
    schedule = Schedule.linear(100)
    x0, x_t = normals(2, 1, 1, 3, 3)
    abar_t, abar_prev = schedule.alpha_bar[80], schedule.alpha_bar[30]
    alpha = math.prod((1 - schedule.betas[31:81]).tolist())
    mean, variance = product_of_gaussians(
        x_t / math.sqrt(alpha), (1 - alpha) / alpha, abar_prev.sqrt() * x0, 1 - abar_prev.item()
    )
    torch.testing.assert_close(sc.posterior_mean_x0(x0, x_t, abar_t, abar_prev), mean)
    assert sc.posterior_variance(abar_t, abar_prev).item() == pytest.approx(variance)


@every_schedule
def test_posterior_means_agree(schedule: Schedule) -> None:
    t = spread_steps(schedule)
    x0, noise = normals(2, len(t), 2, 3, 3)
    abar, prev = gather(schedule.alpha_bar, t, x0), gather(schedule.alpha_bar_prev, t, x0)
    x_t = sc.q_sample(x0, noise, abar)
    from_eps = sc.posterior_mean_eps(noise, x_t, abar, prev)
    torch.testing.assert_close(from_eps, sc.posterior_mean_x0(x0, x_t, abar, prev), rtol=1e-7, atol=1e-7)
    first = slice(0, 1)
    torch.testing.assert_close(from_eps[first], x0[first])  # before the first step lies the clean image
    assert sc.posterior_variance(abar, prev)[0].item() == 0


def test_q_sample_has_the_moments_of_eq_2() -> None:
    abar = torch.tensor(0.3, dtype=torch.float64)
    noise = normals(1, 200_000)[0]
    x_t = sc.q_sample(torch.full_like(noise, 2.0), noise, abar)
    assert x_t.mean().item() == pytest.approx(2 * math.sqrt(0.3), abs=5 * math.sqrt(0.7 / 200_000))
    assert x_t.var().item() == pytest.approx(0.7, abs=5 * 0.7 * math.sqrt(2 / 200_000))


def test_agrees_with_the_diffusers_scheduler() -> None:
    """add_noise, get_velocity and the mean and variance of one ancestral step."""
    scheduler = DDPMScheduler(1000, clip_sample=False)
    schedule = Schedule.from_scheduler(scheduler)
    x0, noise = normals(2, 4, 3, 5, 5, dtype=torch.float32)
    t = torch.tensor([1, 120, 640, 999])
    abar, prev = gather(schedule.alpha_bar, t, x0), gather(schedule.alpha_bar_prev, t, x0)
    x_t = sc.q_sample(x0, noise, abar)
    torch.testing.assert_close(x_t, scheduler.add_noise(x0, noise, t))
    torch.testing.assert_close(sc.v_from_eps(noise, x0, abar), scheduler.get_velocity(x0, noise, t))

    variance = sc.posterior_variance(schedule.alpha_bar, schedule.alpha_bar_prev)
    for i, step in enumerate(t.tolist()):
        row = slice(i, i + 1)
        draw = torch.Generator().manual_seed(5)
        stepped = scheduler.step(noise[row], step, x_t[row], generator=draw).prev_sample
        white = torch.randn(x_t[row].shape, generator=torch.Generator().manual_seed(5))
        ours = sc.posterior_mean_eps(noise[row], x_t[row], abar[row], prev[row])
        ours = ours + variance[step].sqrt().float() * white
        torch.testing.assert_close(ours, stepped, rtol=1e-4, atol=1e-4)


# ---- What a network may predict ---------------------------------------------------------------------------


@given(abar=st.floats(1e-4, 1 - 1e-4), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_conversions_round_trip(abar: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    x0, eps = (torch.randn(1, 2, 2, 2, generator=rng, dtype=torch.float64) for _ in range(2))
    a = torch.tensor(abar, dtype=torch.float64)
    x_t = sc.q_sample(x0, eps, a)
    v = sc.v_from_eps(eps, x0, a)
    for name, found, wanted in [
        ("x0_from_eps", sc.x0_from_eps(eps, x_t, a), x0),
        ("eps_from_x0", sc.eps_from_x0(x0, x_t, a), eps),
        ("x0_from_v", sc.x0_from_v(v, x_t, a), x0),
        ("eps_from_v", sc.eps_from_v(v, x_t, a), eps),
    ]:
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9, msg=name)


def test_an_output_of_every_prediction_type_is_read() -> None:
    x0, eps = normals(2, 2, 3, 4, 4)
    a = torch.tensor([0.9, 0.2], dtype=torch.float64).reshape(2, 1, 1, 1)
    x_t = sc.q_sample(x0, eps, a)
    outputs = {"epsilon": eps, "sample": x0, "v_prediction": sc.v_from_eps(eps, x0, a)}
    assert set(outputs) == set(sc.PREDICTION_TYPES)
    for prediction_type, output in outputs.items():
        torch.testing.assert_close(sc.eps_from_output(output, x_t, a, prediction_type), eps)
        torch.testing.assert_close(sc.x0_from_output(output, x_t, a, prediction_type), x0)
    with pytest.raises(InputError, match="Did you mean 'epsilon'"):
        sc.eps_from_output(eps, x_t, a, "epsilom")


# ---- Weights and losses -----------------------------------------------------------------------------------


@every_schedule
def test_eq_6_is_the_same_in_both_forms(schedule: Schedule) -> None:
    """The appendix's substitution, done numerically: eq. A4 in noise equals eq. 6 in images."""
    t = spread_steps(schedule)
    x0, eps, eps_theta, g = normals(4, len(t), 3, 4, 4)
    abar = gather(schedule.alpha_bar, t, x0)
    x_t = sc.q_sample(x0, eps, abar)
    u = sc.x0_from_eps(eps_theta, x_t, abar)

    def at(table: Tensor) -> Tensor:
        return gather(table, t, x0)

    in_eps = sc.reconstruction_loss_eps(eps, eps_theta, g, at(sc.w_eps(schedule)), at(sc.lambda_eps(schedule)))
    in_x0 = sc.reconstruction_loss_x0(x0, u, g, at(sc.w_x0(schedule)), at(sc.lambda_x0(schedule)))
    assert in_eps.shape == (len(t),)
    torch.testing.assert_close(in_eps, in_x0, rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(
        sc.dm_loss_eps(eps, eps_theta), sc.dm_loss_x0(x0, u, at(sc.snr(schedule))), rtol=1e-7, atol=1e-10
    )


def test_losses_are_means_over_the_pixels_of_one_image() -> None:
    eps, eps_theta, g = normals(3, 2, 3, 4, 4)
    w, lam = torch.tensor([0.5, 0.0]).reshape(2, 1, 1, 1), torch.tensor([2.0, 3.0]).reshape(2, 1, 1, 1)
    found = sc.reconstruction_loss_eps(eps, eps_theta, g, w, lam)
    slow = [0.0, 0.0]
    for b in range(2):
        for c, i, j in torch.cartesian_prod(torch.arange(3), torch.arange(4), torch.arange(4)).tolist():
            corrected = eps_theta[b, c, i, j].item() - w[b].item() * g[b, c, i, j].item()
            slow[b] += lam[b].item() * (eps[b, c, i, j].item() - corrected) ** 2 / 48
    assert found.tolist() == pytest.approx(slow)


@every_schedule
def test_weights_as_printed_in_the_appendix(schedule: Schedule) -> None:
    ratio = sc.snr(schedule)
    printed = (1 / (1 + ratio)) ** 0.9 * (ratio / (1 + ratio)) ** 0.1
    torch.testing.assert_close(sc.lambda_eps(schedule), printed, rtol=1e-9, atol=0)
    torch.testing.assert_close(sc.lambda_eps(schedule, 0.5), ratio**0.5 / (1 + ratio), rtol=1e-9, atol=0)
    torch.testing.assert_close(sc.lambda_x0(schedule), ratio * printed, rtol=1e-9, atol=0)
    from_w_eps = ((1 - schedule.alpha_bar) / schedule.alpha_bar).sqrt() * sc.w_eps(schedule)
    torch.testing.assert_close(sc.w_x0(schedule), from_w_eps, rtol=1e-9, atol=1e-12)
    assert sc.w_eps(schedule)[0] == 0 and sc.w_x0(schedule)[0] == 0


@pytest.mark.parametrize("by", ["min-snr", "p2"])
def test_training_weights_are_the_same_loss_for_every_prediction_type(by: str) -> None:
    """Against the definitions, with the errors in ε, v and x0 that one and the same wrong x0 makes."""
    schedule = Schedule.linear(200, 5e-4, 0.1)
    ratio = schedule.alpha_bar / (1 - schedule.alpha_bar)
    x0, eps, wrong = normals(3, 200, 3, 2, 2)
    x_t = sc.q_sample(x0, eps, gather(schedule.alpha_bar, torch.arange(200), x0))
    error_x0 = (x0 - wrong).square().mean((1, 2, 3))
    defined = ratio.clamp(max=5) * error_x0 if by == "min-snr" else 1 / (1 + ratio) * ratio * error_x0
    abar = gather(schedule.alpha_bar, torch.arange(200), x0)
    eps_wrong = sc.eps_from_x0(wrong, x_t, abar)
    for kind in ("epsilon", "v_prediction", "sample"):
        target, output = sc.output_target(x0, eps, abar, kind), sc.output_target(wrong, eps_wrong, abar, kind)
        weight = sc.training_weight(schedule, by, kind)
        shares = weight * (target - output).square().mean((1, 2, 3)) / defined
        torch.testing.assert_close(shares, shares[:1].expand(200), rtol=1e-6, atol=0)
        assert weight.mean().item() == pytest.approx(1)
    assert sc.training_weight(schedule, "none", "epsilon").unique().tolist() == [1.0]


def test_training_weights_stay_numbers_where_no_signal_is_left() -> None:
    schedule = Schedule.from_scheduler(zero_terminal_snr())
    for kind in ("v_prediction", "epsilon"):
        assert sc.training_weight(schedule, "min-snr", kind).isfinite().all()


def test_guidance_of_the_authors_differs_from_w_only_at_low_t() -> None:
    schedule = Schedule.linear()
    ratio = sc.w_eps(schedule) / sc.guidance_authors(schedule)
    assert ratio[1].item() == pytest.approx(0.45, abs=0.01)
    assert ratio[50].item() == pytest.approx(0.96, abs=0.01)
    assert ratio[0] == 0 and bool((ratio[600:] > 0.98).all())


def test_zero_terminal_snr_gives_numbers_wherever_they_are_defined() -> None:
    schedule = Schedule.from_scheduler(zero_terminal_snr())
    assert schedule.alpha_bar[-1] == 0
    for table in (sc.snr, sc.lambda_eps, sc.lambda_x0, sc.w_eps, sc.w_x0, sc.guidance_authors):
        assert table(schedule).isfinite().all(), table.__name__
    x0, noise = normals(2, 1, 3, 4, 4)
    abar, prev = schedule.alpha_bar[-1], schedule.alpha_bar_prev[-1]
    x_t = sc.q_sample(x0, noise, abar)
    torch.testing.assert_close(x_t, noise)
    torch.testing.assert_close(sc.x0_from_v(sc.v_from_eps(noise, x0, abar), x_t, abar), x0)
    torch.testing.assert_close(sc.eps_from_x0(x0, x_t, abar), noise)
    # With pure noise behind it, the step before is drawn as if x_t were not known.
    torch.testing.assert_close(sc.posterior_mean_x0(x0, x_t, abar, prev), prev.sqrt() * x0)
    assert sc.posterior_variance(abar, prev).item() == pytest.approx(1 - prev.item())


# ---- The authors' numbers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authors(parity: Path) -> dict[str, Tensor]:
    return torch.load(parity / "pdae_tiny" / "expected.pt", weights_only=True)


def test_tables_of_the_authors(authors: dict[str, Tensor]) -> None:
    schedule = Schedule.linear()
    torch.testing.assert_close(schedule.alpha_bar.float(), authors["alphas_cumprod"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(-sc.w_eps(schedule).float(), authors["shift_coef"], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(sc.lambda_eps(schedule).float(), authors["weight"], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "eps", "gradient"),
    [
        ("loss_diti_per_image", "eps_masked", "gradient_masked"),
        ("loss_pdae_per_image", "eps", "gradient"),
    ],
)
def test_losses_of_the_authors(authors: dict[str, Tensor], loss: str, eps: str, gradient: str) -> None:
    schedule = Schedule.linear()
    t, x0, noise = authors["t"], authors["x0"], authors["noise"]
    x_t = sc.q_sample(x0, noise, gather(schedule.alpha_bar, t, x0))
    torch.testing.assert_close(x_t, authors["x_t"], rtol=1e-4, atol=1e-4)
    w, lam = gather(sc.w_eps(schedule), t, x0), gather(sc.lambda_eps(schedule), t, x0)
    ours = sc.reconstruction_loss_eps(noise, authors[eps], authors[gradient], w, lam)
    torch.testing.assert_close(ours, authors[loss], rtol=1e-4, atol=1e-6)
