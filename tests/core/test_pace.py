"""The length of a run in minutes, with a clock that is told."""

from dataclasses import asdict
from itertools import pairwise

import pytest

from diti.core import pace as pace_file
from diti.core.loop import learning_rate
from diti.core.pace import ENDLESS, Pace, Watch
from diti.core.training import TrainingConfig

MINUTES, BATCH = 10.0, 32
CONFIG = TrainingConfig(minutes=MINUTES, train_batch_size=BATCH, lr_schedule="cosine", learning_rate=1.0)


def run_with(monkeypatch, speed, pace=None, images=0, stop=None):
    """Seconds that a run takes whose speed, images/s, is a function of the seconds; its pace and its rates."""
    clock = [1000.0]
    monkeypatch.setattr(pace_file.time, "monotonic", lambda: clock[0])
    pace = pace or Pace.of(5, MINUTES)
    watch, rates, lengths = Watch(pace, CONFIG, images), [], []
    began = clock[0] - pace.seconds
    while images < pace.length and (stop is None or clock[0] - began < stop):
        rates.append(learning_rate(CONFIG, images, pace.over(images)))
        images += BATCH
        clock[0] += BATCH / speed(clock[0] - began)
        if watch.look(images):
            lengths.append(pace.length)
    return clock[0] - began, images, pace, rates, lengths


def test_an_even_machine_ends_on_time_with_one_plan(monkeypatch):
    seconds, images, _, rates, lengths = run_with(monkeypatch, lambda s: 160.0)
    assert seconds == pytest.approx(600, rel=0.02)
    assert lengths == [images] and images == pytest.approx(160 * 600, rel=0.02)
    assert rates[0] == 1.0 and rates[-1] < 1e-5


@pytest.mark.parametrize("slower", [0.8, 0.3, 0.05])
def test_a_machine_that_gets_slower_ends_on_time_too(monkeypatch, slower):
    seconds, _, _, rates, lengths = run_with(monkeypatch, lambda s: 160.0 if s < 200 else 160.0 * slower)
    assert seconds == pytest.approx(600, rel=0.06)
    assert lengths == sorted(lengths, reverse=True) and len(lengths) > 1, "it only gets shorter"
    assert rates[-1] < 0.02
    assert max(before - now for before, now in pairwise(rates)) < 0.02, "no jump"


def test_a_faster_machine_keeps_its_length(monkeypatch):
    seconds, _, _, _, lengths = run_with(monkeypatch, lambda s: 160.0 if s < 200 else 400.0)
    assert len(lengths) == 1 and seconds < 500


def test_a_continued_run_keeps_its_length_and_its_time(monkeypatch):
    _, images, pace, _, _ = run_with(monkeypatch, lambda s: 160.0, stop=300)
    again = Pace(**asdict(pace))
    seconds, end, _, _, lengths = run_with(monkeypatch, lambda s: 160.0, again, images)
    assert lengths == [] and end == pace.length
    assert seconds == pytest.approx(600, rel=0.02)


def test_short_runs_are_measured_early(monkeypatch):
    monkeypatch.setattr(pace_file, "FIRST_LOOK", 60.0)
    pace = Pace.of(5, minutes=0.5)
    pace.seconds = 2.9
    assert not pace.plan(320, 100.0, 0.5, BATCH) and pace.length == ENDLESS
    pace.seconds = 3.1
    assert pace.plan(320, 100.0, 0.5, BATCH)
    assert pace.length == 320 + BATCH * round(26.9 * 100 / BATCH)


def test_a_run_of_images_goes_by_images():
    pace = Pace.of(1_000, None)
    assert [pace.over(n) for n in (0, 250, 1_000, 1_200)] == [0.0, 0.25, 1.0, 1.0]
    assert not Watch(pace, TrainingConfig(), 0).look(64_000)
