"""Processes that wait for each other by looking: what they tell, and what happens when one fails or is silent."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pairs import places

import diti.core.meeting as m

COLLECTIVE = re.compile(r"barrier|wait_for_everyone|process_first")
SCRIPT = """
import os, sys, time
from datetime import timedelta
import diti.core.meeting as m
import torch
import torch.distributed as dist
work, rank = sys.argv[1], os.environ["RANK"]
impatient = work == "sleeps" and rank == "0"  # a busy machine may keep a process waiting, too
m.SIGN_SECONDS, m.SILENT_SECONDS = 0.1, 2.0 if impatient else 600.0

def shared():
    told = m.told_by_main(lambda: {"of": rank})
    m.meet()
    sent = m.told_by_main(lambda: len(bytes(9_000_000)))
    m.meeting().send(f"data/{rank}", bytes(range(256)) * 40_000)
    m.meet()
    data = m.meeting().take(f"data/{1 - int(rank)}", last=True)
    m.meet()
    print("told", told, sent, len(data), data[:256] == bytes(range(256)), flush=True)
    if work == "prepares":  # longer than a collective operation may take
        dist.init_process_group("gloo", timeout=timedelta(seconds=5))
        m.told_by_main(lambda: time.sleep(8))
        m.meet()
        dist.all_reduce(both := torch.ones(1))
        print("together", both.item(), flush=True)
        dist.destroy_process_group()
        return
    if work == "fails" and rank == "0":
        raise ValueError("the disk is full")
    if work == "sleeps" and rank == "1":
        print("asleep", flush=True)
    if work != "ends":
        time.sleep(600)

if work == "ends":  # as if its watcher were in the store all the time
    m._news = lambda *of: time.sleep(1) or ""
m.leading(shared)
if work == "ends":
    print("watched", m.meeting()._watcher.is_alive())
"""


@pytest.fixture
def pair(tmp_path):
    """Start two processes; their outputs when both have ended, and their exit codes."""
    started = []

    def start(work):
        for place in places():
            with (tmp_path / place["RANK"]).open("w") as said:
                environment = place | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
                command = [sys.executable, "-c", SCRIPT, work]
                started.append(subprocess.Popen(command, env=environment, stdout=said, stderr=said))
        return started, [tmp_path / rank for rank in "01"]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_no_file_has_another_way_to_wait():
    package = Path(m.__file__).parents[1]
    files = (file for file in package.rglob("*.py") if COLLECTIVE.search(file.read_text(encoding="utf-8")))
    assert not list(files)


def test_all_hear_the_first_and_each_other(pair):
    processes, said = pair("ends")
    assert [process.wait(timeout=600) for process in processes] == [0, 0]
    assert {file.read_text() for file in said} == {"told {'of': '0'} 9000000 10240000 True\nwatched False\n"}


def test_one_that_fails_ends_the_other(pair):
    processes, said = pair("fails")
    assert [process.wait(timeout=600) for process in processes] == [1, 3]
    assert said[1].read_text().splitlines()[-1] == (
        "diti: process 0 has failed (the disk is full); this one ends too: the same command continues"
    )


def test_nobody_waits_in_a_collective_operation_while_the_first_prepares_data_or_validates(pair):
    processes, said = pair("prepares")
    assert [process.wait(timeout=600) for process in processes] == [0, 0]
    assert {file.read_text().splitlines()[-1] for file in said} == {"together 2.0"}


def wait_for(word, said):
    """Until a process has said it."""
    until = time.monotonic() + 600
    while word not in said.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_where_the_first_is_killed_the_other_ends(pair):
    """The store in which they met ends with it."""
    processes, said = pair("waits")
    wait_for("told", said[1])
    processes[0].kill()
    assert processes[1].wait(timeout=600) == 3
    assert said[1].read_text().splitlines()[-1] == (
        "diti: the first process has ended; this one ends too: the same command continues"
    )


def test_one_that_falls_silent_ends_the_other(pair):
    processes, said = pair("sleeps")
    wait_for("asleep", said[1])
    processes[1].send_signal(signal.SIGSTOP)
    assert processes[0].wait(timeout=600) == 3
    assert re.search(r"diti: process 1 gives no sign of life since \d+ s; this one ends too", said[0].read_text())
