"""Adam, with Muon's step (Jordan et al. 2024) for the matrices inside a network.

Muon replaces the momentum of a matrix by the nearest orthogonal one, so that all its directions are learned at the
same pace. torch.optim.Muon takes no convolutions, and computes in bfloat16, which not every CPU supports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the polynomial that draws singular values to about 1
ITERATIONS = 5
AS_ADAM = 0.2  # root mean square of a step of Adam at rate 1 (Liu et al. 2025): one rate then serves both


class MuonAdam(torch.optim.Adam):
    """Adam, and Muon for the groups that are marked `orthogonal`."""

    def __init__(self, groups: list[dict[str, Any]], **settings: Any) -> None:
        super().__init__(groups, **settings)
        # Fused Adam unscales gradients and skips overflows by itself, which Muon does not: the scaler of fp16 has
        # to do both before it asks for a step.
        self._step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both."""
        groups = self.param_groups
        for group in groups:
            for parameter in group["params"] if group.get("orthogonal") else ():
                if parameter.grad is not None:
                    self._turn(parameter, group["lr"])
        self.param_groups = [group for group in groups if not group.get("orthogonal")]
        try:
            return super().step(closure)
        finally:
            self.param_groups = groups

    def _turn(self, parameter: Tensor, rate: float) -> None:
        """θ ← θ − rate · 0.2 √max(m, n) · orthogonal(Nesterov momentum); a convolution is a matrix of filters."""
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if "momentum" not in state:  # the step is for Adam, which needs it when a state is loaded
            state["step"], state["momentum"] = parameter.new_zeros(()), torch.zeros_like(parameter)
        state["step"] += 1
        momentum = state["momentum"].lerp_(gradient, 1 - MOMENTUM)
        matrix = gradient.lerp(momentum, MOMENTUM).flatten(1)
        size = AS_ADAM * math.sqrt(max(matrix.shape))
        parameter.add_(orthogonal(matrix).view_as(parameter), alpha=-rate * size)


def orthogonal(matrix: Tensor) -> Tensor:
    """About U Vᵀ of a matrix U S Vᵀ, by Newton–Schulz: singular values end up between about 0.7 and 1.2."""
    a, b, c = COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (wide.norm() + 1e-7)
    # X ← (a + b S + c S²) X with S = X Xᵀ. All factors are polynomials of the first S, so only the rows
    # are iterated and X, which is many times as wide, is multiplied once.
    square = x @ x.T
    product = factor = _polynomial(square, a, b, c)
    for _ in range(ITERATIONS - 1):
        square = factor @ square @ factor
        factor = _polynomial(square, a, b, c)
        product = factor @ product
    turned = product @ x
    return turned if wide is matrix else turned.T


def _polynomial(square: Tensor, a: float, b: float, c: float) -> Tensor:
    """a + b S + c S² of a square matrix S."""
    found = torch.addmm(square, square, square, beta=b, alpha=c)
    found.diagonal().add_(a)
    return found
