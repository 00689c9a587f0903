"""From when on a subset is visible, against a slow loop; and the field does not jump where one enters."""

from itertools import pairwise

import pytest
import torch
from problems import PIXELS, PLAIN, Gaussian, GaussianWalk, normal, sampled_evidence

from diti.diffusion.schedule import Schedule
from diti.representation.partition import Partition
from diti.representation.solve.solution import solve
from diti.representation.solve.stretches import make_stretches
from diti.representation.solve.times import first_stretch_lost, matched_partition


def test_the_first_stretch_that_reaches_the_degree():
    lost = torch.tensor([0.0, 0.02, 0.05, 0.04, 0.9])
    for tau, expected in ((0.0, 0), (0.01, 1), (0.02, 1), (0.05, 2), (0.06, 4), (0.95, 4)):
        assert first_stretch_lost(lost, tau) == expected, tau
    assert first_stretch_lost(torch.tensor([0.3]), 0.5) == 0, "the last, where it is never reached"


def slow_starts(lost, centres, subsets, tau):
    """A subset starts right after the centre before the first stretch that loses τ of it, none before another."""
    stretches, dims = lost.shape
    starts = []
    for subset in range(subsets):
        own = range(subset * dims // subsets, (subset + 1) * dims // subsets)
        first = stretches - 1
        for s in reversed(range(stretches)):
            if sum(float(lost[s, d]) for d in own) / len(own) >= tau:
                first = s
        before = [t for t in range(1000) if t <= centres[first - 1]] if first else []
        starts.append(max([len(before), *starts]))
    return tuple(starts)


@pytest.mark.parametrize("subsets", [1, 2, 3, 7])
@pytest.mark.parametrize("tau", [0.0, 0.05, 0.3, 0.6])
def test_times_against_a_slow_loop(subsets, tau):
    centres = [2.0, 10.4, 50.9, 200.0, 700.5]
    for seed in range(5):
        lost = normal(5, 7, seed=seed).sigmoid().sort(0).values * torch.linspace(1, 0.4, 7)
        found = matched_partition(lost, centres, timesteps=1000, subsets=subsets, tau=tau)
        expected = slow_starts(lost, centres, subsets, tau)
        assert found.kind == "matched" and dict(found.parameters)["starts"] == expected
        assert found.ends == Partition.balanced(1000, subsets, 7).ends


def test_at_degree_0_everything_is_visible_at_once():
    found = matched_partition(torch.zeros(4, 6), [5.0, 50.0, 300.0, 800.0], 1000, 3, tau=0.0)
    assert found.visible(0).all()


def test_one_stretch_has_no_centre_before():
    assert matched_partition(torch.rand(1, 6), [400.0], 1000, 3, tau=0.5).visible(0).all()


# ---- The field ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def field():
    """A solved decoder over 1000 time-steps, one u and one code: (partition, t → prediction, centres)."""
    problem = Gaussian(Schedule.linear(1000))
    evidence = sampled_evidence(problem, make_stretches(problem.schedule, 8), train=512, valid=256)
    found = solve(evidence, PIXELS, PLAIN, timesteps=1000, subsets=6, seed=0, tau=0.1)
    decoder = found.linear_part(evidence).double()
    u, _ = GaussianWalk(problem, "new").clean(0, 1)
    z = normal(1, PIXELS, seed=3)

    def at(t: int, masked: bool = True):
        seen = found.partition.mask(z, t) if masked else z
        return decoder(u.double(), torch.tensor([t]), seen).flatten()

    return found.partition, at, evidence.stretches.centres.tolist()


def test_subsets_enter_one_after_the_other(field):
    partition, _, centres = field
    starts = dict(partition.parameters)["starts"]
    assert len(set(starts)) >= 4 and starts[0] < starts[-1]
    assert all(start == 0 or any(start - 1 <= c < start for c in centres) for start in starts)


def test_what_is_masked_has_no_weight_yet(field):
    """So the mask takes nothing away, and nothing can jump when it opens."""
    _, at, _ = field
    for t in range(1000):
        torch.testing.assert_close(at(t), at(t, masked=False), atol=1e-12, rtol=0)


def test_a_step_changes_no_more_than_its_part_of_the_way_between_centres(field):
    partition, at, centres = field
    ends = [0.0, *centres, 999.0]
    size = {t: float((at(t + 1) - at(t)).norm()) for t in range(999)}
    for left, right in pairwise(ends):
        inside = [t for t in range(999) if left <= t and t + 1 <= right]
        if len(inside) > 1:  # straight between two centres: every step is as long as the others
            way = float((at(inside[-1] + 1) - at(inside[0])).norm())
            assert max(size[t] for t in inside) <= 1.01 * way / len(inside) + 1e-9
    typical = sorted(float((at(round(b)) - at(round(a))).norm()) / max(b - a, 1) for a, b in pairwise(centres))
    for start in set(dict(partition.parameters)["starts"]) - {0}:
        assert size[start - 1] <= 2 * typical[-1]
