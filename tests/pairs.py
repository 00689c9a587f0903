"""Two processes that share a job: what a launcher tells each of them."""

from __future__ import annotations

import os
import socket


def places(slurm: bool = False) -> list[dict[str, str]]:
    """The environment of each, as torchrun sets it, or as SLURM's srun does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_PORT": port}
    if slurm:
        common |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "127.0.0.1"}
        return [{**common, "SLURM_PROCID": rank, "SLURM_LOCALID": rank} for rank in "01"]
    common |= {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return [{**common, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
