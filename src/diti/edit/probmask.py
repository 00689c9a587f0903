"""ProbMask (Zhou et al. 2021): a linear classifier and, at the same time, the few dims of z it may use.

Each dim has a probability of being kept. A step draws a soft mask, follows the gradient of the loss, and projects
the probabilities back to a budget that shrinks from all D dims to the wanted number. The paper adopts it for
manipulation (appendix, "Extended Manipulation Algorithm"). Notation: N images, D dims, A attributes, learned side
by side: each has its own mask and never sees the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diti.core.progress import progress_bar
from diti.core.rng import torch_generator

ADVANCE = 50  # steps between moves of the progress bar
EDGE = 1e-6  # probabilities enter the logit this far from 0 and 1


@dataclass(frozen=True, kw_only=True)
class ProbMaskSettings:
    """The authors' settings but for the rate and the least number of steps.

    Theirs is 1e-4, and 10 epochs of all CelebA are 12,700 steps. Smaller data takes fewer, in which that rate
    moves little: with 37,540 faces it is 0.3 to 0.4 % AP behind 1e-3.
    """

    epochs: int = 10
    least_steps: int = 1500  # more epochs where the data is small
    batch: int = 128  # images a step
    rate: float = 1e-3  # Adam, of weight, bias and probabilities
    shrink_from: float = 0.1  # share of the steps after which the budget starts to shrink ...
    shrink_to: float = 0.4  # ... and at which it has reached the wanted number
    last_temperature: float = 0.03
    clip: float = 3.0  # largest norm of an attribute's gradient


def kept_fraction(progress: float, last: float, start: float = 0.1, end: float = 0.4) -> float:
    """Budget as a share of D: 1 up to `start`, `last` from `end` on, a cubic between."""
    left = 1 - min(max((progress - start) / (end - start), 0.0), 1.0)
    return last + (1 - last) * left**3


def temperature(progress: float, last: float = 0.03) -> float:
    """Of the soft masks: 1 at the start, falling on a line to `last`."""
    return 1 + (last - 1) * progress


def project_to_budget(p: Tensor, budget: float) -> Tensor:
    """The nearest point to each row of p (A, D) with entries in [0, 1] that sum to `budget`.

    It is clamp(p - v, 0, 1) for one number v a row. The sum falls with v on straight pieces: entry i falls while v
    goes from p_i - 1 to p_i. So the sums at all these knots are known, and v lies on one piece, exactly.
    """
    p = p.double()
    dims = p.shape[1]
    knots, entry = torch.cat([p - 1, p], dim=1).sort(dim=1)  # (A, 2D)
    falling = torch.where(entry < dims, 1.0, -1.0).double().cumsum(1)  # entries that fall to the right of a knot
    sums = dims - F.pad(falling[:, :-1] * knots.diff(dim=1), (1, 0)).cumsum(1)  # from D down to 0
    piece = ((sums >= budget).sum(1, keepdim=True) - 1).clamp(0, 2 * dims - 2)
    left, sum_left, slope = (table.gather(1, piece) for table in (knots, sums, falling))
    v = left + (sum_left - budget) / slope.clamp(min=1)
    return (p - v).clamp(0, 1).float()


def soft_mask(p: Tensor, tau: float, generator: torch.Generator) -> Tensor:
    """Gumbel-sigmoid sample sigmoid((logit p + G1 - G2) / tau): nearly a coin with P(1) = p where tau is small."""
    uniform = torch.rand(p.shape, generator=generator).clamp(EDGE, 1 - EDGE)
    noise = torch.logit(uniform)  # the difference of two Gumbel variables is logistic
    return torch.sigmoid((torch.logit(p.clamp(EDGE, 1 - EDGE)) + noise) / tau)


def probmask_probabilities(
    z: np.ndarray, y: np.ndarray, dims: int, seed: int, settings: ProbMaskSettings | None = None
) -> np.ndarray:
    """Probability (A, D) that a dim is kept, from standardised codes z (N, D) and labels 0/1 y (N, A)."""
    how = settings or ProbMaskSettings()
    codes, labels = torch.from_numpy(z).float(), torch.from_numpy(y).float()
    weight = torch.zeros(labels.shape[1], codes.shape[1], requires_grad=True)
    bias = torch.zeros(labels.shape[1], requires_grad=True)
    p = torch.ones(weight.shape, requires_grad=True)
    optimizer = torch.optim.Adam([weight, bias, p], lr=how.rate, fused=True)
    generator = torch_generator(seed, "probmask")
    batch = min(how.batch, len(codes))
    per_epoch = len(codes) // batch
    steps = max(how.epochs * per_epoch, how.least_steps)
    with progress_bar("ProbMask", steps, unit="steps") as advance:
        for step in range(steps):
            if step % per_epoch == 0:
                order = torch.randperm(len(codes), generator=generator)
            rows = order[step % per_epoch * batch :][:batch]
            mask = soft_mask(p, temperature(step / steps, how.last_temperature), generator)
            logits = codes[rows] @ (weight * mask).T + bias  # (B, A)
            loss = F.binary_cross_entropy_with_logits(logits, labels[rows], reduction="none").mean(0).sum()
            optimizer.zero_grad()
            loss.backward()
            clip_each_attribute([weight, bias, p], how.clip)
            optimizer.step()
            share = kept_fraction((step + 1) / steps, dims / codes.shape[1], how.shrink_from, how.shrink_to)
            with torch.no_grad():
                p.copy_(project_to_budget(p, share * codes.shape[1]))
            if (step + 1) % ADVANCE == 0:
                advance(ADVANCE)
    return p.detach().numpy()


def clip_each_attribute(parameters: list[Tensor], largest: float) -> None:
    """Scale the gradients of each attribute (row) so that their joint norm is at most `largest`."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.stack([g.reshape(len(g), -1).square().sum(1) for g in grads]).sum(0).sqrt()  # (A,)
    scale = (largest / norm.clamp(min=largest)).reshape(-1, 1)
    for grad in grads:
        grad.mul_(scale.reshape(-1) if grad.ndim == 1 else scale)
