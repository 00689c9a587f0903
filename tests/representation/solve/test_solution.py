"""The whole solution: degree 0 is PDAE, quick and full scores agree, networks are filled in as found."""

import dataclasses

import pytest
import torch
from problems import PIXELS, PLAIN, SIZE, Gaussian, GaussianWalk, every_step, normal, sampled_evidence

from diti.diffusion.schedule import Schedule, lambda_x0
from diti.representation.solve.figure import save_lost_figure
from diti.representation.solve.keep import Unknown
from diti.representation.solve.order import lost_in_pixels, lost_shares
from diti.representation.solve.solution import quick_removed, solve
from diti.representation.solve.stretches import make_stretches

DIMS = 6


@pytest.fixture(scope="module")
def evidence():
    problem = Gaussian(Schedule.linear(200, 5e-4, 0.06))
    return sampled_evidence(problem, make_stretches(problem.schedule, 7), train=1024, valid=512)


def solved(evidence, subsets, settings=PLAIN, **options):
    return solve(evidence, DIMS, settings, timesteps=200, subsets=subsets, seed=0, **options)


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_degree_0_is_pdae(evidence, weight):
    settings = dataclasses.replace(PLAIN, features_weight=weight)
    diti, pdae = solved(evidence, 3, settings, tau=0.0), solved(evidence, 1, settings)
    assert diti.partition.subsets == 3 and pdae.partition.subsets == 1
    assert diti.removed == pytest.approx(pdae.removed, abs=1e-12)
    torch.testing.assert_close(diti.directions, pdae.directions, atol=1e-12, rtol=0)
    torch.testing.assert_close(diti.lost, pdae.lost, atol=1e-12, rtol=0)
    u, z = GaussianWalk(Gaussian(), "new").clean(0, 5)[0], normal(5, DIMS, dtype=torch.float32)
    for t in (0, 3, 90, 199):
        fields = [
            found.linear_part(evidence)(u, torch.full((5,), t), found.partition.mask(z, t))
            for found in (diti, pdae)
        ]
        torch.testing.assert_close(*fields, atol=1e-6, rtol=0)


def test_a_higher_degree_removes_less(evidence):
    removed = [solved(evidence, 3, tau=tau).removed for tau in (0.0, 0.05, 0.3, 0.8)]
    assert removed == sorted(removed, reverse=True) and removed[0] > removed[-1] + 0.01
    assert removed[-1] >= solved(evidence, 3, tau=0.8).removed_without_z - 1e-3


def test_the_degree_comes_from_the_settings(evidence):
    settings = dataclasses.replace(PLAIN, tau=0.3)
    assert solved(evidence, 3, settings).partition == solved(evidence, 3, tau=0.3).partition
    assert solved(evidence, 3, settings).partition != solved(evidence, 3, PLAIN).partition


def removed_on_images(problem, evidence, found) -> float:
    """Share of the loss that the linear decoder removes on new images and noise, at every t, weighted by λ_t."""
    decoder, weight = found.linear_part(evidence), lambda_x0(problem.schedule)
    x, _ = GaussianWalk(problem, "new").clean(0, 128)
    z = (evidence.look.whitening(x.flatten(1)) @ found.directions).float()
    left = frozen = 0.0
    for t in range(problem.schedule.timesteps):
        steps = torch.full((128,), t)
        abar = problem.schedule.alpha_bar[t].float()
        noise = normal(128, 3, SIZE, SIZE, seed=1000 + t, dtype=torch.float32)
        u = problem.x0(abar.sqrt() * x + (1 - abar).sqrt() * noise, steps)
        predicted = decoder(u, steps, found.partition.mask(z, steps))
        frozen += float(weight[t] * (x - u).square().sum())
        left += float(weight[t] * (x - u - predicted).square().sum())
    return 1 - left / frozen


@pytest.mark.parametrize(("subsets", "tau"), [(1, 0.0), (3, 0.1), (6, 0.3)])
def test_the_share_removed_is_that_of_predictions_on_new_images(subsets, tau):
    """The quadratic forms of the sums, each step a stretch, against the linear decoder run on images."""
    problem = Gaussian(Schedule.linear(40, 0.003, 0.25))
    evidence = sampled_evidence(problem, every_step(problem.schedule), train=768, valid=512)
    found = solve(evidence, DIMS, PLAIN, timesteps=40, subsets=subsets, seed=0, tau=tau)
    assert removed_on_images(problem, evidence, found) == pytest.approx(found.removed, abs=0.03)
    assert found.removed > 0.3


def test_between_centres_the_decoder_is_no_worse_than_the_sums_say(evidence):
    """A subset enters half a stretch early, with small weights: that only helps."""
    problem = Gaussian(Schedule.linear(200, 5e-4, 0.06))
    found = solved(evidence, 3, tau=0.2)
    assert removed_on_images(problem, evidence, found) > found.removed - 0.02


def test_the_quick_score_is_near_the_full_one(evidence):
    assert quick_removed(evidence, DIMS, 0.0) == pytest.approx(solved(evidence, 1).removed, abs=0.05)


def test_the_linear_part_holds_what_was_found(evidence):
    found = solved(evidence, 3)
    part = found.linear_part(evidence)
    assert part.description == {"pixel_axes": PIXELS, "stretches": 7} and part.dims == DIMS
    torch.testing.assert_close(part.weights.double(), found.weights, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(part.times.double(), evidence.stretches.centres, atol=0, rtol=1e-6)
    assert torch.equal(part.axes.axes, evidence.look.pixel_axes.axes)


def test_the_picture_of_what_is_lost(evidence, tmp_path):
    for subsets in (1, 3):
        path = save_lost_figure(solved(evidence, subsets), evidence.stretches, tmp_path / f"{subsets}.png")
        assert path.stat().st_size > 5_000


def test_lost_shares_stay_between_0_and_1():
    """Rounding and penalties may lead outside."""
    outside = Unknown(torch.diag(torch.tensor([-0.1, 1.2])).double(), torch.zeros(2, 1).double())
    assert lost_shares(torch.eye(2).double(), lost_in_pixels([outside])).tolist() == [[0.0, 1.0]]
