"""Work side by side gives what it gives one after the other, and leaves the caller's settings alone."""

import threading
import time

import pytest
import torch

from diti.core.lanes import in_lanes


@pytest.fixture
def two_threads():
    """The calling thread with another number of threads than a lane has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("lanes", [None, 1, 2, 5])
def test_results_come_in_the_order_of_the_items(lanes):
    def work(item: int) -> int:
        time.sleep(0.002 * (item % 3))  # later items are often done first
        return item * item

    assert list(in_lanes(work, range(20), lanes)) == [i * i for i in range(20)]
    assert list(in_lanes(work, [], lanes)) == []
    assert list(in_lanes(work, iter([3]), lanes)) == [9]


def test_two_lanes_work_at_the_same_time():
    """Each waits for the other: alone, neither would come back."""
    both = threading.Barrier(2, timeout=600)
    assert sorted(in_lanes(lambda item: both.wait() * 0 + item, [1, 2], lanes=2)) == [1, 2]


@pytest.mark.parametrize("lanes", [1, 2])
def test_exceptions_come_through_at_their_item(lanes):
    def work(item: int) -> int:
        if item == 3:
            raise ValueError("item 3 is broken")
        return item

    found = []
    with pytest.raises(ValueError, match="item 3 is broken"):
        for result in in_lanes(work, range(6), lanes):
            found.append(result)
    assert found == [0, 1, 2]


def test_after_an_exception_no_new_work_begins():
    begun = []

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise ValueError
        time.sleep(0.01)

    with pytest.raises(ValueError):
        list(in_lanes(work, range(1000), lanes=2))
    assert len(begun) < 100
    count = len(begun)
    time.sleep(0.05)
    assert len(begun) == count, "no thread is left behind"


def test_a_lane_has_one_thread_and_the_caller_keeps_its_own(two_threads):
    def threads(item: int) -> int:
        return torch.get_num_threads()

    assert list(in_lanes(threads, range(4), lanes=2)) == [1] * 4
    assert torch.get_num_threads() == 2
    product = torch.ones(64, 64) @ torch.ones(64, 64)
    assert product.eq(64).all() and torch.get_num_threads() == 2
    assert list(in_lanes(threads, range(4))) == [1] * 4, "by default as many lanes as threads"


@pytest.mark.parametrize("lanes", [1, 2])
def test_gradients_are_off_inside_and_as_they_were_outside(lanes):
    weight = torch.ones(3, requires_grad=True)

    def work(item: int) -> tuple[bool, bool]:
        return torch.is_grad_enabled(), (weight * item).requires_grad

    assert list(in_lanes(work, range(3), lanes)) == [(False, False)] * 3
    assert torch.is_grad_enabled() and (2 * weight).requires_grad
    with torch.no_grad():
        assert list(in_lanes(work, range(2), lanes)) == [(False, False)] * 2


def test_tensors_are_shared_with_the_caller():
    total = torch.zeros(8)

    def work(item: int) -> None:
        total[item] += item

    for _ in in_lanes(work, range(8), lanes=2):
        pass
    assert total.tolist() == list(range(8))
