"""Which process this one is, whatever started it."""

import pytest

from diti.core.launch import first_host, join_launcher, processes

SRUN = {
    "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_NODELIST": "gpu[003-006]",
    "SLURM_JOB_ID": "123456", "SLURM_STEP_ID": "2",
}  # fmt: skip


def test_srun_is_understood():
    join_launcher(environment := dict(SRUN))
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
    assert [environment[name] for name in names] == ["5", "8", "1", "gpu003"]
    assert 20_000 <= int(environment["MASTER_PORT"]) < 50_000
    join_launcher(other := {**SRUN, "SLURM_STEP_ID": "3"})
    assert other["MASTER_PORT"] != environment["MASTER_PORT"], "two steps of a job do not meet"


def test_torchrun_goes_first():
    told = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    join_launcher(environment := {**SRUN, **told})
    assert told.items() <= environment.items()


def test_a_script_of_a_batch_job_is_one_process():
    join_launcher(environment := {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"})
    assert processes(environment) == 1 and "RANK" not in environment


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("gpu[003-007,012],login", "gpu003"), ("login", "login"), ("a1,a2", "a1"), ("n[1,3]-ib,m2", "n1-ib"),
        ("node-17.cluster.org", "node-17.cluster.org"),
    ],
)  # fmt: skip
def test_the_first_host(hosts, first):
    assert first_host(hosts) == first
