"""What a method gives to the training loop: networks, and a loss for a batch of images."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor, nn

from diti.core.rng import Draws


@dataclass
class LossReport:
    """What an objective says about a batch."""

    total: Tensor  # scalar that is minimised: a mean over images
    per_image: Tensor  # (B,)
    time_share: Tensor | None = None  # (B,) t / T of each image, in [0, 1)
    nothing: Tensor | None = None  # (B,) the same loss for a network that predicts nothing, where known
    parts: dict[str, Tensor] = field(default_factory=dict)  # named scalars for the log

    def detached(self) -> LossReport:
        """The same numbers without their gradients."""
        return LossReport(
            self.total.detach(),
            self.per_image.detach(),
            None if self.time_share is None else self.time_share.detach(),
            None if self.nothing is None else self.nothing.detach(),
            {name: part.detach() for name, part in self.parts.items()},
        )


class Objective(nn.Module):
    """Networks and loss of a method. What requires a gradient is trained."""

    betas: tuple[float, float] = (0.9, 0.999)  # of Adam
    compares_images = False  # whether the loss of an image depends on the others of its batch
    steady = True  # whether a loss that doubles means that the training diverged; not so where networks compete
    must_gain = 0.0  # share of the loss of predicting nothing that every network that learns soon gains

    def forward(self, images: Tensor, draws: Draws) -> LossReport:
        raise TypeError(f"{type(self).__name__} does not define its loss")

    def is_inner(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether Muon trains the parameter, a matrix inside a network, and not Adam."""
        return False

    def rate_factor(self, name: str) -> float:
        """What the learning rate is multiplied by for the parameter of that name."""
        return 1.0
