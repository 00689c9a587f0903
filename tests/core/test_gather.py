"""Rows and gradients across processes, against one process that has all the rows."""

import inspect
import os
import subprocess
import sys

import torch

from diti.core.gather import gather_rows


def loss_of(own, everyone, place):
    """Every row is compared with every other, unevenly, so that a lost or doubled gradient shows."""
    weight = torch.arange(place + 1.0, place + len(own) + 1)
    return (weight * (own.flatten(1) @ everyone.flatten(1).T).tanh().sum(1)).mean()


PROCESS = f"""
import sys, torch, torch.distributed as dist
from diti.core.gather import gather_rows
{inspect.getsource(loss_of)}
dist.init_process_group("gloo")
rank = dist.get_rank()
rows = torch.load(sys.argv[1], weights_only=True)[rank * 3:][:3].transpose(1, 2).requires_grad_()
everyone, place = gather_rows(rows)
loss_of(rows, everyone, place).backward()
torch.save((everyone.detach(), place, rows.grad), f"{{sys.argv[1]}}.{{rank}}")
dist.destroy_process_group()
"""


def test_one_process_has_its_rows_already():
    rows = torch.randn(4, 3)
    everyone, place = gather_rows(rows)
    assert everyone is rows and place == 0


def test_two_processes_see_the_rows_and_gradients_of_one(tmp_path):
    whole = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(0))
    torch.save(whole, tmp_path / "rows")
    (tmp_path / "process.py").write_text(PROCESS)
    launcher = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    command = [*launcher, tmp_path / "process.py", tmp_path / "rows"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, timeout=120, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = whole.transpose(1, 2).clone().requires_grad_()
    loss_of(rows, rows, 0).backward()
    found = [torch.load(tmp_path / f"rows.{rank}", weights_only=True) for rank in (0, 1)]
    for rank, (everyone, place, _) in enumerate(found):
        assert torch.equal(everyone, rows) and place == 3 * rank
    # Each process took the mean over half of the rows: the average of the two is the mean over all.
    assert torch.allclose(torch.cat([gradient for *_, gradient in found]) / 2, rows.grad, rtol=1e-5)
