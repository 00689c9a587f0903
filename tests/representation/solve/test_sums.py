"""Sums against slow loops; they add up over images, chunks of a pass and saved states."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from problems import Gaussian, GaussianWalk, explicit, normal
from safetensors.torch import load_file, save_file

from diti.core.errors import InputError
from diti.core.rng import Draws
from diti.diffusion.schedule import Schedule, gather, q_sample
from diti.representation.solve import collect as collecting
from diti.representation.solve.collect import BATCH, Pass, collect
from diti.representation.solve.stretches import make_stretches
from diti.representation.solve.sums import Sums


def assert_close(a: Sums, b: Sums, atol: float = 0.0, rtol: float = 0.0) -> None:
    assert a.images == b.images
    for name, tensor in a.tensors.items():
        torch.testing.assert_close(tensor, b.tensors[name], atol=atol, rtol=rtol, msg=name)


def small_pass() -> Pass:
    problem = Gaussian(Schedule.linear(30, 0.005, 0.3))
    return Pass(problem, make_stretches(problem.schedule, 3), problem.look(100), seed=0)


def taken(job: Pass, *marks: int, sums: Sums | None = None) -> Sums:
    sums = sums or job.new_sums()
    for mark in marks:
        for _ in job.extend(sums, job.look.walk, mark, lambda count: None):
            pass
    return sums


def test_means_against_a_slow_loop():
    data = explicit(images=40)
    for s, means in enumerate(data.sums()):
        images = range(40)
        a, phi, rho = data.a(s), data.phi.numpy(), data.rho[s].numpy()
        products = {
            "a_a": sum(np.outer(a[i], a[i]) for i in images),
            "a_phi": sum(np.outer(a[i], phi[i]) for i in images),
            "a_rho": sum(np.outer(a[i], rho[i]) for i in images),
            "phi_phi": sum(np.outer(phi[i], phi[i]) for i in images),
            "phi_rho": sum(np.outer(phi[i], rho[i]) for i in images),
            "rho_square": sum(rho[i] @ rho[i] for i in images),
            "lost": data.lost[s].sum(),
        }
        for name, total in products.items():
            np.testing.assert_allclose(getattr(means, name), total / 40, rtol=1e-12, atol=1e-12, err_msg=name)
    assert s == 2


def test_sums_of_halves_add_up():
    data = explicit(images=50)
    halves = data.sums(0, 20)
    halves.add(data.sums(20))
    assert_close(halves, data.sums(), rtol=1e-12, atol=1e-12)
    assert halves.images == 50


def test_float32_comes_in_and_float64_stays():
    sums = Sums(1, 2, 3)
    sums.add_images(normal(4, 3, dtype=torch.float32))
    sums.add_stretch(0, *(normal(4, n, dtype=torch.float32) for n in (2, 3, 2)), torch.ones(4))
    assert all(tensor.dtype == torch.float64 for tensor in sums.tensors.values())


def test_a_state_brings_everything_back(tmp_path):
    before, after = explicit().sums(), Sums(3, 4, 7)
    save_file(before.state(), tmp_path / "sums.safetensors")
    after.restore(load_file(tmp_path / "sums.safetensors"))
    assert_close(after, before)
    after.add(before)
    assert before.images == 300 and after.images == 600, "a restored state is a copy"


# ---- The pass ----------------------------------------------------------------------------------------------


def test_the_pass_against_a_slow_loop():
    """One image and stretch at a time, with the numbers that the pass draws for it."""
    job = small_pass()
    found = taken(job, 20)
    slow = job.new_sums()
    for i in range(20):
        x, _ = job.look.walk.clean(i, 1)
        phi = job.look.whitening(x.flatten(1)).float().double()  # what was looked at is kept in float32
        slow.add_images(phi)
        for s in range(3):
            t = job.stretches.draw(s, Draws(0, i, 1).uniform(f"train-time-{s}"))
            noise = Draws(0, i, 1).normal(f"train-noise-{s}", (3, 2, 2))
            abar = job.backbone.schedule.alpha_bar[t].float()
            u = job.backbone.x0(abar.sqrt() * x + (1 - abar).sqrt() * noise, t)
            lost = (x - u).flatten(1)
            slow.add_stretch(s, u.flatten(1), phi, lost, lost.double().square().sum(1))
    assert_close(found, slow, atol=1e-4)


@pytest.mark.parametrize("marks", [(64, 200), (128, 192, 200)])
def test_a_pass_in_parts_is_the_whole_pass(marks):
    """Parts end at whole batches, as the rule's looks do."""
    job = small_pass()
    assert_close(taken(job, *marks), taken(job, 200), rtol=1e-10, atol=1e-10)


def test_a_pass_continued_from_a_saved_state_is_the_whole_pass(tmp_path):
    job = small_pass()
    save_file(taken(job, 128).state(), tmp_path / "state.safetensors")
    restored = job.new_sums()
    restored.restore(load_file(tmp_path / "state.safetensors"))
    assert_close(taken(small_pass(), 300, sums=restored), taken(job, 300))


def test_features_of_reconstructions_are_summed_for_the_first_images_only(tmp_path):
    """Against a slow loop, and through a saved state."""
    job = replace(small_pass(), trunk=lambda u: 2 * u.flatten(1), shown_images=128)
    walk, schedule = job.look.walk, job.backbone.schedule
    found = taken(job, 128, 200, sums=job.new_sums(shown=True))
    assert float(found.tensors["shown_images"]) == 128 and found.images == 200
    for s in range(job.stretches.count):
        phi, hats = [], []
        for start in (0, 64):
            x, rows = walk.clean(start, 64)
            draws = Draws(0, start, 64)
            t = job.stretches.draw(s, draws.uniform(f"train-time-{s}"))
            noise = draws.normal(f"train-noise-{s}", tuple(x.shape[1:]))
            u = job.backbone.x0(q_sample(x, noise, gather(schedule.alpha_bar, t, x)), t)
            hats.append(job.look.whitening(2 * u.clamp(-1, 1).flatten(1)))
            phi.append(job.look.phi_of(walk, start, x, rows))
        joint = np.cov(torch.cat([torch.cat(phi), torch.cat(hats)], 1).numpy().T, bias=True)
        shown, f = found.shown(s), len(job.look.whitening.variance)
        np.testing.assert_allclose(shown.phi_phi, joint[:f, :f], atol=1e-6)
        np.testing.assert_allclose(shown.hat_hat, joint[f:, f:], atol=1e-6)
        np.testing.assert_allclose(shown.hat_phi, joint[f:, :f], atol=1e-6)
    half = taken(job, 64, sums=job.new_sums(shown=True))
    save_file(half.state(), tmp_path / "state.safetensors")
    restored = job.new_sums(shown=True)
    restored.restore(load_file(tmp_path / "state.safetensors"))
    assert_close(taken(job, 128, 200, sums=restored), found)
    assert not taken(job, 64).has_shown, "not where there is no room for them, as in validation sums"


def test_two_shares_of_a_pass_add_up_to_it(monkeypatch):
    """What each of two processes takes in, added up as they do after each chunk."""
    job, walk = small_pass(), GaussianWalk(Gaussian(Schedule.linear(30, 0.005, 0.3)), "train")
    monkeypatch.setattr(collecting, "CHUNK", 128)
    whole = taken(job, 600)
    parts = []
    for rank in (0, 1):
        monkeypatch.setattr(collecting, "place", lambda rank=rank: (rank, 2))
        mine, sums = [], job.new_sums()

        def share(self, mine=mine, sums=sums):
            """In place of the sum over processes: note this share, and count the chunk as done."""
            mine.append(self)
            done = job.new_sums()
            done.images = min(600, sums.images + 256) - sums.images
            return done

        monkeypatch.setattr(Sums, "over_processes", share)
        for _ in job.extend(sums, walk, 600, lambda count: None):
            pass
        parts.append(mine)
    assert [[part.images for part in mine] for mine in parts] == [[128, 128, 44], [128, 128, 44]]
    total = job.new_sums()
    for part in (*parts[0], *parts[1]):
        total.add(part)
    assert_close(total, whole, rtol=1e-6, atol=1e-5)  # φ beyond the first look is float64


class Stopped(Exception):
    """The process ended here."""


@dataclass(frozen=True, eq=False)
class Watched(Pass):
    """A pass that notes where it was, and may be stopped."""

    seen: list[int] = field(default_factory=list)
    stop_at: int | None = None

    def take_in(self, sums, walk, start, count):
        if start == self.stop_at:
            raise Stopped
        self.seen.append(start)
        super().take_in(sums, walk, start, count)


@pytest.mark.parametrize("batches", [3, 4, 7])  # at a look, and between looks
@pytest.mark.parametrize("images", [None, 10 * BATCH - 7])
def test_a_stopped_pass_continues_where_its_state_was_written(tmp_path, monkeypatch, images, batches):
    monkeypatch.setattr(collecting, "SECONDS_BETWEEN_STATES", -1.0)
    monkeypatch.setattr(collecting, "CHUNK", BATCH)

    def run(state, stop_at=None):
        plain, looks = small_pass(), {}
        job = Watched(plain.backbone, plain.stretches, plain.look, 0, stop_at=stop_at)
        sums = collect(
            job, job.look.walk, lambda sums: 0.5 - 1 / sums.images, regressors=16, images=images, tolerance=1e-3,
            state=state, log=lambda images, loss_removed_from_sums: looks.update({images: loss_removed_from_sums}),
        )  # fmt: skip
        return sums, job.seen, looks

    whole, seen, looks = run(None)
    assert seen == list(range(0, whole.images, BATCH)) and len(seen) > 8
    with pytest.raises(Stopped):
        run(tmp_path, stop_at=batches * BATCH)
    again, seen, later_looks = run(tmp_path)
    assert seen[0] == batches * BATCH, "what was seen before came from the state"
    assert_close(again, whole)
    assert later_looks == looks, "those of the state are told again"


def test_a_reconstruction_that_is_no_number_is_named_with_its_time_steps():
    job = small_pass()

    class Broken(Gaussian):
        def x0(self, x_t, t):
            return torch.where(t[:, None, None, None] >= 25, torch.nan, super().x0(x_t, t))

    broken = Pass(Broken(job.backbone.schedule), job.stretches, job.look, seed=0)
    first, last = job.stretches.bounds[2], job.stretches.bounds[3] - 1
    with pytest.raises(InputError, match=rf"not a usable number at some t in {first}\.\.{last}; check"):
        taken(broken, 64)


def test_an_absurd_reconstruction_is_refused_by_its_mean_square_pixel():
    """A large image is no worse than a small one with the same error."""
    stretches = make_stretches(Schedule.linear(30), 3)
    for pixels in (12, 3 * 256**2):
        collecting.require_finite(torch.tensor([0.5 * collecting.NORM_BOUND * pixels]), pixels, stretches, 0)
        with pytest.raises(InputError, match="not a usable number"):
            collecting.require_finite(torch.tensor([2 * collecting.NORM_BOUND * pixels]), pixels, stretches, 0)


@dataclass(eq=False)
class Small(Gaussian):
    """A network for which no more than so many images fit in memory."""

    most: int = 7
    asked: list[int] = field(default_factory=list)

    def x0(self, x_t, t):
        self.asked.append(len(x_t))
        if len(x_t) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than there is")
        return super().x0(x_t, t)


def test_a_pass_that_does_not_fit_in_memory_finds_the_same_sums():
    job = small_pass()
    small = Small(job.backbone.schedule)
    found = taken(replace(job, backbone=small), 150)
    assert_close(found, taken(job, 150), rtol=1e-13, atol=1e-11)
    assert small.asked.count(BATCH) <= 3 and max(small.asked[-20:]) == 7, "the most that fits was found and kept"
