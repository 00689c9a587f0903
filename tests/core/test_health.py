"""When a training has fallen, by its lines alone: known good and bad histories."""

from dataclasses import asdict

import pytest

from diti.core.health import REMEMBERED, Health, Line, stalled


def after(*losses, nothing=1.0):
    """The health after lines with these losses, all of them good."""
    health = Health()
    for place, loss in enumerate(losses):
        line = Line(6_400 * (place + 1), loss, 0.01, nothing)
        assert health.fault(line, steady=True) is None, loss
        health.remember(line)
    return health


def next_line(health, loss, error=0.01, nothing=1.0):
    return Line(6_400 * (len(health.recent) + 1), loss, error, nothing)


@pytest.mark.parametrize(
    "history",
    [
        (0.97, 0.5, 0.32, 0.2, 0.12, 0.1, 0.098, 0.11, 0.097),  # as pretraining goes
        (1.4, 1.05, 1.0, 0.99, 0.7, 0.3),  # a slow start
        (0.4, 0.6, 0.45, 0.7, 0.8),  # noisy, and not yet twice the usual
        (0.2, 0.5, 0.1, 0.4),  # the first lines may find their way
    ],
)
def test_good_histories_have_no_fault(history):
    after(*history)


@pytest.mark.parametrize(
    "history, loss, complaint",
    [
        ((0.6, 0.32), 0.93, "back at that of predicting nothing, 0.93"),  # the fall of the celeba32 preset
        ((0.2, 0.1, 0.1, 0.09), 0.25, "rose from 0.1 to 0.25"),
        ((), 1e6, "1e+06 times that of predicting nothing"),
        ((0.5,), float("nan"), "not a number"),
        ((0.5,), float("inf"), "not a number"),
    ],
)
def test_falls_are_named(history, loss, complaint):
    health = after(*history)
    assert complaint in health.fault(next_line(health, loss), steady=True)


def test_a_rise_within_the_noise_of_a_short_line_is_none():
    health = after(0.1, 0.1, 0.1, 0.1)
    assert health.fault(next_line(health, 0.25, error=0.05), steady=True) is None
    assert health.fault(next_line(health, 0.25, error=0.01), steady=True)


def test_losses_of_opponents_may_rise():
    health = after(0.1, 0.1, 0.1, 0.1, nothing=None)
    assert health.fault(next_line(health, 5.0, nothing=None), steady=False) is None


def test_losses_below_zero_are_compared_by_their_size():
    health = after(-10.0, -12.0, -10.0, -12.0, nothing=None)
    assert health.fault(next_line(health, -3.0, nothing=None), steady=True) is None
    assert "rose from -11 to 5" in health.fault(next_line(health, 5.0, nothing=None), steady=True)


def test_only_recent_lines_are_remembered():
    health = after(*(0.9 * 0.9**n for n in range(REMEMBERED + 5)))
    assert len(health.recent) == REMEMBERED
    assert Health(**asdict(health)) == health


def test_each_fall_halves_the_rate():
    assert [Health(falls=n).rate_factor for n in range(3)] == [1, 0.5, 0.25]


@pytest.mark.parametrize(
    "images, loss, never", [(12_800, 0.99, False), (19_200, 0.99, True), (19_200, 0.4, False)]
)
def test_a_network_that_never_began_is_told_after_the_warm_up(images, loss, never):
    assert Health().never_began(Line(images, loss, 0.01, 1.0), warmup=6_400, must_gain=0.5) is never
    assert not Health().never_began(Line(images, loss, 0.01), warmup=6_400, must_gain=0.5), "nothing is unknown"


def validations(*losses):
    return [{"images": 100 * (n + 1), "validation_loss": loss} for n, loss in enumerate(losses)] + [{"images": 1}]


@pytest.mark.parametrize(
    "losses, found",
    [
        ((), False),
        ((1.0, 1.0, 1.0), False),  # too early to tell
        ((1.0, 0.9, 0.8, 0.79), False),
        ((1.0, 0.9, 0.8, 0.795), True),
        ((1.0, 0.8, 0.8, 0.8, 0.8, 0.8, 0.79, 0.78), False),
        ((1.0, 0.5, 0.6, 0.6), True),
    ],
)
def test_a_run_that_no_longer_improves_is_told(losses, found):
    assert stalled(validations(*losses)) is found
