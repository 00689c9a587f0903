"""The order of the dims: whitening, fine to coarse, independent inside subsets; rotations change no loss."""

import dataclasses

import numpy as np
import pytest
import torch
from problems import PIXELS, PLAIN, Gaussian, exact_evidence, explicit, normal, rotation, sampled_evidence
from scipy.linalg import subspace_angles

from diti.diffusion.schedule import Schedule
from diti.representation.partition import Partition
from diti.representation.solve import order
from diti.representation.solve.keep import keep, not_known_yet
from diti.representation.solve.order import (
    by_lost_share,
    fine_to_coarse,
    independent_inside,
    independent_rotation,
    lost_in_features,
    lost_in_pixels,
    lost_shares,
    whiten,
)
from diti.representation.solve.solution import fitted, solve
from diti.representation.solve.stretches import make_stretches
from diti.representation.solve.sums import Sums

SHARE = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
MASS = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
INDEPENDENT = dataclasses.replace(PLAIN, axes="independent")


def kept(data, dims: int = 4):
    """Whitened directions and what is lost of them, from drawn data."""
    sums = data.sums()
    unknown = [not_known_yet(means, 0.0) for means in sums]
    found = keep(unknown, MASS, torch.ones(data.phi.shape[1], dtype=torch.float64), dims, 0.0)
    return whiten(found, sums.means(0).phi_phi), lost_in_pixels(unknown)


def test_whitened_codes_have_the_identity_as_second_moments():
    data = explicit()
    directions, _ = kept(data)
    z = data.phi @ directions
    torch.testing.assert_close(z.T @ z / len(z), torch.eye(4, dtype=torch.float64), atol=1e-9, rtol=0)
    found = whiten(normal(7, 4, seed=3), data.sums().means(0).phi_phi)
    assert subspace_angles(found.numpy(), normal(7, 4, seed=3).numpy()).max() < 1e-6, "only mixed"


def test_lost_shares_are_those_of_explicit_regressions():
    """1 - R² of each dim on (1, p), second moments being 1."""
    data = explicit()
    directions, lost = kept(data)
    z = (data.phi @ directions).numpy()
    for s, shares in enumerate(lost_shares(directions, lost)):
        left = z - data.a(s) @ np.linalg.lstsq(data.a(s), z, rcond=None)[0]
        np.testing.assert_allclose(shares, (left**2).mean(0), atol=1e-9)
        np.testing.assert_allclose(lost(directions)[s], left.T @ left / len(z), atol=1e-9)


def shown_sums(images: int = 400):
    """Sums with features of reconstructions that say less and less, and the numbers themselves: φ and φ̂."""
    phi = normal(images, 5, seed=1) @ normal(5, 5, seed=2) + 0.4
    hats = torch.stack([phi / (1 + s) + s * normal(images, 5, seed=3 + s) - 1.5 for s in range(3)])
    sums = Sums(3, 2, 5, shown=True)
    for part in (slice(0, 150), slice(150, images)):
        sums.add_shown_images(phi[part])
        for s in range(3):
            sums.add_shown(s, hats[s, part], phi[part])
    return sums, phi, hats


def test_what_is_lost_in_features_against_a_slow_loop():
    """One number per stretch takes the codes of reconstructions to those of images; what is then left is lost."""
    sums, phi, hats = shown_sums()
    centred = phi - phi.mean(0)
    directions = whiten(normal(5, 3, seed=9), centred.T @ centred / len(phi))
    z = (centred @ directions).numpy()
    found = lost_in_features([sums.shown(s) for s in range(3)])(directions)
    for s, hat in enumerate(hats):
        z_hat = ((hat - hat.mean(0)) @ directions).numpy()
        gamma = np.linalg.lstsq(z_hat.reshape(-1, 1), z.reshape(-1), rcond=None)[0][0]
        left = z - gamma * z_hat
        np.testing.assert_allclose(found[s], left.T @ left / len(z), atol=1e-9)
    assert found[0].abs().max() < 1e-9, "nothing is lost at first"
    assert 0.3 < float(found[2].trace()) / 3 <= 1


def test_what_is_lost_in_features_is_measured_in_units_of_the_images_that_were_looked_at():
    """By chance the codes of few images are not white: a loss of all of them is still a loss of 1."""
    sums, _, _ = shown_sums(images=200)
    shown = [dataclasses.replace(sums.shown(0), hat_phi=torch.zeros(5, 5).double())]
    directions = normal(5, 3, seed=9)
    torch.testing.assert_close(lost_in_features(shown)(directions)[0], torch.eye(3).double(), atol=1e-9, rtol=0)


def test_reconstructions_that_are_all_the_same_show_nothing():
    sums, _, _ = shown_sums(images=200)
    nothing = torch.zeros(5, 5).double()
    shown = [dataclasses.replace(sums.shown(0), hat_hat=nothing, hat_phi=nothing)]
    found = lost_in_features(shown)(normal(5, 3, seed=9))[0]
    torch.testing.assert_close(found, torch.eye(3).double(), atol=1e-9, rtol=0)


def test_dims_run_from_lost_early_to_lost_late():
    data = explicit()
    directions, lost = kept(data)
    turned = fine_to_coarse(directions, lost, SHARE)
    mean_lost = (SHARE[:, None] * lost_shares(turned, lost)).sum(0)
    assert (mean_lost.diff() <= 1e-12).all() and mean_lost[0] > mean_lost[-1] + 0.05
    mean = sum(w * covariance for w, covariance in zip(SHARE, lost(turned), strict=True))
    torch.testing.assert_close(mean, torch.diag(mean.diagonal()), atol=1e-9, rtol=0)
    z = data.phi @ turned
    torch.testing.assert_close(z.T @ z / len(z), torch.eye(4, dtype=torch.float64), atol=1e-9, rtol=0)
    largest = turned.gather(0, turned.abs().argmax(0, keepdim=True))
    assert (largest > 0).all(), "signs are fixed"


def test_the_order_does_not_depend_on_the_basis_it_starts_from():
    directions, lost = kept(explicit())
    turned = fine_to_coarse(directions, lost, SHARE)
    again = fine_to_coarse(directions @ rotation(4, 3), lost, SHARE)
    torch.testing.assert_close(turned, again, atol=1e-8, rtol=0)


def test_no_rotation_has_a_first_dim_that_is_lost_earlier():
    directions, lost = kept(explicit())
    first = (SHARE @ lost_shares(fine_to_coarse(directions, lost, SHARE), lost))[0]
    for seed in range(30):
        other = SHARE @ lost_shares(directions @ rotation(4, seed), lost)
        assert other.max() <= first + 1e-12


# ---- Inside subsets ----------------------------------------------------------------------------------------


def sources(count: int = 4000) -> torch.Tensor:
    """(N, 6) independent, white, not Gaussian: uniform numbers, signs and exponentials."""
    rng = np.random.default_rng(0)
    parts = [rng.uniform(-1, 1, (count, 2)), rng.choice([-1.0, 1.0], (count, 2)), rng.exponential(1, (count, 2))]
    columns = np.concatenate(parts, 1)
    columns = (columns - columns.mean(0)) / columns.std(0)
    return torch.from_numpy(np.linalg.qr(columns)[0] * np.sqrt(count))


def match(codes, truth) -> float:
    """Mean over sources of the largest |correlation| with a dim."""
    return float((codes.T @ truth / len(truth)).abs().max(0).values.mean())


def test_planted_independent_sources_come_back():
    truth = sources()
    mixed = truth @ torch.block_diag(rotation(4, 1), rotation(2, 2))
    directions = torch.eye(6, dtype=torch.float64)
    turned = independent_inside(directions, mixed.float(), ends=(4, 6), seed=0)
    assert match(mixed @ turned, truth) > 0.97
    assert match(mixed, truth) < 0.9, "before they were mixed"
    assert match(mixed @ torch.block_diag(rotation(4, 8), rotation(2, 9)), truth) < 0.9, "and so is chance"


def test_turns_are_rotations_inside_their_subset():
    truth = sources()
    directions = normal(6, 6, seed=4)
    turned = independent_inside(directions, truth.float(), ends=(1, 4, 4, 6), seed=0)
    turn = torch.linalg.solve(directions, turned)
    torch.testing.assert_close(turn.T @ turn, torch.eye(6, dtype=torch.float64), atol=1e-9, rtol=0)
    inside = torch.block_diag(torch.ones(1, 1), torch.ones(3, 3), torch.ones(2, 2)).bool()
    assert turn[~inside].abs().max() < 1e-9 and abs(abs(float(turn[0, 0])) - 1) < 1e-12


def test_a_subset_of_very_many_dims_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(order, "ICA_DIMS", 3)
    mixed, directions = sources() @ torch.block_diag(rotation(4, 1), rotation(2, 2)), torch.eye(6).double()
    turned = independent_inside(directions, mixed.float(), ends=(4, 6), seed=0)
    assert torch.equal(turned[:, :4], directions[:, :4])
    assert match(mixed @ turned[:, 4:], sources()[:, 4:]) > 0.97, "others are still turned"


def test_gaussian_codes_are_turned_too_without_complaint():
    found = independent_rotation(normal(200, 5), seed=0)
    torch.testing.assert_close(found.T @ found, torch.eye(5, dtype=torch.float64), atol=1e-9, rtol=0)


def test_a_subset_is_ordered_by_its_own_lost_shares():
    directions, lost = kept(explicit(features=9), dims=6)
    mixed = directions @ rotation(6, 1)
    ordered = by_lost_share(mixed, lost, SHARE, ends=(2, 2, 6))
    shares = SHARE @ lost_shares(ordered, lost)
    assert shares[0] >= shares[1] and (shares[2:].diff() <= 0).all()
    for first, stop in ((0, 2), (2, 6)):
        columns = {tuple(column.tolist()) for column in mixed[:, first:stop].T}
        assert {tuple(column.tolist()) for column in ordered[:, first:stop].T} == columns, "only moved"


@pytest.fixture(scope="module")
def evidence():
    problem = Gaussian(Schedule.linear(40, 0.005, 0.2))
    return sampled_evidence(problem, make_stretches(problem.schedule, 6), train=1024, valid=512)


def test_a_rotation_inside_subsets_changes_neither_masks_nor_loss(evidence):
    plain = solve(evidence, 6, PLAIN, timesteps=40, subsets=3, seed=0, tau=0.3)
    turned = independent_inside(plain.directions, evidence.look.phi, plain.partition.ends, seed=0)
    again = fitted(evidence, turned, plain.partition, plain.lost)
    assert not torch.allclose(turned, plain.directions, atol=0.01)
    assert again.removed == pytest.approx(plain.removed, abs=1e-10)
    assert again.penalties == plain.penalties
    assert torch.equal(again.weights != 0, plain.weights != 0), "what is masked is masked"


def test_independent_and_ordered_axes_have_the_same_times_and_loss(evidence):
    found = [
        solve(evidence, 6, settings, timesteps=40, subsets=3, seed=0, tau=0.3) for settings in (PLAIN, INDEPENDENT)
    ]
    assert found[0].partition == found[1].partition
    assert found[0].removed == pytest.approx(found[1].removed, abs=1e-10)
    mean_lost = evidence.stretches.share @ found[1].lost
    for subset in range(3):
        dims = found[1].partition.dims_of(subset)
        assert (mean_lost[dims.start : dims.stop].diff() <= 0).all()


def test_a_given_cut_is_kept_to():
    problem = Gaussian()
    cut = Partition.custom(15, 3, PIXELS, ends=(2, 2, PIXELS))  # with an empty subset
    for settings in (PLAIN, INDEPENDENT):
        found = solve(exact_evidence(problem), PIXELS, settings, timesteps=15, subsets=5, seed=0, partition=cut)
        assert found.partition is cut
        hidden = [(found.weights[t, 1 + PIXELS :] == 0).all(1) for t in range(15)]  # rows of z
        for t in range(15):
            assert torch.equal(hidden[t], ~cut.visible(t))
