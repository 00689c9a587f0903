"""Jobs as real processes, whose calls print, fail, sleep or are deaf."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from diti.core import jobs
from diti.core.errors import InputError
from diti.core.jobs import Job, last_line, run_jobs, threads_of_each, usual_jobs
from diti.core.runs import asked_by, command_line


def fail():
    print("starting")
    raise InputError("it is broken")


def tell_environment(*names):
    print(*(os.environ[name] for name in names), command_line())


def kill():
    print("so far so good")
    os.kill(os.getpid(), signal.SIGKILL)


def sleep():
    print(os.getpid())
    time.sleep(60)


def deaf():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sleep()


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Makes jobs of these functions; polls are short."""
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.02)
    return lambda call, *given, name="job": Job(name, partial(call, *given), tmp_path / "logs" / f"{name}.log")


def alive(process):
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.02)


def ended(children):
    return {child.job.name: child.fault for child in children if child.ended}


def test_all_jobs_run_in_order_and_a_failure_stops_no_other(job):
    told = []
    names = ["first", "broken", "last"]
    calls = {"first": (print, "hello"), "broken": (fail,), "last": (print, "bye")}
    run_jobs([job(*calls[name], name=name) for name in names], 1, lambda child: told.append((child, child.ended)))
    last_told = [child.job.name for child, over in told if over]
    assert last_told == names, "each is told of once when it has ended"
    assert ended(child for child, _ in told) == {
        "first": "",
        "broken": "exit code 2: diti: it is broken",
        "last": "",
    }
    assert last_line(told[-1][0].job.log) == ["bye"]


def test_no_more_run_side_by_side_than_asked_for(job):
    running, most, seen = set(), 0, set()

    def on_poll(child):
        nonlocal most
        seen.add(child.job.name)
        running.discard(child.job.name) if child.ended else running.add(child.job.name)
        most = max(most, len(running))

    run_jobs([job(print, name=str(i)) for i in range(5)], 2, on_poll)
    assert seen == set("01234") and most <= 2 and not running


def test_two_run_at_the_same_time(job):
    both = [job(sleep, name=name) for name in ("one", "other")]

    def on_poll(child):
        if all(asleep.log.exists() and last_line(asleep.log) for asleep in both):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(both, 2, on_poll)


def test_a_job_has_one_thread_and_says_what_it_says_at_once(job):
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "PYTHONUNBUFFERED")
    asked = job(tell_environment, *names)
    with asked_by("diti report runs"):
        run_jobs([asked], 1, lambda child: None)
    assert last_line(asked.log) == ["1 PASSIVE 1 diti report runs"]


def test_a_killed_job_is_told_by_its_signal(job):
    told = []
    run_jobs([job(kill)], 1, told.append)
    assert told[-1].fault == "killed by SIGKILL: so far so good"


@pytest.mark.parametrize("what", [sleep, deaf])
def test_an_interrupt_ends_what_runs_and_starts_no_more(job, what, monkeypatch):
    monkeypatch.setattr(jobs, "GRACE_SECONDS", 0.2 if what is deaf else 60)
    first, second = job(what, name="first"), job(print, name="second")
    seen = []

    def on_poll(child):
        seen.append(child)
        if last_line(first.log):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs([first, second], 1, on_poll)
    assert seen[-1].process.returncode == (-signal.SIGKILL if what is deaf else 130)
    assert not second.log.exists()


@pytest.fixture
def default_signals():
    """Also where the tests were started by nohup, which has SIGHUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_kill_is_an_interrupt_while_jobs_run_and_not_after(job, number, default_signals):
    before = signal.getsignal(number)
    asleep = job(sleep)
    sent = []

    def on_poll(child):
        if last_line(asleep.log) and not sent:
            sent.append(child)
            os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        run_jobs([asleep], 1, on_poll)
    assert sent[0].process.returncode is not None and signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_child_that_is_being_started_is_stopped_too(job, number, monkeypatch):
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            started.append(self)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(jobs.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job(sleep, name=name) for name in "ab"], 2, lambda child: None)
    assert [child.returncode is not None for child in started] == [True]


def test_a_second_interrupt_kills_what_does_not_end(job, monkeypatch):
    hearing_nothing = job(deaf)
    seen = []

    def on_poll(child):
        seen.append(child)
        if last_line(hearing_nothing.log):
            threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs([hearing_nothing], 1, on_poll)
    assert seen[-1].process.returncode == -signal.SIGKILL


def test_jobs_run_from_another_thread(job):
    told = []
    thread = threading.Thread(target=run_jobs, args=([job(print, "hello")], 1, told.append))
    thread.start()
    thread.join(60)
    assert ended(told) == {"job": ""}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc, which says what is alive")
def test_a_job_ends_with_a_parent_that_is_killed(job, tmp_path):
    asleep = job(sleep)
    code = (
        "from functools import partial\nfrom pathlib import Path\nfrom test_jobs import sleep\n"
        "from diti.core.jobs import Job, run_jobs\n"
        f"run_jobs([Job('job', partial(sleep), Path({str(asleep.log)!r}))], 1, lambda child: None)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    try:
        wait_for(lambda: asleep.log.exists() and last_line(asleep.log))
        child = int(last_line(asleep.log)[0])
        assert alive(child)
    finally:
        parent.kill()
        parent.wait()
    wait_for(lambda: not alive(child))


def test_the_last_line_of_a_log_is_the_last_with_words(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"")
    assert last_line(log) == []
    log.write_bytes(b"one\n  two \xff \n\n   \n")
    assert last_line(log) == ["two \ufffd"]


def test_a_lane_for_each_core_or_one_for_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5})
    assert usual_jobs() == 3
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert usual_jobs() == 1 and threads_of_each(2) == 1 and threads_of_each(1) == 3
    monkeypatch.setenv("DITI_DEVICE", "cpu")
    assert usual_jobs() == 3 and threads_of_each(1) == 1


def test_a_system_that_tells_no_affinity_counts_its_cores(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usual_jobs() == 6
