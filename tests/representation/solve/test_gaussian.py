"""All steps at once on Gaussian images, whose solution is known: the principal components, finest first.

û is the posterior mean, so without z nothing can be removed of the loss s² / (1 + SNR s²) of a component; a
component that z holds is then known exactly, and its loss is removed wherever it is visible.
"""

import dataclasses
from functools import partial

import pytest
import torch
from problems import PIXELS, PLAIN, Gaussian, GaussianWalk, every_step, exact_evidence, sampled_evidence

from diti.core.rng import Draws
from diti.diffusion.schedule import Schedule, gather, lambda_x0, q_sample
from diti.representation.solve import solution as solving
from diti.representation.solve.fit import best_ridge
from diti.representation.solve.keep import not_known_yet
from diti.representation.solve.order import lost_in_pixels, lost_shares
from diti.representation.solve.solution import Solution, quick_removed, solve
from diti.representation.solve.stretches import make_stretches

TAU = 0.3


@pytest.fixture
def no_penalty(monkeypatch):
    """Expected products need no ridge; without it the answer is exact."""
    monkeypatch.setattr(solving, "KNOWN_PENALTY", 0.0)
    monkeypatch.setattr(solving, "QUICK_PENALTY", 0.0)
    monkeypatch.setattr(solving, "best_ridge", partial(best_ridge, penalties=(0.0,)))


def solved(problem, evidence, dims, subsets, tau=TAU, settings=PLAIN) -> Solution:
    return solve(evidence, dims, settings, timesteps=problem.schedule.timesteps, subsets=subsets, seed=0, tau=tau)


def losses(problem) -> torch.Tensor:
    """(T, P) λ_t s² / (1 + SNR_t s²): what each component adds to the frozen model's loss."""
    abar = problem.schedule.alpha_bar[:, None]
    lost = problem.variance / (1 + abar / (1 - abar) * problem.variance)
    return lambda_x0(problem.schedule)[:, None] * lost


def shares(problem) -> torch.Tensor:
    """(T, P) 1 / (1 + SNR_t s²)."""
    abar = problem.schedule.alpha_bar[:, None]
    return 1 / (1 + abar / (1 - abar) * problem.variance)


def expected_axes(problem, dims):
    """(P, D) U / s of the components of largest variance, the finest of them first."""
    return (problem.axes / problem.variance.sqrt())[:, PIXELS - dims :]  # the variance rises


def assert_equal_up_to_sign(found, expected, atol):
    signs = (found * expected).sum(0).sign()
    torch.testing.assert_close(found * signs, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("dims", [1, 5, PIXELS])
def test_the_code_are_the_principal_components_finest_first(no_penalty, dims):
    problem = Gaussian()
    evidence = exact_evidence(problem)
    found = solved(problem, evidence, dims, subsets=1)
    mean, std, axes = found.head(evidence)
    assert_equal_up_to_sign(axes, expected_axes(problem, dims), atol=1e-8)
    assert torch.equal(mean, torch.zeros_like(mean)) and torch.equal(std, torch.ones_like(std))
    torch.testing.assert_close(found.lost, shares(problem)[:, PIXELS - dims :], atol=1e-9, rtol=0)
    assert (found.lost.diff(dim=1) < 0).all() and (found.lost.diff(dim=0) > 0).all()


@pytest.mark.parametrize("dims", [1, 5, PIXELS])
def test_loss_removed_without_a_mask(no_penalty, dims):
    problem = Gaussian()
    evidence = exact_evidence(problem)
    found = solved(problem, evidence, dims, subsets=1)
    expected = losses(problem)[:, PIXELS - dims :].sum() / losses(problem).sum()
    assert found.removed == pytest.approx(float(expected), abs=1e-9)
    assert found.removed_without_z == pytest.approx(0, abs=1e-12)
    assert found.partition.kind == "balanced" and found.partition.subsets == 1
    half = losses(problem)[::2]  # the quick score looks at every second stretch
    quick = quick_removed(evidence, dims, 0.0)
    assert quick == pytest.approx(float(half[:, PIXELS - dims :].sum() / half.sum()), abs=1e-9)


@pytest.mark.parametrize(("dims", "subsets"), [(5, 5), (PIXELS, PIXELS), (6, 2)])
def test_loss_removed_where_each_component_is_visible_from_its_degree_of_loss_on(no_penalty, dims, subsets):
    problem = Gaussian()
    found = solved(problem, exact_evidence(problem), dims, subsets)
    kept, width = slice(PIXELS - dims, None), dims // subsets
    expected, starts = torch.zeros((), dtype=torch.float64), []
    for subset in range(subsets):
        owned = slice(PIXELS - dims + subset * width, PIXELS - dims + (subset + 1) * width)
        reached = [t for t, share in enumerate(shares(problem)[:, owned].mean(1)) if share >= TAU]
        starts.append(reached[0])  # a step is a stretch, so it starts at the very step
        expected += losses(problem)[reached[0] :, owned].sum()
    assert dict(found.partition.parameters)["starts"] == tuple(starts)
    assert len(set(starts)) > 1 and starts == sorted(starts)
    assert found.removed == pytest.approx(float(expected / losses(problem).sum()), abs=1e-9)
    assert found.removed < float(losses(problem)[:, kept].sum() / losses(problem).sum()) - 0.01


def test_with_all_components_the_image_is_known_exactly(no_penalty):
    problem = Gaussian()
    evidence = exact_evidence(problem)
    found = solved(problem, evidence, PIXELS, subsets=1)
    decoder = found.linear_part(evidence)
    x, _ = GaussianWalk(problem, "new").clean(0, 8)
    z = (evidence.look.whitening(x.flatten(1)) @ found.directions).float()
    t = torch.arange(8) % problem.schedule.timesteps
    u = problem.x0(q_sample(x, Draws(0, 0, 8).normal("noise", x.shape[1:]), abar_at(problem, t, x)), t)
    assert (x - u).abs().max() > 0.5
    torch.testing.assert_close(u + decoder(u, t, z), x, atol=1e-4, rtol=0)


def abar_at(problem, t, x):
    return gather(problem.schedule.alpha_bar, t, x)


def test_a_field_without_penalty_is_the_exact_posterior_mean_given_the_kept_components(no_penalty):
    """Kept components come from z, the others stay as û has them."""
    problem = Gaussian()
    evidence = exact_evidence(problem)
    found = solved(problem, evidence, 5, subsets=1)
    decoder = found.linear_part(evidence)
    x, _ = GaussianWalk(problem, "new").clean(0, 6)
    t = torch.full((6,), 4)
    u = problem.x0(q_sample(x, Draws(0, 0, 6).normal("noise", x.shape[1:]), abar_at(problem, t, x)), t)
    kept = problem.axes[:, PIXELS - 5 :]
    expected = u.flatten(1).double() + (x - u).flatten(1).double() @ kept @ kept.T
    z = (evidence.look.whitening(x.flatten(1)) @ found.directions).float()
    torch.testing.assert_close((u + decoder(u, t, z)).flatten(1).double(), expected, atol=1e-4, rtol=0)


def test_the_usual_penalties_change_little():
    problem = Gaussian()
    evidence = exact_evidence(problem)
    found = solved(problem, evidence, 5, subsets=1)
    assert_equal_up_to_sign(found.head(evidence)[2], expected_axes(problem, 5), atol=0.02)
    torch.testing.assert_close(found.lost, shares(problem)[:, PIXELS - 5 :], atol=2e-3, rtol=0)
    expected = losses(problem)[:, PIXELS - 5 :].sum() / losses(problem).sum()
    assert found.removed == pytest.approx(float(expected), abs=1e-3)


def test_the_same_from_drawn_images():
    """Time-steps, noise and images are drawn, as `diti solve` draws them; stretches have several steps."""
    problem = Gaussian(Schedule.linear(40, 0.005, 0.2), variance=0.02 * 2.2 ** torch.arange(12.0).double())
    stretches = make_stretches(problem.schedule, 10)
    evidence = sampled_evidence(problem, stretches, train=3072, valid=1024)
    found = solved(problem, evidence, 4, subsets=4)
    axes = found.head(evidence)[2]
    expected = expected_axes(problem, 4)
    overlap = torch.nn.functional.cosine_similarity(axes, expected, dim=0).abs()
    assert overlap.min() > 0.98, overlap
    z = evidence.look.whitening(evidence.look.walk.clean(0, 3072)[0].flatten(1)) @ found.directions
    torch.testing.assert_close(z.T @ z / len(z), torch.eye(4, dtype=torch.float64), atol=1e-5, rtol=0)
    for s, (a, b) in enumerate(zip(stretches.bounds[:-1], stretches.bounds[1:], strict=True)):
        drawn = lambda_x0(problem.schedule)[a:b] / lambda_x0(problem.schedule)[a:b].sum()
        mean_share = (drawn[:, None] * shares(problem)[a:b, PIXELS - 4 :]).sum(0)
        torch.testing.assert_close(found.lost[s], mean_share, atol=0.05, rtol=0)
    of_steps = torch.bucketize(torch.arange(40), torch.tensor(stretches.bounds[1:]), right=True)
    visible = (found.lost >= TAU).long().cummax(0).values[of_steps]  # a stretch is seen as a whole or not at all
    expected = (losses(problem)[:, PIXELS - 4 :] * visible).sum() / losses(problem).sum()
    assert found.removed == pytest.approx(float(expected), abs=0.04)
    assert found.removed_without_z == pytest.approx(0, abs=0.02)


def test_where_the_frozen_model_is_exact_features_of_reconstructions_tell_the_same_order():
    """û is the posterior mean, so a share 1 / (1 + SNR s²) of each component is lost in features, too."""
    problem = Gaussian(Schedule.linear(15, 0.0005, 0.05), variance=1e-4 * 2.0 ** torch.arange(12.0).double())
    evidence = sampled_evidence(problem, every_step(problem.schedule), train=4096, valid=512, shown=2048)
    assert float(evidence.train.tensors["shown_images"]) == 2048
    settings = dataclasses.replace(PLAIN, lost_in="features")
    found = solve(evidence, 5, settings, timesteps=15, subsets=5, seed=0, tau=0.3)
    overlap = torch.nn.functional.cosine_similarity(found.head(evidence)[2], expected_axes(problem, 5), dim=0)
    assert overlap.abs().min() > 0.97, overlap
    torch.testing.assert_close(found.lost, shares(problem)[:, PIXELS - 5 :], atol=0.06, rtol=0)


def test_a_stretch_of_many_steps_says_what_its_steps_say_together():
    """Drawn by λ, the mean of a stretch is the λ-weighted mean of its steps."""
    problem = Gaussian()
    evidence = sampled_evidence(problem, make_stretches(problem.schedule, 2), train=8192, valid=64)
    exact = list(exact_evidence(problem).train)
    bounds, weight = evidence.stretches.bounds, lambda_x0(problem.schedule)
    for s, means in enumerate(evidence.train):
        steps = range(bounds[s], bounds[s + 1])
        total = sum(weight[t] for t in steps)
        for name in ("a_a", "a_phi", "phi_rho", "lost"):
            expected = sum(weight[t] / total * getattr(exact[t], name) for t in steps)
            error = (getattr(means, name) - expected).abs().max() / expected.abs().max()
            assert error < 0.1, (name, s, error)


def test_step_one_of_exact_products_is_the_lost_share():
    problem = Gaussian()
    unknown = [not_known_yet(means, 0.0) for means in exact_evidence(problem).train]
    found = lost_shares(problem.turn, lost_in_pixels(unknown))  # φ turned back: one component per dim
    torch.testing.assert_close(found, shares(problem), atol=1e-12, rtol=0)
    for t, u in enumerate(unknown):
        expected = problem.turn * (problem.variance.sqrt() * shares(problem)[t]) @ problem.axes.T
        torch.testing.assert_close(u.pixels, expected, atol=1e-12, rtol=0)


def test_every_step_is_a_stretch():
    assert every_step(Gaussian().schedule).bounds == tuple(range(16))
