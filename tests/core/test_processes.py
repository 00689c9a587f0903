"""What processes share: sums of their tensors and the first one's numbers; alone, all of it is plain."""

import json
import os
import subprocess
import sys

import torch

from diti.core.processes import add_up, from_main, is_main, place

PROCESS = """
import json, sys, torch, torch.distributed as dist
from diti.core.processes import add_up, from_main, is_main, place
rank = int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}.meet", rank=rank, world_size=2)
tensors = [torch.full((2, 2), 1e-12 + rank, dtype=torch.float64), torch.tensor(10**15 + rank)]
add_up(tensors)
found = [place(), is_main(), from_main(0.1 + rank), tensors[0].tolist(), int(tensors[1])]
open(f"{sys.argv[1]}.{rank}", "w").write(json.dumps(found))
dist.destroy_process_group()
"""


def test_alone():
    assert place() == (0, 1) and is_main()
    assert from_main(0.1) == 0.1
    tensor = torch.tensor([1.0, 2.0])
    add_up([tensor])
    assert tensor.tolist() == [1, 2]


def test_two_processes_add_up_and_follow_the_first(tmp_path):
    (tmp_path / "process.py").write_text(PROCESS)
    command = [sys.executable, tmp_path / "process.py", tmp_path / "found"]
    both = [subprocess.Popen([*command, str(rank)], env={**os.environ, "OMP_NUM_THREADS": "1"}) for rank in (0, 1)]
    assert [process.wait(timeout=120) for process in both] == [0, 0]
    for rank in (0, 1):
        where, main, first, sums, whole = json.loads((tmp_path / f"found.{rank}").read_text())
        assert where == [rank, 2] and main == (rank == 0)
        assert first == 0.1, "every digit of float64 arrives"
        assert sums == [[1e-12 + (1e-12 + 1)] * 2] * 2 and whole == 2 * 10**15 + 1
