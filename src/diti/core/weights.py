"""What a training changes: parameters, their moving average, buffers, and the optimiser's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from diti.core.errors import InputError
from diti.core.muon import MuonAdam
from diti.core.objective import Objective
from diti.core.training import TrainingConfig


class Weights:
    """Trained parameters by name, their moving average, buffers, and the optimiser."""

    def __init__(self, objective: Objective, config: TrainingConfig) -> None:
        self.params = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        self.buffers = dict(objective.named_buffers())
        self.average = {name: p.detach().clone() for name, p in self.params.items()}
        kinds = {n: (objective.rate_factor(n), objective.is_inner(n, p)) for n, p in self.params.items()}
        groups = [
            {
                "params": [p for n, p in self.params.items() if kinds[n] == (f, inner)],
                "factor": f,
                "orthogonal": inner,
            }
            for f, inner in sorted(set(kinds.values()))
        ]
        self.optimizer = MuonAdam(groups, lr=config.learning_rate, betas=objective.betas, fused=True)
        self.decay = config.ema_decay

    @torch.no_grad()
    def set_rate(self, rate: float) -> None:
        """Learning rate of the next step; parts may have their own factor."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]

    def update_average(self, step: int) -> None:
        """Exponential moving average whose memory grows with the run, so that short runs are averaged well too."""
        decay = min(self.decay, (1 + step) / (10 + step))
        get_ema_multi_avg_fn(decay)(list(self.average.values()), list(self.params.values()), step)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside the block the networks hold the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, param in self.params.items():
            param.data, self.average[name] = self.average[name], param.data

    def tensors(self) -> dict[str, Tensor]:
        """Everything a continued run needs, by name."""
        found: dict[str, Tensor] = {}
        for name, param in self.params.items():
            found[f"weights/{name}"] = param
            found[f"average/{name}"] = self.average[name]
            for key, value in self.optimizer.state.get(param, {}).items():
                found[f"adam.{key}/{name}"] = value
        return found | {f"buffer/{name}": value for name, value in self.buffers.items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Put saved tensors back in place; names must match exactly."""
        expected = {f"{kind}/{name}" for kind in ("weights", "average") for name in self.params}
        expected |= {f"buffer/{name}" for name in self.buffers}
        saved = {name for name in tensors if not name.startswith("adam.")}
        if expected != saved:
            raise InputError(
                f"the saved state has other weights than this run (for instance {sorted(expected ^ saved)[0]}); "
                "use the settings it was started with, or another --out"
            )
        for name, param in self.params.items():
            param.copy_(tensors[f"weights/{name}"])
            self.average[name].copy_(tensors[f"average/{name}"])
        for name, buffer in self.buffers.items():
            buffer.copy_(tensors[f"buffer/{name}"])
        self.optimizer.state.clear()  # at the start there is none
        for full, value in tensors.items():
            if full.startswith("adam."):
                key, name = full.removeprefix("adam.").split("/", 1)
                # Fused Adam counts its steps where the parameter is.
                self.optimizer.state[self.params[name]][key] = value.to(self.params[name].device)
