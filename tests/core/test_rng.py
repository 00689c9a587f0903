import numpy as np
import torch

from diti.core.rng import Draws, numpy_generator, stream_seed, torch_generator


def test_streams_differ_by_seed_purpose_and_index():
    seeds = {stream_seed(s, p, i) for s in range(5) for p in ("noise", "flip") for i in range(5)}
    assert len(seeds) == 50
    assert all(0 <= s < 2**63 for s in seeds)


def test_stream_seed_is_pinned():
    """A change here would silently change every published number."""
    assert stream_seed(0, "noise", 0) == 8369501531652801859


def test_generators_repeat_and_leave_the_global_state_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    a = torch.randn(5, generator=torch_generator(1, "x", 2)), numpy_generator(1, "x", 2).random(5)
    b = torch.randn(5, generator=torch_generator(1, "x", 2)), numpy_generator(1, "x", 2).random(5)
    assert torch.equal(a[0], b[0]) and np.array_equal(a[1], b[1])
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


def test_draws_do_not_depend_on_how_a_batch_is_cut():
    whole = Draws(3, 40, 50)
    cuts = [Draws(3, 40, 7), Draws(3, 47, 1), Draws(3, 48, 42)]
    assert torch.equal(whole.normal("n", (2, 3)), torch.cat([c.normal("n", (2, 3)) for c in cuts]))
    assert torch.equal(whole.integers("t", 1000), torch.cat([c.integers("t", 1000) for c in cuts]))
    assert torch.equal(whole.spread("t", 1000), torch.cat([c.spread("t", 1000) for c in cuts]))


def test_draws_are_standard_normal_and_uniform():
    draws = Draws(0, 0, 20_000)
    noise, t = draws.normal("n", (1,)), draws.integers("t", 10)
    assert abs(noise.mean().item()) < 0.03 and abs(noise.std().item() - 1) < 0.03
    assert (torch.bincount(t, minlength=10) - 2000).abs().max() < 250


def test_spread_numbers_are_steps_of_the_golden_ratio():
    ratio = (5**0.5 - 1) / 2
    t = Draws(3, 10**9, 64).spread("t", 1000)
    first = Draws(3, 10**9, 1).spread("t", 1_000_000_000).item() / 1_000_000_000
    slow = [int((first + place * ratio) % 1 * 1000) for place in range(64)]
    assert t.tolist() == slow


def test_spread_numbers_cover_every_stretch_evenly():
    for start in (0, 12_345, 7 * 10**12):
        t = Draws(1, start, 32).spread("t", 1000).sort().values
        gaps = torch.cat([t.diff(), t[:1] + 1000 - t[-1:]])  # around the circle
        assert gaps.min() >= 0.6 * 1000 / 32 - 1 and gaps.max() <= 1.8 * 1000 / 32
    many = torch.bincount(Draws(2, 0, 20_000).spread("t", 10), minlength=10)
    assert (many - 2000).abs().max() <= 3
    assert not torch.equal(Draws(1, 0, 32).spread("t", 1000), Draws(2, 0, 32).spread("t", 1000))
    assert not torch.equal(Draws(1, 0, 32).spread("t", 1000), Draws(1, 0, 32).spread("u", 1000))
