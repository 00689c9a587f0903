"""Which process of how many this one is, whatever started it: torchrun, accelerate launch, or srun.

It imports only the standard library, since it must be known before torch is.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

RANK, COUNT, LOCAL_RANK = "RANK", "WORLD_SIZE", "LOCAL_RANK"  # as torchrun names them
ADDRESS, PORT = "MASTER_ADDR", "MASTER_PORT"
PORTS = range(20_000, 50_000)  # one for each job of SLURM that shares a machine
STEP = {  # what srun tells the processes it starts, and nothing else does, not even in the script of a batch job
    RANK: "SLURM_PROCID",
    COUNT: "SLURM_STEP_NUM_TASKS",
    LOCAL_RANK: "SLURM_LOCALID",
}


def join_launcher(environment: MutableMapping[str, str] = os.environ) -> None:
    """Take the names of srun for those of torchrun, which torch and accelerate read."""
    if RANK not in environment and all(name in environment for name in STEP.values()):
        environment.update({ours: environment[theirs] for ours, theirs in STEP.items()})
        environment.setdefault(ADDRESS, first_host(environment.get("SLURM_STEP_NODELIST", "127.0.0.1")))
        job = int(environment.get("SLURM_JOB_ID", "0")) + int(environment.get("SLURM_STEP_ID", "0"))
        environment.setdefault(PORT, str(PORTS[job % len(PORTS)]))
    if processes(environment) > 1:
        # A process that ends leaves pages of warnings in the others; its own line says why.
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def processes(environment: MutableMapping[str, str] = os.environ) -> int:
    """How many share the job."""
    return int(environment.get(COUNT) or "1")


def first_host(hosts: str) -> str:
    """The first of SLURM's list: gpu[003-007,012],login → gpu003."""
    found = re.match(r"([^\[,]+)(?:\[(\d+)[^\]]*\]([^,]*))?", hosts)
    return "".join(piece or "" for piece in found.groups()) if found else hosts
