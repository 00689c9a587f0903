"""Stretches of time-steps: each usable step is in one of them, and is drawn by its weight."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler

from diti.core.errors import InputError
from diti.core.rng import Draws
from diti.diffusion.sampler import time_scale
from diti.diffusion.schedule import Schedule, lambda_x0
from diti.representation.solve.stretches import Stretches, make_stretches

SCHEDULES = {
    "linear": Schedule.linear(),
    "cosine": Schedule.cosine(1000),
    "few steps": Schedule.linear(10, 0.01, 0.5),
    "zero terminal SNR": Schedule.from_scheduler(DDPMScheduler(100, rescale_betas_zero_snr=True)),
}
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES.keys())


def usable(schedule: Schedule) -> int:
    """Steps that tell x0 at all."""
    return sum(abar > 0 for abar in schedule.alpha_bar.tolist())


@every_schedule
@pytest.mark.parametrize("count", [1, 2, 3, 7, 10])
def test_they_cover_every_usable_step_once(schedule, count):
    found = make_stretches(schedule, count)
    covered = [t for a, b in pairwise(found.bounds) for t in range(a, b)]
    assert covered == list(range(usable(schedule)))
    assert found.count == count and all(b > a for a, b in pairwise(found.bounds))


@every_schedule
def test_as_many_as_steps(schedule):
    steps = usable(schedule)
    found = make_stretches(schedule, steps)
    assert found.bounds == tuple(range(steps + 1))
    assert torch.equal(found.centres, torch.arange(steps, dtype=torch.float64))
    assert torch.equal(found.draw(3, torch.tensor([0.0, 0.5, 0.999999])), torch.tensor([3, 3, 3]))


def test_zero_terminal_snr_leaves_the_last_step_out():
    schedule = SCHEDULES["zero terminal SNR"]
    assert usable(schedule) == 99 and make_stretches(schedule, 4).bounds[-1] == 99
    assert torch.isfinite(make_stretches(schedule, 99).centres).all()


@every_schedule
@pytest.mark.parametrize("count", [0, -1, 5000])
def test_other_counts_are_refused(schedule, count):
    with pytest.raises(InputError, match=f"{count} stretches of time-steps; this schedule allows 1 to"):
        make_stretches(schedule, count)


@every_schedule
def test_they_are_even_on_the_scale_of_the_sampler(schedule):
    scale = np.append(time_scale(schedule), 1)
    bounds = make_stretches(schedule, 5).bounds
    widths = np.diff(scale[list(bounds)])
    step = np.diff(scale).max()
    assert np.abs(widths - 0.2).max() <= 2 * step


def test_they_are_finer_where_more_is_lost():
    bounds = make_stretches(Schedule.linear(), 16).bounds
    assert bounds[1] < 20 and np.diff(bounds)[0] < np.diff(bounds)[5]


@every_schedule
@pytest.mark.parametrize("count", [1, 4])
def test_masses_shares_and_centres_by_a_slow_loop(schedule, count):
    found = make_stretches(schedule, count)
    weight = lambda_x0(schedule).tolist()[: usable(schedule)]
    assert float(found.mass.sum()) == pytest.approx(sum(weight) / len(weight), rel=1e-12)
    assert float(found.share.sum()) == pytest.approx(1, rel=1e-12)
    for s, (a, b) in enumerate(pairwise(found.bounds)):
        inside = sum(weight[a:b])
        assert float(found.mass[s]) == pytest.approx(inside / len(weight), rel=1e-12)
        assert float(found.share[s]) == pytest.approx((b - a) / len(weight), rel=1e-12)
        centre = sum(t * weight[t] for t in range(a, b)) / inside
        assert float(found.centres[s]) == pytest.approx(centre, rel=1e-12) and a <= centre <= b - 1


def test_draws_follow_the_weight_inside_a_stretch():
    """Pearson's statistic of 20,000 draws is near its mean, the degrees of freedom."""
    found = make_stretches(Schedule.linear(60, 0.003, 0.15), 3)
    for s, (a, b) in enumerate(pairwise(found.bounds)):
        t = found.draw(s, Draws(0, 0, 20_000).uniform(f"stretch-{s}"))
        assert t.dtype == torch.int64 and a <= int(t.min()) and int(t.max()) < b
        expected = 20_000 * found.weight[a:b] / found.weight[a:b].sum()
        counted = torch.bincount(t - a, minlength=b - a)
        statistic = float(((counted - expected).square() / expected).sum())
        freedom = b - a - 1
        assert statistic < freedom + 5 * (2 * freedom) ** 0.5


def test_a_mean_over_draws_is_the_weighted_mean():
    """On an even grid of uniform numbers the mean of t is its centre."""
    found = make_stretches(Schedule.linear(), 6)
    even = (torch.arange(50_000, dtype=torch.float64) + 0.5) / 50_000
    for s in range(6):
        assert float(found.draw(s, even).double().mean()) == pytest.approx(float(found.centres[s]), abs=0.01)


def test_the_last_step_is_drawn_at_the_upper_end():
    found = Stretches((0, 3), torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64))
    assert found.draw(0, torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1.0])).tolist() == [0, 0, 1, 1, 2, 2]
