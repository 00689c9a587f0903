"""Lines in place of a bar, by a clock that the test turns."""

import math

import pytest
from rich.console import Console
from rich.progress import Progress

from diti.core import progress
from diti.core.progress import followed, progress_bar


@pytest.fixture
def clock(monkeypatch):
    """Seconds, to be moved on; no line was written yet."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress._Lines, "last_printed", now[0])
    monkeypatch.setattr(progress, "LINE_SECONDS", 30.0)
    return now


def test_a_line_every_half_minute_without_a_terminal(clock, capsys):
    with progress_bar("training", 40_000, start=6_400) as advance:
        for _ in range(100):
            clock[0] += 2.5
            advance(64, note="loss 0.5")
    out, error = capsys.readouterr()
    lines = error.splitlines()
    assert out == "" and len(lines) == 250 // 30
    assert lines[0] == "training: 7,168/40,000, 21 min left, loss 0.5"


def test_short_works_share_the_half_minute(clock, capsys):
    for _ in range(4):
        with progress_bar("fits", 2) as advance:
            clock[0] += 10
            advance()
    assert capsys.readouterr().err == "fits: 1/2, 10 s left\n"


@pytest.mark.parametrize(("seconds", "left"), [(0.5, "60 s left"), (3, "6 min left"), (60, "2.0 h left")])
def test_the_time_left_has_a_fitting_unit(clock, capsys, seconds, left, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    with progress_bar("work", 121) as advance:
        clock[0] += seconds
        advance()
    assert capsys.readouterr().err == f"work: 1/121, {left}\n"


def test_nothing_is_said_where_nothing_should_be_or_nothing_is_known(clock, capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    with progress_bar("work", 10, shown=False) as advance:
        advance(3)
    assert capsys.readouterr().err == ""
    with progress_bar("[work]", 10) as advance:
        advance(0)
    assert capsys.readouterr().err == "[work]: 0/10\n"
    monkeypatch.setattr(progress, "LINE_SECONDS", math.inf)


@pytest.mark.parametrize("widgets", [True, False])
def test_a_notebook_gets_a_bar_only_with_what_draws_it(clock, capsys, monkeypatch, widgets):
    """Without ipywidgets rich would warn and show nothing."""
    monkeypatch.setattr(progress, "Console", lambda **words: Console(**words, force_jupyter=True))
    monkeypatch.setattr(progress, "find_spec", lambda name: widgets or None)
    drawn = []
    monkeypatch.setattr(progress, "Progress", lambda *columns, **words: drawn.append(1) or Progress(disable=True))
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    with progress_bar("work", 10) as advance:
        advance(3)
    assert drawn == [1] * widgets


def test_a_follower_is_told_instead_of_the_terminal_and_can_end_the_work(capsys):
    heard = []

    class Enough(Exception):
        pass

    def follow(label, share):
        heard.append((label, share))
        if share > 0.6:
            raise Enough

    with followed(follow), pytest.raises(Enough), progress_bar("walk", 4, shown=False) as advance:
        for _ in range(4):
            advance()
    assert heard == [("walk", 0.0), ("walk", 0.25), ("walk", 0.5), ("walk", 0.75)]
    with progress_bar("walk", 4) as advance:
        advance(4)
    assert len(heard) == 4 and capsys.readouterr().out == ""
