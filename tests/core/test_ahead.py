"""Reading ahead changes when a batch is read, and nothing else."""

from contextlib import closing

import pytest
import torch

from diti.core.ahead import Ahead


def test_the_next_batch_is_read_before_it_is_asked_for():
    read = []

    def batches(start, count):
        read.append((start, count))
        return torch.arange(start, start + count)

    with closing(Ahead(batches, lambda batch: batch * 10)) as ahead:
        assert ahead(0, 2, then=4).tolist() == [0, 10]
        ahead._pool.submit(lambda: None).result()  # the thread works in turn
        assert read == [(0, 2), (4, 2)]
        assert ahead(4, 2, then=8).tolist() == [40, 50] and ahead(8, 2).tolist() == [80, 90]
        assert read == [(0, 2), (4, 2), (8, 2)]


def test_a_wrong_guess_costs_time_alone():
    with closing(Ahead(lambda start, count: torch.arange(start, start + count))) as ahead:
        assert ahead(0, 2, then=2).tolist() == [0, 1]
        assert ahead(6, 3).tolist() == [6, 7, 8], "a run that went back, or a batch in more parts"


def test_what_fails_in_the_thread_fails_where_it_is_asked_for():
    def batches(start, count):
        if start:
            raise OSError("the disk is gone")
        return torch.zeros(count)

    with closing(Ahead(batches)) as ahead:
        ahead(0, 1, then=1)
        with pytest.raises(OSError, match="the disk is gone"):
            ahead(1, 1)
