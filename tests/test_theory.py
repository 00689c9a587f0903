"""Attribute loss against integrals, exact denoisers and slow loops."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import integrate, optimize, stats
from tiny import tiny_backbone

from diti.core.errors import InputError
from diti.core.rng import torch_generator
from diti.data import toyfaces
from diti.diffusion.schedule import Schedule
from diti.representation.partition import Partition
from diti.theory import (
    attribute_error,
    closed_form_curve,
    dominance_kept,
    dominates,
    exact_pairs,
    given_pairs,
    lost_at,
    mean_position,
    monte_carlo_curve,
    monte_carlo_error,
    movement_shares,
    ovl,
    pixel_change,
    rank_agreement,
    reconstructor,
    spearman,
    subset_position,
    time_grid,
)

LINEAR = Schedule.linear()


def one_step(abar: float) -> Schedule:
    """A schedule of a single time-step that keeps the share `abar` of the image."""
    return Schedule.from_betas([1 - abar])


def bayes(points: torch.Tensor, schedule: Schedule):
    """The denoiser that is optimal in mean square (eq. 3) when the data are these points (P, D), each alike."""

    def u_theta(x_t, t):
        abar = schedule.alpha_bar[t][:, None, None]
        squares = (x_t[:, None] - abar.sqrt() * points).square().sum(2) / (2 * (1 - abar[:, :, 0]))
        return torch.softmax(-squares, 1) @ points

    return u_theta


def measured(points, abar, draws):
    """Err of the first two points by Monte Carlo with the optimal denoiser."""
    schedule = one_step(abar)
    points = torch.tensor(points, dtype=torch.float64)
    x0, y0 = (points[i].expand(draws, -1) for i in (0, 1))
    noise = torch.randn(x0.shape, generator=torch_generator(0, "test"), dtype=torch.float64)
    return monte_carlo_error(bayes(points, schedule), schedule, x0, y0, 0, noise).mean().item()


# ---- eq. 5


@pytest.mark.parametrize("abar", [0.02, 0.5, 0.95])
@pytest.mark.parametrize("distance", [0.1, 1.0, 6.0])
def test_overlap_is_the_integral_of_the_smaller_density(abar, distance):
    first = stats.norm(0, math.sqrt(1 - abar))
    second = stats.norm(math.sqrt(abar) * distance, math.sqrt(1 - abar))
    meet = math.sqrt(abar) * distance / 2
    overlap = integrate.quad(second.pdf, -20, meet)[0] + integrate.quad(first.pdf, meet, 20)[0]
    found = ovl(torch.tensor(distance, dtype=torch.float64), torch.tensor(abar, dtype=torch.float64))
    assert found.item() == pytest.approx(overlap, abs=1e-7)


def test_error_is_that_of_the_likelier_image_in_several_dims():
    rng = torch_generator(1, "test")
    x0, y0 = torch.randn(2, 7, generator=rng, dtype=torch.float64)
    abar, draws = torch.tensor(0.3, dtype=torch.float64), 200_000
    noise = torch.randn(draws, 7, generator=rng, dtype=torch.float64) * (1 - abar).sqrt()
    wrong = 0.0
    for truth, other in ((x0, y0), (y0, x0)):
        x_t = abar.sqrt() * truth + noise
        likelihood = [-(x_t - abar.sqrt() * mean).square().sum(1) for mean in (truth, other)]
        wrong += (likelihood[1] > likelihood[0]).double().mean().item() / 2
    closed = attribute_error((x0 - y0).norm(), abar).item()
    assert 0.05 < closed < 0.4
    assert wrong == pytest.approx(closed, abs=4 * math.sqrt(0.25 / draws))


def test_error_rises_with_time_and_falls_with_distance():
    distances = torch.tensor([0.0, 0.5, 2.0, 8.0], dtype=torch.float64)
    errors = attribute_error(distances[:, None], LINEAR.alpha_bar)  # (4, T)
    assert (errors.diff(dim=1) >= 0).all() and (errors.diff(dim=0) <= 0).all()
    later = errors[1:, 100:]  # at the first steps float64 rounds the smallest errors to 0
    assert (later.diff(dim=1) > 0).all() and (later.diff(dim=0) < 0).all()
    assert (errors[0] == 0.5).all() and errors.max() <= 0.5


def test_curve_is_the_mean_over_pairs():
    distances = torch.tensor([1.0, 3.0])
    curve = closed_form_curve(distances, LINEAR)
    for t in (0, 300, 999):
        each = [attribute_error(d.double(), LINEAR.alpha_bar[t]).item() for d in distances]
        assert curve[t].item() == pytest.approx(sum(each) / 2)


# ---- the definition with indicator functions


def test_with_two_points_the_optimal_model_reaches_the_closed_form():
    points, draws = [[0.4, -1.0, 0.2], [0.0, 0.5, -0.3]], 100_000
    distance = torch.dist(*torch.tensor(points, dtype=torch.float64))
    closed = attribute_error(distance, torch.tensor(0.4, dtype=torch.float64)).item()
    assert measured(points, 0.4, draws) == pytest.approx(closed, abs=4 * math.sqrt(0.25 / draws))


def test_with_a_third_point_the_optimal_model_stays_above_it():
    """1-D: the reconstruction rises with x_t, so the exact error follows from where it passes the midpoint."""
    points, abar, draws = np.array([0.0, 1.0, 1.5]), 0.2, 100_000

    def beyond_midpoint(x):
        weights = stats.norm.pdf(x, math.sqrt(abar) * points, math.sqrt(1 - abar))
        return (weights * points).sum() / weights.sum() - 0.5

    place = optimize.brentq(beyond_midpoint, -5, 5)
    means = math.sqrt(abar) * points[:2]
    exact = (stats.norm.sf(place, means[0], 0.8**0.5) + stats.norm.cdf(place, means[1], 0.8**0.5)) / 2
    closed = attribute_error(torch.tensor(1.0), torch.tensor(abar)).item()
    assert closed == pytest.approx(0.401, abs=5e-4) and exact == pytest.approx(0.472, abs=5e-4)
    assert measured(points[:, None], abar, draws) == pytest.approx(exact, abs=4 * math.sqrt(0.25 / draws))


def test_decision_is_the_definitions_on_images():
    """Against the norms as printed, with a reconstruction that has nothing to do with the images."""
    rng = torch_generator(2, "test")
    x0, y0, noise = torch.randn(3, 50, 3, 4, 4, generator=rng)
    guesses = torch.randn(100, 3, 4, 4, generator=rng)
    found = monte_carlo_error(lambda x_t, t: guesses, LINEAR, x0, y0, 500, noise)
    for i in range(50):
        x_hat, y_hat = guesses[i], guesses[50 + i]
        first = (x_hat - x0[i]).norm() > (x_hat - y0[i]).norm()
        second = (y_hat - x0[i]).norm() < (y_hat - y0[i]).norm()
        assert found[i].item() == (int(first) + int(second)) / 2


def test_equal_images_count_half_and_x_t_is_a_draw_of_q():
    x0 = torch.rand(4, 3, 2, 2)
    noise = torch.randn(x0.shape, generator=torch_generator(0, "test"))
    seen = []
    error = monte_carlo_error(lambda x_t, t: seen.append((x_t, t)) or x_t, LINEAR, x0, x0, 700, noise)
    assert (error == 0.5).all()
    x_t, t = seen[0]
    abar = LINEAR.alpha_bar[700].float()
    assert torch.allclose(x_t[4:], abar.sqrt() * x0 + (1 - abar).sqrt() * noise) and (t == 700).all()


def test_curve_averages_draws_over_batches_with_the_same_noise_at_all_times():
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    x0, y0 = points[:1].expand(150, 1), points[1:].expand(150, 1)  # more than two batches
    told = []
    rng = torch_generator(5, "test")
    curve = monte_carlo_curve(bayes(points, LINEAR), LINEAR, x0, y0, [100, 100, 900], rng, 40, told.append)
    assert curve.shape == (3, 150) and sum(told) == 2 * 3 * 150 * 40
    assert torch.equal(curve[0], curve[1])
    for row, t in ((0, 100), (2, 900)):
        closed = attribute_error(torch.tensor(1.0).double(), LINEAR.alpha_bar[t]).item()
        assert curve[row].mean().item() == pytest.approx(closed, abs=4 * math.sqrt(0.25 / 6000))


# ---- t(Z_i)


def test_lost_at_by_hand():
    steps = [0, 10, 30]
    assert lost_at([0.0, 0.05, 0.25], steps, 0.1) == pytest.approx(15.0)
    assert lost_at([0.0, 0.1, 0.25], steps, 0.1) == pytest.approx(10.0)
    assert lost_at([0.2, 0.3, 0.4], steps, 0.1) == 0.0
    assert lost_at([0.0, 0.01, 0.02], steps, 0.1) is None
    assert lost_at([0.0, 0.3, 0.05, 0.3], [0, 1, 2, 3], 0.1) == pytest.approx(2.2), "lost for good only after 2"
    assert lost_at([0.0, 0.3, 0.05], steps, 0.1) is None, "what is back at the last step is not lost"


@pytest.mark.parametrize("tau", [0.0, 0.5, -1, math.nan])
def test_tau_outside_the_range_of_err_is_refused(tau):
    with pytest.raises(InputError, match=r"tau is .*0\.1"):
        lost_at([0.1], [0], tau)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.3, 15), min_size=1, max_size=6),
    st.lists(st.floats(0, 5), min_size=6, max_size=6),
    st.sampled_from([0.05, 0.1, 0.3]),
)
def test_theorem(fine, more, tau):
    """Part 1: lost once, lost for good. Part 2: what changes more is lost later."""
    coarse = [d + m for d, m in zip(fine, more[: len(fine)], strict=True)]
    times = []
    for distances in (fine, coarse):
        curve = closed_form_curve(torch.tensor(distances), LINEAR)
        first = next((t for t in range(1000) if curve[t] >= tau), None)
        found = lost_at(curve, range(1000), tau)
        assert first == (None if found is None else math.ceil(found - 1e-9))
        assert first is None or (curve[first:] >= tau).all()
        times.append(1000.0 if found is None else found)
    if max(more[: len(fine)]) > 1e-3:
        assert dominates(torch.tensor(coarse), torch.tensor(fine))
        assert times[1] >= times[0]


def test_dominance_is_a_comparison_of_distribution_functions():
    a, b = torch.tensor([1.0, 3.0]), torch.tensor([0.5, 3.0, 3.0])
    assert not dominates(a, b) and not dominates(b, a), "their distribution functions cross"
    assert not dominates(a, a)
    assert dominates(torch.tensor([1.0, 4.0]), a)
    kept = dominance_kept({"a": a, "b": b, "c": a + 2}, {"a": 5.0, "b": 1.0, "c": 4.0})
    assert kept == {"dominant": 2, "lost_later": 1}, "c over a, which is lost later all the same, and c over b"


def test_grid_reaches_from_the_first_step_to_the_last():
    for steps in (1000, 30, 2):
        grid = time_grid(steps)
        assert grid[0] == 0 and grid[-1] == steps - 1 and all(a < b for a, b in itertools.pairwise(grid))
    grid = time_grid(1000)
    assert len(grid) == 20 and grid[1] - grid[0] < 20 < grid[-1] - grid[-2]


# ---- pairs


def test_exact_pairs_are_the_rendered_ones():
    pairs = exact_pairs(3, 16, seed=4)
    assert list(pairs.counts) == list(toyfaces.NAMES) and set(pairs.counts.values()) == {3}
    x0, y0 = pairs.load("hat")
    expected = toyfaces.pairs("hat", 3, 16, 4, start=10_000_000)
    assert torch.allclose((x0.permute(0, 2, 3, 1) + 1) * 127.5, torch.from_numpy(expected[0]).float(), atol=1e-3)
    difference = (expected[0].astype(float) - expected[1].astype(float)) / 127.5
    assert pixel_change(x0, y0).numpy() == pytest.approx(np.sqrt((difference**2).sum((1, 2, 3))), rel=1e-6)


def write_pairs(folder, text):
    (folder / "images").mkdir()
    for value in (0, 100, 200):
        Image.new("RGB", (20, 10), (value, value, value)).save(folder / "images" / f"{value}.png")
    (folder / "pairs.csv").write_text(text)
    return folder / "pairs.csv"


def test_given_pairs_are_read_beside_their_table(tmp_path):
    rows = (
        "smile,images/0.png,images/100.png\nsmile,images/0.png,images/200.png\nhat,images/200.png,images/0.png\n"
    )
    pairs = given_pairs(write_pairs(tmp_path, "attribute,first,second\n" + rows), count=8, size=4)
    assert pairs.counts == {"smile": 2, "hat": 1}
    x0, y0 = pairs.load("smile")
    assert x0.shape == y0.shape == (2, 3, 4, 4)
    assert torch.allclose(x0, torch.tensor(-1.0)) and y0[:, 0, 0, 0].tolist() == pytest.approx(
        [100 / 127.5 - 1, 200 / 127.5 - 1], abs=1e-6
    )
    assert given_pairs(tmp_path / "pairs.csv", count=1, size=4).counts == {"smile": 1, "hat": 1}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("attribute,first\nhat,a.png\n", r"no column second"),
        ("attribute,first,second\nhat,images/0.png,\n", r"empty cell"),
        ("attribute,first,second\n", r"no pairs"),
    ],
)
def test_bad_tables_of_pairs_are_refused(tmp_path, text, complaint):
    with pytest.raises(InputError, match=complaint):
        given_pairs(write_pairs(tmp_path, text), 8, 4)


def test_a_missing_image_of_a_pair_is_named(tmp_path):
    pairs = given_pairs(write_pairs(tmp_path, "attribute,first,second\nhat,images/0.png,none.png\n"), 8, 4)
    with pytest.raises(InputError, match=r"none\.png"):
        pairs.load("hat")


# ---- subsets and ranks


def test_movement_is_relative_to_the_spread_and_to_the_width():
    partition = Partition.custom(90, 3, 4, ends=[2, 2, 4])  # two dims, none, two dims
    std = torch.tensor([1.0, 2.0, 10.0, 10.0])
    z = torch.randn(5, 4, generator=torch_generator(0, "test"))
    moved = z + torch.tensor([1.0, 2.0, 0.0, 10.0])  # in units of std: 1, 1 and 0, 1
    shares = movement_shares(z, moved, std, partition)
    assert shares.tolist() == pytest.approx([2 / 3, 0, 1 / 3], abs=1e-6)
    assert mean_position(shares, partition) == pytest.approx(2 / 3 * 14.5 + 1 / 3 * 74.5, abs=1e-4)
    assert movement_shares(z, z, std, partition).tolist() == [0, 0, 0]


def test_position_is_the_middle_of_a_segment_and_tells_subsets_of_equal_starts_apart():
    balanced = Partition.balanced(90, 3, 6)
    assert [subset_position(subset, balanced) for subset in range(3)] == [14.5, 44.5, 74.5]
    matched = Partition.matched(90, 3, 6, [70, 80, 80])
    assert [subset_position(subset, matched) for subset in range(3)] == [15, 45, 75]


def test_rank_correlation_is_scipys_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 6, 12), rng.integers(0, 6, 12) + rng.random(12)
        assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3])) and math.isnan(spearman([math.nan], [1.0]))
    assert spearman([1, 2, math.nan, 3], [1, 2, 0, 9]) == pytest.approx(1), "what is not known does not count"


def test_interval_of_the_rank_correlation_covers_the_truth():
    """Bivariate normal with Pearson correlation r: Spearman's is 6/π asin(r/2)."""
    rng = np.random.default_rng(1)
    r, inside = 0.7, 0
    for seed in range(40):
        a, b = rng.multivariate_normal([0, 0], [[1, r], [r, 1]], 40).T
        (found,) = rank_agreement({"a": a, "b": b}, seed, draws=200)
        assert found["low"] < found["rho"] < found["high"]
        inside += found["low"] < 6 / math.pi * math.asin(r / 2) < found["high"]
    assert inside >= 33


def test_every_two_columns_are_compared_once_and_a_constant_one_says_nothing():
    found = rank_agreement({"a": [1, 2, 3, 4], "b": [2, 4, 6, 9], "c": [1, 1, 1, 1]}, 0, draws=50)
    assert [(f["first"], f["second"]) for f in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert found[0]["rho"] == found[0]["high"] == pytest.approx(1)
    assert found[1]["rho"] is None and found[1]["low"] is None


def test_reconstructor_is_one_call_of_the_backbone():
    backbone = tiny_backbone()
    x_t = torch.randn(2, 3, 16, 16, generator=torch_generator(0, "test"))
    t = torch.tensor([5, 40])
    found = reconstructor(backbone)(x_t, t)
    assert not found.requires_grad and torch.equal(found, backbone.x0(x_t, t).detach())
