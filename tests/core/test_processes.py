"""What processes share: sums, the first one's numbers, rows with their gradients; alone, all of it is plain."""

import inspect
import os
import subprocess
import sys

import pytest
import torch

from diti.core.processes import add_up, from_main, gather_rows, is_main, place

ROWS = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(0))


def loss_of(own, everyone, first):
    """Every row is compared with every other, unevenly, so that a lost or doubled gradient shows."""
    weight = torch.arange(first + 1.0, first + len(own) + 1)
    return (weight * (own.flatten(1) @ everyone.flatten(1).T).tanh().sum(1)).mean()


PROCESS = f"""
import sys, torch, torch.distributed as dist
from diti.core.processes import add_up, from_main, gather_rows, is_main, place
{inspect.getsource(loss_of)}
path, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{{path}}.meet", rank=rank, world_size=2)
sums = [torch.full((2, 2), 1e-12 + rank, dtype=torch.float64), torch.tensor(10**15 + rank)]
add_up(sums)
rows = torch.load(path, weights_only=True)[rank * 3:][:3].transpose(1, 2).requires_grad_()
everyone, first = gather_rows(rows)
loss_of(rows, everyone, first).backward()
found = place(), is_main(), from_main(0.1 + rank), sums, everyone.detach(), first, rows.grad
torch.save(found, f"{{path}}.{{rank}}")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two processes got."""
    path = tmp_path_factory.mktemp("processes") / "rows"
    torch.save(ROWS, path)
    path.with_suffix(".py").write_text(PROCESS)
    command = [sys.executable, "-W", "error", path.with_suffix(".py"), path]
    both = [subprocess.Popen([*command, str(rank)], env={**os.environ, "OMP_NUM_THREADS": "1"}) for rank in (0, 1)]
    assert [process.wait(timeout=600) for process in both] == [0, 0]
    return [torch.load(f"{path}.{rank}", weights_only=True) for rank in (0, 1)]


def test_alone():
    assert place() == (0, 1) and is_main()
    assert from_main(0.1) == 0.1
    tensor = torch.tensor([1.0, 2.0])
    add_up([tensor])
    assert tensor.tolist() == [1, 2]
    everyone, first = gather_rows(tensor)
    assert everyone is tensor and first == 0


def test_two_processes_add_up_and_follow_the_first(found):
    for rank, (where, main, of_the_first, (sums, whole), *_) in enumerate(found):
        assert where == (rank, 2) and main == (rank == 0)
        assert of_the_first == 0.1, "every digit of float64 arrives"
        assert sums.tolist() == [[1e-12 + (1e-12 + 1)] * 2] * 2 and whole == 2 * 10**15 + 1


def test_two_processes_see_the_rows_and_gradients_of_one(found):
    rows = ROWS.transpose(1, 2).clone().requires_grad_()
    loss_of(rows, rows, 0).backward()
    for rank, (*_, everyone, first, _) in enumerate(found):
        assert torch.equal(everyone, rows) and first == 3 * rank
    # Each process took the mean over half of the rows: the average of the two is the mean over all.
    assert torch.allclose(torch.cat([gradient for *_, gradient in found]) / 2, rows.grad, rtol=1e-5)
