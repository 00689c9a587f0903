"""The authors' probe: a linear layer trained with Adam, the best epoch chosen on validation images."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diti.core.rng import numpy_generator, torch_generator
from diti.probes.choose import quality
from diti.probes.fit import Linear

PAPER_EPOCHS, PAPER_LR, PAPER_BATCH = 15, 1e-3, {True: 128, False: 64}  # binary (CelebA), continuous (LFW)


def fit_layer(
    x: Tensor,
    labels: np.ndarray,
    binary: bool,
    valid: tuple[Tensor, np.ndarray],
    mirrored: Tensor | None,
    seed: int,
) -> Linear:
    """A linear layer as the authors train it: BCE (or squared error), Adam, 15 epochs, best epoch on valid.

    In each epoch each image is seen once, as it is or (with `mirrored` codes) mirrored, with equal probability.
    Without validation images the last epoch is used.
    """
    y = torch.from_numpy(labels).float()
    bound, rng = x.shape[1] ** -0.5, torch_generator(seed, "probe layer")
    weight = torch.empty(x.shape[1], y.shape[1]).uniform_(-bound, bound, generator=rng).requires_grad_()
    bias = torch.empty(y.shape[1]).uniform_(-bound, bound, generator=rng).requires_grad_()
    optimizer = torch.optim.Adam([weight, bias], lr=PAPER_LR)
    best, chosen = -math.inf, None
    for epoch in range(PAPER_EPOCHS):
        draw = numpy_generator(seed, "probe epoch", epoch)
        order = torch.from_numpy(draw.permutation(len(x)))
        flips = torch.from_numpy(draw.random(len(x)) < 0.5)
        for rows in order.split(PAPER_BATCH[binary]):
            codes = x[rows] if mirrored is None else torch.where(flips[rows, None], mirrored[rows], x[rows])
            optimizer.zero_grad()
            _layer_loss(codes @ weight + bias, y[rows], binary).backward()
            optimizer.step()
        none = np.zeros(y.shape[1])
        model = Linear(weight.detach().double().numpy(), bias.detach().double().numpy(), none, none)
        score = quality(model.predict(valid[0]), valid[1], binary).mean() if len(valid[1]) else epoch
        if chosen is None or score > best:
            best, chosen = score, model
    assert chosen is not None
    return chosen


def _layer_loss(predicted: Tensor, y: Tensor, binary: bool) -> Tensor:
    """Mean over the labels of the batch that are not missing."""
    seen = torch.isfinite(y)
    if binary:
        return F.binary_cross_entropy_with_logits(predicted[seen], y[seen])
    return F.mse_loss(predicted[seen], y[seen])
