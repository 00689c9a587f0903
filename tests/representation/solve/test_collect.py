"""How many images: the rule on learning curves that are known."""

from itertools import pairwise

import pytest
import torch
from problems import Gaussian

from diti.diffusion.schedule import Schedule
from diti.representation.solve import collect as collecting
from diti.representation.solve.collect import (
    BATCH,
    GROWTH,
    MOST_IMAGES,
    PER_REGRESSOR,
    Pass,
    batches_of,
    collect,
    enough,
    next_mark,
    remaining_gain,
)
from diti.representation.solve.stretches import make_stretches


@pytest.mark.parametrize(("few", "many"), [(100, 150), (640, 704), (1000, 60_000)])
@pytest.mark.parametrize("c", [0.0, 3.0, 200.0])
def test_what_is_left_to_gain_is_exact_where_it_falls_as_one_over_images(few, many, c):
    found = remaining_gain((few, 0.7 - c / few), (many, 0.7 - c / many))
    assert found == pytest.approx(c / many, rel=1e-9, abs=1e-12)


def follow(c: float, regressors: int, tolerance: float) -> list[tuple[int, float]]:
    """The looks of a run whose score is 0.6 - c / N."""
    scores: list[tuple[int, float]] = []
    while not enough(scores, tolerance):
        images = next_mark(regressors, scores, tolerance)
        assert not scores or images > scores[-1][0]
        scores.append((images, 0.6 - c / images))
    return scores


@pytest.mark.parametrize(("c", "tolerance"), [(100, 0.05), (400, 0.04), (1000, 0.05), (300, 0.01), (20, 0.001)])
def test_it_ends_at_about_c_over_tolerance(c, tolerance):
    scores = follow(c, regressors=100, tolerance=tolerance)
    images, ideal = scores[-1][0], c / tolerance
    assert ideal <= images * (1 + 1e-9), "what is left is below the tolerance"
    assert images <= ideal + BATCH, "the look is set to where the rule expects to end"


def test_it_looks_twice_at_least():
    scores = follow(0.0, regressors=100, tolerance=0.05)
    first = -(-PER_REGRESSOR * 100 // BATCH) * BATCH
    assert [images for images, _ in scores] == [first, -(-int(GROWTH * first) // BATCH) * BATCH]
    assert not enough([], 0.05) and not enough([(500, 0.5)], 0.05)


def test_a_score_that_falls_ends_it():
    assert enough([(500, 0.5), (700, 0.49)], 0.05)


def test_it_never_takes_more_than_the_most():
    scores = follow(1e6, regressors=400, tolerance=0.001)
    assert scores[-1][0] == MOST_IMAGES
    assert all(b <= GROWTH * a + BATCH for (a, _), (b, _) in pairwise(scores))


def test_looks_stand_at_whole_batches():
    for scores in ([], [(640, 0.1)], [(640, 0.1), (960, 0.3)], [(640, 0.1), (960, 0.1101)]):
        assert next_mark(123, scores, 0.05) % BATCH == 0
    close = next_mark(123, [(640, 0.1), (960, 0.1 + 0.5 * 0.0505)], 0.05)
    assert close == 960 + BATCH, "a batch more at least"


@pytest.mark.parametrize("images", [1, 64, 700, 3_000, 8 * 512])
@pytest.mark.parametrize(("processes", "most"), [(1, 64), (2, 512), (3, 256), (8, 256), (16, 4)])
def test_processes_share_the_images_evenly(images, processes, most):
    """Also where one batch of a GPU would hold all of them."""
    shares = [list(batches_of(range(100, 100 + images), most, rank, processes)) for rank in range(processes)]
    taken = sorted(image for share in shares for batch in share for image in batch)
    assert taken == list(range(100, 100 + images))
    assert all(1 <= len(batch) <= most for share in shares for batch in share)
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    most_taken = max(sum(map(len, share)) for share in shares)
    assert most_taken <= images / processes + max(counts), "no more than rounding up each batch makes"


# ---- The whole pass ----------------------------------------------------------------------------------------


def small_job() -> Pass:
    problem = Gaussian(Schedule.linear(30, 0.005, 0.3))
    return Pass(problem, make_stretches(problem.schedule, 2), problem.look(100), seed=0)


def run(images, score, tolerance=0.05):
    job, logged = small_job(), []
    sums = collect(
        job, job.look.walk, score, regressors=20, images=images, tolerance=tolerance, state=None,
        log=lambda **facts: logged.append(facts),
    )  # fmt: skip
    return sums, logged


@pytest.mark.parametrize("images", [1, 64, 100, 513])
def test_a_given_number_of_images_is_taken_exactly(images):
    """Not rounded to batches, and nobody looks at the validation loss."""

    def never(sums):
        raise AssertionError("no look is needed")

    sums, logged = run(images, never)
    assert sums.images == images and not logged
    torch.testing.assert_close(sums.tensors["a_a"][:, 0, 0], torch.full((2,), float(images)).double())


def test_the_rule_decides_on_what_the_sums_say(monkeypatch):
    seen = []

    def score(sums):
        seen.append(sums.images)
        return 0.5 - 30 / sums.images

    sums, logged = run(None, score)
    assert 600 <= sums.images <= 600 + BATCH
    assert [facts["images"] for facts in logged] == seen and seen == sorted(set(seen)) and seen[-1] == sums.images
    assert logged[-1]["loss_removed_from_sums"] == pytest.approx(0.5 - 30 / sums.images)
    monkeypatch.setattr(collecting, "MOST_IMAGES", 256)
    assert run(None, score)[0].images == 256
