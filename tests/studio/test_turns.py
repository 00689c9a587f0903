"""Who is served next, and how work ends when its visitor asks to stop."""

import threading
import time

import pytest

pytest.importorskip("gradio", reason="gradio is not installed (pip install 'diti-torch[studio]')")

from diti.core.progress import progress_bar
from diti.studio.parts import in_turns, with_complaints
from diti.studio.session import Stopped, Visitor
from diti.studio.turns import Turns


def wait_until(true):
    for _ in range(500):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("waited for too long")


def test_visitors_take_turns_however_much_one_of_them_asks():
    turns, busy, modest = Turns(), Visitor(), Visitor()
    served = []

    def ask(visitor, name):
        with turns.turn(visitor):
            served.append(name)

    with turns.turn(busy):
        asked = []
        for place, (visitor, name) in enumerate([(busy, "b1"), (busy, "b2"), (busy, "b3"), (modest, "m1")]):
            asked.append(threading.Thread(target=ask, args=(visitor, name)))
            asked[-1].start()
            wait_until(lambda place=place: len(turns._waiting) == place + 1)
        assert served == []
    for thread in asked:
        thread.join(10)
    assert served == ["m1", "b1", "b2", "b3"]


def test_one_is_served_at_a_time_and_a_fault_gives_the_turn_back():
    turns, inside, most = Turns(), [0], [0]

    def ask():
        with turns.turn(Visitor()):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.002)
            inside[0] -= 1

    with pytest.raises(ValueError), turns.turn(Visitor()):
        raise ValueError
    asked = [threading.Thread(target=ask) for _ in range(16)]
    for thread in asked:
        thread.start()
    for thread in asked:
        thread.join(10)
    assert most == [1] and turns._waiting == []


def test_others_come_between_the_steps_of_one_request():
    turns, first, second = Turns(), Visitor(), Visitor()
    one, other = (in_turns(iter("ab"), first, turns), in_turns(iter("xy"), second, turns))
    assert [next(one), next(other), next(one), next(other)] == ["a", "x", "b", "y"]
    assert list(one) == list(other) == []


def test_stop_ends_what_is_at_work_and_what_waits_but_nothing_later():
    turns, visitor, done = Turns(), Visitor(), []

    def work():
        yield "begun"
        with progress_bar("long", 10, shown=False) as advance:
            for place in range(10):
                if place == 3:
                    visitor.stops += 1
                advance()
                done.append(place)
        yield "never"

    at_work, waiting = in_turns(work(), visitor, turns), in_turns(iter("w"), visitor, turns)
    assert next(at_work) == "begun"
    with pytest.raises(Stopped):
        next(at_work)
    assert done == [0, 1, 2]
    assert list(waiting) == ["w"]  # it was asked for after the stop: a generator begins when it is first asked

    def stopped_while_waiting():
        yield "begun"
        yield "never"

    waiting = in_turns(stopped_while_waiting(), visitor, turns)
    next(waiting)
    visitor.stops += 1
    with pytest.raises(Stopped):
        next(waiting)


def test_who_stops_is_told_so():
    class Line:
        elem_classes = ("status",)

    visitor = Visitor()

    def work(visitor):
        visitor.stops += 1
        with progress_bar("long", 1, shown=False) as advance:
            advance()
        yield "never"

    (line,) = with_complaints(work, [Line()], Turns())(visitor)
    assert "Stopped." in line
